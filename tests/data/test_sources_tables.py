import json
import locale
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.data.sources import CaptionTable, filter_records
from captioner.data.tables import read_table


def write(folder: Path, text: str, name: str = "captions.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def captions_of(table: Path) -> dict[object, tuple[str, ...]]:
    return {record.image_id: record.captions for record in CaptionTable(table).records()}


def test_csv_with_splits(tmp_path) -> None:
    table = write(
        tmp_path,
        "image,caption,split\na.jpg,A dog.,train\nb.jpg,B,Validation\na.jpg, One dog ,train\n"
        "c.jpg,,test\n",
    )
    records = CaptionTable(table).records()
    assert [(r.image_id, r.captions, r.split) for r in records] == [
        ("a.jpg", ("A dog.", "One dog"), "train"),
        ("b.jpg", ("B",), "val"),
        ("c.jpg", (), "test"),
    ]
    assert records[0].path == tmp_path / "a.jpg"
    assert CaptionTable(table, image_dir="pics").records()[0].path == Path("pics/a.jpg")


def test_drawn_pictures(drawn_pictures) -> None:
    records = CaptionTable(drawn_pictures / "captions.csv").records()
    assert [len(filter_records(records, s)) for s in ("train", "val", "test")] == [8, 2, 2]
    assert all(r.path.is_file() and len(r.captions) == 2 for r in records)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marks_and_line_ends_of_every_system(tmp_path, end, encoding) -> None:
    lines = ["", "Image , Caption", "", "a.jpg,Ein Hündchen", "   ", "b.jpg,一只狗", "", ""]
    table = write(tmp_path, end.join(lines), encoding=encoding)
    assert captions_of(table) == {"a.jpg": ("Ein Hündchen",), "b.jpg": ("一只狗",)}


@pytest.mark.parametrize("d", [",", ";", "\t"])
def test_separators(tmp_path, d) -> None:
    text = f'caption{d}split{d}image\nA dog{d}train{d}a.jpg\n"B{d} b"{d}val{d}b.jpg\n'
    assert captions_of(write(tmp_path, text)) == {"a.jpg": ("A dog",), "b.jpg": (f"B{d} b",)}
    marked = write(tmp_path, f"sep={d}\n{text}")
    assert captions_of(marked).keys() == {"a.jpg", "b.jpg"}


@pytest.mark.parametrize(
    ("written", "caption"),
    [
        ("A man , a dog , and a cat .", "A man , a dog , and a cat ."),
        ('"A man , a dog ."', "A man , a dog ."),
        ('A man in a " Superman " shirt .', 'A man in a " Superman " shirt .'),
        ('"A man in a "" Superman "" shirt ."', 'A man in a " Superman " shirt .'),
        ('" Stop " says the sign .', '" Stop " says the sign .'),
        ('"Stop", says the sign, "now"', '"Stop", says the sign, "now"'),
        ('" unclosed, with comma', '" unclosed, with comma'),
        ('says "hi', 'says "hi'),
        ('  "quoted"  ', "quoted"),
        ('""', None),
        ('"""Hi"", she says"', '"Hi", she says'),
        ("'single', quotes", "'single', quotes"),
        ("ends in a comma,", "ends in a comma,"),
    ],
)
@pytest.mark.parametrize("with_split", [False, True])
def test_captions_quoted_or_not_as_kaggle_spreads_them(
    tmp_path, written, caption, with_split
) -> None:
    header, more = ("image,caption,split", ",train") if with_split else ("image,caption", "")
    rows = [f"a.jpg,{written}{more}", f"b.jpg,{written}{more}", f'c.jpg,"x, y"{more}']
    table = write(tmp_path, "\n".join([header, *rows]) + "\n", "captions.txt")
    expected = () if caption is None else (caption.strip(),)
    assert captions_of(table) == {"a.jpg": expected, "b.jpg": expected, "c.jpg": ("x, y",)}


def test_quoted_captions_may_have_line_breaks(tmp_path) -> None:
    table = write(
        tmp_path, 'image,caption,split\na.jpg,"Two\r\n\r\ndogs, ""here""",train\nb.jpg,"B",val\n'
    )
    assert captions_of(table) == {"a.jpg": ('Two\n\ndogs, "here"',), "b.jpg": ("B",)}


def test_line_ends_inside_captions_that_only_python_knows(tmp_path) -> None:
    table = write(tmp_path, "image,caption\na.jpg,A\u2028dog\x0bruns\x85\nb.jpg,B\n")
    assert captions_of(table) == {"a.jpg": ("A\u2028dog\x0bruns",), "b.jpg": ("B",)}


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), min_size=1),
    st.sampled_from(
        [["image", "caption"], ["", "image", "caption", "split"], ["caption", "image"]]
    ),
)
def test_what_the_csv_module_writes_is_read(tmp_path_factory, texts, columns) -> None:
    import csv

    table = tmp_path_factory.mktemp("csv") / "captions.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for i, text in enumerate(texts):
            row = {"": str(i), "image": f"{i}.jpg", "caption": text, "split": "train"}
            writer.writerow({column: row[column] for column in columns})
    # Line ends inside captions come out as the plain one.
    plain = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert [row.captions[0] for row in read_table(table)] == plain


def test_sub_folders_are_part_of_the_id(tmp_path) -> None:
    table = write(
        tmp_path,
        f"image,caption\nbirds/a.jpg,A\ncats\\a.jpg,B\n./birds/a.jpg,C\n{tmp_path}/cats/a.jpg,D\n"
        "/elsewhere/a.jpg,E\n../up.jpg,F\n",
    )
    records = CaptionTable(table).records()
    assert [(r.image_id, r.captions) for r in records] == [
        ("birds/a.jpg", ("A", "C")),
        ("cats/a.jpg", ("B", "D")),
        ("/elsewhere/a.jpg", ("E",)),
        ("../up.jpg", ("F",)),
    ]
    assert records[1].path == tmp_path / "cats" / "a.jpg"
    assert records[2].path == Path("/elsewhere/a.jpg")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("image,caption\n", "names no picture"),
        ("image,text\na.jpg,A\n", r"captions\.csv, line 1: no column caption; the first line"),
        ("a.jpg,A dog\n", "line 1: no column image and caption"),
        ("image,caption,caption\n", "column .*caption.* is named twice"),
        ("image,caption\na.jpg,A\n\nb.jpg\n", "line 4: expected 2 columns `image,caption`, got 'b"),
        ("image,caption,split\na.jpg,A\n", "line 2: expected 3 columns"),
        ("image,caption,split\na.jpg,A,\n", "line 2: split must be train, val or test .* got ''"),
        ("image,caption,split\na.jpg,A,tset\n", "line 2: split must be .* got 'tset'"),
        ("image,caption\n ,A\n", "line 2: no picture is named"),
        (
            "image,caption,split\na.jpg,A,train\n\nb.jpg,B,val\n./a.jpg,A,dev\n",
            "line 5: picture 'a.jpg' is in val, but in train on line 2; keep it in one split",
        ),
    ],
)
def test_csv_errors_name_the_line(tmp_path, text, message) -> None:
    with pytest.raises(ValueError, match=message):
        CaptionTable(write(tmp_path, text)).records()


def test_bytes_that_are_not_utf8_are_named(tmp_path) -> None:
    table = write(tmp_path, "image,caption\na.jpg,A\nb.jpg,Hündchen\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"line 3: not UTF-8 .*save the file as UTF-8"):
        CaptionTable(table).records()


def test_missing_table(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no captions file at .*none\.csv"):
        CaptionTable(tmp_path / "none.csv").records()
    with pytest.raises(ValueError, match="is a folder; give the captions file"):
        CaptionTable(tmp_path).records()


def test_json_lines(tmp_path) -> None:
    rows = [
        {"image": "a.jpg", "captions": ["A dog.", " ", "Ein Hündchen"], "split": "train"},
        {"image": "b/é.png", "caption": "一只狗", "split": "dev", "more": 1},
        {"image": "a.jpg", "captions": ["One dog."], "split": "train"},
        {"image": "c.jpg", "captions": [], "split": "test"},
    ]
    text = "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    records = CaptionTable(write(tmp_path, text, "c.jsonl", "utf-8-sig")).records()
    assert [(r.image_id, r.captions, r.split) for r in records] == [
        ("a.jpg", ("A dog.", "Ein Hündchen", "One dog."), "train"),
        ("b/é.png", ("一只狗",), "val"),
        ("c.jpg", (), "test"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image": "b.jpg", "captions": ["B"]', "line 3: not JSON"),
        ("[1]", "line 3: expected a JSON object, got list"),
        ('{"captions": ["B"]}', 'line 3: "image" must be the name of a picture, got None'),
        ('{"image": 3, "captions": ["B"]}', 'line 3: "image" must be .* got 3'),
        ('{"image": "b.jpg"}', 'line 3: "captions" must be a list of texts, got None'),
        ('{"image": "b.jpg", "captions": "B"}', "must be a list of texts, got 'B'"),
        ('{"image": "b.jpg", "captions": [1]}', "must be a list of texts"),
        ('{"image": "b.jpg", "captions": ["B"], "split": 1}', "line 3: split must be .* got 1"),
        ('{"image": "b.jpg", "captions": ["B"], "split": "dve"}', "line 3: split must be"),
        ('{"image": "b.jpg", "captions": ["B"]}', "line 3: no split, though other lines have one"),
        ('{"image": "a.jpg", "captions": ["B"], "split": "val"}', "line 3: .* in train on line 1"),
    ],
)
def test_json_lines_errors_name_the_line(tmp_path, line, message) -> None:
    text = '{"image": "a.jpg", "captions": ["A"], "split": "train"}\n\n' + line
    with pytest.raises(ValueError, match=message):
        CaptionTable(write(tmp_path, text, "c.jsonl")).records()


def test_a_json_list_is_refused_with_advice(tmp_path) -> None:
    with pytest.raises(ValueError, match="write one JSON object a line"):
        CaptionTable(write(tmp_path, '[{"image": "a"}]', "c.jsonl")).records()


def test_split_by_picture_whatever_the_order_of_rows(tmp_path) -> None:
    rows = [f"{i}.jpg,caption {j}" for i in range(40) for j in range(3)]
    first = CaptionTable(write(tmp_path, "\n".join(["image,caption", *rows])))
    other = CaptionTable(write(tmp_path, "\n".join(["image,caption", *rows[::-1]]), "o.csv"))
    splits = {r.image_id: r.split for r in first.records()}
    assert {r.image_id: r.split for r in other.records()} == splits
    counts = [list(splits.values()).count(s) for s in ("train", "val", "test")]
    assert counts == [32, 4, 4]
    assert all(len(r.captions) == 3 for r in first.records())
    reseeded = CaptionTable(first.table, seed=1).records()
    assert {r.image_id: r.split for r in reseeded} != splits
    no_test = CaptionTable(first.table, val_fraction=0.5, test_fraction=0).records()
    assert [len(filter_records(no_test, s)) for s in ("train", "val", "test")] == [20, 20, 0]


@pytest.mark.parametrize(("size", "counts"), [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1))])
def test_small_tables_keep_a_picture_to_train_on(tmp_path, size, counts) -> None:
    rows = [f"{i}.jpg,dog" for i in range(size)]
    records = CaptionTable(write(tmp_path, "\n".join(["image,caption", *rows]))).records()
    assert tuple(len(filter_records(records, s)) for s in ("train", "val", "test")) == counts


def test_utf8_whatever_the_locale(tmp_path) -> None:
    """In a process whose locale knows ASCII only, as containers often have it."""
    table = write(tmp_path, "image,caption\né.jpg,一只狗\n")
    code = (
        "import locale, sys; from captioner.data.sources import CaptionTable, build_vocabulary;"
        "assert locale.getpreferredencoding(False).lower() not in ('utf-8', 'utf8');"
        f"records = CaptionTable({str(table)!r}).records();"
        "vocabulary = build_vocabulary(records, min_count=1);"
        f"vocabulary.save({str(tmp_path / 'v.json')!r});"
        f"assert vocabulary.load({str(tmp_path / 'v.json')!r}) == vocabulary;"
        "print(ascii(records[0].captions[0]))"
    )
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"}
    environment |= {"PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ascii("一只狗")
    assert locale.getlocale() is not None


def test_names_are_relative_to_a_relative_folder_too(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, f"image,caption\n{tmp_path}/pics/a.jpg,A\n")
    record = CaptionTable("captions.csv", "pics").records()[0]
    assert record.image_id == "a.jpg"
    assert record.path == Path("pics/a.jpg")
