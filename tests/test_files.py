"""A file is written whole or not at all."""

import stat

import pytest

from captioner.files import write_whole


def test_text_and_bytes_arrive(tmp_path):
    path = tmp_path / "new" / "file.txt"
    write_whole(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]
    (tmp_path / "usual").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_whole(path, "old")

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr("captioner.files.os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]
