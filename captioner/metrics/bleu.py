"""BLEU-1..4 as coco-caption computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from captioner.metrics.ngrams import MAX_ORDER, Integers, NgramMatches, ReferenceNgrams
from captioner.metrics.score import Floats, ImageKey, KeyT, Score, Statistics, check_ids

# The constants that coco-caption adds to numerators and denominators, so that a caption without
# any match has a score near 0 and not a logarithm of 0. They show in scores of single pictures.
_TINY = 1e-15
_SMALL = 1e-9


def bleu(
    hypotheses: Mapping[KeyT, str], references: Mapping[KeyT, Sequence[str]]
) -> tuple[Score, Score, Score, Score]:
    """Precision of n-grams against all references together, with a penalty for brevity.

    Args:
        hypotheses: Tokenised caption of each picture, words parted by white space.
        references: Tokenised captions that people wrote, at least one for each picture.

    Returns:
        BLEU-1, BLEU-2, BLEU-3 and BLEU-4, each in [0, 1].

    Raises:
        ValueError: The two sides are not for the same pictures, or a picture has no references.

    References:
        Papineni et al. 2002, BLEU, section 2. As in coco-caption, the reference length is the one
        closest to the caption's (the shorter of two equally close), and 1e-15 and 1e-9 are added to
        numerators and denominators. The corpus score is computed from counts summed over pictures.
    """
    keys = check_ids(hypotheses, references)
    index = ReferenceNgrams([references[key] for key in keys])
    lengths, matches = index.match([hypotheses[key] for key in keys], np.arange(len(keys)))
    return bleu_from_matches(keys, index, lengths, matches)


def bleu_from_matches(
    keys: Sequence[ImageKey],
    index: ReferenceNgrams,
    lengths: Integers,
    matches: Sequence[NgramMatches],
) -> tuple[Score, Score, Score, Score]:
    """BLEU-1..4 of captions whose n-grams are already matched.

    Args:
        keys: Id of each picture; caption i describes picture i.
        index: References of the pictures.
        lengths: Words of each caption, (N,).
        matches: What ``index.match`` gave for the captions.
    """
    num = len(keys)
    correct = np.zeros((MAX_ORDER, num))
    for order, match in enumerate(matches):
        best = np.zeros(len(match.row), dtype=np.int64)
        np.maximum.at(best, match.entry, match.reference_count)
        clipped = np.minimum(match.count, best)
        correct[order] = np.bincount(match.row, weights=clipped, minlength=num)
    orders = np.arange(MAX_ORDER)[:, None]
    guesses = np.maximum(0, lengths[None, :] - orders).astype(np.float64)  # (4, N)
    closest = _closest_lengths(index, lengths)
    single = _combine(correct, guesses, lengths.astype(np.float64), closest)  # (4, N)
    corpus = _combine(
        correct.sum(axis=1, keepdims=True),
        guesses.sum(axis=1, keepdims=True),
        lengths.sum(keepdims=True).astype(np.float64),
        closest.sum(keepdims=True),
    )  # (4, 1)
    values = np.vstack([correct, guesses, lengths[None, :], closest[None, :]]).T  # (N, 10)
    first, second, third, fourth = (
        Score(
            float(corpus[i, 0]),
            dict(zip(keys, single[i].tolist(), strict=True)),
            statistics=Statistics(values, partial(_from_sums, order=i)),
        )
        for i in range(MAX_ORDER)
    )
    return first, second, third, fourth


def _from_sums(sums: Floats, order: int) -> Floats:
    """BLEU-(order + 1) of sets of pictures whose counts are summed, (B,) from (B, 10)."""
    counts = sums.T
    scores = _combine(counts[:MAX_ORDER], counts[MAX_ORDER:-2], counts[-2], counts[-1])
    chosen: Floats = scores[order]
    return chosen


def _closest_lengths(index: ReferenceNgrams, lengths: Integers) -> NDArray[np.float64]:
    # One integer orders references by distance first and then by length.
    distance = np.abs(index.lengths - lengths[index.picture])
    bound = np.int64(index.lengths.max(initial=0) + 1)
    best = np.minimum.reduceat(distance * bound + index.lengths, index.first[:-1])
    return (best % bound).astype(np.float64)


def _combine(
    correct: NDArray[np.float64],
    guesses: NDArray[np.float64],
    lengths: NDArray[np.float64],
    closest: NDArray[np.float64],
) -> NDArray[np.float64]:
    precision = (correct + _TINY) / (guesses + _SMALL)
    orders = np.arange(1, MAX_ORDER + 1)[:, None]
    score: NDArray[np.float64] = np.cumprod(precision, axis=0) ** (1.0 / orders)
    ratio = (lengths + _TINY) / (closest + _SMALL)
    penalty = np.exp(np.minimum(0.0, 1.0 - 1.0 / ratio))
    return score * penalty
