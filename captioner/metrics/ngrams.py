"""N-grams of captions as integers, counted and matched against references in whole arrays.

BLEU and CIDEr both ask the same question: which n-grams of a caption stand in which of its
picture's references, and how often. The answer is computed here once, for all captions together.

Every word becomes an integer, and every n-gram the pair (its first n - 1 words as an
(n-1)-gram, its last word), which is an integer again. ``ReferenceNgrams`` numbers the n-grams of
the references once; n-grams of captions that no reference holds get numbers above those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

MAX_ORDER = 4
"""Longest n-gram that BLEU and CIDEr look at."""

Integers = NDArray[np.int64]

# An n-gram's key is prefix * 2^32 + word; both numbers stay far below 2^31.
_SHIFT = np.int64(32)


@dataclass(frozen=True)
class NgramMatches:
    """The n-grams of one order in a batch of N captions, and where the references hold them.

    The first three arrays have one entry for each distinct n-gram of each caption, the last three
    one for each reference that holds such an n-gram.

    Args:
        row: Caption of the entry, (E,), 0 .. N - 1.
        ngram: Number of the n-gram, (E,); at or above ``num_known`` where no reference has it.
        count: How often the caption holds it, (E,), at least 1.
        entry: Index into the arrays above, ascending, (J,).
        reference: Reference caption that holds the n-gram too, (J,).
        reference_count: How often it does, (J,), at least 1.
    """

    row: Integers
    ngram: Integers
    count: Integers
    entry: Integers
    reference: Integers
    reference_count: Integers


class ReferenceNgrams:
    """The n-grams of all references of a set of pictures, numbered, counted and searchable.

    Args:
        references: Reference captions of each picture, words parted by white space.

    Attributes:
        num_pictures: Pictures in the set.
        picture: Picture of each reference caption, (C,), ascending.
        first: First reference caption of each picture and, last, their number, (pictures + 1,).
        lengths: Words of each reference caption, (C,).
    """

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        sizes = np.fromiter(map(len, references), np.int64, len(references))
        self.num_pictures = len(references)
        self.first: Integers = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.picture: Integers = np.repeat(np.arange(len(references)), sizes)
        words = [caption.split() for captions in references for caption in captions]
        self.lengths: Integers = _lengths(words)
        self._word_ids: dict[str, int] = {
            word: i for i, word in enumerate(dict.fromkeys(chain.from_iterable(words)))
        }
        self._keys: list[Integers] = []
        self._entries: list[Integers] = []
        self._counts: list[Integers] = []
        num_captions = len(words)
        ids = self._number_words(words)
        positions = _Positions(self.lengths)
        ngram = ids
        for order in range(1, MAX_ORDER + 1):
            if order == 1:
                keys = np.arange(len(self._word_ids), dtype=np.int64)
            else:
                start = positions.starts(order)
                key = (ngram[start] << _SHIFT) | ids[start + order - 1]
                keys, inverse = np.unique(key, return_inverse=True)
                ngram = _spread(inverse, start, len(ids))
            start = positions.starts(order)
            entries, counts = np.unique(
                ngram[start] * num_captions + positions.caption[start], return_counts=True
            )
            self._keys.append(keys)
            self._entries.append(entries)
            self._counts.append(counts)

    def num_known(self, order: int) -> int:
        """How many distinct n-grams of this order the references hold."""
        return len(self._keys[order - 1])

    def entries(self, order: int) -> tuple[Integers, Integers, Integers]:
        """Every distinct n-gram of every reference caption.

        Args:
            order: Length of the n-grams.

        Returns:
            Number of the n-gram, reference caption and count, each (entries,), in ascending order
            of n-gram and then caption.
        """
        ngram, caption = np.divmod(self._entries[order - 1], max(1, len(self.lengths)))
        return ngram, caption, self._counts[order - 1]

    def match(
        self, captions: Sequence[str], pictures: Integers
    ) -> tuple[Integers, list[NgramMatches]]:
        """Look up the n-grams of captions in the references of their pictures.

        Args:
            captions: N captions, words parted by white space.
            pictures: Picture that each describes, (N,); a picture may occur any number of times.

        Returns:
            Words of each caption, (N,), and the matches of order 1 .. 4.
        """
        words = [caption.split() for caption in captions]
        lengths = _lengths(words)
        positions = _Positions(lengths)
        ids = self._number_words(words)
        ngram = ids
        matches = []
        for order in range(1, MAX_ORDER + 1):
            start = positions.starts(order)
            if order > 1:
                key = (ngram[start] << _SHIFT) | ids[start + order - 1]
                ngram = _spread(_look_up(self._keys[order - 1], key), start, len(ids))
            rows = max(1, len(captions))
            found, count = np.unique(
                ngram[start] * rows + positions.caption[start], return_counts=True
            )
            number, row = np.divmod(found, rows)
            matches.append(self._match_entries(order, row, number, count, pictures))
        return lengths, matches

    def _match_entries(
        self, order: int, row: Integers, ngram: Integers, count: Integers, pictures: Integers
    ) -> NgramMatches:
        # References of one picture are neighbours, so those that hold an n-gram are one run of the
        # sorted entries.
        entries = self._entries[order - 1]
        base = ngram * len(self.lengths)
        picture = pictures[row]
        left = np.searchsorted(entries, base + self.first[picture])
        right = np.searchsorted(entries, base + self.first[picture + 1])
        size = right - left
        entry = np.repeat(np.arange(len(row)), size)
        within = np.arange(len(entry)) - np.repeat(np.cumsum(size) - size, size)
        position = left[entry] + within
        return NgramMatches(
            row=row,
            ngram=ngram,
            count=count,
            entry=entry,
            reference=entries[position] - base[entry],
            reference_count=self._counts[order - 1][position],
        )

    def _number_words(self, captions: Sequence[Sequence[str]]) -> Integers:
        """Ids of all words in a row; words that no reference holds get ids above the known."""
        flat = list(chain.from_iterable(captions))
        ids = np.fromiter(map(self._word_ids.get, flat, repeat(-1)), np.int64, len(flat))
        unknown = np.flatnonzero(ids < 0)
        new: dict[str, int] = {}
        for position in unknown.tolist():
            ids[position] = new.setdefault(flat[position], len(self._word_ids) + len(new))
        return ids


class _Positions:
    """Where n-grams begin in captions that are laid end to end."""

    def __init__(self, lengths: Integers) -> None:
        self.caption = np.repeat(np.arange(len(lengths)), lengths)
        ends = np.cumsum(lengths)
        self._left = np.repeat(ends, lengths) - np.arange(len(self.caption))

    def starts(self, order: int) -> Integers:
        return np.flatnonzero(self._left >= order)


def _lengths(captions: Sequence[Sequence[str]]) -> Integers:
    return np.fromiter(map(len, captions), np.int64, len(captions))


def _spread(values: Integers, positions: Integers, size: int) -> Integers:
    # Positions where no n-gram begins are never read again: a longer one cannot begin there either.
    spread = np.full(size, -1, dtype=np.int64)
    spread[positions] = values.reshape(-1)
    return spread


def _look_up(keys: Integers, wanted: Integers) -> Integers:
    """Index of each wanted key; those that are absent are numbered on from the last."""
    found = np.searchsorted(keys, wanted)
    known = np.zeros(len(wanted), dtype=bool)
    inside = found < len(keys)
    known[inside] = keys[found[inside]] == wanted[inside]
    if not known.all():
        _, inverse = np.unique(wanted[~known], return_inverse=True)
        found[~known] = len(keys) + inverse.reshape(-1)
    return found
