"""Soft attention over picture regions, computed once per picture for all rows that share it.

Shapes: M pictures, N rows (captions or hypotheses), G rows of one picture at most, R regions,
A attention width, C width of the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

ScoreName: TypeAlias = Literal["additive", "dot", "scaled_dot", "mean"]

# Elements of the (G, R, A) temporary of additive attention that are worked on at once: 1 MB in
# float32 stays in a CPU core's cache, so that each pass over it costs no memory traffic.
_CPU_CHUNK = 1 << 18


@dataclass(frozen=True)
class RowGroups:
    """Which rows belong to which picture, as a grid with one line per picture.

    Rows of one picture share its keys and values. Set out in an (M, G) grid they meet them in
    batched products, without a copy of the keys for each row.

    Args:
        counts: Number of rows of each picture, M of them.
        size: G, the largest of them.
        index: Cell of each row in the flattened grid, (N,) int64; None where the rows already
            lie in grid order and fill it, so that spreading and collecting are views.
    """

    counts: tuple[int, ...]
    size: int
    index: Tensor | None

    @classmethod
    def build(
        cls, picture: Tensor, num_pictures: int, device: torch.device | None = None
    ) -> RowGroups:
        """Group rows by picture.

        Args:
            picture: Picture of each row, (N,) int64, in any order. Read on the host.
            num_pictures: M. Pictures may have no row.
            device: Where the rows are; where ``picture`` is by default.

        Raises:
            ValueError: If a row names a picture that does not exist.
        """
        device = picture.device if device is None else device
        rows = picture.cpu()
        if rows.numel() == 0:
            return cls((0,) * num_pictures, 0, rows.to(device))
        if int(rows.min()) < 0 or int(rows.max()) >= num_pictures:
            raise ValueError(
                f"picture must name rows 0..{num_pictures - 1} of the features, got "
                f"{int(rows.min())}..{int(rows.max())}"
            )
        counts = torch.bincount(rows, minlength=num_pictures)
        size = int(counts.max())
        first = counts.cumsum(0) - counts
        ordered, order = rows.sort(stable=True)
        slot = torch.empty_like(rows)
        slot[order] = torch.arange(len(rows)) - first[ordered]
        index = rows * size + slot
        filled = len(rows) == num_pictures * size
        if filled and torch.equal(index, torch.arange(len(rows))):
            return cls(tuple(counts.tolist()), size, None)
        return cls(tuple(counts.tolist()), size, index.to(device))

    def spread(self, rows: Tensor) -> Tensor:
        """Set rows out by picture: (N, ...) -> (M, G, ...); empty cells hold zeros."""
        shape = (len(self.counts), self.size, *rows.shape[1:])
        if self.index is None:
            return rows.reshape(shape)
        grid = rows.new_zeros(shape[0] * shape[1], *shape[2:])
        return grid.index_copy(0, self.index, rows).view(shape)

    def collect(self, grid: Tensor) -> Tensor:
        """Read the rows back: (M, G, ...) -> (N, ...)."""
        flat = grid.flatten(0, 1)
        return flat if self.index is None else flat.index_select(0, self.index)

    def chunks(self, row_elements: int, device: torch.device) -> Iterator[tuple[slice, int]]:
        """Runs of pictures to be worked on at once, and the rows each of them has at most.

        On a CPU a run is about as large as a core's cache and leaves pictures without rows out;
        elsewhere all pictures are one run.

        Args:
            row_elements: Elements that one row makes.
            device: Where the work is done.
        """
        if device.type != "cpu":
            yield slice(0, len(self.counts)), self.size
            return
        start = 0
        while start < len(self.counts):
            size = self.counts[start]
            stop = start + 1
            if size:
                # A run holds pictures with equally many rows: no work on empty cells.
                while (
                    stop < len(self.counts)
                    and self.counts[stop] == size
                    and (stop + 1 - start) * size * row_elements <= _CPU_CHUNK
                ):
                    stop += 1
                yield slice(start, stop), size
            start = stop


class AttentionScore(Protocol):
    """Says how well each region answers a query: the part of attention that is chosen by name.

    A score is an ``nn.Module`` with a hand-written gradient beside its value, because the
    recurrence of the LSTM decoder is differentiated as a whole.
    """

    def __call__(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores (M, G, R) of queries (M, G, A) over keys (M, R, A)."""
        ...

    def weights(self) -> tuple[Tensor, ...]:
        """The score's own parameters, in the order of the gradients of ``gradient``."""
        ...

    def gradient(
        self,
        query: Tensor,
        keys: Tensor,
        grad_scores: Tensor,
        grad_keys: Tensor,
        grad_weights: tuple[Tensor, ...],
    ) -> Tensor:
        """Gradient of a loss with respect to the queries, given that to the scores.

        Args:
            query: Queries, (M, G, A).
            keys: Keys, (M, R, A).
            grad_scores: Gradient of the scores, (M, G, R).
            grad_keys: Gradient of the keys, (M, R, A), added to in place.
            grad_weights: Gradients of ``weights()``, added to in place.

        Returns:
            Gradient of the queries, (M, G, A).
        """
        ...


class AdditiveScore(nn.Module):
    """Score of a small network: ``v . tanh(keys + query)``.

    Args:
        attention_dim: A, width of queries and keys.

    References:
        Bahdanau et al. 2015, sec. A.1.2; Xu et al. 2015, eq. 4, f_att. The bias of the
        projection of the keys serves both; a bias after ``v`` would cancel in the softmax.
    """

    def __init__(self, attention_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(attention_dim))
        bound = 1 / math.sqrt(attention_dim)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores (M, G, R) of queries (M, G, A) over keys (M, R, A)."""
        weight = self.weight.to(keys.dtype)
        return (self._halves(query, keys) @ weight) * 2 - weight.sum()

    @staticmethod
    def _halves(query: Tensor, keys: Tensor) -> Tensor:
        """``(1 + tanh(keys + query)) / 2``, (M, G, R, A).

        As ``sigmoid(2 x)``: on a CPU PyTorch's sigmoid takes a tenth of the time of its tanh.
        """
        doubled = (keys.unsqueeze(1) + query.unsqueeze(2)).mul_(2)
        return doubled.sigmoid() if doubled.requires_grad else doubled.sigmoid_()

    def weights(self) -> tuple[Tensor, ...]:
        """The vector v."""
        return (self.weight,)

    def gradient(
        self,
        query: Tensor,
        keys: Tensor,
        grad_scores: Tensor,
        grad_keys: Tensor,
        grad_weights: tuple[Tensor, ...],
    ) -> Tensor:
        """Gradient with respect to the queries; tanh is computed again, not kept."""
        halves = self._halves(query, keys)  # (M, G, R, A)
        grad_row = grad_scores.unsqueeze(2)  # (M, G, 1, R)
        by_halves = grad_row @ halves  # (M, G, 1, A)
        grad_weights[0].add_(by_halves.sum((0, 1, 2)), alpha=2).sub_(grad_scores.sum())
        # The slope of tanh is four times halves * (1 - halves).
        slope = halves.addcmul_(halves, halves, value=-1)
        weight = 4 * self.weight.to(slope.dtype)
        grad_query = (grad_row @ slope).squeeze(2) * weight
        weighted = slope.mul_(grad_scores.unsqueeze(3))
        summed = weighted.squeeze(1) if weighted.shape[1] == 1 else weighted.sum(1)
        grad_keys.addcmul_(summed, weight)
        return grad_query


class DotScore(nn.Module):
    """Score by inner product of query and key, divided by ``sqrt(A)`` if scaled.

    Args:
        attention_dim: A, width of queries and keys.
        scaled: Whether to divide.

    References:
        Luong et al. 2015, sec. 3.1 (dot); Vaswani et al. 2017, eq. 1 (scaled).
    """

    def __init__(self, attention_dim: int, scaled: bool) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(attention_dim) if scaled else 1.0

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores (M, G, R) of queries (M, G, A) over keys (M, R, A)."""
        return (query * self.scale) @ keys.mT

    def weights(self) -> tuple[Tensor, ...]:
        """Nothing: an inner product has no parameters."""
        return ()

    def gradient(
        self,
        query: Tensor,
        keys: Tensor,
        grad_scores: Tensor,
        grad_keys: Tensor,
        grad_weights: tuple[Tensor, ...],
    ) -> Tensor:
        """Gradient with respect to the queries."""
        grad_keys.baddbmm_(grad_scores.mT, query, alpha=self.scale)
        return (grad_scores @ keys) * self.scale


class EqualScore(nn.Module):
    """The same score for every region, so that the softmax weighs each 1/R: no attention.

    Queries and keys may have any width, 0 too; they are not looked at.
    """

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Zeros (M, G, R) for queries (M, G, A) over keys (M, R, A)."""
        return query.new_zeros(*query.shape[:2], keys.shape[1])

    def weights(self) -> tuple[Tensor, ...]:
        """Nothing."""
        return ()

    def gradient(
        self,
        query: Tensor,
        keys: Tensor,
        grad_scores: Tensor,
        grad_keys: Tensor,
        grad_weights: tuple[Tensor, ...],
    ) -> Tensor:
        """Zeros: the scores depend on nothing."""
        return torch.zeros_like(query)


def build_score(name: ScoreName, attention_dim: int) -> AdditiveScore | DotScore | EqualScore:
    """The score part called ``name``.

    Raises:
        ValueError: If there is no such part.
    """
    if name == "additive":
        return AdditiveScore(attention_dim)
    if name in ("dot", "scaled_dot"):
        return DotScore(attention_dim, scaled=name == "scaled_dot")
    if name == "mean":
        return EqualScore()
    raise ValueError(f'score must be "additive", "dot", "scaled_dot" or "mean", got {name!r}')


def region_scores(score: AttentionScore, query: Tensor, keys: Tensor, groups: RowGroups) -> Tensor:
    """Score the regions of each row's picture.

    Args:
        score: How a query and a key are compared.
        query: One query per row, (N, A).
        keys: Projected regions, (M, R, A), once per picture.
        groups: Which row belongs to which picture.

    Returns:
        Scores before the softmax, (N, R).
    """
    grid = groups.spread(query)  # (M, G, A)
    if keys.device.type != "cpu" or torch.is_grad_enabled():
        return groups.collect(score(grid, keys))
    scores = query.new_empty(*grid.shape[:2], keys.shape[1])  # (M, G, R)
    for run, size in groups.chunks(keys.shape[1] * keys.shape[2], keys.device):
        scores[run, :size] = score(grid[run, :size], keys[run])
    return groups.collect(scores)


def region_scores_gradient(
    score: AttentionScore,
    query: Tensor,
    keys: Tensor,
    groups: RowGroups,
    grad_scores: Tensor,
    grad_keys: Tensor,
    grad_weights: tuple[Tensor, ...],
) -> Tensor:
    """Gradient of ``region_scores`` with respect to the queries, (N, A).

    The gradients of the keys (M, R, A) and of the score's weights are added to in place.
    """
    grid, grad_grid = groups.spread(query), groups.spread(grad_scores)
    grad_query = torch.empty_like(grid)
    for run, size in groups.chunks(keys.shape[1] * keys.shape[2], keys.device):
        grad_query[run, :size] = score.gradient(
            grid[run, :size], keys[run], grad_grid[run, :size], grad_keys[run], grad_weights
        )
    return groups.collect(grad_query)


def weighted_regions(weights: Tensor, values: Tensor, groups: RowGroups) -> Tensor:
    """Sum the regions of each row's picture by weight.

    Args:
        weights: Attention of each row, (N, R).
        values: Regions, (M, R, C), once per picture.
        groups: Which row belongs to which picture.

    Returns:
        Context, (N, C).

    References:
        Xu et al. 2015, eq. 13 (soft attention, the expected context).
    """
    return groups.collect(torch.bmm(groups.spread(weights), values))
