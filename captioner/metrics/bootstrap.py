"""How sure a score is: intervals and paired tests from resampled pictures.

A score is a function of numbers summed over pictures (``score.Statistics``), so that the score of
a resample is the same function of a weighted sum, and all resamples together are one product of
matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from captioner.metrics.score import Floats, Score, Statistics

REPLICATES = 1000
"""Resamples that are drawn when nothing else is said."""

_EQUAL = 1e-6
"""Scores of a picture that differ by less are equal: BLEU adds tiny constants that show."""

_CHUNK = 1 << 19  # weights that are held at a time (4 MB)


@dataclass(frozen=True)
class Interval:
    """A range that holds the score in 95 % (or another share) of the resamples.

    Args:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """How much better B is than A, over the same pictures.

    Args:
        value: Score of B minus score of A.
        low: Lower end of the interval of the difference.
        high: Upper end.
        p_value: Two-sided: how often a resample contradicts the sign of the difference, times 2.
        better: Pictures on which B scores higher.
        worse: Pictures on which B scores lower.
    """

    value: float
    low: float
    high: float
    p_value: float
    better: int
    worse: int


def bootstrap_intervals(
    scores: Mapping[str, Score],
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval | None]:
    """Percentile intervals of corpus scores when the pictures are drawn again.

    All scores see the same resamples. CIDEr's document frequencies stay as they were: a
    resample weighs the pictures' scores and does not count n-grams anew.

    Args:
        scores: Scores by name, all for the same pictures in the same order.
        replicates: How many resamples.
        seed: The same seed gives the same intervals.
        level: Share of the resamples inside the interval.

    Returns:
        One interval for each score; None where the score is undefined or there is one picture
        alone, of which nothing can be resampled.

    Raises:
        ValueError: A number out of range, or scores of different pictures.

    References:
        Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3 (percentiles).
    """
    _check(replicates, level)
    columns = {name: statistics for name, score in scores.items() if (statistics := _of(score))}
    drawn = _replicate(list(columns.values()), replicates, seed)
    tails = (100 * (1 - level) / 2, 100 * (1 + level) / 2)
    intervals: dict[str, Interval | None] = dict.fromkeys(scores)
    for name, values in zip(columns, drawn, strict=True):
        low, high = np.percentile(values, tails)
        intervals[name] = Interval(float(low), float(high))
    return intervals


def paired_bootstrap(
    first: Mapping[str, Score],
    second: Mapping[str, Score],
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Difference | None]:
    """Compare two systems on the same pictures, resampled for both together.

    Args:
        first: Scores of system A by name.
        second: Scores of system B, of the same pictures in the same order.
        replicates: How many resamples.
        seed: The same seed gives the same figures.
        level: Share of the resamples inside the interval.

    Returns:
        The difference B - A of every score that both have; None where it is undefined.

    Raises:
        ValueError: A number out of range, or scores of different pictures.

    References:
        Koehn 2004, Statistical significance tests for machine translation evaluation, section 4.
        The p-value is two-sided and adds one to counts, so that it is never 0.
    """
    _check(replicates, level)
    names = [name for name in first if name in second]
    for name in names:
        if list(first[name].per_image) != list(second[name].per_image):
            raise ValueError(f"{name}: the two systems must be scored on the same pictures")
    pairs: dict[str, tuple[Statistics, Statistics]] = {}
    for name in names:
        one, other = _of(first[name]), _of(second[name])
        if one is not None and other is not None:
            pairs[name] = (one, other)
    drawn = _replicate([part for pair in pairs.values() for part in pair], replicates, seed)
    tails = (100 * (1 - level) / 2, 100 * (1 + level) / 2)
    differences: dict[str, Difference | None] = dict.fromkeys(names)
    for i, name in enumerate(pairs):
        moved = drawn[2 * i + 1] - drawn[2 * i]
        low, high = np.percentile(moved, tails)
        against = min(int((moved <= 0).sum()), int((moved >= 0).sum()))
        change = _values(second[name]) - _values(first[name])
        differences[name] = Difference(
            value=second[name].corpus - first[name].corpus,
            low=float(low),
            high=float(high),
            p_value=min(1.0, 2 * (against + 1) / (replicates + 1)),
            better=int((change > _EQUAL).sum()),
            worse=int((change < -_EQUAL).sum()),
        )
    return differences


def _check(replicates: int, level: float) -> None:
    if replicates < 1:
        raise ValueError(f"replicates must be at least 1, got {replicates}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")


def _of(score: Score) -> Statistics | None:
    """What can be resampled of a score; a mean of pictures where nothing else is said."""
    if not score.defined or len(score.per_image) < 2:
        return None
    if score.statistics is not None:
        return score.statistics
    num = len(score.per_image)
    return Statistics(_values(score)[:, None], lambda sums: sums[:, 0] / num)


def _values(score: Score) -> Floats:
    return np.fromiter(score.per_image.values(), np.float64, len(score.per_image))


def _replicate(parts: Sequence[Statistics], replicates: int, seed: int) -> list[Floats]:
    """The score of every resample for each of the parts, (replicates,) each."""
    if not parts:
        return []
    num = len(parts[0].values)
    if any(len(part.values) != num for part in parts):
        raise ValueError("scores to resample together must be of the same pictures")
    # The four BLEU share one array of counts, which is summed once.
    arrays = {id(part.values): part.values for part in parts}
    table = np.hstack(list(arrays.values()))
    ends = np.cumsum([values.shape[1] for values in arrays.values()])
    place = {
        key: slice(int(end) - values.shape[1], int(end))
        for (key, values), end in zip(arrays.items(), ends, strict=True)
    }
    sums = np.vstack([weights @ table for weights in _draw(num, replicates, seed)])
    return [part.combine(sums[:, place[id(part.values)]]) for part in parts]


def _draw(num: int, replicates: int, seed: int) -> Iterator[Floats]:
    """How often each picture is in each resample, a few resamples at a time, (B, num)."""
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // num)
    for start in range(0, replicates, rows):
        size = min(rows, replicates - start)
        drawn = generator.integers(0, num, size=(size, num))
        drawn += np.arange(size)[:, None] * num
        counts = np.bincount(drawn.reshape(-1), minlength=size * num)
        yield counts.reshape(size, num).astype(np.float64)
