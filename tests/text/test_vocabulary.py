import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.text import TOKENIZER_NAME, Vocabulary, tokenize

CAPTIONS = ["A dog runs.", "a dog sits", "A cat, 一只猫", "b b"]


def test_ids_follow_count_then_alphabet() -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=1)
    assert vocabulary.words[:4] == ("<pad>", "<bos>", "<eos>", "<unk>")
    assert vocabulary.words[4:] == ("a", "b", "dog", "cat", "runs", "sits", "一", "只", "猫")
    special = vocabulary.special_ids
    assert (special.pad_id, special.bos_id, special.eos_id, special.unk_id) == (0, 1, 2, 3)
    assert Vocabulary.build(reversed(CAPTIONS), min_count=1) == vocabulary


def test_minimum_count_and_maximum_size() -> None:
    assert Vocabulary.build(CAPTIONS, min_count=2).words[4:] == ("a", "b", "dog")
    small = Vocabulary.build(CAPTIONS, min_count=1, max_size=6)
    assert len(small) == 6
    assert small.words[4:] == ("a", "b")


def test_encode_and_decode() -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    assert vocabulary.encode_caption("A DOG flies!") == [4, 6, 3]
    assert vocabulary.decode([1, 4, 6, 3, 2, 0, 0]) == ["a", "dog", "<unk>"]
    assert vocabulary.encode([]) == []
    # What looks like a special token is only an unknown word.
    assert vocabulary.encode(["<bos>", "<pad>", "<eos>", "<unk>"]) == [3, 3, 3, 3]
    assert "dog" in vocabulary
    assert "<bos>" not in vocabulary
    assert "flies" not in vocabulary
    assert 4 not in vocabulary


@pytest.mark.parametrize("token_id", [-1, 7, 10**9])
def test_decode_names_a_bad_id(token_id: int) -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    with pytest.raises(ValueError, match=f"token id must be from 0 to 6, got {token_id}"):
        vocabulary.decode([4, token_id])


@settings(deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1))
def test_known_captions_survive_a_round_trip(captions: list[str]) -> None:
    if not any(map(tokenize, captions)):
        return
    vocabulary = Vocabulary.build(captions, min_count=1)
    for caption in captions:
        ids = vocabulary.encode_caption(caption)
        assert vocabulary.special_ids.unk_id not in ids
        assert vocabulary.decode(ids) == tokenize(caption)
    assert Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict()))) == vocabulary


def test_saved_and_loaded(tmp_path) -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    file = tmp_path / "new" / "vocabulary.json"
    vocabulary.save(file)
    vocabulary.save(file)  # a second run is no error
    assert list(file.parent.iterdir()) == [file]
    loaded = Vocabulary.load(file)
    assert loaded == vocabulary
    assert loaded.min_count == 2
    data = json.loads(file.read_bytes().decode("utf-8"))
    assert data["tokenizer"] == TOKENIZER_NAME
    assert data["format"] == 1


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    file = tmp_path / "vocabulary.json"
    Vocabulary(["old"]).save(file)

    def fail(*args, **kwargs) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        Vocabulary(["new"]).save(file)
    assert list(tmp_path.iterdir()) == [file]
    assert "old" in Vocabulary.load(file)


def test_missing_and_broken_files_are_named(tmp_path) -> None:
    file = tmp_path / "vocabulary.json"
    with pytest.raises(FileNotFoundError, match=r"no vocabulary at .*captioner data vocabulary"):
        Vocabulary.load(file)
    for text in ("", "[]", "{", '{"format": 1}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"vocabulary\.json is no vocabulary"):
            Vocabulary.load(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        Vocabulary.load(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format must be 1, got 2"),
        ({"tokenizer": "ptb"}, "tokenizer must be 'words-1', got 'ptb'"),
        ({"words": "abc"}, "must be a list of texts"),
        ({"words": ["<pad>", 3]}, "must be a list of texts"),
        ({"words": ["a", "b", "c", "d"]}, "must begin with <pad>"),
        ({"words": ["<pad>", "<bos>", "<eos>", "<unk>", "a", "a"]}, "got 'a' twice"),
        ({"min_count": None}, "min_count must be a whole number"),
    ],
)
def test_foreign_values_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vocabulary.from_dict({**Vocabulary(["a"]).to_dict(), **change})


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="min_count must be at least 1, got 0"):
        Vocabulary.build(CAPTIONS, min_count=0)
    with pytest.raises(ValueError, match="max_size must be above 4"):
        Vocabulary.build(CAPTIONS, max_size=4)
    with pytest.raises(ValueError, match=r"no word occurs min_count=5 times .* occurs 3 times"):
        Vocabulary.build(CAPTIONS)
    with pytest.raises(ValueError, match="check that the training split has captions"):
        Vocabulary.build([])
    with pytest.raises(TypeError, match="put it in a list"):
        Vocabulary.build("a dog")


def test_extended_keeps_ids_and_appends() -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    longer = vocabulary.extended(["a zebra and a dog", "zebra", "ape"])
    assert longer.words[: len(vocabulary)] == vocabulary.words
    assert longer.words[len(vocabulary) :] == ("zebra", "and", "ape")
    assert vocabulary.extended(["ape zebra zebra"], max_size=8).words[7:] == ("zebra",)
    assert vocabulary.extended([]) == vocabulary
    with pytest.raises(ValueError, match="max_size must be at least 7"):
        vocabulary.extended(["x"], max_size=5)


def test_immutable_picklable_and_comparable() -> None:
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    with pytest.raises(AttributeError):
        vocabulary.words = ()
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy == vocabulary
    assert hash(copy) == hash(vocabulary)
    assert vocabulary != Vocabulary(["x"])
    assert repr(vocabulary) == "Vocabulary(7 entries, min_count=2)"
