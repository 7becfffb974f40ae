"""Runs from a feature store are runs from the pictures; a store of another encoder is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from captioner.training.cli import CaptioningCLI
from captioner.training.features import extract_features

RunCli = Callable[..., CaptioningCLI]


@pytest.fixture(scope="module")
def store(trained: tuple[CaptioningCLI, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    cli, _ = trained
    data = cli.datamodule
    folder = tmp_path_factory.mktemp("features") / "store"
    extract_features(
        data.records,
        cli.model.encoder,
        data.preprocessing,
        folder,
        views=("plain", "flip"),
        progress=False,
    )
    return folder


def test_training_from_the_store_is_training_from_pictures(
    run_cli: RunCli, trained: tuple[CaptioningCLI, Path], store: Path, tmp_path: Path
) -> None:
    run_cli("fit", tmp_path / "cached", f"--data.features_path={store}")
    cached = torch.load(tmp_path / "cached" / "last.ckpt", weights_only=True)["state_dict"]
    direct = torch.load(trained[1] / "last.ckpt", weights_only=True)["state_dict"]
    assert cached.keys() == direct.keys()
    for name, tensor in direct.items():
        if name.startswith("encoder."):
            assert torch.equal(cached[name], tensor), name
        else:
            # fp16 features differ by 5e-4 of their size; Adam's steps are 5e-3 whatever the size
            # of a gradient, and a handful of them may turn where a gradient is about 0
            assert (cached[name] - tensor).abs().mean() < 2e-3, name


def test_a_checkpoint_is_tested_from_the_store(
    run_cli: RunCli, trained: tuple[CaptioningCLI, Path], store: Path, tmp_path: Path
) -> None:
    checkpoint = f"--ckpt_path={trained[1] / 'last.ckpt'}"
    run_cli("test", tmp_path / "direct", checkpoint)
    run_cli("test", tmp_path / "cached", checkpoint, f"--data.features_path={store}")
    results = [
        json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
        for name in ("direct", "cached")
    ]
    assert results[0] == results[1]


def test_a_store_of_another_encoder_is_refused(
    run_cli: RunCli, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="made by another encoder: timm/test_efficientnet"):
        run_cli("fit", tmp_path / "other", f"--data.features_path={store}", "--seed_everything=4")
    with pytest.raises(ValueError, match=r"model.encoder is trained from 'blocks.1', but"):
        run_cli(
            "fit",
            tmp_path / "trained",
            f"--data.features_path={store}",
            "--model.encoder.init_args.trainable_from=blocks.1",
        )
