import json
import pickle

import numpy as np
import pytest

from captioner.metrics.cider import cider
from captioner.metrics.document_frequencies import DocumentFrequencies, cider_with_frequencies

WORDS = ("a", "dog", "cat", "man", "on", "the", "grass", "runs", "sits", "red", "blue", "big")


def made_captions(num=25, seed=0):
    generator = np.random.default_rng(seed)

    def caption():
        return " ".join(generator.choice(WORDS, size=generator.integers(0, 11)))

    references = {i: [caption() for _ in range(1 + i % 4)] for i in range(num)}
    return {i: caption() for i in references}, references


def test_frequencies_of_the_references_give_cider_itself():
    hypotheses, references = made_captions()
    expected = cider(hypotheses, references)
    found = cider_with_frequencies(
        hypotheses, references, DocumentFrequencies.count(references.values())
    )
    assert found.corpus == pytest.approx(expected.corpus, abs=1e-12)
    assert found.per_image == pytest.approx(expected.per_image, abs=1e-12)


def test_a_part_of_the_set_scores_as_it_does_within_the_whole():
    hypotheses, references = made_captions()
    whole = cider(hypotheses, references)
    part = [3, 7]
    found = cider_with_frequencies(
        {i: hypotheses[i] for i in part},
        {i: references[i] for i in part},
        DocumentFrequencies.count(references.values()),
    )
    assert found.per_image == pytest.approx({i: whole.per_image[i] for i in part})


def test_one_picture_is_undefined_alone_and_defined_with_a_corpus():
    _, references = made_captions()
    own = DocumentFrequencies.count([["a dog runs"]])
    found = cider_with_frequencies({1: "a dog runs"}, {1: ["a dog runs"]}, own)
    assert not found.defined
    assert "--df" in found.reason
    corpus = DocumentFrequencies.count(references.values())
    found = cider_with_frequencies({1: "a dog runs"}, {1: ["a dog runs"]}, corpus)
    assert found.corpus > 0


def test_a_corpus_of_equal_pictures_is_undefined():
    frequencies = DocumentFrequencies.count([["a dog"], ["a dog"]])
    assert "hold the same ones" in frequencies.undefined


@pytest.mark.parametrize("name", ["df.json", "df.json.gz"])
def test_a_file_brings_back_what_was_saved(tmp_path, name):
    _, references = made_captions()
    frequencies = DocumentFrequencies.count(references.values())
    path = tmp_path / "new" / name
    frequencies.save(path)
    assert DocumentFrequencies.load(path) == frequencies
    first = path.read_bytes()
    frequencies.save(path)
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_an_ngram_counts_once_for_a_picture():
    frequencies = DocumentFrequencies.count([["a a", "a b"], ["a"]])
    assert frequencies.counts == {"a": 2, "a a": 1, "b": 1, "a b": 1}
    assert frequencies.num_pictures == 2


def test_what_is_no_such_file_is_refused(tmp_path):
    path = tmp_path / "df"
    with pytest.raises(FileNotFoundError, match="--save-df"):
        DocumentFrequencies.load(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="a pickle is not read"):
        DocumentFrequencies.load(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="of format 1"):
        DocumentFrequencies.load(path)
    value = {"format": 1, "tokenizer": "ptb-1", "num_pictures": 2, "document_frequencies": {"a": 3}}
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=r"1 \.\. num_pictures"):
        DocumentFrequencies.load(path)
    path.write_text(json.dumps(value | {"document_frequencies": {"a": 2}, "tokenizer": "other"}))
    with pytest.raises(ValueError, match="'other'"):
        DocumentFrequencies.load(path)
    with pytest.raises(ValueError, match="is a folder"):
        DocumentFrequencies.load(tmp_path)
