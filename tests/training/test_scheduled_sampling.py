"""Guesses in the place of words: how many, which, and where."""

import pytest
import torch

from captioner.models.interfaces import DecoderOutput
from captioner.training.scheduled_sampling import replace_with_guesses
from captioner.types import ImageFeatures, SpecialIds

IDS = SpecialIds()
FEATURES = ImageFeatures(torch.zeros(1, 1, 1), 1, 1)


def copy_plus_one(features, tokens, token_mask, picture, *, need_attention) -> DecoderOutput:
    """Is sure that the next word is the one read, plus one (10 after BOS)."""
    read = tokens[token_mask]
    wanted = torch.where(read == IDS.bos_id, 10, read + 1)
    logits = torch.full((len(read), 60), -1e4)
    logits[torch.arange(len(read)), wanted] = 0.0
    logits[:, [IDS.pad_id, IDS.bos_id, IDS.eos_id]] = 1e4  # no words: never to be drawn
    return DecoderOutput(logits, None)


def replaced(share: float, rows: int = 1) -> torch.Tensor:
    tokens = torch.tensor([[1, 20, 30, 40], [1, 20, 0, 0]]).repeat(rows, 1)
    mask = torch.tensor([[True] * 4, [True, True, False, False]]).repeat(rows, 1)
    picture = torch.zeros(2 * rows, dtype=torch.int64)
    return replace_with_guesses(copy_plus_one, FEATURES, tokens, mask, picture, share, IDS)


def test_every_word_is_the_guess_at_the_place_before() -> None:
    assert replaced(1.0).tolist() == [[1, 10, 21, 31], [1, 10, 0, 0]]


def test_nothing_is_replaced_at_share_0() -> None:
    assert replaced(0.0).tolist() == [[1, 20, 30, 40], [1, 20, 0, 0]]


def test_the_share_is_kept() -> None:
    torch.manual_seed(0)
    words = replaced(0.25, rows=1000)[:, 1:]
    guessed = ((words % 10 == 1) | (words == 10)).sum().item()
    # Of 4000 words; standard deviation 27.
    assert guessed == pytest.approx(1000, abs=120)
