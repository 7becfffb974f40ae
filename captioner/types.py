"""The values that cross from one part of captioner to another.

Shapes use one letter each: M pictures, N rows (captions or hypotheses), R regions of the
grid, D feature width, L tokens with BOS and EOS, T words, S picture size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

ImageId: TypeAlias = int | str
"""COCO's number, else the picture's file name with extension. Ids compare as text."""

Split: TypeAlias = Literal["train", "val", "test"]

CropBox: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the upright original picture."""


@dataclass(frozen=True)
class CaptionRecord:
    """One picture of a data set with all of its captions, whatever file it came from.

    Args:
        image_id: COCO's number, else the file name with extension.
        path: Where the picture is.
        captions: Zero or more captions as the source wrote them, stripped at both ends.
        split: The part of the data set that the picture belongs to.
    """

    image_id: ImageId
    path: Path
    captions: tuple[str, ...]
    split: Split


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens that are no words."""

    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    unk_id: int = 3


@dataclass(frozen=True)
class ImageFeatures:
    """A grid of picture regions as the encoder sees them.

    Args:
        grid: Region features, (M, R, D), R = rows * cols, row-major from the top left.
        rows: Height of the grid.
        cols: Width of the grid.
    """

    grid: Tensor
    rows: int
    cols: int

    def __post_init__(self) -> None:
        if self.grid.dim() != 3 or self.grid.shape[1] != self.rows * self.cols:
            raise ValueError(
                f"grid must be (M, {self.rows} * {self.cols}, D), got {tuple(self.grid.shape)}"
            )

    def select(self, pictures: slice) -> ImageFeatures:
        """The features of some of the pictures."""
        return replace(self, grid=self.grid[pictures])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ImageFeatures:
        """The same features on another device."""
        return replace(self, grid=self.grid.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> ImageFeatures:
        """The same features in page-locked memory."""
        return replace(self, grid=self.grid.pin_memory())


@dataclass(frozen=True)
class CaptionBatch:
    """Pictures once each, with the captions that belong to them.

    Exactly one of ``images`` and ``features`` is given.

    Args:
        tokens: BOS w1 .. wn EOS PAD.., (N, L) int64. N may be 0 (pictures to be captioned).
        lengths: Real tokens of each row, BOS and EOS included, (N,) int64, at least 2.
        picture: Row of the picture that each caption describes, (N,) int64, ascending.
        image_ids: Id of each picture, M of them.
        images: Normalised pictures, (M, 3, height, width) float.
        features: Encoder output of the pictures, grid (M, R, D).
    """

    tokens: Tensor
    lengths: Tensor
    picture: Tensor
    image_ids: tuple[ImageId, ...]
    images: Tensor | None = None
    features: ImageFeatures | None = None

    def __post_init__(self) -> None:
        if (self.images is None) == (self.features is None):
            raise ValueError("a batch holds either images or features, not both and not neither")

    def to(self, device: torch.device | str, non_blocking: bool = False) -> CaptionBatch:
        """The same batch on another device; Lightning calls it."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            tokens=move(self.tokens),
            lengths=move(self.lengths),
            picture=move(self.picture),
            images=None if self.images is None else move(self.images),
            features=None if self.features is None else self.features.to(device, non_blocking),
        )

    def pin_memory(self) -> CaptionBatch:
        """The same batch in page-locked memory; the data loader calls it."""
        return replace(
            self,
            tokens=self.tokens.pin_memory(),
            lengths=self.lengths.pin_memory(),
            picture=self.picture.pin_memory(),
            images=None if self.images is None else self.images.pin_memory(),
            features=None if self.features is None else self.features.pin_memory(),
        )


@dataclass(frozen=True)
class Hypothesis:
    """One caption that a search found, in ids.

    Args:
        token_ids: Words without BOS and EOS, T of them.
        token_log_probs: The model's own log-probability of each word (before bans and
            temperature), (T,) float32.
        log_prob: Their sum, and that of the end token where it came.
        score: What the search ranked by (length-normalised for beam search).
        finished: Whether the end token came before the length limit.
        attention: Map of each word, (T, R), each summing to 1 over R.
        layer_attention: Maps of every layer and head, (T, layers, heads, R), on request.
    """

    token_ids: tuple[int, ...]
    token_log_probs: Tensor
    log_prob: float
    score: float
    finished: bool
    attention: Tensor
    layer_attention: Tensor | None = None


@dataclass(frozen=True)
class Alternative:
    """A word that the model might have written in place of another.

    Args:
        word: The word as the vocabulary has it; the end token's own name for an end there.
        token_id: Its id.
        log_prob: The model's own log-probability of it, given the words before.
    """

    word: str
    token_id: int
    log_prob: float


@dataclass(frozen=True)
class CaptionResult:
    """A caption with everything that a person may want to look at.

    Args:
        text: The caption as people read it.
        words: Its T words, without the end token.
        token_ids: Their ids in the model's vocabulary.
        word_log_probs: The model's own log-probability of each word, (T,) float32.
        log_prob: Log-probability of the caption, the end token included where it came.
        attention: Map of each word, (T, rows, cols) float32, each summing to 1.
        crop_box: The part of the upright picture that the grid covers.
        image_size: Width and height of the upright picture in pixels.
        finished: Whether the model ended the caption itself.
        score: What the search ranked by.
        layer_attention: Maps of every layer and head, (T, layers, heads, rows, cols).
        alternatives: For each word, and for what comes after the last one, the likeliest other
            tokens, likeliest first; T + 1 entries. On request.
    """

    text: str
    words: tuple[str, ...]
    token_ids: tuple[int, ...]
    word_log_probs: NDArray[np.float32]
    log_prob: float
    attention: NDArray[np.float32]
    crop_box: CropBox
    image_size: tuple[int, int]
    finished: bool
    score: float
    layer_attention: NDArray[np.float32] | None = None
    alternatives: tuple[tuple[Alternative, ...], ...] | None = None
