"""Random captions: temperature, top-k and nucleus sampling.

Shapes: M pictures, N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.decoding.greedy import follow_paths
from captioner.decoding.options import DecodingOptions
from captioner.decoding.processors import build_sampling
from captioner.models.interfaces import CaptionDecoder
from captioner.types import Hypothesis, ImageFeatures, SpecialIds


def sample_captions(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    options: DecodingOptions,
    special_ids: SpecialIds,
    *,
    generator: torch.Generator | None = None,
    layer_attention: bool = False,
    prefix: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Draw ``num_captions`` captions of each picture, independently.

    Bans come first, then temperature, top-k and top-p. Every caption is a draw of its own, so two
    may be equal by chance. They are ranked by the same score as beam search ranks by.

    Each picture has random numbers of its own: its seed is one draw from the caller's generator,
    taken in picture order. So what is drawn for a picture depends on the generator's state and on
    how many pictures came before, and on nothing else in the batch: captions of a list of pictures
    are the same in batches of any size, as long as one generator serves them all in order.

    The arguments are those of `captioner.decoding.generate`, which also sets eval and inference
    mode: call that.

    Returns:
        For each picture ``num_captions`` captions, best first.

    References:
        Fan et al. 2018 (top-k) and Holtzman et al. 2020 (nucleus); see `TopK` and `TopP`. Where
        both are given, the nucleus is that of the k words.
    """
    process = build_sampling(options)
    uniforms = _draw_uniforms(
        features.grid.shape[0], options.num_captions, options.max_length, generator
    ).to(features.grid.device)

    def choose(log_probs: Tensor, lanes: Tensor, step: int) -> Tensor:
        return invert_distribution(process(log_probs, lanes[:, None][:, :0]), uniforms[lanes, step])

    return follow_paths(
        decoder,
        features,
        options,
        special_ids,
        choose,
        layer_attention=layer_attention,
        prefix=prefix,
    )


def invert_distribution(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Turn uniform numbers into draws from softmax(logits), one per row.

    Args:
        logits: Of each row, (N, V); -inf is never drawn. Where all are, any token comes out.
        uniforms: In [0, 1), (N,) float64.

    Returns:
        Token ids, (N,): the first whose cumulative probability exceeds the number.
    """
    maximum = logits.amax(dim=1, keepdim=True)
    maximum = maximum.masked_fill(maximum.isinf(), 0.0)
    cumulative = (logits.double() - maximum).exp().cumsum(dim=1)  # (N, V), not normalised
    sought = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, sought, right=True).squeeze(1)
    return tokens.clamp_max(logits.shape[1] - 1)


def _draw_uniforms(
    num_pictures: int, num_captions: int, max_length: int, generator: torch.Generator | None
) -> Tensor:
    """Random numbers for every word of every caption, (M * num_captions, max_length) float64."""
    device = torch.device("cpu") if generator is None else generator.device
    drawn = []
    for _ in range(num_pictures):
        seed = torch.randint(2**63 - 1, (), generator=generator, device=device)
        own = torch.Generator().manual_seed(int(seed))
        drawn.append(torch.rand(num_captions, max_length, generator=own, dtype=torch.float64))
    return torch.cat(drawn)
