import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from captioner.data.samplers import LazyDataLoader, OrderedSampler, ShuffledSampler, mix_seed

SIZES = st.integers(1, 40)
WORLDS = st.integers(1, 5)


def ranks_of(kind, size, world_size, epoch=0, **options):
    samplers = [kind(size, rank=r, world_size=world_size, **options) for r in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


@settings(deadline=None)
@given(SIZES, WORLDS, st.integers(0, 3))
def test_training_shares_are_equal_and_repeat_no_more_than_they_must(size, world_size, epoch):
    shares = ranks_of(ShuffledSampler, size, world_size, epoch, seed=5)
    length = -(-size // world_size)
    assert [len(share) for share in shares] == [length] * world_size
    assert len(ShuffledSampler(size, world_size=world_size)) == length
    counts = Counter(index for share in shares for _, index in share)
    assert set(counts) == set(range(size))
    assert sum(counts.values()) - size == length * world_size - size < world_size
    assert {key[0] for share in shares for key in share} == {epoch}


@settings(deadline=None)
@given(SIZES, WORLDS)
def test_evaluation_shares_hold_every_picture_once(size, world_size):
    shares = ranks_of(OrderedSampler, size, world_size)
    assert sorted(index for share in shares for _, index in share) == list(range(size))
    for rank, share in enumerate(shares):
        assert len(OrderedSampler(size, rank=rank, world_size=world_size)) == len(share)
        assert share == sorted(share)


def test_processes_share_one_order():
    single = [index for _, index in ranks_of(ShuffledSampler, 12, 1, epoch=3, seed=9)[0]]
    first, second = ranks_of(ShuffledSampler, 12, 2, epoch=3, seed=9)
    assert [index for pair in zip(first, second, strict=True) for _, index in pair] == single


def test_order_follows_from_seed_and_epoch_alone():
    def order(seed, epoch):
        return [index for _, index in ranks_of(ShuffledSampler, 30, 1, epoch, seed=seed)[0]]

    before = order(1, 2)
    torch.manual_seed(77)
    assert order(1, 2) == before
    assert order(1, 3) != before
    assert order(2, 2) != before
    # seed + epoch, as PyTorch's own sampler has it, would give run 2 the orders of run 1.
    assert order(2, 1) != before


@pytest.mark.parametrize("kind", [ShuffledSampler, OrderedSampler])
def test_wrong_places_are_refused(kind):
    with pytest.raises(ValueError, match="rank 2 of world_size 2"):
        kind(4, rank=2, world_size=2)
    with pytest.raises(ValueError, match="num_items must be at least 0, got -1"):
        kind(-1)


def test_no_pictures_give_no_keys():
    assert list(ShuffledSampler(0)) == list(OrderedSampler(0)) == []


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63), min_size=1, max_size=4))
def test_mixed_seeds_are_seeds(numbers):
    seed = mix_seed(*numbers)
    assert 0 <= seed < 2**63
    torch.Generator().manual_seed(seed)


def test_mixed_seeds_differ():
    seeds = {mix_seed(a, b, c) for a in range(12) for b in range(12) for c in range(12)}
    assert len(seeds) == 12**3
    assert mix_seed(0) != mix_seed(0, 0)


class Keys(Dataset):
    def __getitem__(self, key):
        return key

    def __len__(self):
        return 6


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epoch_may_be_set_after_iter(num_workers):
    # Lightning does it in this order when it resumes a run.
    sampler = ShuffledSampler(6, seed=1)
    loader = LazyDataLoader(
        Keys(), batch_size=None, sampler=sampler, num_workers=num_workers, collate_fn=tuple
    )
    batches = iter(loader)
    sampler.set_epoch(4)
    expected = ShuffledSampler(6, seed=1)
    expected.set_epoch(4)
    assert list(batches) == list(expected)


def test_samplers_can_be_pickled():
    sampler = ShuffledSampler(5, seed=3)
    sampler.set_epoch(2)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)
