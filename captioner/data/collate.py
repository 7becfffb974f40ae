"""From single pictures with their captions to a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from captioner.types import CaptionBatch, ImageFeatures, ImageId, SpecialIds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True)
class CaptionItem:
    """One picture with the captions that a batch takes of it.

    Exactly one of ``image`` and ``grid`` is given.

    Args:
        image_id: Id of the picture.
        captions: BOS w1 .. wn EOS of each caption, (n + 2,) int64; may be empty.
        image: The normalised picture, (3, height, width) float.
        grid: Its encoder output from a feature store, (R, D) float16.
    """

    image_id: ImageId
    captions: tuple[Tensor, ...]
    image: Tensor | None = None
    grid: Tensor | None = None


def pad_captions(captions: Sequence[Tensor], pad_id: int) -> tuple[Tensor, Tensor]:
    """Captions of different lengths as one rectangle.

    Args:
        captions: BOS w1 .. wn EOS each, (n + 2,) int64.
        pad_id: What fills the end of each row.

    Returns:
        Tokens (N, L) int64, L the longest length (0 where there are no captions), and the real
        lengths (N,) int64.
    """
    lengths = torch.tensor([len(caption) for caption in captions], dtype=torch.int64)
    longest = int(lengths.max()) if len(captions) else 0
    tokens = torch.full((len(captions), longest), pad_id, dtype=torch.int64)  # (N, L)
    for row, caption in zip(tokens, captions, strict=True):
        row[: len(caption)] = caption
    return tokens, lengths


@dataclass(frozen=True)
class CaptionCollate:
    """Makes a batch of items: every picture once, its captions in neighbouring rows.

    Args:
        special_ids: Gives the padding.
        grid_size: Rows and columns of the grid, for items that come from a feature store.
    """

    special_ids: SpecialIds = SpecialIds()  # noqa: RUF009 - frozen, so sharing it is safe
    grid_size: tuple[int, int] | None = None

    def __call__(self, items: Sequence[CaptionItem]) -> CaptionBatch:
        """The items as one batch.

        Args:
            items: At least one; all from pictures of one size, or all from a feature store.

        Returns:
            Features in float32, also where the store holds float16, so that no part of the
            model needs to know where they came from.
        """
        if not items:
            raise ValueError("a batch needs at least one item, got none")
        tokens, lengths = pad_captions(
            [caption for item in items for caption in item.captions], self.special_ids.pad_id
        )
        picture = torch.tensor(
            [row for row, item in enumerate(items) for _ in item.captions], dtype=torch.int64
        )
        images: Tensor | None = None
        features: ImageFeatures | None = None
        if self.grid_size is None:
            images = torch.stack([_given(item.image, item, "image") for item in items])
        else:
            rows, cols = self.grid_size
            grid = torch.stack([_given(item.grid, item, "grid") for item in items])  # (M, R, D)
            features = ImageFeatures(grid.float(), rows, cols)
        return CaptionBatch(
            tokens=tokens,
            lengths=lengths,
            picture=picture,
            image_ids=tuple(item.image_id for item in items),
            images=images,
            features=features,
        )


def _given(value: Tensor | None, item: CaptionItem, name: str) -> Tensor:
    if value is None:
        raise ValueError(
            f"picture {item.image_id} has no {name}: a batch is made of pictures or of features"
        )
    return value
