"""Teacher-forced captions, packed so that decoders work on real positions only.

Shapes: M pictures, N captions, T input positions, P real input positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.models.attention import RowGroups
from captioner.types import ImageFeatures


@dataclass(frozen=True)
class PackedCaptions:
    """The real positions of a batch of captions.

    Args:
        tokens: Tokens of the real positions in row-major order, (P,).
        cells: Where each of them lies in the flattened (N, T), (P,) int64.
        picture: Picture of each caption, (N,), on the host.
        lengths: Real positions of each caption, N of them.
    """

    tokens: Tensor
    cells: Tensor
    picture: Tensor
    lengths: tuple[int, ...]


def pack_captions(
    features: ImageFeatures, tokens: Tensor, token_mask: Tensor | None, picture: Tensor | None
) -> PackedCaptions:
    """Check what a decoder's ``forward`` was given and leave the padding out.

    Args:
        features: Picture regions, grid (M, R, D).
        tokens: Input tokens, (N, T).
        token_mask: True where a position is real, (N, T), real ones first; all by default.
        picture: Row of each caption's picture, (N,); caption i has picture i by default.

    Raises:
        ValueError: If shapes do not fit, a real position follows padding, or a caption names a
            picture that is not there.
    """
    if tokens.dim() != 2:
        raise ValueError(f"tokens must be (N, T), got {tuple(tokens.shape)}")
    num_rows, num_steps = tokens.shape
    num_pictures = features.grid.shape[0]
    if picture is None:
        if num_rows != num_pictures:
            raise ValueError(
                f"{num_rows} captions for {num_pictures} pictures: give `picture`, the row of "
                "each caption's picture"
            )
        picture = torch.arange(num_rows)
    elif picture.shape != (num_rows,):
        raise ValueError(f"picture must be ({num_rows},), got {tuple(picture.shape)}")
    picture = picture.cpu()
    if num_rows and not 0 <= int(picture.min()) <= int(picture.max()) < num_pictures:
        raise ValueError(
            f"picture must name rows 0..{num_pictures - 1} of the features, got "
            f"{int(picture.min())}..{int(picture.max())}"
        )
    if token_mask is None:
        cells = torch.arange(num_rows * num_steps, device=tokens.device)
        return PackedCaptions(tokens.flatten(), cells, picture, (num_steps,) * num_rows)
    if token_mask.shape != tokens.shape or token_mask.dtype != torch.bool:
        raise ValueError(
            f"token_mask must be boolean and {tuple(tokens.shape)} like tokens, got "
            f"{token_mask.dtype} and {tuple(token_mask.shape)}"
        )
    mask = token_mask.cpu()
    lengths = mask.sum(1)
    if not torch.equal(mask, torch.arange(num_steps) < lengths.unsqueeze(1)):
        raise ValueError("token_mask must have the real positions of each caption first")
    cells = mask.flatten().nonzero().squeeze(1).to(tokens.device)
    return PackedCaptions(tokens.flatten()[cells], cells, picture, tuple(lengths.tolist()))


@dataclass(frozen=True)
class StepLayout:
    """Packed positions in the order of a recurrence: step by step, longest caption first.

    Captions that have ended drop off the end of each step, as in PyTorch's packed sequences.

    Args:
        rows: Captions in the order of the recurrence, (N,).
        positions: Packed (row-major) position of each position in step order, (P,).
        inverse: Place in step order of each packed position, (P,).
        sizes: Captions at work at each step.
        groups: Pictures of the captions at work at each step.
        all_positions: Pictures of all positions in step order, for sums over the positions of
            a picture.
    """

    rows: Tensor
    positions: Tensor
    inverse: Tensor
    sizes: tuple[int, ...]
    groups: tuple[RowGroups, ...]
    all_positions: RowGroups

    @classmethod
    def build(cls, packed: PackedCaptions, num_pictures: int, device: torch.device) -> StepLayout:
        """Lay packed captions out for a recurrence."""
        lengths = torch.tensor(packed.lengths, dtype=torch.int64)
        order = lengths.argsort(descending=True, stable=True)
        num_steps = int(lengths.max()) if len(lengths) else 0
        first = lengths.cumsum(0) - lengths
        steps = torch.arange(num_steps).unsqueeze(1)  # (T, 1)
        at_work = steps < lengths[order]  # (T, N)
        positions = (first[order] + steps)[at_work]  # (P,), step by step
        inverse = torch.empty_like(positions)
        inverse[positions] = torch.arange(len(positions))
        picture = packed.picture[order]
        sizes = tuple(at_work.sum(1).tolist())
        groups: list[RowGroups] = []
        for step, size in enumerate(sizes):
            if step and size == sizes[step - 1]:
                groups.append(groups[-1])
            else:
                groups.append(RowGroups.build(picture[:size], num_pictures, device))
        of_positions = picture.expand(num_steps, -1)[at_work]
        return cls(
            rows=order.to(device),
            positions=positions.to(device),
            inverse=inverse.to(device),
            sizes=sizes,
            groups=tuple(groups),
            all_positions=RowGroups.build(of_positions, num_pictures, device),
        )
