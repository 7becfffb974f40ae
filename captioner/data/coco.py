"""The two JSON forms that COCO captions come in: the official files and Karpathy's splits."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.data.records import (
    check_unique,
    clean_captions,
    expect_mapping,
    parse_split,
    read_json,
)
from captioner.types import CaptionRecord, ImageId, Split

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class CocoCaptions:
    """The official COCO captions files, 2014 or 2017, one for each split.

    A picture without captions stays, with none: it can be captioned, not trained on.

    Args:
        annotations: Captions file of each split, such as
            ``{"train": "annotations/captions_train2017.json", "val": ...}``.
        image_dirs: Folder of pictures of each split, with the same keys.

    References:
        Lin et al. 2014, Microsoft COCO; Chen et al. 2015, Microsoft COCO Captions. The format
        is that of https://cocodataset.org/#format-data; pycocotools indexes it.
    """

    annotations: dict[str, str | Path]
    image_dirs: dict[str, str | Path]

    def records(self) -> list[CaptionRecord]:
        """All pictures in the order of the files, captions in the order of the file.

        Raises:
            FileNotFoundError: If a captions file is missing.
            ValueError: If a file is no captions file or a picture is in two splits.
        """
        files = _by_split(self.annotations, "annotations")
        folders = _by_split(self.image_dirs, "image_dirs")
        if not files:
            raise ValueError("annotations must name at least one split, got none")
        if files.keys() != folders.keys():
            raise ValueError(
                f"annotations and image_dirs must have the same splits, got "
                f"{sorted(files)} and {sorted(folders)}"
            )
        records: list[CaptionRecord] = []
        for split, file in files.items():
            coco = _index(read_coco(file))
            for image in coco.dataset["images"]:
                image_id = image["id"]
                captions = [annotation["caption"] for annotation in coco.imgToAnns[image_id]]
                records.append(
                    CaptionRecord(
                        image_id=image_id,
                        path=folders[split] / image["file_name"],
                        captions=clean_captions(captions),
                        split=split,
                    )
                )
        return check_unique(records, " and ".join(str(file) for file in files.values()))


@dataclass(frozen=True)
class KarpathySplits:
    """Karpathy's ``dataset_coco.json``, ``dataset_flickr8k.json`` or ``dataset_flickr30k.json``.

    Pictures marked ``restval`` train, as is the custom. Ids are COCO's numbers where the file
    has them, else file names.

    Args:
        annotations: The JSON file.
        image_dir: Folder of pictures; for COCO the one that holds ``train2014`` and
            ``val2014``.

    References:
        Karpathy and Fei-Fei 2015, Deep Visual-Semantic Alignments for Generating Image
        Descriptions.
    """

    annotations: str | Path
    image_dir: str | Path

    def records(self) -> list[CaptionRecord]:
        """All pictures in the order of the file.

        Raises:
            FileNotFoundError: If the file is missing.
            ValueError: If the file has another form or names a picture twice.
        """
        file = Path(self.annotations)
        return parse_karpathy(read_json(file), file, Path(self.image_dir))


def read_coco(file: Path) -> dict[str, Any]:
    """The value of an official captions file, checked.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is of another kind or an entry lacks something.
    """
    return check_coco(read_json(file), file)


def check_coco(data: object, file: Path) -> dict[str, Any]:
    """The value of an official captions file if it is one; see ``read_coco``."""
    content = dict(expect_mapping(data, str(file)))
    images = content.get("images")
    if not isinstance(images, list):
        raise ValueError(f"{file}: no list of images; is it a COCO captions file?")
    annotations = content.setdefault("annotations", [])  # files of test pictures have none
    if not isinstance(annotations, list):
        raise ValueError(f"{file}: annotations must be a list, got {type(annotations).__name__}")
    known = set()
    for i, image in enumerate(images):
        where = f"{file}, images[{i}]"
        image_id = expect_mapping(image, where).get("id")
        if not isinstance(image_id, int | str) or isinstance(image_id, bool):
            raise ValueError(f"{where}: id must be a number or a text, got {image_id!r}")
        if not isinstance(image.get("file_name"), str):
            raise ValueError(f"{where}: no file_name")
        if image_id in known:
            raise ValueError(f"{where}: id {image_id!r} is listed twice; remove one")
        known.add(image_id)
    for i, annotation in enumerate(annotations):
        where = f"{file}, annotations[{i}]"
        if not isinstance(expect_mapping(annotation, where).get("caption"), str):
            raise ValueError(
                f"{where}: no caption; is this the instances file? Captions are in captions_*.json"
            )
        if annotation.get("image_id") not in known:
            raise ValueError(
                f"{where}: image_id {annotation.get('image_id')!r} is not among the images"
            )
    return content


def coco_references(data: Mapping[str, Any]) -> dict[ImageId, list[str]]:
    """Captions of each picture of an official file; needs no pycocotools."""
    captions: dict[ImageId, list[str]] = {image["id"]: [] for image in data["images"]}
    for annotation in data["annotations"]:
        captions[annotation["image_id"]].extend(clean_captions([annotation["caption"]]))
    return {image_id: texts for image_id, texts in captions.items() if texts}


def parse_karpathy(data: object, file: Path, image_dir: Path) -> list[CaptionRecord]:
    """Records of the value of a Karpathy file; see ``KarpathySplits``."""
    images = expect_mapping(data, str(file)).get("images")
    if not isinstance(images, list):
        raise ValueError(f"{file}: no list of images; is it one of Karpathy's dataset_*.json?")
    records = []
    for i, image in enumerate(images):
        where = f"{file}, images[{i}]"
        entry = expect_mapping(image, where)
        name, sentences = entry.get("filename"), entry.get("sentences")
        if not isinstance(name, str):
            raise ValueError(f"{where}: no filename; is it one of Karpathy's dataset_*.json?")
        if not isinstance(sentences, list):
            raise ValueError(f"{where}: no list of sentences")
        folder, image_id = entry.get("filepath", ""), entry.get("cocoid", name)
        if not isinstance(folder, str):
            raise ValueError(f"{where}: filepath must be a text, got {folder!r}")
        if not isinstance(image_id, int | str) or isinstance(image_id, bool):
            raise ValueError(f"{where}: cocoid must be a number, got {image_id!r}")
        split = entry.get("split")
        records.append(
            CaptionRecord(
                image_id=image_id,
                path=image_dir / folder / name,
                captions=clean_captions(_sentence(sentence, where) for sentence in sentences),
                split="train" if split == "restval" else parse_split(split, where),
            )
        )
    return check_unique(records, str(file))


def _sentence(sentence: object, where: str) -> str:
    entry = expect_mapping(sentence, where)
    raw = entry.get("raw")
    if isinstance(raw, str):
        return raw
    tokens = entry.get("tokens")
    if isinstance(tokens, list):
        return " ".join(str(token) for token in tokens)
    raise ValueError(f"{where}: a sentence has neither raw text nor tokens")


def _by_split(paths: Mapping[str, str | Path], argument: str) -> dict[Split, Path]:
    by_split: dict[Split, Path] = {}
    for name, path in paths.items():
        split = parse_split(name, argument)
        if split in by_split:
            raise ValueError(f"{argument}: split {split} is named twice")
        by_split[split] = Path(path)
    return by_split


def _index(data: dict[str, Any]) -> Any:
    """A pycocotools index of an official file; what it prints is swallowed."""
    try:
        from pycocotools.coco import COCO
    except ImportError as error:
        raise ImportError(
            "COCO captions need pycocotools; install it with `pip install 'captioner[train]'`"
        ) from error
    coco = COCO()
    coco.dataset = data
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco
