import json

import pytest

from captioner.evaluation.inputs import (
    InputError,
    load_inputs,
    match_inputs,
    read_results,
    resolve_id,
)

REFERENCES = {"1": ["a dog"], "2": ["two cats", "cats"], "3": ["a man"]}
CAPTIONS = {"1": "A dog.", "2": "Cats.", "3": "A man."}


@pytest.fixture
def files(tmp_path):
    class Files:
        def write(self, name, value):
            path = tmp_path / name
            path.write_text(
                value if isinstance(value, str) else json.dumps(value), encoding="utf-8"
            )
            return path

        def load(self, results, references=REFERENCES, **options):
            return load_inputs(
                self.write("results.json", results), self.write("refs.json", references), **options
            )

    return Files()


def coco(captions):
    return [{"image_id": int(key), "caption": text} for key, text in captions.items()]


@pytest.mark.parametrize(
    "results",
    [
        coco(CAPTIONS),
        [{"image_id": key, "caption": text} for key, text in CAPTIONS.items()],
        [{"image_id": float(key), "caption": text} for key, text in CAPTIONS.items()],
        CAPTIONS,
        {key: [text] for key, text in CAPTIONS.items()},
        "".join(f'{{"image": "x/{key}", "caption": "{text}"}}\n' for key, text in CAPTIONS.items()),
        "".join(
            f'{{"image_id": {key}, "caption": "{text}"}}\r\n' for key, text in CAPTIONS.items()
        ),
    ],
    ids=["numbers", "texts", "floats", "mapping", "lists", "jsonl", "jsonl-ids"],
)
def test_every_form_of_results(files, results):
    inputs = files.load(results)
    assert inputs.hypotheses == CAPTIONS
    assert inputs.references == REFERENCES
    assert inputs.problems == ()
    assert inputs.complete


def test_one_line_of_json_lines_is_a_record_and_no_mapping(files):
    inputs = files.load('{"image": "1", "caption": "a dog"}', {"1": ["a dog"]})
    assert inputs.hypotheses == {"1": "a dog"}


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("a.jpg", {"a.jpg"}, "a.jpg"),
        ("/data/x/a.jpg", {"a.jpg"}, "a.jpg"),
        ("/data/x/a.jpg", {"x/a.jpg", "a.jpg"}, "x/a.jpg"),
        ("c:\\data\\a.jpg", {"a.jpg"}, "a.jpg"),
        ("val/000000000042.jpg", {"42"}, "42"),
        ("COCO_val2014_000000000042.jpg", {"42"}, "42"),
        ("000000000042.jpg", {"000000000042.jpg", "42"}, "000000000042.jpg"),
        ("000000000042.jpg", {"43"}, "000000000042.jpg"),
        ("b.jpg", {"a.jpg"}, "b.jpg"),
    ],
)
def test_ids_are_found_as_text_as_paths_and_as_cocos_names(name, known, expected):
    assert resolve_id(name, dict.fromkeys(known)) == expected


def test_missing_pictures_are_named_and_an_error(files):
    with pytest.raises(InputError) as error:
        files.load(coco({"2": "cats"}))
    (line,) = error.value.problems
    assert line == (
        "2 pictures of the 3 in refs.json without a caption (--allow-missing leaves them out): 1, 3"
    )


def test_missing_pictures_may_be_left_out(files):
    inputs = files.load(coco({"2": "cats"}), allow_missing=True)
    assert inputs.hypotheses == {"2": "cats"}
    assert not inputs.complete
    assert len(inputs.references) == 3  # CIDEr's document frequencies need them all
    assert [(p.kind, p.count, p.examples) for p in inputs.problems] == [("missing", 2, ("1", "3"))]


def test_unknown_pictures_are_named_and_left_out(files):
    inputs = files.load(coco({**CAPTIONS, "77": "x", "78": "y"}))
    assert inputs.hypotheses == CAPTIONS
    assert [p.to_text() for p in inputs.problems] == [
        "2 pictures not in refs.json, left out: 77, 78"
    ]


def test_results_of_another_split_are_told(files):
    with pytest.raises(InputError, match=r"no picture in common: results name 8, 9.*another split"):
        files.load(coco({"8": "x", "9": "y"}))
    with pytest.raises(InputError, match="are the results of another split"):
        files.load(coco({"1": "x", "9": "y"}))


def test_equal_duplicates_count_once(files):
    inputs = files.load([*coco(CAPTIONS), {"image_id": "1", "caption": "A  dog. "}])
    assert inputs.hypotheses == CAPTIONS
    assert [(p.kind, p.examples) for p in inputs.problems] == [("duplicate", ("1",))]


@pytest.mark.parametrize("allow", [False, True])
def test_contradicting_duplicates_are_an_error(files, allow):
    with pytest.raises(InputError, match=r"1 picture with two captions that differ.*: 2"):
        files.load([*coco(CAPTIONS), {"image_id": 2, "caption": "dogs"}], allow_missing=allow)


def test_keys_that_come_twice_in_a_mapping_are_seen(files):
    with pytest.raises(InputError, match="two captions that differ"):
        files.load('{"1": "a", "2": "b", "3": "c", "1": "d"}')


def test_everything_is_named_at_once_with_at_most_five_examples():
    references = {str(i): ["a"] for i in range(20)}
    with pytest.raises(InputError) as error:
        match_inputs(read_list([(0, "a"), (0, "b"), (1, ""), (2, None), (99, "x")]), references)
    lines = error.value.problems
    assert len(lines) == 5
    assert lines[0].startswith("17 pictures of the 20")
    assert lines[0].endswith("3, 4, 5, 6, 7, ...")
    assert [line.split(" ", 2)[2][:12] for line in lines[1:4]] == [
        "with two cap",
        "is no text: ",
        "not in annot",
    ]


def read_list(pairs):
    from captioner.evaluation.inputs import Entry

    return [Entry(str(key), text, f"[{i}]") for i, (key, text) in enumerate(pairs)]


def test_empty_captions_are_named_and_scored(files):
    inputs = files.load(coco({**CAPTIONS, "1": "  "}))
    assert inputs.hypotheses["1"] == "  "
    assert [p.to_text() for p in inputs.problems] == ["1 caption is empty, scored as such: 1"]


def test_a_caption_that_is_no_text_is_an_error(files):
    with pytest.raises(InputError, match=r"1 caption is no text: 1 \(key '1'\)"):
        files.load({**CAPTIONS, "1": None})


@pytest.mark.parametrize(
    "caption",
    [
        "a dog <eos>",
        "<start> a dog",
        "a <UNK> dog",
        "a dog </s>",
        "[CLS] a dog",
        "startseq a dog",
        "a dog<|endoftext|>",
        "a UNK dog",
        "<pad> <pad>",
        "< unk >",
    ],
)
def test_special_tokens_are_named(files, caption):
    inputs = files.load(coco({**CAPTIONS, "2": caption}))
    (problem,) = inputs.problems
    assert problem.kind == "special_tokens"
    assert problem.to_text().startswith("1 caption holds special tokens, which count as words")
    assert problem.examples[0].startswith("2 ")


@pytest.mark.parametrize("caption", ["a start of a race", "the end", "5 < 6 > 4", "unknown <3 dog"])
def test_ordinary_words_are_no_special_tokens(files, caption):
    assert files.load(coco({**CAPTIONS, "2": caption})).problems == ()


@pytest.mark.parametrize(
    ("results", "match"),
    [
        ("", "is empty; expected COCO results"),
        ("hello", "begins with 'hello'; expected"),
        ("[1, 2]", r"\[0\]: no image_id and caption"),
        ('[{"image_id": 1}]', "no image_id and caption"),
        ('[{"caption": "a"}]', "image_id must be a number or a text, got None"),
        ('[{"image_id": true, "caption": "a"}]', "got True"),
        ('[{"image_id": 1, "caption": "a"}', "line 1: not JSON.*cut short"),
        ('{"1": {"a": "b"}}', "expected a caption for '1'"),
        ('{"images": [], "annotations": []}', "are the two swapped"),
        ('{"image": "a", "caption": "b"}\n{"image": "c", "cap', "line 2: not JSON"),
        ('{"image": "a", "caption": "b"}\n{"image": "c"}', "line 2: no image and caption"),
        ("[" * 100_000, "nested too deep|not JSON"),
    ],
)
def test_files_of_other_kinds_are_refused_with_the_kinds_that_are_known(files, results, match):
    with pytest.raises(ValueError, match=match):
        read_results(files.write("results.json", results))


def test_files_that_are_not_there(tmp_path, files):
    with pytest.raises(FileNotFoundError, match="no results file at"):
        load_inputs(tmp_path / "none.json", files.write("refs.json", REFERENCES))
    with pytest.raises(FileNotFoundError, match="no captions file at"):
        load_inputs(files.write("r.json", CAPTIONS), tmp_path / "none.json")
    with pytest.raises(InputError, match="holds no captions"):
        load_inputs(files.write("r.json", "[]"), files.write("refs.json", REFERENCES))


def test_a_table_with_splits_and_the_json_lines_of_the_caption_command(files):
    table = files.write(
        "captions.csv",
        "image,caption,split\na.jpg,A dog.,test\na.jpg,The dog.,test\nb.jpg,A cat.,train\n",
    )
    results = files.write("r.jsonl", '{"image": "/x/a.jpg", "caption": "a dog", "words": []}\n')
    inputs = load_inputs(results, table, split="test")
    assert inputs.references == {"a.jpg": ["A dog.", "The dog."]}
    assert inputs.hypotheses == {"a.jpg": "a dog"}
    assert inputs.split == "test"


def test_official_annotations_with_results_of_texts(files):
    annotations = files.write(
        "captions.json",
        {
            "images": [{"id": 42, "file_name": "000000000042.jpg"}],
            "annotations": [{"image_id": 42, "caption": "A dog."}],
        },
    )
    inputs = load_inputs(files.write("r.json", {"000000000042.jpg": "a dog"}), annotations)
    assert inputs.hypotheses == {"42": "a dog"}
