"""Dropout whose random mask costs little on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STEPS = 2**16


class Dropout(nn.Module):
    """``dropout`` as a layer, for training mode to switch.

    Args:
        share: Share of the values that become 0, in [0, 1).
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs of any shape, some of them 0 in training."""
        return dropout(inputs, self.share, self.training)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"share={self.share}"


def dropout(inputs: Tensor, share: float, training: bool) -> Tensor:
    """Zero a share of the values in training and scale up the others.

    On a CPU PyTorch draws each value of the mask by itself, which took a fifteenth of a
    Transformer's training step; here one random 64-bit number decides about four of them. On
    other devices this is PyTorch's own dropout.

    Args:
        inputs: Any shape.
        share: Share of the values that become 0, in [0, 1); a multiple of 2^-16 after rounding.
        training: False gives the inputs back.

    References:
        Srivastava et al. 2014, Dropout.
    """
    if not training or share == 0:
        return inputs
    if inputs.device.type != "cpu":
        return F.dropout(inputs, share)
    return inputs * draw_mask(inputs, share)


def draw_mask(like: Tensor, share: float) -> Tensor:
    """A mask of 0 (with probability ``share``) and ``1 / (1 - share)``, shaped like a tensor.

    Draws from PyTorch's global generator, so that a seed or a restored state repeats it.
    """
    threshold = round(share * _STEPS)
    numbers = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    quarters = numbers.view(torch.int16)[: like.numel()]  # uniform in -2^15 .. 2^15 - 1
    kept = (quarters >= threshold - _STEPS // 2).to(like.dtype)
    return kept.mul_(_STEPS / (_STEPS - threshold)).view(like.shape)
