"""How the text of a caption becomes words, in any language, and words become text again.

The rules need no language model and no download. They keep together what the PTB tokenizer of
coco-caption keeps together in English captions ("t-shirt", "3.5", "1,000"), so that a generated
word is one word when it is scored. They differ from it in "don't", which stays whole here.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENIZER_NAME = "words-1"
"""Stored with vocabularies and written beside scores; changes whenever a rule changes."""

# Every character falls into one of these classes. `_WORD` is written in them.
_LETTER = "L"
_DIGIT = "D"
_UNSPACED = "U"  # a letter of a script that writes no spaces between words
_MARK = "M"  # belongs to the letter before it: accents, vowel signs
_JOINER = "J"  # the two invisible joiners, which change how neighbours are drawn
_LINK = "'"  # apostrophe and its like: stays between two letters
_HYPHEN = "-"
_POINT = "."  # stays between two digits
_OTHER = " "

# First and last code points of scripts without spaces between words, in ascending order.
_UNSPACED_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),  # ideographic iteration mark and zero
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3031, 0x30FF),  # kana
    (0x3100, 0x312F),  # Bopomofo
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),  # Myanmar
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # narrow kana
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),  # Han
)
_UNSPACED_STARTS = tuple(first for first, _ in _UNSPACED_RANGES)

_APOSTROPHES = "'\u2019\u2018\u201b\u02bc\uff07`\u00b4"
_HYPHENS = "-\u2010\u2011"
# Catalan middle dot, Hebrew geresh and gershayim: letters to those who write them.
_OTHER_LINKS = "\u00b7\u05f3\u05f4"
_JOINERS = "\u200c\u200d"
# Zero-width space marks the end of a word in Thai and Khmer; all other invisible characters
# (soft hyphen, byte order mark, directions) say nothing.
_ZERO_WIDTH_SPACE = "\u200b"


def _is_variation_selector(code: int) -> bool:
    """Whether a code point only chooses a drawing of the one before it (as in keycap emoji)."""
    return 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF or code == 0x20E3


class _Clean(dict[int, str]):
    """What each character is replaced by before anything is looked at; filled as met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in _APOSTROPHES:
            clean = "'"
        elif character in _HYPHENS:
            clean = "-"
        elif character == _ZERO_WIDTH_SPACE:
            clean = " "
        elif _is_variation_selector(code) or (
            unicodedata.category(character) == "Cf" and character not in _JOINERS
        ):
            clean = ""
        else:
            clean = character
        self[code] = clean
        return clean


class _Classes(dict[int, str]):
    """The class of each character, filled as met."""

    def __missing__(self, code: int) -> str:
        kind = self[code] = _classify(chr(code))
        return kind


def _classify(character: str) -> str:
    code = ord(character)
    category = unicodedata.category(character)
    if character == "'" or character in _OTHER_LINKS:
        return _LINK
    if character == "-":
        return _HYPHEN
    if character in ".,:":
        return _POINT
    if character in _JOINERS:
        return _JOINER
    if category[0] == "M":
        return _MARK
    if character.isdecimal():
        return _DIGIT
    if category[0] in "LN":
        i = bisect_right(_UNSPACED_STARTS, code) - 1
        return _UNSPACED if i >= 0 and code <= _UNSPACED_RANGES[i][1] else _LETTER
    return _OTHER


_CLEAN = _Clean()
_CLASSES = _Classes()

# "the dog 's tail", "it is n't": Flickr captions were split before they were published.
_SPLIT_CLITIC = re.compile(r"(?<=\w)\s+(?='(?:s|d|m|ll|re|ve)(?![\w']))|(?<=\w)\s+(?=n't\b)")

_PART = r"[LD](?:[LDM]|J+(?=[LDM])|(?<=D)\.(?=D))*"
_WORD = re.compile(rf"U(?:M|J+(?=M))*|{_PART}(?:['\-]{_PART})*")


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words.

    - Unicode is composed (NFC) and lower-cased; punctuation, symbols and emoji are dropped, as
      coco-caption drops punctuation before it scores.
    - Apostrophes and hyphens stay inside words and nowhere else; typographic ones become plain
      ones. A clitic that the source split off ("dog 's", "is n't") goes back to its word.
    - Digits stay, with a point, comma or colon between two of them.
    - Accents and vowel signs stay with their letter, in every script.
    - Scripts that write no spaces (Han, kana, Thai, Lao, Khmer, Myanmar) give one word for each
      letter with its marks.

    Special tokens cannot come out: angle brackets are punctuation.

    Args:
        caption: Text in any language.

    Returns:
        The words; empty where the text holds no letter and no digit.

    Examples:
        >>> tokenize("Two dogs don\u2019t share a T-shirt, it's 3.5\u20ac!")
        ['two', 'dogs', "don't", 'share', 'a', 't-shirt', "it's", '3.5']
        >>> tokenize("\u4e24\u53ea\u72d7 <unk>")
        ['\u4e24', '\u53ea', '\u72d7', 'unk']
    """
    text = unicodedata.normalize("NFC", caption.translate(_CLEAN))
    # Again: composing and lower-casing can bring back what the other takes away.
    text = unicodedata.normalize("NFC", text.lower()).translate(_CLEAN)
    text = _SPLIT_CLITIC.sub("", text)
    classes = text.translate(_CLASSES)
    return [text[match.start() : match.end()] for match in _WORD.finditer(classes)]


def detokenize(words: Sequence[str]) -> str:
    """Join words into text as people read it.

    Args:
        words: What ``tokenize`` or a vocabulary gives.

    Returns:
        The words with a space between them, without one between two letters of scripts that
        write none. ``tokenize`` gives the same words again.

    Examples:
        >>> detokenize(["two", "dogs"])
        'two dogs'
        >>> detokenize(["\u4e24", "\u53ea", "\u72d7"]) == "\u4e24\u53ea\u72d7"
        True
    """
    pieces: list[str] = []
    after_unspaced = False
    for word in words:
        if not word:
            continue
        unspaced = _CLASSES[ord(word[0])] == _UNSPACED
        if pieces and not (unspaced and after_unspaced):
            pieces.append(" ")
        pieces.append(word)
        after_unspaced = unspaced
    return "".join(pieces)
