import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.data.records import draw_splits, parse_split
from captioner.data.sources import (
    CocoCaptions,
    DataSource,
    Flickr8kTokens,
    KarpathySplits,
    build_vocabulary,
    data_fingerprint,
    filter_records,
    load_annotations,
    references,
)
from captioner.types import CaptionRecord


def record(image_id, captions=("a dog",), split="train", path="x.jpg") -> CaptionRecord:
    return CaptionRecord(image_id, Path(path), tuple(captions), split)


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def coco_value(first_id: int = 1, folder: str = "train2014") -> dict[str, object]:
    """Three pictures of the official form; the last has no captions."""
    images = [
        {"id": first_id + i, "file_name": f"COCO_{folder}_{first_id + i:012d}.jpg"}
        for i in (2, 0, 1)
    ]
    annotations = [
        {"id": 9, "image_id": first_id + 2, "caption": " Zwei Hunde.\n"},
        {"id": 7, "image_id": first_id, "caption": "一只狗"},
        {"id": 8, "image_id": first_id + 2, "caption": "Two\ndogs."},
        {"id": 6, "image_id": first_id, "caption": "  "},
    ]
    return {"images": images, "annotations": annotations}


# --- COCO ---------------------------------------------------------------------------------------


def test_coco_gives_a_record_for_each_picture(tmp_path, capsys) -> None:
    train = write_json(tmp_path / "captions_train2014.json", coco_value())
    val = write_json(tmp_path / "captions_val2014.json", coco_value(10, "val2014"))
    source = CocoCaptions(
        {"train": train, "dev": str(val)}, {"train": tmp_path / "train2014", "val": "pictures"}
    )
    assert isinstance(source, DataSource)
    records = source.records()
    assert [r.image_id for r in records] == [3, 1, 2, 12, 10, 11]
    assert records[0] == CaptionRecord(
        3,
        tmp_path / "train2014" / "COCO_train2014_000000000003.jpg",
        ("Zwei Hunde.", "Two\ndogs."),
        "train",
    )
    assert records[1].captions == ("一只狗",)
    assert records[2].captions == ()  # kept, though it has no captions
    assert records[3].split == "val"
    assert records[3].path == Path("pictures/COCO_val2014_000000000012.jpg")
    out, err = capsys.readouterr()
    assert out == err == ""


def test_coco_test_pictures_have_no_annotations(tmp_path) -> None:
    value = coco_value()
    del value["annotations"]
    file = write_json(tmp_path / "image_info_test2014.json", value)
    records = CocoCaptions({"test": file}, {"test": tmp_path}).records()
    assert [r.captions for r in records] == [(), (), ()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("images"), "no list of images"),
        (lambda v: v["images"].append({"id": 5}), r"images\[3\]: no file_name"),
        (lambda v: v["images"].append(v["images"][0]), r"images\[3\]: id 3 is listed twice"),
        (lambda v: v["images"].append({"file_name": "x"}), r"images\[3\]: id must be"),
        (lambda v: v["annotations"][1].pop("caption"), r"annotations\[1\]: no caption; is this"),
        (lambda v: v["annotations"][0].update(image_id=99), "image_id 99 is not among the images"),
        (lambda v: v.update(annotations={}), "annotations must be a list, got dict"),
    ],
)
def test_coco_errors_name_the_entry(tmp_path, change, message) -> None:
    value = coco_value()
    change(value)
    file = write_json(tmp_path / "captions.json", value)
    with pytest.raises(ValueError, match=message):
        CocoCaptions({"train": file}, {"train": tmp_path}).records()


def test_coco_arguments_are_checked(tmp_path) -> None:
    file = write_json(tmp_path / "captions.json", coco_value())
    with pytest.raises(ValueError, match="picture '3' is in train and in val"):
        CocoCaptions({"train": file, "val": file}, {"train": "a", "val": "b"}).records()
    with pytest.raises(ValueError, match=r"same splits, got \['train'\] and \['val'\]"):
        CocoCaptions({"train": file}, {"val": "b"}).records()
    with pytest.raises(ValueError, match=r"split must be train, val or test .* got 'minival'"):
        CocoCaptions({"minival": file}, {"minival": "b"}).records()
    with pytest.raises(ValueError, match="split val is named twice"):
        CocoCaptions({"val": file, "dev": file}, {"val": "b"}).records()
    with pytest.raises(ValueError, match="at least one split"):
        CocoCaptions({}, {}).records()
    with pytest.raises(FileNotFoundError, match=r"no captions file at .*gone\.json"):
        CocoCaptions({"train": tmp_path / "gone.json"}, {"train": "b"}).records()
    file.write_text('{"images": [\n{"id": 1,', encoding="utf-8")
    with pytest.raises(ValueError, match=r"captions\.json, line 2: not JSON .* cut short"):
        CocoCaptions({"train": file}, {"train": "b"}).records()


def test_missing_pycocotools_names_the_extra(tmp_path, monkeypatch) -> None:
    file = write_json(tmp_path / "captions.json", coco_value())
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ImportError, match=r"captioner\[train\]"):
        CocoCaptions({"train": file}, {"train": tmp_path}).records()
    assert len(load_annotations(file)) == 2  # evaluation does without


def test_official_coco_2017_files(shared_data, capsys) -> None:
    folder = shared_data / "coco-mini"
    annotations = {s: folder / "annotations" / f"captions_{s}2017.json" for s in ("train", "val")}
    images = {s: folder / f"{s}2017" for s in ("train", "val")}
    records = CocoCaptions(annotations, images).records()
    assert capsys.readouterr().out == ""
    assert len(filter_records(records, "train")) == 80
    assert len(filter_records(records, "val")) == 40
    assert sum(len(r.captions) for r in records) == 600
    assert all(r.path.is_file() for r in records)
    # One caption of the official validation set has a line break inside; it stays whole.
    assert sum("\n" in c for r in records for c in r.captions) == 1


def test_full_validation_annotations_as_pycocotools_reads_them(shared_data) -> None:
    captions = load_annotations(shared_data / "coco" / "captions_val2017.json")
    assert len(captions) == 5000
    assert sum(map(len, captions.values())) == 25014
    assert {len(texts) for texts in captions.values()} == {5, 6, 7}


# --- Karpathy -----------------------------------------------------------------------------------


def karpathy_image(name: str, split: str, *raw: str, **more: object) -> dict[str, object]:
    sentences = [{"raw": text, "tokens": text.lower().split()} for text in raw]
    return {"filename": name, "split": split, "sentences": sentences, **more}


def test_karpathy_coco(tmp_path) -> None:
    images = [
        karpathy_image("COCO_val2014_1.jpg", "test", "A dog. ", filepath="val2014", cocoid=1),
        karpathy_image("COCO_train2014_2.jpg", "train", "B", "C", filepath="train2014", cocoid=2),
        karpathy_image("COCO_val2014_3.jpg", "restval", "D", filepath="val2014", cocoid=3),
        karpathy_image("COCO_val2014_4.jpg", "val", filepath="val2014", cocoid=4),
    ]
    file = write_json(tmp_path / "dataset_coco.json", {"dataset": "coco", "images": images})
    records = KarpathySplits(file, tmp_path / "coco").records()
    assert [(r.image_id, r.split, r.captions) for r in records] == [
        (1, "test", ("A dog.",)),
        (2, "train", ("B", "C")),
        (3, "train", ("D",)),
        (4, "val", ()),
    ]
    assert records[2].path == tmp_path / "coco" / "val2014" / "COCO_val2014_3.jpg"
    assert load_annotations(file, "test") == {1: ["A dog."]}
    assert load_annotations(file, "train") == {2: ["B", "C"], 3: ["D"]}
    assert load_annotations(file).keys() == {1, 2, 3}


@pytest.mark.parametrize("dataset", ["flickr8k", "flickr30k"])
def test_karpathy_flickr_ids_are_file_names(tmp_path, dataset) -> None:
    entry = karpathy_image("10.jpg", "train", "A", imgid=0)
    del entry["sentences"][0]["raw"]  # some copies hold tokens only
    file = write_json(tmp_path / f"dataset_{dataset}.json", {"images": [entry]})
    assert KarpathySplits(str(file), str(tmp_path)).records() == [
        record("10.jpg", ("a",), path=str(tmp_path / "10.jpg"))
    ]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([{"sentences": []}], r"images\[0\]: no filename"),
        ([{"filename": "a.jpg"}], r"images\[0\]: no list of sentences"),
        ([karpathy_image("a.jpg", "extra")], r"images\[0\]: split must be .* got 'extra'"),
        ([karpathy_image("a.jpg", "val"), karpathy_image("a.jpg", "test")], "in val and in test"),
        ([karpathy_image("a.jpg", "val")] * 2, "'a.jpg' is listed twice in val"),
        ([{"filename": "a", "sentences": [{}], "split": "val"}], "neither raw text nor tokens"),
        ([karpathy_image("a.jpg", "val", cocoid=None)], "cocoid must be a number"),
        ([karpathy_image("a.jpg", "val", filepath=3)], "filepath must be a text"),
        ({}, "no list of images"),
    ],
)
def test_karpathy_errors_name_the_entry(tmp_path, images, message) -> None:
    file = write_json(tmp_path / "dataset.json", {"images": images})
    with pytest.raises(ValueError, match=message):
        KarpathySplits(file, tmp_path).records()


# --- Flickr8k -----------------------------------------------------------------------------------


@pytest.fixture
def flickr(tmp_path) -> Flickr8kTokens:
    """Four names with captions, one of them in no list and one without picture."""
    lines = [f"{name}#{i}\tCaption {i} of {name} ." for name in "abcd" for i in range(3)]
    token_file = tmp_path / "Flickr8k.token.txt"
    token_file.write_bytes("\r\n".join(["", *lines, "e.jpg.1#0\tlost .", ""]).encode())
    names = {"train": "c\nb\n", "dev": "a\n\n", "test": "x"}
    for part, text in names.items():
        (tmp_path / f"Flickr_8k.{part}Images.txt").write_text(text)
    (tmp_path / "d").touch()
    return Flickr8kTokens(
        token_file,
        tmp_path,
        *(tmp_path / f"Flickr_8k.{part}Images.txt" for part in ("train", "dev", "test")),
    )


def test_flickr_lists_choose_and_order(flickr, tmp_path, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="captioner"):
        records = flickr.records()
    assert [(r.image_id, r.split, len(r.captions)) for r in records] == [
        ("c", "train", 3),
        ("b", "train", 3),
        ("a", "val", 3),
        ("x", "test", 0),  # listed, so it stays for the preflight to name
    ]
    assert records[0].path == tmp_path / "c"
    assert records[0].captions[1] == "Caption 1 of c ."
    assert "left out 2 names" in caplog.text
    assert "1 of them have no picture" in caplog.text
    assert "e.jpg.1" in caplog.text


def test_flickr_errors_name_file_and_line(flickr, tmp_path) -> None:
    (tmp_path / "Flickr_8k.testImages.txt").write_text("x\nc\n")
    with pytest.raises(ValueError, match=r"testImages\.txt, line 2: picture 'c' is already in tr"):
        flickr.records()
    Path(flickr.token_file).write_text("a#0\tfine\na 1 no tab\n")
    with pytest.raises(ValueError, match=r"token\.txt, line 2: expected `name"):
        flickr.records()
    Path(flickr.token_file).write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        flickr.records()
    Path(flickr.token_file).unlink()
    with pytest.raises(FileNotFoundError, match="no captions file at"):
        flickr.records()


def test_flickr8k_as_published(shared_data, caplog) -> None:
    folder = shared_data / "flickr8k"
    lists = (folder / f"Flickr_8k.{part}Images.txt" for part in ("train", "dev", "test"))
    source = Flickr8kTokens(folder / "Flickr8k.token.txt", folder / "Images", *lists)
    with caplog.at_level(logging.INFO, logger="captioner"):
        records = source.records()
    sizes = [len(filter_records(records, split)) for split in ("train", "val", "test")]
    assert sizes == [6000, 1000, 1000]
    assert all(len(r.captions) == 5 and r.path.is_file() for r in records)
    assert "left out 92 names" in caplog.text
    assert "2258277193_586949ec62.jpg.1" in caplog.text
    vocabulary = build_vocabulary(records)
    assert 2400 < len(vocabulary) < 2700
    captions = load_annotations(source.token_file, "test")
    assert captions == references(filter_records(records, "test"))


# --- What all sources share ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split"),
    [("train", "train"), ("VAL", "val"), (" valid ", "val"), ("dev", "val"), ("test", "test")],
)
def test_split_names(name, split) -> None:
    assert parse_split(name, "here") == split


@pytest.mark.parametrize("name", ["", "tren", None, 3])
def test_bad_split_names_list_what_is_allowed(name) -> None:
    with pytest.raises(ValueError, match=r"here: split must be train, val or test .*got"):
        parse_split(name, "here")


@settings(deadline=None)
@given(
    st.sets(st.text(max_size=8), min_size=1, max_size=60),
    st.integers(0, 10**6),
    st.sampled_from([(0.1, 0.1), (0.0, 0.0), (0.5, 0.4), (0.0, 0.3), (0.25, 0.0)]),
    st.randoms(),
)
def test_drawn_splits_whatever_the_order(names, seed, fractions, random) -> None:
    ordered = sorted(names)
    splits = draw_splits(ordered, *fractions, seed)
    shuffled = ordered.copy()
    random.shuffle(shuffled)
    assert draw_splits(shuffled * 2, *fractions, seed) == splits
    assert splits.keys() == names
    counts = [list(splits.values()).count(split) for split in ("train", "val", "test")]
    assert counts[0] >= 1
    for count, fraction in zip(counts[1:], fractions, strict=True):
        assert (count == 0) if fraction == 0 else (count <= max(1, round(fraction * len(names))))
    if len(names) >= 3 and all(fractions):
        assert all(counts)


def test_drawn_splits_have_exact_sizes_and_depend_on_the_seed() -> None:
    names = [f"{i}.jpg" for i in range(1000)]
    first, second = draw_splits(names, 0.1, 0.2, 0), draw_splits(names, 0.1, 0.2, 1)
    assert [list(first.values()).count(s) for s in ("train", "val", "test")] == [700, 100, 200]
    moved = sum(first[name] != second[name] for name in names)
    assert moved > 300
    # Numbers and their text are the same id.
    assert [*draw_splits(range(9), 0.2, 0.2, 0).values()] == [
        *draw_splits(map(str, range(9)), 0.2, 0.2, 0).values()
    ]


def test_added_pictures_move_few() -> None:
    names = [f"{i}.jpg" for i in range(1000)]
    before = draw_splits(names, 0.1, 0.1, 0)
    after = draw_splits([*names, *(f"new{i}.jpg" for i in range(100))], 0.1, 0.1, 0)
    moved = [(before[name], after[name]) for name in names if before[name] != after[name]]
    assert len(moved) < 30
    assert not {("val", "test"), ("test", "val")} & set(moved)


@pytest.mark.parametrize(
    ("val", "test", "message"),
    [(-0.1, 0, "val_fraction must be"), (0, 1, "test_fraction must be"), (0.5, 0.5, "together")],
)
def test_fractions_are_checked(val, test, message) -> None:
    with pytest.raises(ValueError, match=message):
        draw_splits(["a"], val, test, 0)


def test_filter_references_and_vocabulary() -> None:
    records = [
        record("a", ["one dog", "1 dog"]),
        record(2, ["two zebras"], "test"),
        record("c", []),
        record("d", ["a val cat"], "val"),
    ]
    assert [r.image_id for r in filter_records(records, "train")] == ["a", "c"]
    assert references(records) == {"a": ["one dog", "1 dog"], 2: ["two zebras"], "d": ["a val cat"]}
    with pytest.raises(ValueError, match="split must be"):
        filter_records(records, "all")
    vocabulary = build_vocabulary(records, min_count=1)
    assert vocabulary.words[4:] == ("dog", "1", "one")  # words of val and test are not counted
    assert len(build_vocabulary(records, min_count=1, max_size=5)) == 5
    with pytest.raises(ValueError, match="training split has captions"):
        build_vocabulary(records[1:])


def test_fingerprint_sees_content_and_nothing_else() -> None:
    records = [record("a", ["x", "y"]), record(2, ["z"], "val")]
    fingerprint = data_fingerprint(records)
    assert len(fingerprint) == 64
    same = [record("2", ["z"], "val", "moved/z.jpg"), record("a", ["y", "x"])]
    assert data_fingerprint(same) == fingerprint
    others = [
        records[:1],
        [record("a", ["x", "y"]), record(2, ["z"], "test")],
        [record("a", ["x"]), record(2, ["y", "z"], "val")],
        [record("a", ["x", "y", "y"]), record(2, ["z"], "val")],
        [record("a", ["xy"]), record(2, ["z"], "val")],
        [record("b", ["x", "y"]), record(2, ["z"], "val")],
    ]
    assert len({fingerprint, *map(data_fingerprint, others)}) == 1 + len(others)
    # Stable between runs and versions: written down once.
    assert data_fingerprint([record("é", ["犬"])]).startswith("abe8cb13c52510d95f632338038d6dcf")


# --- Annotations by content ---------------------------------------------------------------------


def test_annotations_of_coco_need_no_split(tmp_path) -> None:
    file = write_json(tmp_path / "x.json", coco_value())
    assert load_annotations(file) == {3: ["Zwei Hunde.", "Two\ndogs."], 1: ["一只狗"]}
    with pytest.raises(ValueError, match="holds no splits; give the file of split val"):
        load_annotations(file, "dev")


def test_annotations_by_id(tmp_path) -> None:
    file = write_json(tmp_path / "x.json", {"1": ["A ", ""], "b.jpg": "B", "c.jpg": []})
    assert load_annotations(str(file)) == {"1": ["A"], "b.jpg": ["B"]}
    with pytest.raises(ValueError, match="holds no splits"):
        load_annotations(file, "test")
    file.write_text('{"a": ["x"], "a": ["y"]}')
    with pytest.raises(ValueError, match="'a' is there twice"):
        load_annotations(file)
    file.write_text('{"a": {"x": 1}}')
    with pytest.raises(ValueError, match="expected a list of captions for 'a'"):
        load_annotations(file)
    file.write_text("{}")
    with pytest.raises(ValueError, match="holds no captions"):
        load_annotations(file)


@pytest.mark.parametrize("suffix", ["csv", "txt", "jsonl", "json"])
def test_annotations_of_tables_by_content_not_name(tmp_path, suffix) -> None:
    file = tmp_path / f"captions.{suffix}"
    file.write_text("\ufeffimage,caption,split\r\na.jpg,A dog,dev\r\nb.jpg,B,test\r\n", "utf-8")
    assert load_annotations(file, "val") == {"a.jpg": ["A dog"]}
    file.write_text(
        '\n{"image": "a.jpg", "captions": ["A"], "split": "test"}\n'
        '{"image": "b.jpg", "captions": ["B"], "split": "train"}\n'
    )
    assert load_annotations(file) == {"a.jpg": ["A"], "b.jpg": ["B"]}
    assert load_annotations(file, "test") == {"a.jpg": ["A"]}
    with pytest.raises(ValueError, match="no captions of split val"):
        load_annotations(file, "val")
    file.write_text('{"image": "a.jpg", "captions": ["A", "B"]}')  # one line is a table too
    assert load_annotations(file) == {"a.jpg": ["A", "B"]}


def test_annotations_of_a_table_without_splits_warn(tmp_path, caplog) -> None:
    file = tmp_path / "captions.csv"
    file.write_text("image,caption\n" + "".join(f"{i}.jpg,dog\n" for i in range(20)))
    assert len(load_annotations(file)) == 20
    assert not caplog.text
    assert len(load_annotations(file, "test")) == 2
    assert "has no splits" in caplog.text


def test_annotations_of_a_token_file_need_its_list(flickr, tmp_path) -> None:
    assert load_annotations(flickr.token_file).keys() == {"a", "b", "c", "d", "e.jpg.1"}
    assert load_annotations(flickr.token_file, "train").keys() == {"b", "c"}
    Path(flickr.train_list).unlink()
    with pytest.raises(ValueError, match=r"put one list \*trainImages\*\.txt beside it, found 0"):
        load_annotations(flickr.token_file, "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "is no captions file that is known"),
        ("", "is no captions file that is known"),
        ('[{"image_id": 1, "caption": "x"}]', "are the two files swapped"),
        ('{"images": [\n1, 2', "line 2: not JSON"),
    ],
)
def test_annotations_of_unknown_kinds(tmp_path, text, message) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_annotations(file)
    with pytest.raises(ValueError, match="is a folder"):
        load_annotations(tmp_path)
