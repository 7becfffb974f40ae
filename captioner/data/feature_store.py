"""A memory-mapped store of encoder features, so that a frozen encoder runs once."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from captioner.files import write_whole
from captioner.types import ImageId

logger = logging.getLogger(__name__)

FORMAT = 1
_MANIFEST, _FEATURES, _DONE = "manifest.json", "features.f16", "done.u8"


class FeatureStore:
    """Grids of every picture of a data set in one or several views, as fp16 on disk.

    A folder with ``manifest.json`` (what made the features, picture ids, shape),
    ``features.f16`` (raw fp16, (pictures, views, R, D)) and ``done.u8`` (one byte a picture,
    1 when all of its views are there). Writing a picture's features before its byte makes a
    killed run continue where it was. Open one with ``FeatureStore.open`` or make one with
    ``FeatureStore.create``.

    Attributes:
        folder: Where the store is.
        manifest: ``encoder`` (its config), ``encoder_fingerprint``, ``preprocessing``,
            ``views``, ``rows``, ``cols``, ``feature_dim`` and ``image_ids``.
        views: Names of the views; view 0 is the plain one, which is evaluated.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], *, writable: bool) -> None:
        self.folder = folder
        self.manifest = manifest
        self.views: tuple[str, ...] = tuple(manifest["views"])
        self.rows: int = manifest["rows"]
        self.cols: int = manifest["cols"]
        self.feature_dim: int = manifest["feature_dim"]
        self._writable = writable
        self._row_of = {str(image_id): i for i, image_id in enumerate(manifest["image_ids"])}
        shape = (len(self._row_of), len(self.views), self.rows * self.cols, self.feature_dim)
        expected = int(np.prod(shape)) * 2
        if (folder / _FEATURES).stat().st_size < expected:
            raise ValueError(
                f"{folder / _FEATURES} should have {expected:,} bytes, has only "
                f"{(folder / _FEATURES).stat().st_size:,}; delete {folder} and make it again "
                "with `captioner data features`"
            )
        mode: Literal["r+", "r"] = "r+" if writable else "r"
        self._features = np.memmap(folder / _FEATURES, np.float16, mode, shape=shape)
        self._done = np.memmap(folder / _DONE, np.uint8, mode, shape=shape[:1])

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a store for reading.

        Raises:
            FileNotFoundError: There is none in that folder.
            ValueError: It is of another format or damaged.
        """
        folder = Path(folder)
        return cls(folder, _read_manifest(folder), writable=False)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        encoder: Mapping[str, object],
        encoder_fingerprint: str,
        preprocessing: Mapping[str, object],
        views: Sequence[str],
        rows: int,
        cols: int,
        feature_dim: int,
        image_ids: Sequence[ImageId],
    ) -> Self:
        """Open a store for writing: a new one, or one to be continued or to get more pictures.

        Raises:
            ValueError: The folder holds a store of other features.
            OSError: The disk has too little room, with both numbers.
        """
        folder = Path(folder)
        wanted: dict[str, Any] = {
            "format": FORMAT,
            "encoder": dict(encoder),
            "encoder_fingerprint": encoder_fingerprint,
            "preprocessing": dict(preprocessing),
            "views": list(views),
            "rows": rows,
            "cols": cols,
            "feature_dim": feature_dim,
        }
        if not image_ids:
            raise ValueError("there are no pictures to make features of")
        if not views or views[0] != "plain" or len(set(views)) != len(views):
            raise ValueError(f"views must be distinct and start with plain, got {list(views)}")
        present: list[ImageId] = []
        if (folder / _MANIFEST).exists():
            manifest = _read_manifest(folder)
            other = [
                key for key, value in wanted.items() if key != "encoder" and manifest[key] != value
            ]
            if other:
                raise ValueError(
                    f"{folder} holds other features: "
                    + "; ".join(f"{key} is {manifest[key]}, not {wanted[key]}" for key in other)
                    + "; name another folder or delete this one"
                )
            present = list(manifest["image_ids"])
        known = {str(image_id) for image_id in present}
        ids = present + [i for i in dict.fromkeys(image_ids) if str(i) not in known]
        picture_bytes = len(views) * rows * cols * feature_dim * 2
        needed = len(ids) * picture_bytes
        existing = (folder / _FEATURES).stat().st_size if (folder / _FEATURES).exists() else 0
        folder.mkdir(parents=True, exist_ok=True)
        # A file that was grown but not yet filled has its blocks still to come.
        allocated = (folder / _FEATURES).stat().st_blocks * 512 if existing else 0
        free = shutil.disk_usage(folder).free
        logger.info(
            "%d pictures x %d views x %d x %d regions x %d channels need %.2f GB; %.2f GB are free",
            *(len(ids), len(views), rows, cols, feature_dim, needed / 1e9, free / 1e9),
        )
        if needed - min(allocated, needed) > free:
            raise OSError(
                f"the features need {needed / 1e9:.2f} GB in {folder}, "
                f"{free / 1e9:.2f} GB are free; make room, or take fewer views or an earlier crop"
            )
        # Files grow before the manifest names the new pictures: a kill in between does no harm.
        _resize(folder / _FEATURES, needed)
        _resize(folder / _DONE, len(ids))
        _write_manifest(folder, {**wanted, "image_ids": ids})
        return cls(folder, {**wanted, "image_ids": ids}, writable=True)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, image_id: ImageId) -> bool:
        row = self._row_of.get(str(image_id))
        return row is not None and bool(self._done[row])

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        # Workers map the file again; the features themselves must never travel.
        return FeatureStore.open, (str(self.folder),)

    @property
    def complete(self) -> bool:
        """Whether every picture is there."""
        return bool(self._done.all())

    def missing(self) -> list[ImageId]:
        """Ids of the pictures that are still to be written."""
        ids: list[ImageId] = self.manifest["image_ids"]
        return [ids[row] for row in np.flatnonzero(self._done == 0)]

    def read(self, image_id: ImageId, view: int = 0) -> Tensor:
        """Features of one picture.

        Args:
            image_id: The picture.
            view: Index into ``views``.

        Returns:
            The regions, (R, D) float16.

        Raises:
            KeyError: The store lacks the picture; the message says what adds it.
            IndexError: The store has no such view.
        """
        if image_id not in self:
            raise KeyError(
                f"{self.folder} has no features of {image_id!r}; add them with "
                "`captioner data features`"
            )
        if not 0 <= view < len(self.views):
            raise IndexError(f"view must be 0..{len(self.views) - 1}, got {view}")
        return torch.from_numpy(np.array(self._features[self._row_of[str(image_id)], view]))

    def write(self, image_id: ImageId, features: Tensor) -> None:
        """Store all views of one picture.

        Args:
            image_id: One of the ids that the store was made for.
            features: (views, R, D), values within fp16's range.

        Raises:
            ValueError: A value is not finite in fp16.
        """
        assert self._writable, "opened for reading"
        values = features.detach().to("cpu", torch.float16).numpy()
        if not np.isfinite(values).all():
            raise ValueError(
                f"the features of {image_id!r} reach {features.abs().max().item():g}, beyond the "
                "range of fp16 (65504); cut the encoder at another stage"
            )
        row = self._row_of[str(image_id)]
        self._features[row] = values
        self._done[row] = 1

    def flush(self) -> None:
        """Hand everything written so far to the disk, features before the bytes that name them."""
        self._features.flush()
        self._done.flush()

    def check(self, encoder_fingerprint: str, preprocessing: Mapping[str, object]) -> None:
        """Refuse to serve an encoder or a preprocessing other than those that made the features.

        Raises:
            ValueError: They differ; the message says in what.
        """
        if preprocessing != self.manifest["preprocessing"]:
            mine = self.manifest["preprocessing"]
            differences = ", ".join(
                f"{key} {mine.get(key)} there, {preprocessing.get(key)} here"
                for key in sorted({*mine, *preprocessing})
                if mine.get(key) != preprocessing.get(key)
            )
            raise ValueError(
                f"the features in {self.folder} were made with another preprocessing "
                f"({differences}); make them again with `captioner data features` or change the "
                "configuration"
            )
        if encoder_fingerprint != self.manifest["encoder_fingerprint"]:
            mine = self.manifest["encoder"]
            raise ValueError(
                f"the features in {self.folder} were made by another encoder: "
                f"{mine.get('backbone')} cut at {mine.get('stage')} with weights "
                f"{mine.get('weights')} (fingerprint {self.manifest['encoder_fingerprint'][:12]}), "
                f"the configured one has fingerprint {encoder_fingerprint[:12]}; make them again "
                "with `captioner data features`"
            )


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"no feature store in {folder}; make it with `captioner data features`"
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); delete {folder}") from error
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {manifest.get('format')}, this version reads {FORMAT}; make the "
            "features again with `captioner data features`"
        )
    return manifest


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_whole(folder / _MANIFEST, json.dumps(manifest, ensure_ascii=False))


def _resize(path: Path, size: int) -> None:
    with path.open("ab") as file:
        if os.fstat(file.fileno()).st_size < size:
            file.truncate(size)
