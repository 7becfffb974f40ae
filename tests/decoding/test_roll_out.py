"""Captions drawn to learn from: how often each comes, and that nothing else is changed."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from captioner.decoding import DecodingOptions, generate
from captioner.decoding.roll_out import RollOuts, roll_out
from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.transformer_decoder import TransformerDecoder
from captioner.types import ImageFeatures
from tests.decoding.conftest import BOS, EOS, IDS, PAD, REGIONS, UNK, History, TableDecoder

A, B = 4, 5


def table(picture: int, history: History) -> Tensor:
    """Picture 0 writes A or B and ends; picture 1 never ends. PAD, BOS and UNK are likely."""
    probabilities = torch.full((6,), 0.0, dtype=torch.float64)
    probabilities[[PAD, BOS, UNK]] = 0.2
    if picture == 0 and history:
        probabilities[EOS] = 0.4
    else:
        probabilities[A], probabilities[B] = 0.3, 0.1
    return probabilities.log()


def features(*pictures: int) -> ImageFeatures:
    grid = torch.tensor(pictures, dtype=torch.float64)[:, None, None]
    return ImageFeatures(grid.expand(-1, REGIONS, 1), 1, REGIONS)


def captions(drawn: RollOuts, picture: int) -> list[tuple[int, ...]]:
    return [
        tuple(ids[:length])
        for ids, length in zip(
            drawn.token_ids[picture].tolist(), drawn.lengths[picture].tolist(), strict=True
        )
    ]


def test_words_come_as_often_as_the_model_says() -> None:
    torch.manual_seed(0)
    decoder = TableDecoder(table)
    drawn = roll_out(decoder, features(0, 1), IDS, num_samples=2000, max_length=3)
    counts = Counter(captions(drawn, 0))
    assert set(counts) == {(A,), (B,)}
    # Three quarters of 2000, standard deviation 19.
    assert abs(counts[(A,)] - 1500) < 100
    assert drawn.finished[0].all()
    assert not drawn.finished[1].any()
    assert set(drawn.lengths[1].tolist()) == {3}
    counts = Counter(captions(drawn, 1))
    assert len(counts) == 8
    assert abs(counts[(A, A, A)] - 2000 * 0.75**3) < 110


def test_temperature_sharpens() -> None:
    torch.manual_seed(0)
    drawn = roll_out(TableDecoder(table), features(0), IDS, num_samples=2000, temperature=0.5)
    # 0.3^2 : 0.1^2
    assert abs(Counter(captions(drawn, 0))[(A,)] - 1800) < 70


def test_padding_follows_the_words() -> None:
    drawn = roll_out(TableDecoder(table), features(1, 0), IDS, num_samples=3, max_length=4)
    assert drawn.token_ids.shape == (2, 3, 4)
    assert (drawn.token_ids[1, :, 1:] == PAD).all()
    assert not drawn.token_ids.is_inference()


@pytest.mark.parametrize("kind", [ShowAttendTellDecoder, TransformerDecoder])
def test_the_greedy_caption_comes_last_and_is_that_of_greedy_search(kind: type) -> None:
    torch.manual_seed(1)
    if kind is ShowAttendTellDecoder:
        decoder = kind(5, 12, hidden_dim=8, embedding_dim=8, attention_dim=4, value_dim=8)
    else:
        decoder = kind(5, 12, model_dim=8, num_layers=1, num_heads=2)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    decoder.train()
    pictures = ImageFeatures(torch.randn(3, 4, 5), 2, 2)
    drawn = roll_out(decoder, pictures, IDS, num_samples=4, greedy=True, max_length=6)
    assert drawn.lengths.shape == (3, 5)
    assert decoder.training
    options = DecodingOptions(method="greedy", max_length=6)
    for picture, [best] in enumerate(generate(decoder, pictures, options, IDS)):
        assert captions(drawn, picture)[-1] == tuple(best.token_ids)
        assert bool(drawn.finished[picture, -1]) == best.finished
    assert drawn.first(4).lengths.shape == (3, 4)


def test_nan_is_an_error() -> None:
    decoder = TableDecoder(lambda picture, history: torch.full((6,), math.nan))
    with pytest.raises(ValueError, match="NaN"):
        roll_out(decoder, features(0), IDS, num_samples=2)
