"""Captions that a decoder draws for itself to learn from, as bare token ids.

Shapes: M pictures, K captions per picture, T words of the longest caption.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from captioner.decoding.generate import evaluating
from captioner.decoding.options import DecodingOptions
from captioner.decoding.processors import build_bans, build_sampling
from captioner.decoding.sample import invert_distribution
from captioner.decoding.trace import own_log_probs, reorder_state
from captioner.models.interfaces import CaptionDecoder
from captioner.types import ImageFeatures, SpecialIds


@dataclass(frozen=True)
class RollOuts:
    """Drawn captions of a batch of pictures.

    Args:
        token_ids: Words without BOS and EOS, PAD after them, (M, K, T).
        lengths: Words of each caption, (M, K).
        finished: Whether the end token came before the length limit, (M, K).
    """

    token_ids: Tensor
    lengths: Tensor
    finished: Tensor

    def first(self, num: int) -> RollOuts:
        """The first captions of each picture, ``num`` of them."""
        return RollOuts(self.token_ids[:, :num], self.lengths[:, :num], self.finished[:, :num])


def roll_out(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    special_ids: SpecialIds,
    *,
    num_samples: int,
    greedy: bool = False,
    max_length: int = 20,
    temperature: float = 1.0,
) -> RollOuts:
    """Draw captions of every picture, all in one batch, without gradient.

    The decoder is in eval mode meanwhile. PAD, BOS and the unknown word never come. Random
    numbers are PyTorch's own.

    Args:
        decoder: Any decoder that keeps the protocol.
        features: The pictures, grid (M, R, D), M at least 1.
        special_ids: The tokens that are no words.
        num_samples: Captions drawn for each picture.
        greedy: Whether the greedy caption of each picture comes along, as the last of its K.
        max_length: Most words; a caption that reaches it without an end is cut off there.
        temperature: Divides the logits before sampling, above 0.

    Returns:
        K = ``num_samples`` captions of each picture, and one more with ``greedy``.

    Raises:
        ValueError: The decoder gave NaN.
    """
    options = DecodingOptions(method="sample", max_length=max_length, temperature=temperature)
    bans, process = build_bans(options, special_ids), build_sampling(options)
    num_pictures, device = features.grid.shape[0], features.grid.device
    per_picture = num_samples + greedy
    lanes = torch.arange(num_pictures * per_picture, device=device)
    token_ids = torch.full((len(lanes), max_length), special_ids.pad_id, device=device)
    lengths = torch.zeros_like(lanes)
    finished = torch.zeros_like(lanes, dtype=torch.bool)
    # Not inference mode: the ids are read again by a pass with gradient.
    with evaluating(decoder), torch.no_grad():
        state = reorder_state(decoder.init_state(features), lanes // per_picture)
        tokens = torch.full_like(lanes, special_ids.bos_id)
        for step in range(max_length):
            output = decoder.step(tokens, state)
            words = token_ids[lanes, :step]
            allowed = bans(own_log_probs(output.logits), words)
            uniforms = torch.rand(len(lanes), dtype=torch.float64, device=device)
            tokens = invert_distribution(process(allowed, words), uniforms)
            if greedy:
                last = lanes % per_picture == num_samples
                tokens = torch.where(last, allowed.argmax(dim=1), tokens)
            ended = tokens == special_ids.eos_id
            finished[lanes[ended]] = True
            rows = (~ended).nonzero().squeeze(1)
            if not len(rows):
                break
            lanes, tokens = lanes[rows], tokens[rows]
            token_ids[lanes, step] = tokens
            lengths[lanes] = step + 1
            state = reorder_state(output.state, rows)
    longest = max(1, int(lengths.max()))
    shape = (num_pictures, per_picture)
    return RollOuts(
        token_ids[:, :longest].view(*shape, longest), lengths.view(shape), finished.view(shape)
    )
