# ruff: noqa: RUF001 - letters that look alike are what these tests are about.
import itertools
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from captioner.data.sources import load_annotations
from captioner.text import detokenize, tokenize

# Words, blanks, joiners, marks and scripts in a mix that meets more rules than random text does.
MIXED = st.text(
    alphabet="aZé9.,:'’`-‐—_ \n\t\u00ad\u200b\u200c\u200d\ufeff\ufe0f\u0301ßİΣσ"
    "犬かがัมนिक्षمً한글🐶#<>½²",
    max_size=40,
)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A child in a pink dress .", "a child in a pink dress"),
        ("Don't! It's the dogs' ball", "don't it's the dogs ball"),
        ("don’t don‘t donʼt don＇t don`t don´t", "don't don't don't don't don't don't"),
        ("a dog 's tail is n't wet", "a dog's tail isn't wet"),
        ("'quoted' words and ''more''", "quoted words and more"),
        ("rock 'n' roll in the '90s", "rock n roll in the 90s"),
        ("o'clock rock'n'roll", "o'clock rock'n'roll"),
        ("T-shirt, merry-go-round -- a - b", "t-shirt merry-go-round a b"),
        ("t‐shirt t‑shirt one—two 1–2", "t-shirt t-shirt one two 1 2"),
        ("3.5 of 1,000 at 10:30. No.5, 5. x", "3.5 of 1,000 at 10:30 no 5 5 x"),
        ("a 3.5-inch disk, 1st place #7", "a 3.5-inch disk 1st place 7"),
        ("snake_case e-mail@x.org $5 50% & more", "snake case e-mail x org 5 50 more"),
        ("Cafe\u0301 CAFÉ naïve STRASSE Straße", "café café naïve strasse straße"),
        ("ΜΑΥΡΟΣ ΣΚΥΛΟΣ", "μαυρος σκυλος"),
        ("Собака бежит, ёлка!", "собака бежит ёлка"),
        ("col·lecció צה״ל", "col·lecció צה״ל"),
        ("soft\u00adhyphen \ufeffmark a\u200eb", "softhyphen mark ab"),
        ("two\u2028lines\x0bhere\x85now", "two lines here now"),
        ("", ""),
        ("... !?! 🐶 👩‍👩‍👧 ❤️ 👍🏽 🇫🇷", ""),
        ("dog🐶cat 1️⃣ ½ m²", "dog cat 1 ½ m²"),
        # Latin in wide letters stays as it is written, but small.
        ("ＡＢ", "ａｂ"),
        # Hangul puts spaces between words.
        ("한국어 문장입니다.", "한국어 문장입니다"),
        # Arabic with vowel marks, Persian with a zero-width non-joiner inside a word.
        ("كَلْبٌ يَجْرِي، هنا؟", "كَلْبٌ يَجْرِي هنا"),
        ("می\u200cخواهم \u200cسگ\u200c", "می\u200cخواهم سگ"),
        # Hindi vowel signs and conjuncts, Tamil, Sinhala with a zero-width joiner.
        ("एक कुत्ता दौड़ रहा है।", "एक कुत्ता दौड़ रहा है"),
        ("ஒரு நாய் ஓடுகிறது", "ஒரு நாய் ஓடுகிறது"),
        ("ශ්\u200dරී ලංකා", "ශ්\u200dරී ලංකා"),
    ],
)
def test_words_of_captions(caption: str, words: str) -> None:
    # Composed as the tokenizer composes, so that the table may be typed either way.
    assert tokenize(caption) == unicodedata.normalize("NFC", words).split(" ") * bool(words)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("两只狗在跑。", ["两", "只", "狗", "在", "跑"]),
        ("2只狗、T恤", ["2", "只", "狗", "t", "恤"]),
        ("犬がカ゚ー走る", ["犬", "が", "カ゚", "ー", "走", "る"]),
        ("か\u3099", ["が"]),
        ("𠮷野家", ["𠮷", "野", "家"]),
        # Thai: a letter with its vowel sign and tone mark.
        ("หมาที่บ้าน", ["ห", "ม", "า", "ที่", "บ้", "า", "น"]),
        ("ဒီ", ["ဒီ"]),
    ],
)
def test_scripts_without_spaces_give_a_word_for_each_letter(caption: str, words: list[str]) -> None:
    assert tokenize(caption) == words
    assert "".join(words) in detokenize(words).replace(" ", "")


def test_detokenize_writes_spaces_where_people_do() -> None:
    assert detokenize(["a", "dog's", "3.5", "<unk>"]) == "a dog's 3.5 <unk>"
    assert detokenize(["两", "只", "狗"]) == "两只狗"
    assert detokenize(["两", "t-shirt", "狗", "犬"]) == "两 t-shirt 狗犬"
    assert detokenize([]) == ""


def test_special_tokens_never_come_out() -> None:
    words = tokenize("<pad> <bos> <eos> <unk> < eos > <start>")
    assert words == ["pad", "bos", "eos", "unk", "eos", "start"]


@settings(deadline=None)
@given(st.one_of(st.text(), MIXED))
@example("Ⅳ K Å Ω")  # signs that composition turns into capital letters
@example("e\u00ad\u0301")  # composes only when the soft hyphen is gone
@example("İstanbul")
@example("dog 's's")
@example("a n't n't")
@example("is 's 's")
def test_words_survive_a_round_trip(caption: str) -> None:
    words = tokenize(caption)
    assert tokenize(detokenize(words)) == words
    for word in words:
        assert tokenize(word) == [word]


@settings(deadline=None)
@given(st.one_of(st.text(), MIXED))
def test_words_are_clean(caption: str) -> None:
    for word in tokenize(caption):
        assert word == unicodedata.normalize("NFC", word)
        assert not any(character.isspace() for character in word)
        assert any(unicodedata.category(character)[0] in "LN" for character in word)
        assert unicodedata.category(word[0])[0] in "LN"
        assert word[-1] not in "'-.,:\u200c\u200d"
        word.encode("utf-8")  # no lone surrogates


@settings(deadline=None)
@given(st.one_of(st.text(), MIXED))
def test_case_and_composition_do_not_matter(caption: str) -> None:
    assert tokenize(unicodedata.normalize("NFD", caption)) == tokenize(caption)
    assert tokenize(caption.lower()) == tokenize(caption)


def test_every_character_survives_a_round_trip() -> None:
    characters = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character) not in ("Cn", "Co", "Cs")
    ]
    for start in range(0, len(characters), 100):  # many at once, for speed
        caption = " ".join(f"a{c}b {c}" for c in characters[start : start + 100])
        words = tokenize(caption)
        assert tokenize(" ".join(words)) == words, f"U+{ord(characters[start]):04X} and on"


def test_flickr8k_words(shared_data) -> None:
    """These captions have spaces around punctuation: splitting them must agree nearly always."""
    captions = list(itertools.chain(*flickr8k_captions(shared_data)))[::10]
    words = [tokenize(caption) for caption in captions]
    assert all(words)
    plain = [
        [w for w in caption.lower().split() if any(c.isalnum() for c in w)] for caption in captions
    ]
    same = sum(ours == theirs for ours, theirs in zip(words, plain, strict=True))
    assert same / len(words) > 0.98


@pytest.mark.java
def test_scoring_finds_our_words_as_they_are(shared_data) -> None:
    """The PTB rules of coco-caption leave our words as they leave the caption they came from.

    In all of Flickr8k 41 of 40,460 captions differ (brackets, "#", "&", "Mr.", "S.C.U.B.A.").
    """
    if shutil.which("java") is None:
        pytest.skip("needs a Java run time")
    ptb = pytest.importorskip("pycocoevalcap.tokenizer.ptbtokenizer")
    groups = flickr8k_captions(shared_data)[::20]
    captions = [caption for group in groups for caption in group]
    rewritten = [detokenize(tokenize(caption)) for caption in captions]
    texts = {i: [{"caption": text}] for i, text in enumerate([*captions, *rewritten])}
    scored = ptb.PTBTokenizer().tokenize(texts)
    same = sum(scored[i] == scored[len(captions) + i] for i in range(len(captions)))
    assert len(captions) > 2000
    assert same / len(captions) > 0.995


def flickr8k_captions(shared_data: Path) -> list[list[str]]:
    return list(load_annotations(shared_data / "flickr8k" / "Flickr8k.token.txt").values())
