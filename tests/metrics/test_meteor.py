"""METEOR against the jar's numbers, and against the jar itself where Java is."""

import gzip
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.metrics.meteor import load_resources, meteor, meteor_unavailable
from captioner.metrics.meteor.aligner import Match, align
from captioner.metrics.meteor.normalizer import Normalizer
from captioner.metrics.meteor.paraphrases import ParaphraseTable, cache_folder
from captioner.metrics.meteor.scorer import combine
from captioner.metrics.meteor.words import Stemmer, Synonyms
from captioner.metrics.score import MetricUnavailable

GOLDEN = json.loads(
    Path(__file__).with_name("golden").joinpath("meteor.json").read_text(encoding="utf-8")
)
FUNCTION_WORDS = "the\n,\na\non\n"
PREFIXES = "# titles\nMr\nX\nNo #NUMERIC_ONLY#\n"
SYNSETS = "dog\n1 2\nhound\n2\nrun\n3\nbox\n4\ncarton\n4\npas\n5\n"
EXCEPTIONS = "run\nran running\n"
PARAPHRASES = [
    ("a lot of", "many"),
    ("many", "a lot of"),
    ("red dog", "crimson hound"),
    ("kid", "child"),
]

needs_data = pytest.mark.skipif(meteor_unavailable() is not None, reason=str(meteor_unavailable()))
needs_nltk = pytest.mark.skipif(
    importlib.util.find_spec("nltk") is None, reason="nltk is not installed"
)


def write_table(folder: Path, entries=PARAPHRASES) -> Path:
    path = folder / "paraphrase-en.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"0.5\n{left}\n{right}\n" for left, right in entries)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder like that of pycocoevalcap with a few words."""
    folder = tmp_path / "data-folder"
    write_table(folder / "data")
    with zipfile.ZipFile(folder / "meteor-1.5.jar", "w") as jar:
        jar.writestr("function/english.words", FUNCTION_WORDS)
        jar.writestr("nonbreaking/english.prefixes", PREFIXES)
        jar.writestr("synonym/english.synsets", SYNSETS)
        jar.writestr("synonym/english.exceptions", EXCEPTIONS)
    return folder


@pytest.fixture
def small(data: Path, tmp_path: Path):
    return load_resources(data, tmp_path / "cache")


def score(caption, references, resources=None):
    return meteor({1: caption}, {1: references}, resources).per_image[1]


# ---------------------------------------------------------------- the jar's numbers


@needs_data
@pytest.mark.parametrize("picture", GOLDEN["pictures"], ids=lambda picture: picture["name"])
def test_score_of_a_picture_is_the_jars(picture):
    # Both compute in double precision; they add in another order.
    assert score(picture["caption"], picture["references"]) == pytest.approx(
        picture["score"], abs=1e-12
    )


@needs_data
def test_corpus_score_is_the_jars():
    pictures = GOLDEN["pictures"]
    result = meteor(
        {picture["name"]: picture["caption"] for picture in pictures},
        {picture["name"]: picture["references"] for picture in pictures},
    )
    assert result.corpus == pytest.approx(GOLDEN["corpus"], abs=1e-12)
    assert list(result.per_image) == [picture["name"] for picture in pictures]
    assert result.corpus != pytest.approx(np.mean(list(result.per_image.values())), abs=1e-3)


@needs_data
@pytest.mark.xfail(strict=True, reason="how the tool chooses among equals is not fully known")
@pytest.mark.parametrize("picture", GOLDEN["ties"], ids=lambda picture: picture["name"])
def test_ties_are_broken_as_the_jar_breaks_them(picture):
    assert score(picture["caption"], picture["references"]) == pytest.approx(
        picture["score"], abs=1e-6
    )


@needs_data
@pytest.mark.parametrize("case", GOLDEN["normalized"], ids=lambda case: case["text"][:20])
def test_words_are_the_jars(case):
    assert list(load_resources().normalize(case["text"])) == case["words"]


@needs_data
@pytest.mark.java
def test_made_up_captions_against_the_jar_itself():
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH")
    from pycocoevalcap.meteor.meteor import Meteor

    pictures = GOLDEN["pictures"]
    hypotheses = {picture["name"]: picture["caption"] for picture in pictures}
    references = {picture["name"]: picture["references"] for picture in pictures}
    corpus, scores = Meteor().compute_score(
        references, {name: [caption] for name, caption in hypotheses.items()}
    )
    result = meteor(hypotheses, references)
    assert list(result.per_image.values()) == pytest.approx(scores, abs=1e-12)
    assert result.corpus == pytest.approx(corpus, abs=1e-12)


@needs_data
@pytest.mark.java
@pytest.mark.slow
def test_val2017_against_the_jar_itself(val2017):
    if shutil.which("java") is None:
        pytest.skip("no java on the PATH")
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    hypotheses, references = val2017
    tokenizer = PTBTokenizer()
    others = tokenizer.tokenize(
        {key: [{"caption": text} for text in texts] for key, texts in references.items()}
    )
    captions = tokenizer.tokenize({key: [{"caption": text}] for key, text in hypotheses.items()})
    corpus, scores = Meteor().compute_score(others, captions)
    result = meteor({key: captions[key][0] for key in others}, others)
    assert corpus == pytest.approx(0.242095692289399, abs=1e-12)
    # The share that is promised; the rest are ties that the tool breaks in another way.
    assert result.corpus == pytest.approx(corpus, abs=1e-4)
    differences = np.abs(np.array(list(result.per_image.values())) - scores)
    assert (differences < 1e-6).mean() >= 0.99


# ---------------------------------------------------------------- the parts


@needs_nltk
def test_score_by_hand(small):
    # "the dog runs" / "the hound sits": the (function word, exact) and dog-hound (synonym) match
    # in one chunk of two words. P = (0.25 * 1 + 0.75 * 0.8) / (0.25 + 2 * 0.75) = R.
    precision = 0.85 / 1.75
    expected = precision * (1 - 0.6 * (1 / 2) ** 0.2)
    assert score("the dog runs", ["the hound sits"], small) == pytest.approx(expected)


@needs_nltk
def test_paraphrases_match_in_both_directions(small):
    for caption, reference in [("red dog", "crimson hound"), ("crimson hound", "red dog")]:
        assert score(caption, [reference], small) == pytest.approx(0.6)


@needs_nltk
def test_best_reference_counts_whatever_the_order(small):
    references = ["a cat", "the dog runs", "dogs"]
    assert score("the dog runs", references, small) == 1
    assert score("the dog runs", references[::-1], small) == 1


@needs_nltk
def test_statistics_of_a_set_give_its_score(small):
    hypotheses = {1: "the dog runs", 2: "a box", 3: ""}
    references = {1: ["the hound ran"], 2: ["a carton on a box", "boxes"], 3: ["a dog"]}
    result = meteor(hypotheses, references, small)
    values = result.statistics.values
    assert values.shape == (3, 23)
    assert combine(values).tolist() == list(result.per_image.values())
    assert result.statistics.combine(values.sum(axis=0, keepdims=True))[0] == result.corpus
    assert result.per_image[3] == 0


@needs_nltk
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_score_is_in_range_and_top_for_the_reference_itself(data, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "hypothesis-data"
    if not folder.is_dir():
        write_table(folder / "data")
        with zipfile.ZipFile(folder / "meteor-1.5.jar", "w") as jar:
            jar.writestr("function/english.words", FUNCTION_WORDS)
            jar.writestr("nonbreaking/english.prefixes", PREFIXES)
            jar.writestr("synonym/english.synsets", SYNSETS)
            jar.writestr("synonym/english.exceptions", EXCEPTIONS)
    resources = load_resources(folder, folder / "cache")
    words = st.sampled_from(["the", "a", "dogs", "hound", "ran", "on", "many", "lot", "of", "red"])
    sentence = st.lists(words, min_size=1, max_size=8).map(" ".join)
    caption, reference = data.draw(sentence), data.draw(sentence)
    assert 0 <= score(caption, [reference], resources) <= 1
    assert score(caption, [caption], resources) == pytest.approx(1)


def test_full_stops_follow_the_prefixes():
    normalize = Normalizer(PREFIXES)
    assert normalize("Mr. Fox") == ("mr.", "fox")
    assert normalize("No. 5 No. Five") == ("no.", "5", "no", ".", "five")
    assert normalize("U.S. end.") == ("us", "end", ".")
    assert normalize("end. of") == ("end.", "of")
    assert normalize("") == ()


def test_base_forms_are_those_of_morphy():
    synonyms = Synonyms(SYNSETS, EXCEPTIONS)
    assert synonyms("dogs") == {"1", "2"}
    assert synonyms("boxes") == {"4"}
    assert synonyms("ran") == {"3"}
    assert synonyms("pass") == frozenset()  # no rule for words in -ss
    assert synonyms("unknown") == frozenset()


@needs_nltk
def test_stems_that_nltk_leaves_an_e():
    from nltk.stem.snowball import EnglishStemmer

    stem = Stemmer(EnglishStemmer())
    assert stem("realization") == stem("realize") == "realiz"
    assert stem("vocationally") == stem("vocative") == "vocat"
    assert stem("nominee") == "nomine"
    assert stem("goats") == "goat"


def test_alignment_takes_fewest_chunks():
    # caption "b b x", reference "b x b": the second b goes with x.
    matches = [Match(i, 1, j, 1, 0) for i in (0, 1) for j in (0, 2)] + [Match(2, 1, 1, 1, 0)]
    alignment = align(matches)
    assert {(match.start, match.other_start) for match in alignment.matches} == {
        (1, 0),
        (2, 1),
        (0, 2),
    }
    assert alignment.chunks == 2


def test_one_word_matches_that_are_not_exact_cost_no_chunk():
    doubtful = [Match(0, 1, 0, 1, 1), Match(0, 1, 0, 1, 2)]  # a stem and a synonym
    assert align(doubtful).matches == []
    assert len(align([*doubtful, Match(1, 1, 1, 1, 0)]).matches) == 2
    assert len(align(doubtful[:1]).matches) == 1  # nothing else could be matched


def test_alignment_of_nothing():
    assert align([]) == ([], 0)


# ---------------------------------------------------------------- the index


def test_index_finds_phrases_and_neighbours(tmp_path):
    table = ParaphraseTable.open(write_table(tmp_path), tmp_path / "cache")
    found = table.find([("a", "lot", "of", "kid"), (), ("many",), ("nothing",)])
    assert [[(start, length) for start, length, _ in phrases] for phrases in found] == [
        [(0, 3), (3, 1)],
        [],
        [(0, 1)],
        [],
    ]
    lot, many = found[0][0][2], found[2][0][2]
    assert table.neighbours([lot], [many]) == {lot: {many: 2}}  # two entries say so
    assert table.neighbours([many], [lot]) == {many: {lot: 2}}
    assert table.neighbours([found[0][1][2]], [many]) == {}


def test_index_is_built_once_and_leaves_nothing_else(tmp_path, caplog):
    path = write_table(tmp_path)
    cache = tmp_path / "cache"
    with caplog.at_level(logging.INFO):
        ParaphraseTable.open(path, cache)
        ParaphraseTable.open(path, cache)
    assert sum("building the index" in record.message for record in caplog.records) == 1
    assert len(list(cache.iterdir())) == 1
    write_table(tmp_path, [("one", "two")])
    ParaphraseTable.open(path, cache)
    assert len(list(cache.iterdir())) == 2  # another table, another index


def test_broken_build_leaves_no_index(tmp_path):
    path = write_table(tmp_path)
    whole = path.read_bytes()
    for broken in (whole[:-12], whole[:-12] + b"\0" * 12, gzip.compress(b"0.5\na dog\n")):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="install pycocoevalcap again"):
            ParaphraseTable.open(path, tmp_path / "cache")
        assert list((tmp_path / "cache").iterdir()) == []


def test_cache_folder_follows_the_environment(tmp_path):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "captioner"
    for environment in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(environment) == Path.home() / ".cache" / "captioner"


# ---------------------------------------------------------------- what can be missing


@pytest.mark.parametrize("package", ["pycocoevalcap", "nltk"])
def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    reason = meteor_unavailable()
    assert reason is not None
    assert package in reason
    assert 'pip install "captioner[metrics]"' in reason
    with pytest.raises(MetricUnavailable, match=package):
        meteor({1: "a dog"}, {1: ["a dog"]})


@needs_nltk
def test_damaged_jar_is_named(data, tmp_path):
    (data / "meteor-1.5.jar").write_bytes(b"no zip")
    with pytest.raises(MetricUnavailable, match=r"meteor-1\.5\.jar"):
        load_resources(data, tmp_path / "cache")


@needs_nltk
def test_cache_that_cannot_be_written_is_named(data, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(MetricUnavailable, match="XDG_CACHE_HOME"):
        load_resources(data, tmp_path / "file")


def test_ids_must_agree():
    with pytest.raises(ValueError, match="not for the same pictures"):
        meteor({1: "a dog"}, {2: ["a dog"]})


def test_import_loads_neither_nltk_nor_torch():
    code = (
        "import sys, captioner.metrics.meteor; "
        "sys.exit(bool({'nltk', 'torch', 'pycocoevalcap'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
