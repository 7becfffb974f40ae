"""Every file in configs/ parses and makes its objects; links carry values; comments say how."""

import re
import shlex
from pathlib import Path

import pytest

from captioner.data.datamodule import CaptionDataModule
from captioner.training.cli import CaptioningCLI
from captioner.training.module import CaptioningModule

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


class Instantiated(CaptioningCLI):
    """Makes model and data, and runs nothing."""

    def instantiate_trainer(self, **kwargs: object) -> None:  # GPUs may not be there
        pass

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def command_of(name: str) -> list[str]:
    """The first command in the opening comment of a configuration."""
    comment = (CONFIGS / name).read_text(encoding="utf-8").partition("\n\n")[0]
    match = re.search(r"^#   captioner (fit .*)$", comment, re.MULTILINE)
    assert match, f"{name} opens without a command"
    return shlex.split(match[1])


@pytest.mark.parametrize("name", FILES)
def test_the_command_in_the_comment_parses_and_instantiates(
    name: str, monkeypatch: pytest.MonkeyPatch, trained: tuple[object, Path], tmp_path: Path
) -> None:
    text = (CONFIGS / name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    arguments = command_of(name)
    assert f"configs/{name}" in text.partition("\n\n")[0] or name == "base.yaml"
    assert f"configs/{name}" in arguments
    monkeypatch.chdir(CONFIGS.parent)
    if (
        "finetune" in name or "self-critical" in name
    ):  # from a model that is there in every checkout
        arguments.append(f"--model.initial_weights={trained[1] / 'last.ckpt'}")
    if name.endswith("finetune-encoder.yaml"):
        arguments.append("--model.encoder.init_args.trainable_from=blocks.1")
    if "weights: download" in text or "configs/encoder/lite2-adapted.yaml" in arguments:
        # Of the network, or of a command that comes before.
        arguments.append("--model.encoder.init_args.weights=null")
    cli = Instantiated(arguments)
    assert isinstance(cli.model, CaptioningModule)
    assert isinstance(cli.datamodule, CaptionDataModule)


def test_the_seed_is_said_once(tiny_config: Path) -> None:
    cli = Instantiated(["fit", f"-c={tiny_config}", "--seed_everything=17"])
    assert cli.datamodule.seed == 17


def test_data_root_by_flag_and_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["base.yaml", "data/flickr8k.yaml", "model/sat.yaml"]
    arguments = ["fit", *(f"-c={CONFIGS / file}" for file in files)]
    assert Instantiated(arguments).datamodule.source.image_dir == "data/flickr8k/Images"
    monkeypatch.setenv("CAPTIONER_DATA", "/elsewhere")
    assert Instantiated(arguments).datamodule.source.image_dir == "/elsewhere/flickr8k/Images"
    there = Instantiated([*arguments, "--data_root", "/flag"])
    assert there.datamodule.source.image_dir == "/flag/flickr8k/Images"


def test_a_later_file_wins(tmp_path: Path) -> None:
    later = tmp_path / "later.yaml"
    later.write_text("# later\nmodel:\n  decoder:\n    init_args:\n      dropout: 0.25\n")
    cli = Instantiated(
        [
            "fit",
            *(f"-c={CONFIGS / f}" for f in ("base.yaml", "data/flickr8k.yaml", "model/sat.yaml")),
            f"-c={later}",
        ]
    )
    decoder = cli.config["fit"]["model"]["decoder"]
    assert decoder["init_args"]["dropout"] == 0.25
    assert decoder["init_args"]["hidden_dim"] == 512
