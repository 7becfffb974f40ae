"""Scheduled sampling: some of the words that a decoder reads are its own guesses."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.decoding.processors import BanTokens
from captioner.decoding.sample import invert_distribution
from captioner.models.interfaces import CaptionDecoder
from captioner.types import ImageFeatures, SpecialIds


def replace_with_guesses(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    tokens: Tensor,
    token_mask: Tensor,
    picture: Tensor,
    share: float,
    special_ids: SpecialIds,
) -> Tensor:
    """Put words that the decoder draws in the place of some words of the references.

    One pass over the references without gradient gives a distribution at every place; the words
    that replace are drawn from it. So both decoders can do it, without a step for each word.

    Args:
        decoder: The decoder that learns, in the mode it is in.
        features: Regions of M pictures.
        tokens: What it would read, BOS first, (N, T).
        token_mask: Where that is real, (N, T), real ones first.
        picture: Picture of each caption, (N,).
        share: Probability that a word is replaced, 0..1; BOS never is.
        special_ids: Tokens that are no words; none of them is drawn.

    Returns:
        What it is to read instead, (N, T).

    References:
        Bengio et al. 2015, Scheduled Sampling, sec. 2.4; in two passes: Mihaylova and Martins
        2019, Scheduled Sampling for Transformers, sec. 3.
    """
    with torch.no_grad():
        output = decoder(features, tokens, token_mask, picture, need_attention=False)
        ban = BanTokens((special_ids.pad_id, special_ids.bos_id, special_ids.eos_id))
        uniforms = torch.rand(len(output.logits), dtype=torch.float64, device=output.logits.device)
        drawn = invert_distribution(ban(output.logits.float(), tokens), uniforms)  # (P,)
    guesses = torch.zeros_like(tokens)
    guesses[token_mask] = drawn
    # The guess at a place is what is read at the next one.
    guesses = guesses.roll(1, dims=1)
    replaced = (torch.rand(tokens.shape, device=tokens.device) < share) & token_mask
    replaced[:, 0] = False
    return torch.where(replaced, guesses, tokens)
