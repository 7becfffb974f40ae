"""Read a whole data set once before training does, and say what is wrong with it."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tqdm import tqdm

from captioner.data.images import ImageReadError, read_image
from captioner.data.records import SPLITS

if TYPE_CHECKING:
    from captioner.types import CaptionRecord, ImageId


class PictureProblem(NamedTuple):
    """What is wrong with one picture."""

    image_id: ImageId
    path: Path
    split: str
    reason: str


@dataclass(frozen=True)
class DataReport:
    """What a reading of the whole data set found.

    Args:
        num_pictures: Pictures of each split.
        num_captions: Captions of each split.
        missing: Pictures that are not on disk.
        unreadable: Files that are no pictures, are cut short or cannot be opened.
        without_captions: Pictures that have no captions; training leaves them out.
        duplicates: Groups of pictures whose files are the same byte for byte.
        duplicates_across_splits: Those of the groups that are in more than one split.
    """

    num_pictures: dict[str, int]
    num_captions: dict[str, int]
    missing: tuple[PictureProblem, ...]
    unreadable: tuple[PictureProblem, ...]
    without_captions: tuple[PictureProblem, ...]
    duplicates: tuple[tuple[ImageId, ...], ...]
    duplicates_across_splits: tuple[tuple[ImageId, ...], ...]

    @property
    def ok(self) -> bool:
        """Whether every picture is there and can be read.

        Pictures without captions and duplicates are told of, but stop nothing.
        """
        return not self.missing and not self.unreadable

    def to_text(self) -> str:
        """All of the report for people to read, a line for every picture with a problem."""
        lines = []
        for split in SPLITS:
            pictures, captions = self.num_pictures[split], self.num_captions[split]
            lines.append(f"{split}: {pictures} pictures, {captions} captions")
        for title, problems in (
            ("missing", self.missing),
            ("unreadable", self.unreadable),
            ("without captions", self.without_captions),
        ):
            lines.append(f"{title}: {len(problems)}")
            lines.extend(f"  {p.path} ({p.split}): {p.reason}" for p in problems)
        lines.append(f"identical files: {len(self.duplicates)} groups")
        across = set(self.duplicates_across_splits)
        for group in self.duplicates:
            note = " (in more than one split: scores will be too good)" if group in across else ""
            lines.append(f"  {', '.join(map(str, group))}{note}")
        lines.append("every picture can be read" if self.ok else self._advice())
        return "\n".join(lines)

    def _advice(self) -> str:
        num_bad = len(self.missing) + len(self.unreadable)
        return (
            f"{num_bad} of {sum(self.num_pictures.values())} pictures cannot be used: put them "
            "in place, or take them out of the captions file"
        )


class _Reading(NamedTuple):
    """What came of one file: its digest, or why there is none."""

    digest: bytes | None = None
    is_missing: bool = False
    reason: str = ""


def check_records(
    records: Iterable[CaptionRecord],
    *,
    progress: bool = True,
    workers: int = 0,
    read_pictures: bool = True,
) -> DataReport:
    """Read every picture once, as training would.

    Args:
        records: All records of a source, or those that are going to be used.
        progress: Whether to show a bar on stderr.
        workers: Threads that read; 0 reads in this one.
        read_pictures: False only looks whether the files are there, which takes no time.

    Returns:
        The report; its lists are in the order of the records.

    Raises:
        ValueError: If workers is negative.
    """
    if workers < 0:
        raise ValueError(f"workers must be at least 0, got {workers}")
    listed = list(records)
    read = _read if read_pictures else _look
    paths = [record.path for record in listed]
    with tqdm(total=len(paths), unit="picture", desc="check", disable=not progress) as bar:
        readings: list[_Reading] = []

        def collect(results: Iterable[_Reading]) -> None:
            for reading in results:
                readings.append(reading)
                bar.update()

        if workers == 0:
            collect(map(read, paths))
        else:
            # Readers silence Pillow's warnings, which is a setting of the whole process: put it
            # back as it was when the last of them is done.
            with warnings.catch_warnings(), ThreadPoolExecutor(workers) as pool:
                collect(pool.map(read, paths))
    return _report(listed, readings)


def _read(path: Path) -> _Reading:
    if not path.exists():
        return _Reading(is_missing=True, reason="no such file")
    try:
        read_image(path).close()
        return _Reading(digest=hashlib.sha256(path.read_bytes()).digest())
    except (ImageReadError, OSError) as error:
        # The path stands before the reason in the report: once is enough.
        return _Reading(reason=str(error).removeprefix(f"{path}: "))


def _look(path: Path) -> _Reading:
    if path.is_file():
        return _Reading()
    return _Reading(is_missing=True, reason="no such file")


def _report(records: Sequence[CaptionRecord], readings: Sequence[_Reading]) -> DataReport:
    missing, unreadable, without_captions = [], [], []
    groups: dict[bytes, list[CaptionRecord]] = {}
    num_pictures: Counter[str] = Counter()
    num_captions: Counter[str] = Counter()
    for record, reading in zip(records, readings, strict=True):
        num_pictures[record.split] += 1
        num_captions[record.split] += len(record.captions)
        problem = PictureProblem(record.image_id, record.path, record.split, reading.reason)
        if reading.is_missing:
            missing.append(problem)
        elif reading.reason:
            unreadable.append(problem)
        elif reading.digest is not None:
            groups.setdefault(reading.digest, []).append(record)
        if not record.captions:
            without_captions.append(problem._replace(reason="no captions"))
    duplicates = [group for group in groups.values() if len(group) > 1]
    across = [group for group in duplicates if len({record.split for record in group}) > 1]
    return DataReport(
        num_pictures={split: num_pictures[split] for split in SPLITS},
        num_captions={split: num_captions[split] for split in SPLITS},
        missing=tuple(missing),
        unreadable=tuple(unreadable),
        without_captions=tuple(without_captions),
        duplicates=tuple(tuple(record.image_id for record in group) for group in duplicates),
        duplicates_across_splits=tuple(
            tuple(record.image_id for record in group) for group in across
        ),
    )
