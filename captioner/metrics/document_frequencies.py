"""Document frequencies of a corpus as a file, and CIDEr that takes its weights from it."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.metrics.ngrams import MAX_ORDER
from captioner.metrics.score import ImageKey, KeyT, Score, check_ids
from captioner.metrics.tokenize_ptb import PTB_TOKENIZER_NAME

FORMAT = 1
"""Number of the layout of the file."""

_SIGMA = 6.0
_SCALE = 10.0


@dataclass(frozen=True)
class DocumentFrequencies:
    """In how many pictures' references each n-gram stands.

    Args:
        num_pictures: Pictures of the corpus.
        counts: Pictures that hold an n-gram, by its words parted by single spaces.
        tokenizer: Name of the tokenizer that made the words.
    """

    num_pictures: int
    counts: Mapping[str, int]
    tokenizer: str = PTB_TOKENIZER_NAME

    @classmethod
    def count(
        cls, references: Iterable[Sequence[str]], tokenizer: str = PTB_TOKENIZER_NAME
    ) -> DocumentFrequencies:
        """Count n-grams of 1 to 4 words.

        Args:
            references: Tokenised captions of each picture, words parted by white space.
            tokenizer: Name of the tokenizer that made them.
        """
        counts: Counter[str] = Counter()
        num = 0
        for captions in references:
            num += 1
            counts.update({ngram for caption in captions for ngram in _ngrams(caption.split())})
        return cls(num, counts, tokenizer)

    @property
    def undefined(self) -> str | None:
        """Why CIDEr cannot be computed with these frequencies, None where it can."""
        if self.num_pictures <= 1:
            return (
                "CIDEr weighs n-grams by how few pictures share them, and there is only one "
                "picture; score a whole split, or take the document frequencies of one (--df FILE)"
            )
        if all(count >= self.num_pictures for count in self.counts.values()):
            return (
                "CIDEr weighs n-grams by how few pictures share them, and the references of all "
                f"{self.num_pictures:,} pictures hold the same ones; check the references, or "
                "take the document frequencies of a larger set (--df FILE)"
            )
        return None

    def save(self, path: str | Path) -> None:
        """Write the frequencies as JSON, packed where the name ends in ``.gz``; whole or not."""
        path = Path(path)
        value = {
            "format": FORMAT,
            "tokenizer": self.tokenizer,
            "num_pictures": self.num_pictures,
            "document_frequencies": dict(sorted(self.counts.items())),
        }
        data = json.dumps(value, ensure_ascii=False, indent=0).encode()
        if path.name.endswith(".gz"):
            packed = io.BytesIO()
            # No time stamp: equal frequencies are equal files.
            with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
                file.write(data)
            data = packed.getvalue()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_bytes(data)
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path, tokenizer: str = PTB_TOKENIZER_NAME) -> DocumentFrequencies:
        """Read a file that ``save`` wrote.

        Args:
            path: The file.
            tokenizer: Tokenizer that the frequencies have to be of.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is of another kind, or of another tokenizer.
        """
        path = Path(path)
        fix = "write one with `captioner evaluate RESULTS ANNOTATIONS --save-df FILE`"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(f"no document frequencies at {path}; {fix}") from None
        except IsADirectoryError:
            raise ValueError(f"{path} is a folder, not document frequencies; {fix}") from None
        try:
            if data[:2] == b"\x1f\x8b":
                data = gzip.decompress(data)
            value: Any = json.loads(data.decode("utf-8"))
        except (OSError, EOFError, ValueError) as error:
            why = "a pickle is not read, since it can run code" if data[:1] == b"\x80" else error
            raise ValueError(f"{path} is no file of document frequencies ({why}); {fix}") from None
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"{path} is no file of document frequencies of format {FORMAT}; {fix}")
        num, counts = value.get("num_pictures"), value.get("document_frequencies")
        if (
            not isinstance(num, int)
            or not isinstance(counts, dict)
            or not all(isinstance(count, int) and 0 < count <= num for count in counts.values())
        ):
            raise ValueError(f"{path}: every n-gram must stand in 1 .. num_pictures pictures")
        if value.get("tokenizer") != tokenizer:
            raise ValueError(
                f"{path} counts tokens of {value.get('tokenizer')!r}, and captions are scored on "
                f"those of {tokenizer!r}; {fix}"
            )
        return cls(num, counts, tokenizer)


def cider_with_frequencies(
    hypotheses: Mapping[KeyT, str],
    references: Mapping[KeyT, Sequence[str]],
    frequencies: DocumentFrequencies,
) -> Score:
    """CIDEr-D with the document frequencies of another corpus.

    With the frequencies of ``references`` themselves this is ``cider``.

    Args:
        hypotheses: Tokenised caption of each picture, words parted by white space.
        references: Tokenised captions that people wrote, at least one for each picture.
        frequencies: Where weights come from; n-grams that it lacks weigh most.

    Returns:
        The mean over pictures, 0 .. 10; undefined where all weights are 0.

    Raises:
        ValueError: The two sides are not for the same pictures, or a picture has no references.

    References:
        Vedantam, Zitnick and Parikh 2015, CIDEr, eq. 5; see ``cider`` for coco-caption's choices.
    """
    keys = check_ids(hypotheses, references)
    if (reason := frequencies.undefined) is not None:
        return Score(math.nan, dict.fromkeys(keys, math.nan), reason)
    top = math.log(frequencies.num_pictures)
    known = frequencies.counts
    weights: dict[str, float] = {}

    def vector(caption: str) -> _Vector:
        words = caption.split()
        parts: list[dict[str, float]] = [{} for _ in range(MAX_ORDER)]
        for ngram, count in Counter(_ngrams(words)).items():
            weight = weights.get(ngram)
            if weight is None:
                weight = weights[ngram] = top - math.log(max(1, known.get(ngram, 0)))
            parts[ngram.count(" ")][ngram] = count * weight
        norms = [math.sqrt(sum(value * value for value in part.values())) for part in parts]
        return _Vector(parts, norms, max(0, len(words) - 1))

    per_image: dict[ImageKey, float] = {}
    for key in keys:
        mine = vector(hypotheses[key])
        total = sum(_similarity(mine, vector(caption)) for caption in references[key])
        per_image[key] = _SCALE / MAX_ORDER * total / len(references[key])
    return Score(math.fsum(per_image.values()) / len(per_image), per_image)


@dataclass(frozen=True)
class _Vector:
    """Weighted n-gram counts of a caption by order, their norms, and its number of bigrams."""

    parts: list[dict[str, float]]
    norms: list[float]
    bigrams: int


def _similarity(mine: _Vector, other: _Vector) -> float:
    total = 0.0
    for part, norm, theirs, their_norm in zip(
        mine.parts, mine.norms, other.parts, other.norms, strict=True
    ):
        product = sum(
            min(value, theirs[ngram]) * theirs[ngram]
            for ngram, value in part.items()
            if ngram in theirs
        )
        if norm > 0 and their_norm > 0:
            total += product / (norm * their_norm)
    return total * math.exp(-((mine.bigrams - other.bigrams) ** 2) / (2 * _SIGMA**2))


def _ngrams(words: Sequence[str]) -> list[str]:
    return [
        " ".join(words[start : start + order])
        for order in range(1, MAX_ORDER + 1)
        for start in range(len(words) - order + 1)
    ]
