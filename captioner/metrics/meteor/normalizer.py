"""METEOR's own normaliser (``-norm``): words and punctuation apart, all in lower case.

Its rules were found by giving made-up text to METEOR 1.5 and reading what it aligned. They are
those of the tokenizer that comes with Moses (Koehn et al. 2007), but for these: quotes and dashes
become ASCII, hyphens between words go, ``u.s.`` becomes ``us``, and only the letters of Latin and
Cyrillic count as letters, so that every other character is a word of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_LETTER = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u017e\u0400-\u0527\u1d00-\u1d7f"
    "\ua640-\ua66e\ua67e-\ua697"
)
_SPACE = " \t\n\r\f"
_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        ("[\u2018\u2019`]", "'"),
        ("[\u201c\u201d]", '"'),
        ("''", ' " '),
        (rf"([^{_LETTER}0-9{_SPACE}\x0b.',\-])", r" \1 "),
        ("\u2013", "-"),
        (r"\.(\.+)", r" .\1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        ("--", "-"),
        (rf"([{_LETTER}0-9.])-([{_LETTER}0-9])", r"\1 \2"),
        (rf"([^{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        (rf"([^{_LETTER}0-9])'([{_LETTER}])", r"\1 ' \2"),
        (rf"([{_LETTER}])'([^{_LETTER}])", r"\1 ' \2"),
        (rf"([{_LETTER}])'([{_LETTER}])", r"\1 '\2"),
        (r"([0-9])'(s)", r"\1 '\2"),
    )
)
_PLAIN = re.compile(r"[A-Za-z0-9 ]*")
_HAS_LETTER = re.compile(f"[{_LETTER}]")
_WHITE = re.compile(f"[{_SPACE}]+")
_UNICODE_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_NUMERIC_ONLY = "#NUMERIC_ONLY#"


class Normalizer:
    """Split captions into the words that METEOR matches.

    Args:
        prefixes: Text of the list of abbreviations whose full stop ends no sentence.
    """

    def __init__(self, prefixes: str) -> None:
        self._prefixes = read_prefixes(prefixes)

    def __call__(self, caption: str) -> tuple[str, ...]:
        """The words of a caption.

        Args:
            caption: Text, here the PTB tokens parted by spaces.

        Returns:
            Words and punctuation marks in lower case, none for an empty caption.
        """
        if _PLAIN.fullmatch(caption):  # nothing that a rule could touch
            return tuple(caption.lower().split())
        text = f" {caption.strip(_SPACE)} "
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        words = [word for word in _WHITE.split(text) if word]
        parts = [
            self._full_stop(word, words[i + 1] if i + 1 < len(words) else "")
            for i, word in enumerate(words)
        ]
        lowered = _UNICODE_SPACE.sub(" ", " ".join(parts)).lower()
        return tuple(word for word in lowered.split(" ") if word)

    def _full_stop(self, word: str, following: str) -> str:
        """Part the full stop from a word that ends a sentence; close up ``u.s.``."""
        if len(word) < 2 or word[-1] != "." or word.startswith(".."):
            return word
        stem = word[:-1]
        if "." in stem and _HAS_LETTER.search(stem):
            return word.replace(".", "")
        numeric_only = self._prefixes.get(stem)
        # The second condition is about the ASCII letters only.
        if numeric_only is False or "a" <= following[:1] <= "z":
            return word
        if numeric_only and "0" <= following[:1] <= "9":
            return word
        return f"{stem} ."


def read_prefixes(text: str) -> Mapping[str, bool]:
    r"""Abbreviations, and whether they are so only before a number.

    >>> read_prefixes("#a comment\nMr\nNo #NUMERIC_ONLY#\n")
    {'Mr': False, 'No': True}
    """
    prefixes = {}
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            prefixes[line.split()[0]] = line.endswith(_NUMERIC_ONLY)
    return prefixes
