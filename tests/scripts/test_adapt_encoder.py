"""The adapted weights fit where they came from, a broken run goes on, mistakes are one message."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from captioner.models.encoder import CnnEncoder

BACKBONE, STAGE = "timm/test_efficientnet", "blocks.2"


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("adapt_encoder")


def arguments(folder: Path, *more: str) -> list[str]:
    encoder = "--model.encoder=captioner.models.encoder.CnnEncoder"
    init = "--model.encoder.init_args"
    return [
        *("--output", str(folder / "encoder.safetensors"), "--accelerator", "cpu"),
        *("--data.source=captioner.training.drawn.DrawnPictures",),
        *(f"--data.source.init_args.folder={folder / 'drawn'}", "--data.num_workers=0"),
        *("--data.preprocessing.height=32", "--data.preprocessing.width=32"),
        *("--data.views=[random]", "--data.min_count=1"),
        *(encoder, f"{init}.backbone={BACKBONE}", f"{init}.stage={STAGE}"),
        f"{init}.trainable_from=blocks.2",
        *more,
    ]


def test_weights_are_those_of_the_best_epoch(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(arguments(tmp_path, "--epochs", "2")) == 0
    output = tmp_path / "encoder.safetensors"
    adapted = CnnEncoder(BACKBONE, STAGE, weights=f"file:{output}")
    best = torch.load(tmp_path / "encoder" / "best.ckpt", weights_only=True)["state_dict"]
    for name, tensor in adapted.trunk.state_dict().items():
        assert torch.equal(tensor, best[f"encoder.trunk.{name}"])
    untouched = CnnEncoder(BACKBONE, STAGE)
    assert (adapted.mean, adapted.std) == (untouched.mean, untouched.std)
    # Goes on from the last epoch, and never writes over what is there.
    last = tmp_path / "encoder" / "last.ckpt"
    assert torch.load(last, weights_only=True)["epoch"] == 1
    with pytest.raises(SystemExit):
        script.main(arguments(tmp_path, "--epochs", "3"))
    output.unlink()
    assert script.main(arguments(tmp_path, "--epochs", "3")) == 0
    assert torch.load(last, weights_only=True)["epoch"] == 2


def test_without_epochs_it_tells_what_a_frozen_encoder_knows(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = "--model.encoder.init_args.trainable_from=null"
    assert script.main(arguments(tmp_path, frozen, "--epochs", "0", "--head-epochs", "200")) == 0
    said = capsys.readouterr().out
    # Eight pictures, each with words of its own: a layer that learnt nothing would rank at chance.
    assert float(said.split("val/average_precision")[1].split()[0].strip(",")) > 0.5
    assert not (tmp_path / "encoder.safetensors").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model.encoder.init_args.trainable_from=null"], "no part of the encoder is trained"),
        (["--data.features_path=features"], "must see pictures"),
        (["--dropout=1"], "dropout must be in"),
    ],
)
def test_mistakes_are_one_message(
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit):
        script.main(arguments(tmp_path, *more))
    assert message in capsys.readouterr().err
    assert not (tmp_path / "encoder.safetensors").exists()
