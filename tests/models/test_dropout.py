"""Our dropout is dropout: right share, right mean, repeatable, off in evaluation."""

import pytest
import torch
from torch import nn

from captioner.models.dropout import Dropout, draw_mask, dropout


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_share_and_scale(share: float, dtype: torch.dtype):
    kept = dropout(torch.ones(101, 997, dtype=dtype), share, training=True)
    assert kept.dtype == dtype
    zeros = (kept == 0).double().mean().item()
    # 100,697 draws: five standard deviations.
    assert zeros == pytest.approx(share, abs=5 * (share * (1 - share) / 100_697) ** 0.5)
    scale = kept[kept != 0].double().unique()
    assert scale.item() == pytest.approx(1 / (1 - share), rel=1e-2 if dtype.itemsize == 2 else 1e-3)


def test_neighbours_fall_independently():
    """Four values come of one random number; all their joint frequencies must be products."""
    kept = (draw_mask(torch.empty(400_000), 0.3) > 0).view(-1, 4)
    patterns = (kept * torch.tensor([1, 2, 4, 8])).sum(1).bincount(minlength=16) / 100_000
    for pattern, frequency in enumerate(patterns.tolist()):
        ones = pattern.bit_count()
        expected = 0.7**ones * 0.3 ** (4 - ones)
        assert frequency == pytest.approx(expected, abs=5 * (expected / 100_000) ** 0.5)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 63])
def test_any_number_of_values(count: int):
    assert draw_mask(torch.empty(count), 0.5).shape == (count,)


def test_a_seed_repeats_it_and_evaluation_turns_it_off():
    inputs = torch.randn(50, 7)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append([dropout(inputs, 0.5, training=True) for _ in range(2)])
    assert all(torch.equal(one, other) for one, other in zip(*draws, strict=True))
    assert not torch.equal(draws[0][0], draws[0][1])
    layer = Dropout(0.5)
    assert torch.equal(layer.eval()(inputs), inputs)
    assert not torch.equal(layer.train()(inputs), inputs)
    assert torch.equal(Dropout(0.0)(inputs), inputs)


def test_gradient_passes_where_values_do():
    inputs = torch.ones(1000, requires_grad=True)
    output = nn.Sequential(Dropout(0.3))(inputs)
    output.sum().backward()
    assert torch.equal(inputs.grad, output.detach())
