"""What a decoder is trained to make small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def caption_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of the words that came, over real positions.

    Args:
        logits: Scores of the next word at P real positions, (P, V); no padding among them.
        targets: The word that came, (P,) int64.
        label_smoothing: Share of the target's probability that is spread evenly over the
            vocabulary, in [0, 1).

    Returns:
        Scalar, in nats, float32 or wider.

    Raises:
        ValueError: If the shapes differ, nothing is given or ``label_smoothing`` is out of range.

    References:
        Szegedy et al. 2016, sec. 7 (label smoothing).
    """
    if logits.dim() != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            "logits must be (P, V) and targets (P,), one per real position, got "
            f"{tuple(logits.shape)} and {tuple(targets.shape)}; pack the targets with "
            "`targets[token_mask]`"
        )
    if targets.numel() == 0:
        raise ValueError("cross-entropy of no words is not defined: the batch holds no caption")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    if logits.dtype.itemsize < 4:
        logits = logits.float()
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)


def doubly_stochastic_penalty(attention: Tensor, token_mask: Tensor) -> Tensor:
    """How far a caption is from looking at every region equally much.

    ``sum over regions (1 - sum over words attention)^2``, averaged over captions. The sum over
    words takes real positions only, so that padding changes nothing.

    Args:
        attention: Maps of P real positions, (P, R), in the row-major order of ``token_mask``.
        token_mask: True where a position is real, (N, T).

    Returns:
        Scalar, at least 0, float32 or wider.

    Raises:
        ValueError: If the number of maps is not that of real positions, or no caption is given.

    References:
        Xu et al. 2015, eq. 14, without the factor lambda; the paper writes 1 for the target and
        so do we, although the words of a caption put T / R on a region on average.
    """
    if token_mask.dim() != 2 or token_mask.shape[0] == 0:
        raise ValueError(
            f"token_mask must be (N, T) with at least one caption, got {tuple(token_mask.shape)}"
        )
    lengths = token_mask.sum(1)
    if attention.dim() != 2 or attention.shape[0] != int(lengths.sum()):
        raise ValueError(
            f"attention must be (P, R) with one map for each of the {int(lengths.sum())} real "
            f"positions of token_mask, got {tuple(attention.shape)}"
        )
    if attention.dtype.itemsize < 4:
        attention = attention.float()
    row = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)  # (P,)
    looked_at = attention.new_zeros(len(lengths), attention.shape[1])
    looked_at = looked_at.index_add(0, row, attention)  # (N, R)
    return (1 - looked_at).square().sum(1).mean()
