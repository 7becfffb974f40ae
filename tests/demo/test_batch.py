import csv
import io
import json
import stat
import zipfile
from pathlib import Path

import pytest

from captioner import Captioner
from captioner.demo import batch
from captioner.demo.batch import (
    Row,
    caption_items,
    count_items,
    read_items,
    to_csv,
    to_html,
    to_jsonl,
)


@pytest.fixture(scope="module")
def captioner(tiny_models: dict[str, Path]) -> Captioner:
    return Captioner.load(tiny_models["sat"])


@pytest.fixture
def picture(drawn_pictures: Path) -> Path:
    return drawn_pictures / "red_circle.jpg"


def write_zip(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_files_and_archives_in_order(
    captioner: Captioner, drawn_pictures: Path, picture: Path, tmp_path: Path
) -> None:
    content = picture.read_bytes()
    archive = write_zip(
        tmp_path / "many.zip",
        **{
            "one.jpg": content,
            "folder/": b"",
            "folder/two.jpg": content,
            "__MACOSX/._one.jpg": b"x",
            ".hidden.jpg": content,
            "broken.png": content[:50],
            "notes.txt": b"hello",
            "three.jpg": content,
        },
    )
    paths = [drawn_pictures / "green_square.png", archive, picture]
    rows = list(caption_items(captioner, read_items(paths), {}, batch_size=2))
    names = [row.name for row in rows]
    assert names == [
        "green_square.png",
        "many.zip/one.jpg",
        "many.zip/folder/two.jpg",
        "many.zip/broken.png",
        "many.zip/notes.txt",
        "many.zip/three.jpg",
        "red_circle.jpg",
    ]
    assert count_items(paths) == len(rows)
    bad = [row.name for row in rows if row.error is not None]
    assert bad == ["many.zip/broken.png", "many.zip/notes.txt"]
    wanted = captioner.caption(picture)
    for row in rows:
        if row.record is not None and row.name != "green_square.png":
            assert row.record["words"] == list(wanted.words)
    lines = [json.loads(line) for line in to_jsonl(rows).splitlines()]
    assert [line["image"] for line in lines] == names
    assert {"caption", "words", "word_log_probs", "log_prob"} < set(lines[0])
    table = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [line["image"] for line in table] == names
    assert table[3]["caption"] == ""
    assert "cannot be read" in table[3]["error"]


def test_an_archive_writes_nowhere(
    captioner: Captioner, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "deep" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    target = tmp_path / "absolute.jpg"
    archive = write_zip(
        inner / "evil.zip",
        **{"../../escaped.jpg": picture.read_bytes(), str(target): picture.read_bytes()},
    )
    link = zipfile.ZipInfo("link.jpg")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr(link, "/etc/hostname")
    before = sorted(tmp_path.rglob("*"))
    rows = list(caption_items(captioner, read_items([archive]), {}))
    assert sorted(tmp_path.rglob("*")) == before
    assert [row.error is None for row in rows] == [True, True, False]
    assert rows[2].error == "is a link, not a picture"


def test_what_is_unpacked_is_bounded(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_MEMBER_BYTES", 2 * 1024**2)
    monkeypatch.setattr(batch, "MAX_UNPACKED_BYTES", 6 * 1024**2)
    bomb = bytes(50 * 1024**2)  # 50 kB when packed
    members = {
        "good.jpg": picture.read_bytes(),
        "bomb.png": bomb,
        "again.jpg": picture.read_bytes(),
    }
    items = list(read_items([write_zip(tmp_path / "x.zip", **members)]))
    assert [item.error is None for item in items] == [True, False, True]
    assert items[1].error == "unpacks to more than 2 MB"
    many = {f"{i}.png": bytes(2 * 1024**2) for i in range(10)}
    items = list(read_items([write_zip(tmp_path / "y.zip", **many)]))
    assert len(items) < 10
    assert "the rest is left out" in (items[-1].error or "")


def test_the_number_of_pictures_is_bounded(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_PICTURES", 3)
    archive = write_zip(tmp_path / "x.zip", **{f"{i}.jpg": picture.read_bytes() for i in range(9)})
    for paths in ([archive], [picture] * 9):
        items = list(read_items(paths))
        assert [item.error is None for item in items] == [True, True, True, False]
        assert "more than 3 pictures" in (items[-1].error or "")
    assert count_items([archive]) == 3


def test_broken_archives_and_members_are_named(picture: Path, tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "x.zip", **{"a.jpg": picture.read_bytes(), "b.jpg": b"x" * 3000})
    content = bytearray(archive.read_bytes())
    content[60:90] = bytes(30)  # the first member's data
    archive.write_bytes(content)
    items = list(read_items([archive]))
    assert items[0].name == "x.zip/a.jpg"
    assert items[0].error is not None
    cut = tmp_path / "cut.zip"
    cut.write_bytes(bytes(content[:200]))
    [item] = read_items([cut])
    assert item.error is not None


def test_names_are_no_markup_and_no_formula() -> None:
    row = Row('=cmd("<script>")', None, "<b>bad</b>", None)
    page = to_html([row], "Done")
    assert "<script>" not in page
    assert "<b>" not in page
    assert to_csv([row]).splitlines()[1].startswith("\"'=cmd")
    assert "Done, 1 could not be read" in page
    assert '<progress value="1" max="5">' in to_html([row], "Working", 5)
