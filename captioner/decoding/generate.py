"""The front door of decoding: pictures in, captions out, whatever decoder and search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from captioner.decoding.beam import beam_search
from captioner.decoding.greedy import greedy_search
from captioner.decoding.options import DecodingOptions
from captioner.decoding.sample import sample_captions
from captioner.models.interfaces import CaptionDecoder
from captioner.types import Hypothesis, ImageFeatures, SpecialIds


def generate(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    options: DecodingOptions,
    special_ids: SpecialIds,
    *,
    generator: torch.Generator | None = None,
    layer_attention: bool = False,
    prefix: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Caption a batch of pictures.

    Runs in inference mode with the decoder in eval mode, and leaves every module of it in the
    mode in which it was. Log-probabilities are the model's own, before bans and temperature, in
    float32 or wider. A caption always comes out: one that was cut off at the maximum length, or
    that no word could continue, says ``finished=False``. What is found for a picture does not
    depend on the other pictures of the batch.

    Args:
        decoder: Any decoder that keeps the protocol.
        features: The pictures, grid (M, R, D), on the decoder's device. M may be 0.
        options: The search and its limits.
        special_ids: The tokens that are no words.
        generator: Random numbers for sampling, PyTorch's own by default. One number is taken
            per picture; see `sample_captions`. The other searches take none.
        layer_attention: Whether the maps of every layer and head are wanted too.
        prefix: Ids of words that every caption begins with, at most ``max_length``. They are
            exempt from bans; their log-probabilities and maps are reported like those of others.
            The end token may be the last: then the caption is these words and ends there.

    Returns:
        For each picture up to ``num_captions`` captions, best first (finished ones before those
        cut off, then by score). Their tensors are on the CPU.

    Raises:
        ValueError: The prefix holds special tokens, is too long or not in the vocabulary, or the
            decoder gave NaN.
    """
    _check_prefix(prefix, options, special_ids)
    if features.grid.shape[0] == 0:
        return []
    with evaluating(decoder), torch.inference_mode():
        if options.method == "sample":
            return sample_captions(
                decoder,
                features,
                options,
                special_ids,
                generator=generator,
                layer_attention=layer_attention,
                prefix=prefix,
            )
        search = greedy_search if options.method == "greedy" else beam_search
        return search(
            decoder,
            features,
            options,
            special_ids,
            layer_attention=layer_attention,
            prefix=prefix,
        )


def _check_prefix(prefix: Sequence[int], options: DecodingOptions, special_ids: SpecialIds) -> None:
    if len(prefix) > options.max_length:
        raise ValueError(
            f"prefix must have at most max_length={options.max_length} words, got {len(prefix)}"
        )
    no_words = {special_ids.pad_id, special_ids.bos_id, special_ids.eos_id}
    words = prefix[:-1] if prefix and prefix[-1] == special_ids.eos_id else prefix
    for token_id in words:
        if token_id in no_words or token_id < 0:
            raise ValueError(
                f"prefix must hold ids of words, got {token_id}, which is no word; leave PAD and "
                "BOS out, and EOS unless it is the last"
            )


@contextmanager
def evaluating(decoder: CaptionDecoder) -> Iterator[None]:
    """Put a decoder into eval mode for a while; modules that were frozen stay frozen after."""
    modules = list(decoder.modules()) if isinstance(decoder, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
