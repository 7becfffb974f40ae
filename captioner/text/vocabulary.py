"""Words and their ids, built once from training captions and kept with the model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.files import write_whole
from captioner.text.tokenizer import TOKENIZER_NAME, tokenize
from captioner.types import SpecialIds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_FORMAT = 1
_SPECIAL_WORDS = ("<pad>", "<bos>", "<eos>", "<unk>")


class Vocabulary:
    """The words that a model knows; immutable.

    Ids 0 to 3 are padding, begin, end and unknown; the words follow, most frequent first and
    alphabetically among equals.

    Args:
        words: The words from id 4 on, as ``tokenize`` writes them, each once.
        min_count: How often a word had to occur to be taken; kept for the record.

    Examples:
        >>> vocabulary = Vocabulary.build(["a dog", "a cat"], min_count=1)
        >>> vocabulary.words
        ('<pad>', '<bos>', '<eos>', '<unk>', 'a', 'cat', 'dog')
        >>> vocabulary.decode(vocabulary.encode_caption("A dog and a cat!"))
        ['a', 'dog', '<unk>', 'a', 'cat']
    """

    __slots__ = ("_ids", "_min_count", "_words")

    def __init__(self, words: Iterable[str], min_count: int = 1) -> None:
        self._words: tuple[str, ...] = (*_SPECIAL_WORDS, *words)
        self._min_count = _check_min_count(min_count)
        self._ids = {word: i for i, word in enumerate(self._words)}
        if len(self._ids) != len(self._words):
            repeated = next(w for w, count in Counter(self._words).items() if count > 1)
            raise ValueError(f"words must differ from each other, got {repeated!r} twice")

    @classmethod
    def build(
        cls, captions: Iterable[str], min_count: int = 5, max_size: int | None = None
    ) -> Vocabulary:
        """Count the words of captions and take the frequent ones.

        Give it the captions of the training split only.

        Args:
            captions: Texts in any language.
            min_count: A word that occurs less often is unknown, at least 1.
            max_size: Most entries, the four special ones included; no limit by default.

        Returns:
            A vocabulary with at least one word.

        Raises:
            ValueError: If no word is frequent enough or a limit is out of range.
        """
        _check_min_count(min_count)
        if max_size is not None and max_size <= len(_SPECIAL_WORDS):
            raise ValueError(
                f"max_size must be above {len(_SPECIAL_WORDS)}, as it counts the special tokens, "
                f"got {max_size}"
            )
        counts = _count_words(captions)
        words = _select(counts, min_count, max_size, len(_SPECIAL_WORDS))
        if not words:
            most = max(counts.values(), default=0)
            raise ValueError(
                f"no word occurs min_count={min_count} times in the captions (the most frequent "
                f"of {len(counts)} words occurs {most} times); lower min_count or check that the "
                "training split has captions"
            )
        return cls(words, min_count)

    def extended(
        self, captions: Iterable[str], min_count: int = 1, max_size: int | None = None
    ) -> Vocabulary:
        """Add words of new captions behind the own ones, whose ids stay.

        Args:
            captions: Texts, of the new training split only.
            min_count: How often a new word has to occur in them, at least 1.
            max_size: Most entries of the result; own words are never dropped.

        Returns:
            A vocabulary that begins with this one's words.

        Raises:
            ValueError: If a limit is out of range.
        """
        _check_min_count(min_count)
        if max_size is not None and max_size < len(self):
            raise ValueError(
                f"max_size must be at least {len(self)}, the entries already there, got {max_size}"
            )
        counts = {w: n for w, n in _count_words(captions).items() if w not in self._ids}
        new = _select(counts, min_count, max_size, len(self))
        own = self._words[len(_SPECIAL_WORDS) :]
        return Vocabulary((*own, *new), min(self._min_count, min_count))

    @property
    def special_ids(self) -> SpecialIds:
        """Ids of the tokens that are no words."""
        return SpecialIds()

    @property
    def words(self) -> tuple[str, ...]:
        """All entries in the order of their ids, the special ones included."""
        return self._words

    @property
    def min_count(self) -> int:
        """How often a word had to occur to be taken."""
        return self._min_count

    def encode(self, words: Sequence[str]) -> list[int]:
        """Ids of words, the unknown id for those it lacks, without begin and end.

        The written form of a special token is no word: it comes out as unknown.
        """
        first_word, unk_id = len(_SPECIAL_WORDS), self.special_ids.unk_id
        ids = (self._ids.get(word, unk_id) for word in words)
        return [i if i >= first_word else unk_id for i in ids]

    def encode_caption(self, caption: str) -> list[int]:
        """Ids of the words of a text, without begin and end."""
        return self.encode(tokenize(caption))

    def decode(self, token_ids: Iterable[int]) -> list[str]:
        """Words of ids; padding, begin and end are left out, unknown stays ``<unk>``.

        Raises:
            ValueError: If an id is not of this vocabulary.
        """
        special = self.special_ids
        silent = (special.pad_id, special.bos_id, special.eos_id)
        words = []
        for token_id in token_ids:
            i = int(token_id)
            if not 0 <= i < len(self._words):
                raise ValueError(
                    f"token id must be from 0 to {len(self._words) - 1}, got {i}; was the caption "
                    "made with another vocabulary?"
                )
            if i not in silent:
                words.append(self._words[i])
        return words

    def to_dict(self) -> dict[str, object]:
        """JSON values that ``from_dict`` reads."""
        return {
            "format": _FORMAT,
            "tokenizer": TOKENIZER_NAME,
            "min_count": self._min_count,
            "words": list(self._words),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Vocabulary:
        """Read what ``to_dict`` gave.

        Raises:
            ValueError: If the values are of another format, tokenizer or kind.
        """
        if data.get("format") != _FORMAT:
            raise ValueError(
                f"vocabulary format must be {_FORMAT}, got {data.get('format')!r}; build it again "
                "with `captioner data vocabulary`"
            )
        if data.get("tokenizer") != TOKENIZER_NAME:
            raise ValueError(
                f"vocabulary tokenizer must be {TOKENIZER_NAME!r}, got {data.get('tokenizer')!r}; "
                "its words would not be found in captions: use the version that built it or "
                "build it again with `captioner data vocabulary`"
            )
        words, min_count = data.get("words"), data.get("min_count")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("vocabulary words must be a list of texts")
        num_special = len(_SPECIAL_WORDS)
        if tuple(words[:num_special]) != _SPECIAL_WORDS:
            raise ValueError(
                f"vocabulary words must begin with {', '.join(_SPECIAL_WORDS)}, "
                f"got {words[:num_special]}"
            )
        if not isinstance(min_count, int) or isinstance(min_count, bool):
            raise ValueError(f"vocabulary min_count must be a whole number, got {min_count!r}")
        return cls(words[num_special:], min_count)

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON, one word a line, whole or not at all."""
        write_whole(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=0) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file that ``save`` wrote.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is no vocabulary that this version reads.
        """
        source = Path(path)
        try:
            text = source.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"no vocabulary at {source}; build it with `captioner data vocabulary`"
            ) from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{source} is no vocabulary: not UTF-8 ({error})") from None
        try:
            data = json.loads(text)
            if not isinstance(data, dict):
                raise ValueError("not a JSON object")
            return cls.from_dict(data)
        except ValueError as error:
            raise ValueError(f"{source} is no vocabulary: {error}") from None

    def __len__(self) -> int:
        """Entries, the special ones included."""
        return len(self._words)

    def __contains__(self, word: object) -> bool:
        """Whether a word has an id of its own; special tokens are no words."""
        return isinstance(word, str) and self._ids.get(word, 0) >= len(_SPECIAL_WORDS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} entries, min_count={self._min_count})"


def _count_words(captions: Iterable[str]) -> Counter[str]:
    if isinstance(captions, str):
        raise TypeError("captions must be several texts, got a single one; put it in a list")
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(tokenize(caption))
    return counts


def _select(
    counts: Mapping[str, int], min_count: int, max_size: int | None, num_taken: int
) -> list[str]:
    frequent = [word for word, count in counts.items() if count >= min_count]
    frequent.sort(key=lambda word: (-counts[word], word))
    return frequent if max_size is None else frequent[: max_size - num_taken]


def _check_min_count(min_count: int) -> int:
    if min_count < 1:
        raise ValueError(f"min_count must be at least 1, got {min_count}")
    return min_count
