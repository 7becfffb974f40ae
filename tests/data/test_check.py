import warnings
from pathlib import Path

import pytest
from PIL import Image

from captioner.data.check import check_records
from captioner.data.sources import CaptionTable, filter_records
from captioner.types import CaptionRecord


@pytest.fixture
def bad_records(tmp_path) -> list[CaptionRecord]:
    """Two good pictures that are the same, one missing, one cut short, one no picture."""
    image = Image.effect_noise((64, 64), 50)
    image.save(tmp_path / "good.jpg")
    (tmp_path / "same.jpg").write_bytes((tmp_path / "good.jpg").read_bytes())
    (tmp_path / "short.jpg").write_bytes((tmp_path / "good.jpg").read_bytes()[:900])
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.jpg").mkdir()
    image.convert("RGB").save(tmp_path / "other.png")
    names = ["good.jpg", "same.jpg", "gone.jpg", "short.jpg", "text.jpg", "empty.png"]
    names += ["folder.jpg", "other.png"]
    splits = ["train", "val", "train", "test", "train", "train", "train", "train"]
    captions = [("a", "b"), ("c",), ("d",), (), ("e",), ("f",), ("g",), ()]
    return [
        CaptionRecord(name, tmp_path / name, texts, split)
        for name, texts, split in zip(names, captions, splits, strict=True)
    ]


@pytest.mark.parametrize("workers", [0, 3])
def test_report_names_every_problem(bad_records, workers, capsys) -> None:
    report = check_records(bad_records, progress=False, workers=workers)
    assert not report.ok
    assert [p.image_id for p in report.missing] == ["gone.jpg"]
    unreadable = [p.image_id for p in report.unreadable]
    assert unreadable == ["short.jpg", "text.jpg", "empty.png", "folder.jpg"]
    assert all(p.reason for p in report.unreadable)
    assert [p.image_id for p in report.without_captions] == ["short.jpg", "other.png"]
    assert report.duplicates == report.duplicates_across_splits == (("good.jpg", "same.jpg"),)
    assert report.num_pictures == {"train": 6, "val": 1, "test": 1}
    assert report.num_captions == {"train": 6, "val": 1, "test": 0}
    out, err = capsys.readouterr()
    assert out == err == ""


def test_text_holds_counts_and_paths(bad_records) -> None:
    text = check_records(bad_records, progress=False).to_text()
    assert "train: 6 pictures, 6 captions" in text
    assert "missing: 1" in text
    assert "unreadable: 4" in text
    assert "without captions: 2" in text
    assert "5 of 8 pictures cannot be used" in text
    for record in bad_records[2:]:
        assert str(record.path) in text
    # The reason does not say the path again.
    line = next(line for line in text.splitlines() if "text.jpg" in line)
    assert line.count("text.jpg") == 1
    assert "good.jpg, same.jpg (in more than one split" in text


def test_good_data(drawn_pictures, capsys) -> None:
    records = CaptionTable(drawn_pictures / "captions.csv").records()
    report = check_records(records)
    assert report.ok
    assert report.to_text().endswith("every picture can be read")
    out, err = capsys.readouterr()
    assert out == ""  # progress is no result
    assert "12/12" in err


def test_what_stops_nothing(drawn_pictures) -> None:
    records = CaptionTable(drawn_pictures / "captions.csv").records()
    uncaptioned = CaptionRecord("x", records[0].path, (), "train")
    report = check_records([*records, uncaptioned], progress=False)
    assert report.without_captions[0].image_id == "x"
    assert report.duplicates == ((records[0].image_id, "x"),)
    assert report.duplicates_across_splits == ()
    assert report.ok


def test_looking_only_for_presence(bad_records) -> None:
    report = check_records(bad_records, progress=False, read_pictures=False)
    assert [p.image_id for p in report.missing] == ["gone.jpg", "folder.jpg"]
    assert report.unreadable == ()
    assert report.duplicates == ()


def test_arguments_and_nothing_to_check() -> None:
    assert check_records([], progress=False).ok
    with pytest.raises(ValueError, match="workers must be at least 0, got -1"):
        check_records([], workers=-1)


def test_threads_leave_warnings_as_they_were(drawn_pictures) -> None:
    records = CaptionTable(drawn_pictures / "captions.csv").records() * 10
    before = list(warnings.filters)
    check_records(records, progress=False, workers=8)
    assert list(warnings.filters) == before


def test_flickr8k_identical_pictures(shared_data) -> None:
    folder = shared_data / "flickr8k" / "Images"
    names = ["3050606344_af711c726c.jpg", "2851198725_37b6027625.jpg", "1000268201_693b08cb0e.jpg"]
    records = [CaptionRecord(name, Path(folder / name), ("a",), "train") for name in names]
    report = check_records(records, progress=False)
    assert report.ok
    assert report.duplicates == ((names[0], names[1]),)


def test_coco_mini_is_readable(shared_data) -> None:
    folder = shared_data / "coco-mini" / "val2017"
    files = sorted(folder.glob("*.jpg"))
    records = [CaptionRecord(file.name, file, ("a",), "val") for file in files]
    report = check_records(records, progress=False, workers=2)
    assert report.ok
    assert report.num_pictures["val"] == 40
    assert len(filter_records(records, "val")) == 40
