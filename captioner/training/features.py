"""Run a frozen encoder once over a data set into a feature store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from captioner.data.feature_store import FeatureStore
from captioner.data.images import ImageReadError, read_image
from captioner.data.transforms import Preprocessing, find_view
from captioner.models.encoder import CnnEncoder
from captioner.types import CaptionRecord

logger = logging.getLogger(__name__)

Precision: TypeAlias = Literal["32-true", "16-mixed", "bf16-mixed"]

AUTOCAST: dict[str, torch.dtype | None] = {
    "32-true": None,
    "16-mixed": torch.float16,
    "bf16-mixed": torch.bfloat16,
}
"""What each precision computes in, where it is not float32."""


def autocast(device: str | torch.device, precision: Precision) -> torch.autocast:
    """The context in which a network computes with that precision."""
    dtype = AUTOCAST[precision]
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=dtype is not None)


class _Views(Dataset[tuple[int, Tensor | str]]):
    """All views of one picture, or the reason why it cannot be read."""

    def __init__(
        self, records: Sequence[CaptionRecord], preprocessing: Preprocessing, views: Sequence[str]
    ) -> None:
        self.records = records
        self.preprocessing = preprocessing
        self.views = [find_view(name) for name in views]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        try:
            image = read_image(self.records[index].path)
        except (ImageReadError, FileNotFoundError) as error:
            return index, str(error)
        return index, torch.stack([self.preprocessing(image, view) for view in self.views])


def _as_list(items: list[tuple[int, Tensor | str]]) -> list[tuple[int, Tensor | str]]:
    return items


def extract_features(
    records: Sequence[CaptionRecord],
    encoder: CnnEncoder,
    preprocessing: Preprocessing,
    folder: str | Path,
    *,
    views: Sequence[str] = ("plain", "flip"),
    batch_size: int = 32,
    num_workers: int = 0,
    device: str | torch.device = "cpu",
    precision: Precision = "32-true",
    progress: bool = True,
) -> FeatureStore:
    """Encode every picture in every view, or those that an earlier run left out.

    Args:
        records: Pictures of the data set; their captions do not matter.
        encoder: The encoder; it is used in evaluation mode.
        preprocessing: What comes before it.
        folder: Where the store is or is to be.
        views: Names of the views, "plain" first.
        batch_size: Pictures a step (times the number of views).
        num_workers: Processes that read pictures.
        device: Where the encoder runs.
        precision: How it computes, in the words of Lightning's ``trainer.precision``. Features
            are stored as float16 in any case; bfloat16 keeps 8 bits of them.
        progress: Whether a progress bar is shown on stderr.

    Returns:
        The finished store, opened for reading.

    Raises:
        ValueError: A view or the precision is unknown; the folder holds other features; or some
            pictures cannot be read (the others are stored, and a later call takes up only what
            is missing).
        OSError: The disk has too little room.
    """
    for view in views:
        find_view(view)
    if precision not in AUTOCAST:
        raise ValueError(f"precision must be one of {', '.join(AUTOCAST)}, got {precision!r}")
    rows, cols = encoder.grid_size(preprocessing.height, preprocessing.width)
    store = FeatureStore.create(
        folder,
        encoder=encoder.config,
        encoder_fingerprint=encoder.fingerprint(),
        preprocessing=preprocessing.to_dict(),
        views=views,
        rows=rows,
        cols=cols,
        feature_dim=encoder.feature_dim,
        image_ids=[record.image_id for record in records],
    )
    todo = [record for record in records if record.image_id not in store]
    if len(todo) < len(records):
        logger.info("%d of %d pictures are there already", len(records) - len(todo), len(records))
    unreadable: list[str] = []
    if todo:
        loader: DataLoader[tuple[int, Tensor | str]] = DataLoader(
            _Views(todo, preprocessing, views),
            batch_size=batch_size,
            num_workers=num_workers,
            collate_fn=_as_list,
        )
        training = encoder.training
        encoder = encoder.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]  # stub lacks it
        with tqdm(total=len(todo), unit="picture", disable=not progress) as bar:
            for step, items in enumerate(loader):
                bar.update(len(items))
                unreadable += [reason for _, reason in items if isinstance(reason, str)]
                pictures = [(i, images) for i, images in items if isinstance(images, Tensor)]
                if pictures:
                    with autocast(device, precision):
                        _encode(
                            store, encoder, [(todo[i], images) for i, images in pictures], device
                        )
                if step % 16 == 15:
                    store.flush()
        encoder.train(training)
        store.flush()
    if unreadable:
        shown = "\n".join(f"  {reason}" for reason in unreadable[:20])
        raise ValueError(
            f"{len(unreadable)} of {len(records)} pictures could not be encoded (the others are "
            f"stored in {folder}):\n{shown}\n"
            "mend or leave them out, then run the same command again"
        )
    return FeatureStore.open(folder)


@torch.inference_mode()
def _encode(
    store: FeatureStore,
    encoder: CnnEncoder,
    pictures: Sequence[tuple[CaptionRecord, Tensor]],
    device: str | torch.device,
) -> None:
    images = torch.cat([views for _, views in pictures]).to(device)
    grid = encoder(images.contiguous(memory_format=torch.channels_last)).grid
    per_picture = grid.view(len(pictures), -1, *grid.shape[1:])  # (M, views, R, D)
    for (record, _), features in zip(pictures, per_picture, strict=True):
        store.write(record.image_id, features)
