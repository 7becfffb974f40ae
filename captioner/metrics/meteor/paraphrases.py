"""METEOR's 5.27 million paraphrases as arrays that are mapped, not read.

The table comes as ``paraphrase-en.gz``: a probability, a phrase and its paraphrase, a line each.
Reading it takes longer than scoring a data set, so it is turned, once per machine, into three
arrays in the user's cache folder: the hashes of all phrases in order, and for each phrase its
paraphrases. Phrases are known by 64-bit hashes alone; that one of a million other phrases has the
hash of one of the 2.6 million in the table has a chance of about one in ten million.
"""

from __future__ import annotations

import gzip
import itertools
import logging
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

MAX_WORDS = 7
"""Words in the longest phrase of the table."""

_FORMAT = 1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 18
_BOTH = np.uint32(1 << 31)  # flag of a neighbour: the table has the pair in both directions
_ARRAYS = ("phrases", "starts", "neighbours")

Hashes: TypeAlias = NDArray[np.uint64]
_Ids: TypeAlias = NDArray[np.int64]

_logger = logging.getLogger(__name__)


class _WordHashes(dict[str, int]):
    def __missing__(self, word: str) -> int:
        value = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
        self[word] = value
        return value


class ParaphraseTable:
    """Which phrases paraphrase which.

    Args:
        phrases: Hashes of all phrases, ascending.
        starts: Where the neighbours of each phrase begin, one more than phrases.
        neighbours: Rows of the paraphrases of each phrase; the highest bit is set where the table
            has the pair in both directions.
    """

    def __init__(
        self, phrases: Hashes, starts: NDArray[np.uint32], neighbours: NDArray[np.uint32]
    ) -> None:
        self._phrases = phrases
        self._starts = starts
        self._neighbours = neighbours
        self._words = _WordHashes()

    @classmethod
    def open(cls, table: Path, cache: Path) -> ParaphraseTable:
        """Map the index of a table, made first where the cache folder has none.

        Args:
            table: The compressed table.
            cache: Folder that holds indices.

        Raises:
            OSError: The table cannot be read or the cache folder not be written.
            ValueError: The table is damaged.
        """
        folder = cache / f"meteor-paraphrases-{_FORMAT}-{_fingerprint(table)}"
        if not folder.is_dir():
            _build(table, folder)
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS))

    def find(self, sentences: Sequence[Sequence[str]]) -> list[list[tuple[int, int, int]]]:
        """The phrases of the table in each sentence.

        Args:
            sentences: Words of each sentence.

        Returns:
            For each sentence (first word, number of words, row in the table), in the order of the
            first word, short ones first.
        """
        lengths = np.array([len(words) for words in sentences], dtype=np.int64)
        ends = np.cumsum(lengths)
        words = self._words
        flat = np.fromiter(
            (words[word] for word in itertools.chain.from_iterable(sentences)),
            dtype=np.uint64,
            count=int(ends[-1]) if len(ends) else 0,
        )
        left = np.repeat(ends, lengths) - np.arange(len(flat))  # words to the sentence's end
        owner = np.repeat(np.arange(len(lengths)), lengths)
        first = np.arange(len(flat)) - np.repeat(ends - lengths, lengths)
        found: list[NDArray[np.int64]] = []
        for length in range(1, MAX_WORDS + 1):
            at = np.flatnonzero(left >= length)
            grams, inverse = np.unique(_hash(flat, at, length), return_inverse=True)
            rows = self._rows(grams)[inverse]
            known = rows >= 0
            at = at[known]
            found.append(
                np.stack([owner[at], first[at], np.full(len(at), length), rows[known]], axis=1)
            )
        table = np.concatenate(found)
        table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
        result: list[list[tuple[int, int, int]]] = [[] for _ in sentences]
        for sentence, start, length, row in table.tolist():
            result[sentence].append((start, length, row))
        return result

    def neighbours(self, rows: Iterable[int], among: Iterable[int]) -> dict[int, dict[int, int]]:
        """The paraphrases of phrases.

        Args:
            rows: Rows of phrases.
            among: Rows of the paraphrases that matter.

        Returns:
            For each phrase that has any the rows of its paraphrases, with the number of entries
            that say so (1, or 2 where the table has both directions).
        """
        wanted = np.unique(np.fromiter(among, dtype=np.int64))
        result: dict[int, dict[int, int]] = {}
        keys = np.unique(np.fromiter(rows, dtype=np.int64))
        if not len(wanted) or not len(keys):
            return result
        begin = self._starts[keys].astype(np.int64)
        count = self._starts[keys + 1].astype(np.int64) - begin
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        entries = self._neighbours[np.repeat(begin, count) + offset]
        others = (entries & ~_BOTH).astype(np.int64)
        both = (entries & _BOTH) != 0
        place = np.minimum(np.searchsorted(wanted, others), len(wanted) - 1)
        hit = wanted[place] == others
        for row, other, twice in zip(
            np.repeat(keys, count)[hit].tolist(),
            others[hit].tolist(),
            both[hit].tolist(),
            strict=True,
        ):
            result.setdefault(row, {})[other] = 2 if twice else 1
        return result

    def _rows(self, hashes: Hashes) -> _Ids:
        """Row of each hash (ascending), -1 for one that is no phrase of the table."""
        if not len(self._phrases):
            return np.full(len(hashes), -1)
        place = np.minimum(np.searchsorted(self._phrases, hashes), len(self._phrases) - 1)
        return np.where(self._phrases[place] == hashes, place, -1)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The user's cache folder of this project (XDG base directories).

    Args:
        environment: Variables to look in; those of the process when not given.
    """
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path is to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "captioner"


def _fingerprint(table: Path) -> str:
    """What tells one table from another: checksum and size as gzip's last eight bytes have them."""
    with table.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        checksum, size = struct.unpack("<II", file.read(8))
    return f"{checksum:08x}{size:08x}"


def _build(table: Path, folder: Path) -> None:
    """Write the index of a table; another process that does the same does no harm."""
    _logger.info("building the index of METEOR's paraphrases in %s, once", folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        words = _WordHashes()
        sources: list[Hashes] = []
        targets: list[Hashes] = []
        try:
            with gzip.open(table, "rt", encoding="utf-8", newline="\n") as file:
                for lines in _blocks(file):
                    sources.append(_hash_phrases(lines[1::3], words))
                    targets.append(_hash_phrases(lines[2::3], words))
        except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
            raise ValueError(
                f"{table} is damaged ({error}); install pycocoevalcap again"
            ) from error
        phrases, starts, neighbours = _link(sources, targets)
        np.save(temporary / "phrases.npy", phrases)
        np.save(temporary / "starts.npy", starts)
        np.save(temporary / "neighbours.npy", neighbours)
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _blocks(file: TextIO) -> Iterator[list[str]]:
    while lines := [line.rstrip("\n") for line in itertools.islice(file, 3 * _BLOCK)]:
        if len(lines) % 3:
            raise ValueError("an entry has no three lines")
        yield lines


def _hash_phrases(phrases: Sequence[str], words: Mapping[str, int]) -> Hashes:
    lengths = np.fromiter(
        (phrase.count(" ") + 1 for phrase in phrases), dtype=np.int64, count=len(phrases)
    )
    flat = np.fromiter(
        (words[word] for word in " ".join(phrases).split(" ")),
        dtype=np.uint64,
        count=int(lengths.sum()),
    )
    begins = np.cumsum(lengths) - lengths
    hashes = np.empty(len(phrases), dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _hash(flat, begins[rows], length)
    return hashes


def _hash(words: Hashes, begins: _Ids, length: int) -> Hashes:
    """Hashes of phrases from those of their words: a polynomial modulo 2**64."""
    value = words[begins]
    for i in range(1, length):
        value = value * _FACTOR + words[begins + i]
    return value


def _link(
    sources: Sequence[Hashes], targets: Sequence[Hashes]
) -> tuple[Hashes, NDArray[np.uint32], NDArray[np.uint32]]:
    """Sort the phrases, and the paraphrases of each in both directions."""
    source = np.concatenate([*sources, np.empty(0, dtype=np.uint64)])
    target = np.concatenate([*targets, np.empty(0, dtype=np.uint64)])
    phrases = np.unique(np.concatenate([np.unique(source), np.unique(target)]))
    left = np.searchsorted(phrases, source).astype(np.uint64)
    right = np.searchsorted(phrases, target).astype(np.uint64)
    shift = np.uint64(32)
    pairs = np.concatenate([left << shift | right, right << shift | left])
    pairs.sort()
    first = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)])
    count = np.diff(np.append(first, len(pairs)))
    pairs = pairs[first]
    neighbours = (pairs & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    neighbours[count > 1] |= _BOTH
    starts = np.searchsorted(pairs >> shift, np.arange(len(phrases) + 1, dtype=np.uint64))
    return phrases, starts.astype(np.uint32), neighbours
