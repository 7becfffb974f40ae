"""What all sources of captions share: records, their splits, and questions about them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from captioner.text.vocabulary import Vocabulary
from captioner.types import CaptionRecord, ImageId, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SPLITS: tuple[Split, ...] = get_args(Split)

_SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}

_LINE_END = re.compile(r"\r\n|\r|\n")

IdT = TypeVar("IdT", bound=ImageId)


def parse_split(name: object, where: str) -> Split:
    """The split that a name means, whatever its case.

    Args:
        name: As a file or a person writes it, such as "dev" or "Validation".
        where: File and line, for the error.

    Raises:
        ValueError: If the name means none of the splits.
    """
    split = _SPLIT_NAMES.get(name.strip().lower()) if isinstance(name, str) else None
    if split is None:
        raise ValueError(
            f"{where}: split must be train, val or test (or valid, validation, dev), got {name!r}"
        )
    return split


def clean_captions(captions: Iterable[str]) -> tuple[str, ...]:
    """Captions stripped at both ends, without the empty ones."""
    return tuple(stripped for caption in captions if (stripped := caption.strip()))


def read_text(path: Path) -> str:
    """Text of a UTF-8 file, whatever the locale, without a byte order mark.

    A file that begins with the mark of UTF-16, as spreadsheets write it, is read as such.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the bytes are not UTF-8; the message names the line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"no captions file at {path}; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder; give the captions file in it") from None
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = len(_LINE_END.findall(data[: error.start].decode("latin-1"))) + 1
        raise ValueError(
            f"{path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from None


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, index 0 is line 1, empty ones included.

    Only the line ends of the three systems count: other characters that Python takes for line
    ends occur inside captions.
    """
    return _LINE_END.split(read_text(path))


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no JSON; the message names the line.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); was the file cut short?"
        ) from None


def check_unique(records: Sequence[CaptionRecord], where: str) -> list[CaptionRecord]:
    """The records, each with an id of its own.

    Raises:
        ValueError: If two records have one id, compared as text.
    """
    seen: dict[str, CaptionRecord] = {}
    for record in records:
        key = str(record.image_id)
        first = seen.setdefault(key, record)
        if first is not record:
            if first.split != record.split:
                problem = f"is in {first.split} and in {record.split}; keep it in one split"
            else:
                problem = f"is listed twice in {record.split}; remove one"
            raise ValueError(f"{where}: picture {key!r} {problem}")
    return list(records)


def draw_splits(
    image_ids: Iterable[IdT], val_fraction: float, test_fraction: float, seed: int
) -> dict[IdT, Split]:
    """Split pictures at random, each as a whole, with exact sizes.

    Pictures are ordered by a hash of seed and id; the first are for test, the last for
    validation, the rest trains. So the order of the input changes nothing, adding pictures
    moves few of the others, and none between validation and test. A fraction above 0 gives at
    least one picture where there are enough for every split to have one; training is served
    first, then validation.

    Args:
        image_ids: Ids, compared as text; repeated ones count once.
        val_fraction: Part of the pictures for validation, from 0, below 1.
        test_fraction: Part of the pictures for test; both together below 1.
        seed: Another seed gives another split.

    Raises:
        ValueError: If a fraction is out of range.
    """
    for name, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {fraction}")
    if val_fraction + test_fraction >= 1:
        raise ValueError(
            "val_fraction and test_fraction together must be below 1, so that pictures are left "
            f"for training, got {val_fraction} and {test_fraction}"
        )

    def rank(image_id: IdT) -> bytes:
        text = f"{seed}\0{image_id}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

    ordered = sorted(dict.fromkeys(image_ids), key=rank)
    num_val, num_test = (
        max(round(len(ordered) * fraction), 1) if fraction > 0 else 0
        for fraction in (val_fraction, test_fraction)
    )
    while num_val + num_test > max(len(ordered) - 1, 0):  # one always trains
        if num_val > num_test:
            num_val -= 1
        else:
            num_test -= 1
    splits: dict[IdT, Split] = {}
    for i, image_id in enumerate(ordered):
        if i < num_test:
            splits[image_id] = "test"
        elif i >= len(ordered) - num_val:
            splits[image_id] = "val"
        else:
            splits[image_id] = "train"
    return splits


def filter_records(records: Iterable[CaptionRecord], split: Split) -> list[CaptionRecord]:
    """The records of one split, in their order.

    Raises:
        ValueError: If there is no such split.
    """
    wanted = parse_split(split, "filter_records")
    return [record for record in records if record.split == wanted]


def references(records: Iterable[CaptionRecord]) -> dict[ImageId, list[str]]:
    """The captions of every picture that has any, by id; what generated captions are held to."""
    return {record.image_id: list(record.captions) for record in records if record.captions}


def data_fingerprint(records: Iterable[CaptionRecord]) -> str:
    """A name for a data set that changes whenever an id, a split or a caption does.

    The order of records and of the captions of a picture does not matter, nor do paths.

    Returns:
        64 hexadecimal digits (SHA-256).
    """
    lines = sorted(
        json.dumps([str(record.image_id), record.split, sorted(record.captions)])
        for record in records
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def build_vocabulary(
    records: Iterable[CaptionRecord], min_count: int = 5, max_size: int | None = None
) -> Vocabulary:
    """The vocabulary of the training split; captions of other splits are not looked at.

    Args:
        records: All records of a source.
        min_count: A word that occurs less often is unknown, at least 1.
        max_size: Most entries, the four special ones included; no limit by default.

    Raises:
        ValueError: If no word of the training split is frequent enough.
    """
    training = filter_records(records, "train")
    return Vocabulary.build(
        (caption for record in training for caption in record.captions), min_count, max_size
    )


def expect_mapping(value: object, where: str) -> Mapping[str, Any]:
    """The value itself if it is a JSON object, an error that says where if not."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value
