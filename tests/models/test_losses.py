"""Losses, against numbers worked out by hand."""

import math

import pytest
import torch

from captioner.models.losses import caption_cross_entropy, doubly_stochastic_penalty


def test_cross_entropy_of_two_words_by_hand():
    # Probabilities 1/4 and 1/2 for the words that came.
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [math.log(3.0), 0.0, 0.0, 0.0]])
    loss = caption_cross_entropy(logits, torch.tensor([2, 0]))
    assert loss.item() == pytest.approx((math.log(4) + math.log(2)) / 2, rel=1e-6)


def test_label_smoothing_spreads_its_share_evenly():
    logits = torch.tensor([[math.log(3.0), 0.0, 0.0, 0.0]])  # probabilities 1/2 and 3 x 1/6
    loss = caption_cross_entropy(logits, torch.tensor([0]), label_smoothing=0.2)
    expected = 0.85 * math.log(2) + 3 * 0.05 * math.log(6)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(7, 50, dtype=torch.bfloat16)
    targets = torch.randint(50, (7,))
    loss = caption_cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    assert loss == caption_cross_entropy(logits.float(), targets)


@pytest.mark.parametrize(
    ("logits", "targets", "smoothing", "message"),
    [
        ((2, 3, 4), (2, 3), 0.0, r"logits must be \(P, V\)"),
        ((3, 4), (2,), 0.0, r"pack the targets with `targets\[token_mask\]`"),
        ((0, 4), (0,), 0.0, "holds no caption"),
        ((3, 4), (3,), 1.0, r"label_smoothing must be in \[0, 1\), got 1.0"),
    ],
)
def test_cross_entropy_refuses(logits, targets, smoothing, message):
    with pytest.raises(ValueError, match=message):
        caption_cross_entropy(
            torch.zeros(logits), torch.zeros(targets, dtype=torch.int64), smoothing
        )


def test_penalty_of_two_captions_by_hand():
    # Caption 0 has two words, caption 1 has one; two regions.
    attention = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.1, 0.9]])
    mask = torch.tensor([[True, True], [True, False]])
    first = (1 - 1.25) ** 2 + (1 - 0.75) ** 2
    second = (1 - 0.1) ** 2 + (1 - 0.9) ** 2
    penalty = doubly_stochastic_penalty(attention, mask)
    assert penalty.item() == pytest.approx((first + second) / 2, rel=1e-6)


def test_penalty_does_not_see_padding():
    attention = torch.rand(3, 4).softmax(1)
    mask = torch.tensor([[True, True], [True, False]])
    padded = torch.cat((mask, torch.zeros(2, 5, dtype=torch.bool)), dim=1)
    assert doubly_stochastic_penalty(attention, mask) == doubly_stochastic_penalty(
        attention, padded
    )


def test_penalty_refuses_maps_that_do_not_fit_the_mask():
    with pytest.raises(ValueError, match="one map for each of the 3 real positions"):
        doubly_stochastic_penalty(torch.rand(4, 5), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="at least one caption"):
        doubly_stochastic_penalty(torch.rand(0, 5), torch.ones(0, 3, dtype=torch.bool))
