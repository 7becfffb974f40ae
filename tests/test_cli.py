import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner, __version__
from captioner.cli import main
from captioner.inference.checkpoint import load_model

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def model(tiny_models: dict[str, Path]) -> str:
    return str(tiny_models["sat"])


@pytest.fixture
def folder(drawn_pictures: Path, tmp_path: Path) -> Path:
    """Three pictures, one of them in a folder below, and things that are none."""
    folder = tmp_path / "album"
    (folder / "more").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for source, target in (
        ("blue_circle.png", "b.PNG"),
        ("red_square.png", "a.png"),
        ("green_square.png", "more/c.png"),
        ("green_square.png", ".hidden/d.png"),
        ("green_square.png", ".e.png"),
    ):
        found = drawn_pictures / source
        shutil.copy(found if found.exists() else found.with_suffix(".jpg"), folder / target)
    (folder / "notes.txt").write_text("no picture")
    return folder


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def run_process(*arguments: object, **options) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "captioner.cli", *map(str, arguments)],
        capture_output=True,
        env=environment,
        timeout=300,
        check=False,
        **options,
    )


def test_text(folder: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("caption", folder, "--model", model) == 0
    out = capsys.readouterr().out
    lines = [line.split("\t") for line in out.splitlines()]
    assert [path for path, _ in lines] == [
        str(folder / n) for n in ("a.png", "b.PNG", "more/c.png")
    ]
    captioner = Captioner.load(model)
    assert [caption for _, caption in lines] == [captioner.caption(p).text for p, _ in lines]


def test_jsonl(folder: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("caption", folder / "a.png", "--model", model, "--format", "jsonl") == 0
    (line,) = capsys.readouterr().out.splitlines()
    value = json.loads(line)
    assert list(value) == ["image", "caption", "words", "word_log_probs", "log_prob"]
    result = Captioner.load(model).caption(folder / "a.png")
    assert value["image"] == str(folder / "a.png")
    assert value["caption"] == result.text
    assert value["words"] == list(result.words)
    np.testing.assert_allclose(value["word_log_probs"], result.word_log_probs, atol=1e-5)
    assert value["log_prob"] == pytest.approx(result.log_prob, abs=1e-5)


def test_coco(folder: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(folder / "a.png", folder / "COCO_val2014_000000391895.jpg")
    shutil.copy(folder / "a.png", folder / "000000000042.jpg")
    assert run("caption", folder, "--model", model, "--format", "coco") == 0
    value = json.loads(capsys.readouterr().out)
    assert [set(entry) for entry in value] == [{"image_id", "caption"}] * 5
    assert [entry["image_id"] for entry in value] == [42, 391895, "a.png", "b.PNG", "c.png"]


def test_several_models_caption_together(
    folder: Path, tiny_models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(tiny_models[name]) for name in ("sat", "transformer")]
    flags = [flag for model in models for flag in ("--model", model)]
    picture = folder / "a.png"
    assert run("caption", picture, *flags, "--format", "jsonl") == 0
    value = json.loads(capsys.readouterr().out)
    result = Captioner.load(models).caption(picture)
    assert value["words"] == list(result.words)
    np.testing.assert_allclose(value["word_log_probs"], result.word_log_probs, atol=1e-5)
    # Shipped models learned other words than these.
    assert run("caption", picture, *flags, "--model", "sat-flickr8k") == 2
    error = capsys.readouterr().err
    assert f"those of {models[0]} and sat-flickr8k differ: entry " in error


def test_decoding_options_reach_the_search(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = folder / "a.png"
    captioner = Captioner.load(model)
    for flags, options in (
        (["--beam-size", "1", "--max-length", "3"], {"beam_size": 1, "max_length": 3}),
        (["--length-penalty", "3"], {"length_penalty": 3.0}),
        (["--max-length", "2"], {"max_length": 2}),
        (
            ["--sample", "--seed", "4", "--temperature", "2", "--top-k", "9", "--top-p", "0.9"],
            {"method": "sample", "seed": 4, "temperature": 2.0, "top_k": 9, "top_p": 0.9},
        ),
    ):
        assert run("caption", picture, "--model", model, *flags) == 0
        shown = capsys.readouterr().out.rstrip("\n").split("\t")[1]
        assert shown == captioner.caption(picture, **options).text, flags


@pytest.mark.parametrize("flags", [[], ["--sample", "--seed", "1", "--temperature", "3"]])
def test_several_captions(
    folder: Path, model: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["caption", folder, "--model", model, "--num-captions", "3", *flags]
    assert run(*arguments, "--format", "jsonl") == 0
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(value["image"]).name for value in values] == [
        name for name in ("a.png", "b.PNG", "c.png") for _ in range(3)
    ]
    assert len({value["caption"] for value in values[:3]}) > 1
    assert run(*arguments, "--format", "coco") == 2
    assert "one caption per picture" in capsys.readouterr().err


def test_attention_files(
    folder: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps = tmp_path / "new" / "maps"
    arguments = ("caption", folder, "--model", model, "--attention", maps)
    assert run(*arguments) == 0
    assert sorted(f.name for f in maps.iterdir()) == [
        name + end for name in ("a.png", "b.PNG", "c.png") for end in (".npz", ".png")
    ]
    result = Captioner.load(model).caption(folder / "a.png")
    with np.load(maps / "a.png.npz", allow_pickle=False) as stored:
        assert tuple(stored["words"]) == result.words
        assert str(stored["caption"]) == result.text
        np.testing.assert_allclose(stored["attention"], result.attention, atol=1e-5)
        assert tuple(stored["image_size"]) == result.image_size
        assert tuple(stored["crop_box"]) == result.crop_box
    with Image.open(maps / "a.png.png") as figure:
        assert figure.width > 400
    shutil.copy(folder / "a.png", folder / "more" / "a.png")
    capsys.readouterr()
    assert run(*arguments) == 2
    assert "occur more than once, such as a.png" in capsys.readouterr().err


def test_maps_never_overwrite_pictures(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "a.png", folder / "a.png.png")
    before = (folder / "a.png.png").read_bytes()
    assert run("caption", folder, "--model", model, "--attention", folder) == 2
    assert "would overwrite the picture" in capsys.readouterr().err
    assert (folder / "a.png.png").read_bytes() == before


def test_bad_pictures_are_named_and_the_others_come_out(
    folder: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.PNG").write_bytes(b"not a picture")
    absent = tmp_path / "absent.png"
    maps = tmp_path / "maps"
    assert run("caption", folder, absent, "--model", model, "--attention", maps) == 1
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == [
        str(folder / "a.png"),
        str(folder / "more/c.png"),
    ]
    errors = err.strip().splitlines()
    assert len(errors) == 3
    assert str(folder / "b.PNG") in errors[0]
    assert str(absent) in errors[1]
    assert "2 of 4 pictures could not be read" in errors[2]
    assert "Traceback" not in err
    assert len(list(maps.iterdir())) == 4
    for form in ("jsonl", "coco"):
        assert run("caption", folder, "--model", model, "--format", form) == 1
        out = capsys.readouterr().out
        assert len(json.loads(out) if form == "coco" else out.splitlines()) == 2


def test_a_named_file_is_always_tried(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (".e.png", "notes.txt"):
        shutil.copy(folder / "a.png", folder / name)
        assert run("caption", folder / name, "--model", model) == 0
        assert str(folder / name) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beam-size", "0"], "beam_size must be at least 1, got 0"),
        (["--beam-size", "two"], "--beam-size"),
        (["--temperature", "2"], "--temperature needs --sample"),
        (["--seed", "2"], "--seed needs --sample"),
        (["--sample", "--beam-size", "3"], "--beam-size has no meaning with --sample"),
        (["--sample", "--top-p", "1.5"], "top_p"),
        (["--num-captions", "9"], "num_captions must be at most beam_size"),
        (["--num-captions", "0"], "must be at least 1, got 0"),
        (["--batch-size", "0"], "must be at least 1, got 0"),
        (["--format", "xml"], "invalid choice: 'xml'"),
        (["--nonsense", "1"], "unrecognized arguments: --nonsense 1"),
        (["--beam", "2"], "unrecognized arguments: --beam 2"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (["--model", "no-such-model"], "no model 'no-such-model'"),
        (["--model", "/"], "is no exported model"),
    ],
)
def test_wrong_arguments(
    folder: Path,
    model: str,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("caption", folder, "--model", model, *flags) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert "Traceback" not in err


def test_nothing_to_caption_is_an_error(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("caption", tmp_path, "--model", model) == 2
    assert "no picture to caption" in capsys.readouterr().err
    assert run("caption") == 2
    assert run() == 2


def test_export(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine"
    assert run("export", tiny_checkpoint, target, "--beam-size", "2") == 0
    assert str(target) in capsys.readouterr().out
    assert Captioner.load(target).options.beam_size == 2
    assert run("export", tiny_checkpoint, target) == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert run("export", tiny_checkpoint, target, "--force") == 0
    assert Captioner.load(target).options.beam_size == 3
    assert not load_model(target).encoder.average_flip
    assert run("export", tiny_checkpoint, target, "--force", "--average-flip") == 0
    assert load_model(target).encoder.average_flip
    assert run("export", tmp_path / "absent.ckpt", tmp_path / "x") == 2
    assert "no checkpoint at" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"captioner {__version__}\n"
    for command in ([], ["caption"], ["export"], ["demo"], ["data"], ["data", "check"]):
        assert run(*command, "--help") == 0
        assert "usage: captioner" in capsys.readouterr().out


def test_start_is_light() -> None:
    """``--help`` and the import of the package wait for no library."""
    code = (
        "import sys; import captioner; from captioner.cli import main; main(['caption', '--help']);"
        "heavy = {'torch', 'numpy', 'timm', 'matplotlib', 'PIL', 'gradio', 'pytorch_lightning'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_output_is_utf8_whatever_the_locale(folder: Path, model: str) -> None:
    names = ["Straßenköter 犬.png", b"raw\xff.png".decode("utf-8", "surrogateescape")]
    for name in names:
        shutil.copy(folder / "a.png", folder / name)
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for form in ("text", "jsonl"):
        command = [sys.executable, "-m", "captioner.cli", "caption", "--model", model]
        done = subprocess.run(
            [*command, "--format", form, *(os.fsencode(folder / name) for name in names)],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert names[0].encode() in first
        if form == "text":
            assert b"raw\xff.png" in second
        else:
            assert "raw" in json.loads(second)["image"]


def test_a_reader_may_leave_early(folder: Path, model: str) -> None:
    command = f"{sys.executable} -m captioner.cli caption {folder} --model {model} --batch-size 1"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 0"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=300,
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


def test_training_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    training = importlib.import_module("captioner.training.cli")
    seen = []

    def fake(arguments: list[str]) -> int:
        seen.append(arguments)
        return 7

    monkeypatch.setattr(training, "main", fake)
    for command in ("fit", "validate", "test", "predict"):
        assert run(command, "-c", "x.yaml", "--trainer.max_epochs", "3") == 7
    assert seen[0] == ["fit", "-c", "x.yaml", "--trainer.max_epochs", "3"]
    assert [arguments[0] for arguments in seen] == ["fit", "validate", "test", "predict"]


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["fit"], "pytorch_lightning", "train"),
        (["data", "check", "-c", "x"], "jsonargparse", "train"),
        (["demo"], "gradio", "demo"),
    ],
)
def test_a_missing_extra_is_named(arguments: list[str], module: str, extra: str) -> None:
    code = (
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"
        "from captioner.cli import main\n"
        f"sys.exit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=300,
    )
    assert done.returncode == 2
    assert f"pip install 'captioner[{extra}]'" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


# data


def source(drawn_pictures: Path) -> list[str]:
    return [
        "--data.source",
        "captioner.data.sources.CaptionTable",
        "--data.source.init_args.table",
        str(drawn_pictures / "captions.csv"),
        "--data.min_count",
        "1",
    ]


def test_data_check(
    drawn_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "check", *source(drawn_pictures), "--workers", "0") == 0
    assert "every picture can be read" in capsys.readouterr().out
    copy = shutil.copytree(drawn_pictures, tmp_path / "copy")
    next(copy.glob("*.png")).unlink()
    next(copy.glob("*.jpg")).write_bytes(b"no picture")
    assert run("data", "check", *source(copy), "--workers", "0") == 1
    out = capsys.readouterr().out
    assert re.search(r"missing: 1", out)
    assert re.search(r"unreadable: 1", out)


def test_data_vocabulary(
    drawn_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from captioner.text.vocabulary import Vocabulary

    output = tmp_path / "new" / "vocabulary.json"
    arguments = ("data", "vocabulary", *source(drawn_pictures), "--output", output)
    assert run(*arguments) == 0
    words = Vocabulary.load(output).words
    assert "circle" in words
    assert "triangle" not in words  # it is in no training caption
    assert run(*arguments) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert run(*arguments, "--force") == 0


def test_data_features(
    drawn_pictures: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from captioner.data.feature_store import FeatureStore
    from captioner.inference.checkpoint import load_model

    output = tmp_path / "features"
    arguments = ("data", "features", *source(drawn_pictures), "--model.initial_weights", model)
    assert run(*arguments) == 2
    assert "--output DIR" in capsys.readouterr().err
    assert run(*arguments, "--output", output) == 0
    store = FeatureStore.open(output)
    assert store.views == ("plain", "flip")
    loaded = load_model(model)
    assert store.manifest["encoder_fingerprint"] == loaded.encoder.fingerprint()
    assert store.manifest["preprocessing"] == loaded.preprocessing.to_dict()
    assert run("data", "features", *source(drawn_pictures), "--output", output) == 2
    assert "no encoder" in capsys.readouterr().err


def test_data_says_what_is_wrong(
    drawn_pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "check") == 2
    assert "data.source" in capsys.readouterr().err
    assert run("data", "check", *source(drawn_pictures), "--data.nonsense", "1") == 2
    assert "nonsense" in capsys.readouterr().err
    assert run("data", "check", *source(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "captions.csv" in err
    assert "Traceback" not in err
