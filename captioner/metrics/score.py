"""What every metric returns, and the check that captions and references belong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

ImageKey: TypeAlias = int | str
"""Id of a picture: COCO's number or a file name."""

KeyT = TypeVar("KeyT", bound=ImageKey)

_EXAMPLES = 5


class MetricUnavailable(RuntimeError):  # noqa: N818 - no error of the caller
    """A metric whose tool or data is not on this machine; says why, and what installs it."""


@dataclass(frozen=True)
class Statistics:
    """What a corpus score is computed from: numbers of each picture, and a function of their sums.

    Sums over a resample of the pictures give the score of that resample, so that a bootstrap
    needs no second look at the captions.

    Args:
        values: One row of numbers for each picture, (N, S).
        combine: Corpus scores (B,) of B sets of pictures, from their sums (B, S).
    """

    values: Floats
    combine: Callable[[Floats], Floats]


@dataclass(frozen=True)
class Score:
    """One metric over a set of pictures, unscaled as coco-caption gives it.

    Args:
        corpus: The score of the whole set; NaN where it is undefined. For BLEU it is computed from
            summed counts and is not the mean of ``per_image``.
        per_image: The score of each picture, in the order of the hypotheses.
        reason: Why the score is undefined, None where it is defined.
        statistics: Where ``corpus`` is not the mean of ``per_image``, what it is computed from,
            rows in the order of ``per_image``.
    """

    corpus: float
    per_image: dict[ImageKey, float]
    reason: str | None = None
    statistics: Statistics | None = field(default=None, repr=False, compare=False)

    @property
    def defined(self) -> bool:
        """Whether ``corpus`` is a number that means something."""
        return not math.isnan(self.corpus)


def check_ids(
    hypotheses: Mapping[KeyT, str], references: Mapping[KeyT, Sequence[str]]
) -> tuple[KeyT, ...]:
    """Make sure that every picture has one caption and at least one reference.

    Args:
        hypotheses: Caption of each picture.
        references: Captions that people wrote, of each picture.

    Returns:
        The ids in the order of the hypotheses.

    Raises:
        TypeError: A caption is no string, or references are one string and no sequence of them.
        ValueError: Nothing to score, ids on one side only, or a picture without references.
    """
    if not hypotheses and not references:
        raise ValueError("hypotheses and references are empty; there is nothing to score")
    missing = [key for key in references if key not in hypotheses]
    unknown = [key for key in hypotheses if key not in references]
    if missing or unknown:
        raise ValueError(_mismatch(hypotheses, references, missing, unknown))
    for key, caption in hypotheses.items():
        if not isinstance(caption, str):
            raise TypeError(
                f"hypotheses must map each id to one string, got {type(caption).__name__} "
                f"for {key!r}"
            )
    for key, captions in references.items():
        if isinstance(captions, str) or not all(isinstance(caption, str) for caption in captions):
            raise TypeError(
                f"references must map each id to a sequence of strings, got {captions!r} "
                f"for {key!r}"
            )
    without = [key for key, captions in references.items() if len(captions) == 0]
    if without:
        raise ValueError(
            f"{_count(without)} no reference caption ({_examples(without)}); "
            "give at least one for each, or leave these pictures out on both sides"
        )
    return tuple(hypotheses)


def _mismatch(
    hypotheses: Collection[ImageKey],
    references: Collection[ImageKey],
    missing: Sequence[ImageKey],
    unknown: Sequence[ImageKey],
) -> str:
    parts = [
        f"hypotheses ({len(hypotheses):,}) and references ({len(references):,}) are not for the "
        "same pictures"
    ]
    if missing:
        parts.append(f"{_count(missing)} references but no caption ({_examples(missing)})")
    if unknown:
        parts.append(f"{_count(unknown)} a caption but no references ({_examples(unknown)})")
    message = "; ".join(parts)
    known = {str(key) for key in references}
    if missing and unknown and all(str(key) in known for key in unknown):
        return f"{message}. The ids agree as text: use one type, str or int, on both sides"
    return f"{message}. Score the same pictures on both sides"


def _count(keys: Collection[ImageKey]) -> str:
    return f"{len(keys):,} picture has" if len(keys) == 1 else f"{len(keys):,} pictures have"


def _examples(keys: Iterable[ImageKey]) -> str:
    keys = list(keys)
    shown = ", ".join(repr(key) for key in keys[:_EXAMPLES])
    return shown if len(keys) <= _EXAMPLES else f"{shown}, ..."
