"""Which single words METEOR holds to be alike: the same stem, or a common WordNet synonym set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

# Morphy's rules of detachment (WordNet 3.0 reference manual, morphy(7)), nouns, verbs and
# adjectives in this order. METEOR does not know the part of speech: the first form that WordNet
# has is taken.
_DETACH = (
    ("s", ""),
    ("ses", "s"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
    ("es", "e"),
    ("es", ""),
    ("ed", "e"),
    ("ed", ""),
    ("ing", "e"),
    ("ing", ""),
    ("er", ""),
    ("est", ""),
    ("er", "e"),
    ("est", "e"),
)
_VOWELS = "aeiouy"
# Numbers of the matchers that hold two words to be alike.
_EXACT: tuple[int, ...] = (0,)
_STEM: tuple[int, ...] = (1,)
_SYNONYM: tuple[int, ...] = (2,)
_BOTH: tuple[int, ...] = (1, 2)


class _Stemmer(Protocol):
    def stem(self, token: str) -> str: ...


class Stemmer:
    """English Snowball stems as METEOR 1.5 has them.

    nltk's stemmer forgets the region R2 when step 2 replaces a suffix that began before it
    (``realization`` -> ``realize``), so that step 5 leaves a final ``e`` that has to go.

    Args:
        stemmer: nltk's ``EnglishStemmer``.
    """

    def __init__(self, stemmer: _Stemmer) -> None:
        self._stem = stemmer.stem
        self._known: dict[str, str] = {}

    def __call__(self, word: str) -> str:
        """The stem of a word in lower case."""
        stem = self._known.get(word)
        if stem is None:
            stem = self._stem(word)
            # A word that starts with its stem and one more e (``nominee``) had that e deleted by
            # step 5, which deletes one only.
            if (
                stem.endswith("e")
                and stem != word
                and not word.startswith(f"{stem}e")
                and len(stem) > _second_region(word)
            ):
                stem = stem[:-1]
            self._known[word] = stem
        return stem


def _second_region(word: str) -> int:
    """Where the region R2 of a word begins (Porter 2001, Snowball: English)."""
    letters = list(word.removeprefix("'"))
    for i, letter in enumerate(letters):
        if letter == "y" and (i == 0 or letters[i - 1] in _VOWELS):
            letters[i] = "Y"

    def after_vowel(start: int) -> int:
        for i in range(start + 1, len(letters)):
            if letters[i] not in _VOWELS and letters[i - 1] in _VOWELS:
                return i + 1
        return len(letters)

    for prefix in ("gener", "commun", "arsen"):  # codespell:ignore commun
        if word.startswith(prefix):
            return after_vowel(len(prefix))
    return after_vowel(after_vowel(0))


class Synonyms:
    """WordNet's synonym sets of a word, whatever its inflection and part of speech.

    Args:
        synsets: Text with a word and the numbers of its sets in turn, a line each.
        exceptions: Text with a base form and its irregular forms in turn, a line each.
    """

    def __init__(self, synsets: str, exceptions: str) -> None:
        lines = synsets.split("\n")
        self._synsets = dict(zip(lines[0::2], lines[1::2], strict=False))
        self._bases: dict[str, list[str]] = {}
        lines = exceptions.split("\n")
        for base, forms in zip(lines[0::2], lines[1::2], strict=False):
            for form in forms.split():
                self._bases.setdefault(form, []).append(base)
        self._known: dict[str, frozenset[str]] = {}

    def __call__(self, word: str) -> frozenset[str]:
        """The numbers of the sets that hold the word or one of its base forms."""
        known = self._known.get(word)
        if known is None:
            numbers: set[str] = set()
            for form in self._forms(word):
                numbers.update(self._synsets.get(form, "").split())
            known = self._known[word] = frozenset(numbers)
        return known

    def _forms(self, word: str) -> list[str]:
        bases = self._bases.get(word)
        if bases is not None:
            return [word, *bases]
        if len(word) > 2 and not word.endswith("ss"):
            for suffix, ending in _DETACH:
                if word.endswith(suffix):
                    base = word[: len(word) - len(suffix)] + ending
                    if base in self._synsets:
                        return [word, base]
        return [word]


def find_partners(
    left: Iterable[str],
    right: Iterable[str],
    stem: Callable[[str], str],
    synonyms: Callable[[str], frozenset[str]],
) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    """Match single words of the captions with single words of the references.

    Args:
        left: Words of the captions.
        right: Words of the references.
        stem: Stem of a word.
        synonyms: Synonym sets of a word.

    Returns:
        For each word on the left the words on the right that match it, with the numbers of the
        matchers that say so: 0 the same word, 1 the same stem, 2 a common synonym set. A word
        that is equal is matched by the first alone.
    """
    by_stem: dict[str, set[str]] = {}
    by_synset: dict[str, set[str]] = {}
    right = set(right)
    for word in right:
        by_stem.setdefault(stem(word), set()).add(word)
        for number in synonyms(word):
            by_synset.setdefault(number, set()).add(word)
    partners: dict[str, dict[str, tuple[int, ...]]] = {}
    nothing: set[str] = set()
    for word in set(left):
        found: dict[str, tuple[int, ...]] = {}
        found.update(dict.fromkeys(by_stem.get(stem(word), nothing), _STEM))
        for number in synonyms(word):
            for other in by_synset.get(number, nothing):
                found[other] = _BOTH if found.get(other, _SYNONYM) != _SYNONYM else _SYNONYM
        found.pop(word, None)
        if word in right:
            found[word] = _EXACT
        partners[word] = found
    return partners
