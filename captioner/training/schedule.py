"""How the learning rate moves from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to the peak learning rate, then a decay, per optimizer step.

    Args:
        kind: ``cosine`` falls to ``final_fraction`` of the peak at the last step, ``constant``
            stays at the peak.
        warmup_steps: Optimizer steps until the peak; step i of them runs at i / warmup_steps.
        final_fraction: Learning rate of the last step, as a fraction of the peak.

    Raises:
        ValueError: If a value is out of its range.
    """

    kind: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = 300
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("cosine", "constant"):
            raise ValueError(f"kind must be 'cosine' or 'constant', got {self.kind!r}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {self.warmup_steps}")
        if not 0.0 <= self.final_fraction <= 1.0:
            raise ValueError(f"final_fraction must be in [0, 1], got {self.final_fraction}")

    def factor(self, step: int, total_steps: float) -> float:
        """The learning rate of a step as a fraction of the peak.

        Args:
            step: Optimizer steps made before this one, from 0.
            total_steps: Optimizer steps of the whole run; may be infinite for ``constant``.

        >>> [round(Schedule(warmup_steps=2).factor(step, 6), 2) for step in range(6)]
        [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.kind == "constant":
            return 1.0
        progress = (step - self.warmup_steps) / max(1.0, total_steps - self.warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        return self.final_fraction + (1.0 - self.final_fraction) * cosine
