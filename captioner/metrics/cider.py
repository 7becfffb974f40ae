"""CIDEr as coco-caption computes it, which the paper calls CIDEr-D."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from captioner.metrics.ngrams import MAX_ORDER, Integers, NgramMatches, ReferenceNgrams
from captioner.metrics.score import ImageKey, KeyT, Score, check_ids

_SIGMA = 6.0
_SCALE = 10.0


def cider(hypotheses: Mapping[KeyT, str], references: Mapping[KeyT, Sequence[str]]) -> Score:
    """Similarity of n-grams that are weighed by how few pictures share them.

    Args:
        hypotheses: Tokenised caption of each picture, words parted by white space.
        references: Tokenised captions that people wrote, at least one for each picture. Document
            frequencies come from all of them, so score a whole split at once, never in batches.

    Returns:
        The mean over pictures, 0 .. 10. Undefined (NaN, with the reason) for one picture alone and
        for pictures that share all n-grams, because all weights are log 1 = 0 then.

    Raises:
        ValueError: The two sides are not for the same pictures, or a picture has no references.

    References:
        Vedantam, Zitnick and Parikh 2015, CIDEr, section 3 and eq. 5 (CIDEr-D: clipped counts,
        n = 1 .. 4, sigma = 6, times 10). As in coco-caption, term frequencies are counts, and the
        lengths whose difference is penalised are numbers of bigrams.
    """
    keys = check_ids(hypotheses, references)
    index = ReferenceNgrams([references[key] for key in keys])
    pictures = np.arange(len(keys))
    lengths, matches = index.match([hypotheses[key] for key in keys], pictures)
    return cider_from_matches(keys, index, lengths, matches)


def cider_from_matches(
    keys: Sequence[ImageKey],
    index: ReferenceNgrams,
    lengths: Integers,
    matches: Sequence[NgramMatches],
) -> Score:
    """CIDEr of captions whose n-grams are already matched.

    Args:
        keys: Id of each picture; caption i describes picture i.
        index: References of the pictures.
        lengths: Words of each caption, (N,).
        matches: What ``index.match`` gave for the captions.
    """
    weights = CiderWeights(index)
    reason = weights.undefined
    if reason is not None:
        return Score(math.nan, dict.fromkeys(keys, math.nan), reason)
    scores = weights.score(lengths, matches, np.arange(len(keys)))
    return Score(float(scores.mean()), dict(zip(keys, scores.tolist(), strict=True)))


class CiderWeights:
    """Weights of n-grams and norms of references, prepared once.

    Args:
        index: References of all pictures of the corpus.
    """

    def __init__(self, index: ReferenceNgrams) -> None:
        self._index = index
        self._unknown = math.log(index.num_pictures)
        self._idf: list[NDArray[np.float64]] = []
        self._norms: list[NDArray[np.float64]] = []
        for order in range(1, MAX_ORDER + 1):
            ngram, caption, count = index.entries(order)
            # Entries are in order of n-gram and picture, so the first of each pair counts.
            picture = index.picture[caption]
            first = np.ones(len(ngram), dtype=bool)
            first[1:] = (ngram[1:] != ngram[:-1]) | (picture[1:] != picture[:-1])
            frequency = np.bincount(ngram[first], minlength=index.num_known(order))
            idf = self._unknown - np.log(np.maximum(1, frequency))
            self._idf.append(idf)
            squares = np.bincount(caption, (count * idf[ngram]) ** 2, len(index.lengths))
            self._norms.append(np.sqrt(squares))

    @property
    def undefined(self) -> str | None:
        """Why CIDEr cannot be computed with these references, None where it can."""
        if self._index.num_pictures == 1:
            return (
                "CIDEr weighs n-grams by how few pictures share them, and there is only one "
                "picture; score a whole split"
            )
        if not any(norms.any() for norms in self._norms):
            return (
                "CIDEr weighs n-grams by how few pictures share them, and the references of all "
                f"{self._index.num_pictures:,} pictures hold the same ones; check the references"
            )
        return None

    def score(
        self, lengths: Integers, matches: Sequence[NgramMatches], pictures: Integers
    ) -> NDArray[np.float64]:
        """CIDEr-D of each caption, (N,).

        Args:
            lengths: Words of each caption, (N,).
            matches: What ``index.match`` gave for the captions.
            pictures: Picture that each describes, (N,).
        """
        index = self._index
        num = len(lengths)
        # One pair for each caption and each reference of its picture.
        size = index.first[pictures + 1] - index.first[pictures]
        offset = np.cumsum(size) - size
        row = np.repeat(np.arange(num), size)
        reference = np.arange(len(row)) + (index.first[pictures] - offset)[row]
        total = np.zeros(len(row))
        for match, known, norms in zip(matches, self._idf, self._norms, strict=True):
            idf = np.full(len(match.ngram), self._unknown)
            inside = match.ngram < len(known)
            idf[inside] = known[match.ngram[inside]]
            norm = np.sqrt(np.bincount(match.row, (match.count * idf) ** 2, num))
            entry = match.entry
            product = (
                np.minimum(match.count[entry], match.reference_count)
                * match.reference_count
                * idf[entry] ** 2
            )
            of_row = match.row[entry]
            pair = offset[of_row] + match.reference - index.first[pictures[of_row]]
            # (A count of nothing is an array of integers.)
            similarity = np.bincount(pair, product, len(row)).astype(np.float64, copy=False)
            scale = norm[row] * norms[reference]
            np.divide(similarity, scale, out=similarity, where=scale > 0)
            total += similarity
        bigrams = np.maximum(0, lengths - 1)[row] - np.maximum(0, index.lengths - 1)[reference]
        total *= np.exp(-(bigrams.astype(np.float64) ** 2) / (2 * _SIGMA**2))
        return _SCALE / MAX_ORDER * np.bincount(row, total, num) / size
