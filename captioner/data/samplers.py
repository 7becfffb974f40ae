"""The order in which pictures are read: it follows from seed, epoch and rank alone.

A sampler yields ``(epoch, index)`` keys, not bare indices. A data set that draws its random
choices from ``(seed, epoch, index)`` then gives the same item whoever asks for it: the main
process or any worker, in a first run or in a resumed one.

Both samplers share the pictures out among processes themselves. They derive from PyTorch's
``DistributedSampler`` only so that Lightning, which wraps every other sampler in a distributed
run, never shares them out a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data import DataLoader, DistributedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

ItemKey: TypeAlias = tuple[int, int]
"""Epoch and index of a picture in its data set: what the samplers yield."""


class _KeySampler(DistributedSampler[ItemKey]):
    """What both samplers are: a size, a share, and an epoch that Lightning sets."""

    def __init__(self, num_items: int, *, rank: int = 0, world_size: int = 1) -> None:
        # The parent's constructor asks for a data set and for a process group; neither is needed.
        if num_items < 0:
            raise ValueError(f"num_items must be at least 0, got {num_items}")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"rank must be in 0 .. world_size - 1, got rank {rank} of world_size {world_size}"
            )
        self.num_items = num_items
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; Lightning calls it before each one."""
        self.epoch = epoch


class ShuffledSampler(_KeySampler):
    """Every picture once per epoch in a new order, equally many on every process.

    The order of an epoch is one permutation, of which process r takes the positions r, r + W,
    r + 2W, .. of W processes. Where the pictures do not divide evenly, the first ones of the
    permutation are used once more, so that every process makes equally many steps (one that
    stops early would leave the others waiting for its gradients).

    Args:
        num_items: Size of the data set.
        seed: Decides the order, together with the epoch.
        rank: This process, 0 .. world_size - 1.
        world_size: Number of processes.
    """

    def __init__(
        self, num_items: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(num_items, rank=rank, world_size=world_size)
        self.seed = seed

    def __len__(self) -> int:
        return -(-self.num_items // self.world_size)

    def __iter__(self) -> Iterator[ItemKey]:
        epoch = self.epoch
        generator = torch.Generator()
        # Neighbouring seeds must not share orders, as seed + epoch would have them do.
        generator.manual_seed(mix_seed(self.seed, epoch))
        order = torch.randperm(self.num_items, generator=generator).tolist()
        for position in range(self.rank, len(self) * self.world_size, self.world_size):
            yield epoch, order[position % self.num_items]


class OrderedSampler(_KeySampler):
    """Every picture exactly once over all processes, in the order of the data set.

    Process r takes the pictures r, r + W, .. of W processes. Nothing is repeated, so processes
    may have one picture more or less; scores over the union are those of a single process.

    Args:
        num_items: Size of the data set.
        rank: This process, 0 .. world_size - 1.
        world_size: Number of processes.
    """

    def __len__(self) -> int:
        return len(range(self.rank, self.num_items, self.world_size))

    def __iter__(self) -> Iterator[ItemKey]:
        epoch = self.epoch
        for index in range(self.rank, self.num_items, self.world_size):
            yield epoch, index


class LazyDataLoader(DataLoader[Any]):
    """A data loader whose pass begins with its first batch, not with ``iter()``.

    Lightning calls ``iter`` on the training loader before it sets the epoch of a resumed run.
    Workers ask the sampler for keys as soon as they start, so the first resumed epoch would
    have the order of epoch 0.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # any iterator serves
        yield from super().__iter__()


def mix_seed(*numbers: int) -> int:
    """One seed from several whole numbers, well spread whatever they are.

    The mixing is splitmix64's (Steele et al. 2014, Fast splittable pseudorandom number
    generators), once per number, so it is the same on every platform and version.

    Args:
        numbers: For instance seed, epoch, index. Their order matters.

    Returns:
        A number from 0 to 2**63 - 1.

    >>> mix_seed(1, 2) == mix_seed(1, 2), mix_seed(1, 2) == mix_seed(2, 1)
    (True, False)
    """
    mask = (1 << 64) - 1
    state = len(numbers)
    for number in numbers:
        state = (state ^ (number & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1
