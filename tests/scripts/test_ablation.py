"""The ablation script makes what is missing, goes on where it was, and tabulates differences."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from captioner.training.cli import CaptioningCLI

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"{number}_{number}.jpg" for number in range(6)]
CAPTIONS = ("a red dog runs", "two cats sleep", "a man rides", "a boat", "the sea", "one tree")


@pytest.fixture(scope="module")
def ablation(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("ablation")


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "flickr8k"
    (folder / "Images").mkdir(parents=True)
    lines = [
        f"{name}#{number}\t{caption} ."
        for name, caption in zip(NAMES, CAPTIONS, strict=True)
        for number in range(2)
    ]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines), encoding="utf-8")
    for part, names in (("train", NAMES[:2]), ("dev", NAMES[2:5]), ("test", NAMES[5:])):
        (folder / f"Flickr_8k.{part}Images.txt").write_text("\n".join(names), encoding="utf-8")
    return tmp_path / "data"


def write_results(folder: Path, captions: list[str]) -> None:
    folder.mkdir(parents=True)
    rows = [
        {"image_id": name, "caption": caption}
        for name, caption in zip(NAMES[2:5], captions, strict=True)
    ]
    (folder / "results.json").write_text(json.dumps(rows), encoding="utf-8")


def test_only_missing_runs_are_made(
    ablation: ModuleType, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "runs"
    write_results(output / "sat" / "the-recipe" / "dev", ["a", "b", "c"])
    (output / "sat" / "no-gate").mkdir()  # broken off
    asked: list[list[str]] = []

    def fake(arguments: list[str]) -> int:
        asked.append(arguments)
        Path(arguments[arguments.index("--run_dir") + 1]).mkdir(parents=True)
        return 0

    monkeypatch.setattr(ablation, "captioner", fake)
    arguments = ["run", "--data-root", str(data_root), "--output", str(output), "--pictures", "1"]
    ablation.main([*arguments, "--only", "the recipe", "no gate"])
    runs = [a[a.index("--run_dir") + 1] for a in asked]
    assert runs == [
        str(output / place)
        for place in (
            "sat/no-gate/fit",
            "sat/no-gate/dev",
            "transformer/the-recipe/fit",
            "transformer/the-recipe/dev",
        )
    ]
    assert (output / "sat" / "no-gate.broken-1").is_dir()
    assert "--model.decoder.init_args.gate=false" in asked[0]
    train_list = asked[0][asked[0].index("--data.source.init_args.train_list") + 1]
    assert Path(train_list).read_text(encoding="utf-8").split() == NAMES[:1]


@pytest.mark.parametrize(
    ("name", "commands", "store"),
    [
        ("no gate", ["fit", "predict"], "shared"),
        ("224 pixels", ["data", "fit", "predict"], "own"),
        ("last stage trained", ["fit", "predict"], "null"),
    ],
)
def test_every_row_sees_the_features_of_its_encoder(
    ablation: ModuleType,
    data_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    commands: list[str],
    store: str,
) -> None:
    output, shared = tmp_path / "runs", tmp_path / "shared"
    shared.mkdir()
    own = output / "sat" / name.replace(" ", "-") / "features"
    asked: list[list[str]] = []

    def fake(arguments: list[str]) -> int:
        asked.append(arguments)
        if arguments[0] == "data":
            assert arguments[arguments.index("--output") + 1] == str(own)
            own.mkdir(parents=True)
        return 0

    monkeypatch.setattr(ablation, "captioner", fake)
    arguments = ["run", "--data-root", str(data_root), "--output", str(output)]
    ablation.main([*arguments, "--features", str(shared), "--only", name])
    assert [a[0] for a in asked] == commands
    expected = {"shared": str(shared), "own": str(own), "null": "null"}[store]
    for found in asked[-2:]:
        assert found[found.index("--data.features_path") + 1] == expected
    assert shared.is_dir()
    assert not own.exists()


def test_a_search_captions_with_the_model_of_another_row(
    ablation: ModuleType, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "runs"
    asked: list[list[str]] = []
    monkeypatch.setattr(ablation, "captioner", lambda arguments: asked.append(arguments) or 0)
    arguments = ["run", "--data-root", str(data_root), "--output", str(output)]
    with pytest.raises(SystemExit, match=r"needs the model of sat/the recipe.*run that row first"):
        ablation.main([*arguments, "--only", "beam 3"])
    for group in ("sat", "transformer"):
        folder = output / group / "the-recipe" / "fit"
        folder.mkdir(parents=True)
        (folder / "best.ckpt").touch()
    ablation.main([*arguments, "--only", "beam 3"])
    assert [a[0] for a in asked] == ["predict", "predict"]
    for group, found in zip(("sat", "transformer"), asked, strict=True):
        checkpoint = output / group / "the-recipe" / "fit" / "best.ckpt"
        assert found[found.index("--ckpt_path") + 1] == str(checkpoint)
        assert "--model.decoding.beam_size=3" in found


def test_an_ensemble_captions_dev_from_the_pictures(
    ablation: ModuleType, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "runs"
    for group in ("sat", "transformer"):
        folder = output / group / "the-recipe" / "fit"
        folder.mkdir(parents=True)
        (folder / "best.ckpt").touch()

    class Together:
        @classmethod
        def load(cls, models: list[str]) -> "Together":
            assert [Path(m).parts[-4] for m in models] == ["sat", "transformer"]
            return cls()

        def captions(self, pictures: list[Path]) -> list[SimpleNamespace]:
            return [SimpleNamespace(text=f"caption of {p.name}") for p in pictures]

    monkeypatch.setattr(ablation, "Captioner", Together)
    arguments = ["run", "--data-root", str(data_root), "--output", str(output)]
    ablation.main([*arguments, "--only", "with the Transformer"])
    results = json.loads(
        (output / "sat" / "with-the-transformer" / "dev" / "results.json").read_text("utf-8")
    )
    assert results == [{"image_id": n, "caption": f"caption of {n}"} for n in NAMES[2:5]]


def test_a_run_that_fails_stops_the_series(
    ablation: ModuleType, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation, "captioner", lambda arguments: 3)
    with pytest.raises(SystemExit, match="3"):
        ablation.main(["run", "--data-root", str(data_root), "--output", str(tmp_path / "runs")])


def test_the_table_compares_with_the_first_row(
    ablation: ModuleType, data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs"
    write_results(output / "sat" / "the-recipe" / "dev", list(CAPTIONS[2:5]))
    write_results(output / "sat" / "no-gate" / "dev", ["a man rides", "the sea", "a boat"])
    ablation.main(["table", "--data-root", str(data_root), "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| sat | the recipe | ")
    assert lines[2].endswith(" |  |")
    assert lines[3].startswith("| sat | no gate | ")
    assert float(lines[3].split("|")[5].split()[0]) < 0


def test_an_unknown_change_is_named(ablation: ModuleType, capsys) -> None:
    with pytest.raises(SystemExit):
        ablation.main(["run", "--only", "magic"])
    assert "unknown change magic; known are the recipe" in capsys.readouterr().err


def test_every_change_is_an_option_of_the_command_line(
    ablation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parsed(CaptioningCLI):
        def instantiate_classes(self) -> None:
            pass

        def _run_subcommand(self, subcommand: str) -> None:
            pass

    monkeypatch.chdir(ROOT)
    asked = set()
    for variant in ablation.VARIANTS:
        command = ["fit", "-c", f"configs/model/{variant.group}.yaml"]
        if variant.models:
            command = ["predict", "--model.initial_weights", "sat-flickr8k"]
        asked.add((*command, *variant.arguments))
    base = ["-c", "configs/base.yaml", "-c", "configs/data/flickr8k.yaml"]
    for subcommand, *arguments in sorted(asked):
        Parsed([subcommand, *base, *arguments])
    assert len({v.folder for v in ablation.VARIANTS}) == len(ablation.VARIANTS)
