import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.data.collate import CaptionCollate, CaptionItem, pad_captions
from captioner.types import SpecialIds


def item(name, captions, *, image=None, grid=None):
    return CaptionItem(name, tuple(torch.tensor(c) for c in captions), image=image, grid=grid)


def test_pictures_come_once_with_captions_in_neighbouring_rows():
    images = torch.arange(3 * 3 * 2 * 2, dtype=torch.float32).view(3, 3, 2, 2)
    batch = CaptionCollate()(
        [
            item("a.jpg", [[1, 7, 2], [1, 8, 9, 2]], image=images[0]),
            item("b.jpg", [], image=images[1]),
            item(3, [[1, 4, 2]], image=images[2]),
        ]
    )
    assert batch.tokens.tolist() == [[1, 7, 2, 0], [1, 8, 9, 2], [1, 4, 2, 0]]
    assert batch.lengths.tolist() == [3, 4, 3]
    assert batch.picture.tolist() == [0, 0, 2]
    assert batch.image_ids == ("a.jpg", "b.jpg", 3)
    assert batch.images is not None
    assert torch.equal(batch.images, images)
    assert batch.features is None
    for tensor in (batch.tokens, batch.lengths, batch.picture):
        assert tensor.dtype == torch.int64


def test_features_come_in_float32_with_the_size_of_their_grid():
    grids = torch.randn(2, 6, 5).half()
    batch = CaptionCollate(grid_size=(2, 3))(
        [item("a", [[1, 2]], grid=grids[0]), item("b", [[1, 2]], grid=grids[1])]
    )
    assert batch.images is None
    assert batch.features is not None
    assert (batch.features.rows, batch.features.cols) == (2, 3)
    assert batch.features.grid.dtype == torch.float32
    assert torch.equal(batch.features.grid, grids.float())


def test_no_captions_give_no_rows():
    batch = CaptionCollate()([item("a", [], image=torch.zeros(3, 2, 2))])
    assert batch.tokens.shape == (0, 0)
    assert batch.lengths.shape == batch.picture.shape == (0,)
    assert batch.tokens.dtype == batch.lengths.dtype == batch.picture.dtype == torch.int64


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(3, 50), max_size=8), min_size=1, max_size=6))
def test_padding_loses_and_adds_nothing(words):
    captions = [torch.tensor([1, *sentence, 2]) for sentence in words]
    tokens, lengths = pad_captions(captions, pad_id=0)
    assert tokens.shape == (len(words), max(map(len, words)) + 2)
    for row, length, caption in zip(tokens, lengths, captions, strict=True):
        assert torch.equal(row[:length], caption)
        assert (row[length:] == 0).all()


def test_the_padding_is_the_vocabularys():
    tokens, _ = pad_captions([torch.tensor([5]), torch.tensor([5, 5])], pad_id=9)
    assert tokens.tolist() == [[5, 9], [5, 5]]
    batch = CaptionCollate(SpecialIds(pad_id=9))(
        [item("a", [[1], [1, 2]], image=torch.zeros(3, 1, 1))]
    )
    assert batch.tokens.tolist() == [[1, 9], [1, 2]]


def test_mixtures_and_nothing_are_refused():
    with pytest.raises(ValueError, match="picture b has no image"):
        CaptionCollate()(
            [item("a", [], image=torch.zeros(3, 1, 1)), item("b", [], grid=torch.zeros(1, 1))]
        )
    with pytest.raises(ValueError, match="at least one item"):
        CaptionCollate()([])
