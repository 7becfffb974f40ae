"""Every kind of captioned data set that captioner reads, as one kind of record.

A source is a small frozen dataclass built from paths, so that a configuration can name it
(``class_path: captioner.data.sources.CocoCaptions``); ``records()`` reads it. Pictures are not
opened here: ``captioner data check`` does that once.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from captioner.data.coco import (
    CocoCaptions,
    KarpathySplits,
    check_coco,
    coco_references,
    parse_karpathy,
)
from captioner.data.flickr import Flickr8kTokens, is_token_line, read_split_list, read_token_file
from captioner.data.records import (
    build_vocabulary,
    clean_captions,
    data_fingerprint,
    filter_records,
    parse_split,
    read_lines,
    references,
)
from captioner.data.tables import CaptionTable, find_header, has_splits
from captioner.types import CaptionRecord, ImageId, Split

__all__ = [
    "CaptionTable",
    "CocoCaptions",
    "DataSource",
    "Flickr8kTokens",
    "KarpathySplits",
    "build_vocabulary",
    "data_fingerprint",
    "filter_records",
    "load_annotations",
    "references",
]

logger = logging.getLogger(__name__)

_FLICKR_LIST = {"train": "trainImages", "val": "devImages", "test": "testImages"}


@runtime_checkable
class DataSource(Protocol):
    """Anything that gives records; written by the user or one of those below."""

    def records(self) -> list[CaptionRecord]:
        """All pictures of the data set, in an order that does not change between calls.

        Raises:
            FileNotFoundError: If a file of captions is missing.
            ValueError: If a file cannot be read; the message names it, the line and the fix.
        """
        ...


def load_annotations(path: str | Path, split: str | None = None) -> dict[ImageId, list[str]]:
    """Reference captions of every picture that has any, from any kind of captions file.

    The kind is told by the content: official COCO JSON, Karpathy's JSON, ``{id: [captions]}``,
    a CSV or JSON-lines table, or a Flickr token file.

    Args:
        path: The file.
        split: Only pictures of this split; all by default. Karpathy's files and tables hold
            splits; a table without them is split as ``CaptionTable`` does by default; for a
            token file the split list has to be beside it.

    Returns:
        Captions by picture, in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is of no known kind, or has no such split.
    """
    file = Path(path)
    wanted = None if split is None else parse_split(split, "split")
    captions = _load(file, wanted)
    if not captions:
        which = "" if wanted is None else f" of split {wanted}"
        raise ValueError(f"{file} holds no captions{which}; check the file and the split")
    return captions


def _load(file: Path, split: Split | None) -> dict[ImageId, list[str]]:
    lines = read_lines(file)
    first = next((line for line in lines if line.strip()), "")
    if find_header(first) is not None or first.strip().startswith("sep="):
        return _load_table(file, split)
    if is_token_line(first):
        return _load_token_file(file, split)
    if first.lstrip()[:1] not in ("{", "["):
        raise ValueError(
            f"{file} is no captions file that is known: expected COCO or Karpathy JSON, "
            "{id: [captions]}, a table whose first line is `image,caption`, JSON lines with "
            f'"image" and "captions", or Flickr\'s token file; it begins with {first[:60]!r}'
        )
    text = "\n".join(lines)
    try:
        data = json.loads(text, object_pairs_hook=_object_with_unique_keys)
    except json.JSONDecodeError as error:
        if first.lstrip().startswith("{") and _is_json(first):
            return _load_table(file, split)
        raise ValueError(
            f"{file}, line {error.lineno}: not JSON ({error.msg}); was the file cut short?"
        ) from None
    except _RepeatedKeyError as error:
        raise ValueError(f"{file}: {error}") from None
    return _load_json(data, file, split)


def _load_json(data: Any, file: Path, split: Split | None) -> dict[ImageId, list[str]]:
    if isinstance(data, list):
        raise ValueError(
            f"{file} is a JSON list, as files of results are; annotations hold the reference "
            "captions (are the two files swapped?)"
        )
    if "image" in data and ("captions" in data or "caption" in data):
        return _load_table(file, split)
    images = data.get("images")
    if isinstance(images, list):
        if any(isinstance(image, dict) and "sentences" in image for image in images[:1]):
            records = parse_karpathy(data, file, Path())
            return references(records if split is None else filter_records(records, split))
        _refuse_split(file, split)
        return coco_references(check_coco(data, file))
    _refuse_split(file, split)
    captions: dict[ImageId, list[str]] = {}
    for image_id, texts in data.items():
        listed = [texts] if isinstance(texts, str) else texts
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise ValueError(
                f"{file}: expected a list of captions for {image_id!r}, got {str(texts)[:60]!r}"
            )
        if cleaned := clean_captions(listed):
            captions[image_id] = list(cleaned)
    return captions


def _load_table(file: Path, split: Split | None) -> dict[ImageId, list[str]]:
    records = CaptionTable(file).records()
    if split is None:
        return references(records)
    if not has_splits(file):
        logger.warning(
            "%s has no splits: took the %s pictures that CaptionTable draws by default", file, split
        )
    return references(filter_records(records, split))


def _load_token_file(file: Path, split: Split | None) -> dict[ImageId, list[str]]:
    captions = read_token_file(file)
    names = list(captions)
    if split is not None:
        pattern = f"*{_FLICKR_LIST[split]}*.txt"
        lists = sorted(file.parent.glob(pattern))
        if len(lists) != 1:
            raise ValueError(
                f"{file} names no splits; for split {split} put one list {pattern} beside it, "
                f"found {len(lists)}"
            )
        names = [name for _, name in read_split_list(lists[0])]
    return {
        name: list(cleaned) for name in names if (cleaned := clean_captions(captions.get(name, ())))
    }


def _refuse_split(file: Path, split: Split | None) -> None:
    if split is not None:
        raise ValueError(f"{file} holds no splits; give the file of split {split} without a split")


class _RepeatedKeyError(ValueError):
    """An object of a JSON file has a key twice; the reader would keep the last one only."""


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _RepeatedKeyError(f"{repeated!r} is there twice; put its captions in one list")
    return value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True
