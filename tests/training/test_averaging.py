"""Averaged weights: their formula, what stays as it is, and a run that is resumed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from captioner.training.callbacks import AveragedWeights
from captioner.training.cli import CaptioningCLI

RunCli = Callable[..., CaptioningCLI]
AVERAGE = [
    "--trainer.callbacks+=captioner.training.callbacks.AveragedWeights",
    "--trainer.callbacks.decay=0.7",
]


def read(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return torch.load(folder / "last.ckpt", weights_only=True)


def test_the_average_moves_and_what_is_frozen_does_not(run_cli: RunCli, tmp_path: Path) -> None:
    run_cli("fit", tmp_path / "run", *AVERAGE)
    checkpoint = read(tmp_path / "run")
    averaged, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    assert averaged.keys() == current.keys()
    for name, tensor in averaged.items():
        if name.startswith("encoder."):
            assert torch.equal(tensor, current[name]), name
    name = "decoder.embedding.weight"
    assert not torch.equal(averaged[name], current[name])


def test_the_formula() -> None:
    model = torch.nn.BatchNorm1d(3)
    average = AveragedModel(model, use_buffers=True, **AveragedWeights(0.9)._kwargs)
    average.update_parameters(model)  # the first is a copy
    with torch.no_grad():
        model.weight.add_(torch.tensor([1.0, 0.0, -2.0]))
        model.bias.fill_(0.1)
        model.num_batches_tracked.fill_(7)
    average.update_parameters(model)
    # float32
    assert average.module.weight.tolist() == pytest.approx([1.1, 1.0, 0.8], rel=1e-6)
    assert average.module.num_batches_tracked.item() == 7
    for _ in range(300):
        average.update_parameters(model)
    torch.testing.assert_close(average.module.bias, model.bias, rtol=1e-6, atol=0)
    average.module.bias.data.copy_(model.bias)
    for _ in range(10):
        average.update_parameters(model)
    assert torch.equal(average.module.bias, model.bias), "equal values must stay equal"


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1])
def test_a_decay_out_of_range_is_named(decay: float) -> None:
    with pytest.raises(ValueError, match=r"decay must be in \(0, 1\), got"):
        AveragedWeights(decay)


def test_a_resumed_run_has_the_same_average(run_cli: RunCli, tmp_path: Path) -> None:
    constant = ["--model.schedule.kind=constant"]
    run_cli("fit", tmp_path / "whole-constant", *AVERAGE, *constant)
    run_cli("fit", tmp_path / "half", *AVERAGE, *constant, "--trainer.max_epochs=1")
    checkpoint = f"--ckpt_path={tmp_path / 'half' / 'last.ckpt'}"
    run_cli("fit", tmp_path / "rest", *AVERAGE, *constant, checkpoint)
    whole, rest = read(tmp_path / "whole-constant"), read(tmp_path / "rest")
    for part in ("state_dict", "current_model_state"):
        for name, tensor in whole[part].items():
            assert torch.equal(tensor, rest[part][name]), name
