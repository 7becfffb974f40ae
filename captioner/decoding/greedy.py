"""Greedy search, and the loop of every search that follows one path per row.

Shapes: M pictures, N rows, V vocabulary, T words so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from captioner.decoding.options import DecodingOptions
from captioner.decoding.processors import build_bans
from captioner.decoding.trace import Trace, own_log_probs, reorder_state
from captioner.models.interfaces import CaptionDecoder
from captioner.types import Hypothesis, ImageFeatures, SpecialIds


def greedy_search(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    options: DecodingOptions,
    special_ids: SpecialIds,
    *,
    layer_attention: bool = False,
    prefix: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Take the likeliest allowed word every time.

    The arguments are those of `captioner.decoding.generate`, which also sets eval and inference
    mode: call that.

    Returns:
        One caption for each picture, in a list of its own.
    """

    def choose(log_probs: Tensor, lanes: Tensor, step: int) -> Tensor:
        return log_probs.argmax(dim=1)

    return follow_paths(
        decoder,
        features,
        options,
        special_ids,
        choose,
        layer_attention=layer_attention,
        prefix=prefix,
    )


def follow_paths(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    options: DecodingOptions,
    special_ids: SpecialIds,
    choose: Callable[[Tensor, Tensor, int], Tensor],
    *,
    layer_attention: bool = False,
    prefix: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Write ``options.num_captions`` captions per picture, each word by word on its own.

    A caption ends with its end token, at the maximum length, or where every word is impossible;
    its row then leaves the batch.

    Args:
        decoder: What gives the logits.
        features: The pictures, grid (M, R, D).
        options: Limits; ``num_captions`` is the number of rows per picture.
        special_ids: The tokens that are no words.
        choose: Picks tokens (N,) from allowed log-probabilities (N, V), given the lanes (N,) and
            the number of the step. Lane ``m * num_captions + j`` is caption j of picture m.
        layer_attention: Whether the maps of all layers are kept.
        prefix: Words that every caption begins with.
    """
    num_pictures, device = features.grid.shape[0], features.grid.device
    num_captions = options.num_captions
    bans = build_bans(options, special_ids, prefix)
    lanes = torch.arange(num_pictures * num_captions, device=device)
    state = reorder_state(decoder.init_state(features), lanes // num_captions)
    tokens = torch.full_like(lanes, special_ids.bos_id)
    words = tokens[:, None][:, :0]  # (N, 0)
    log_prob: Tensor | None = None
    trace = Trace()
    for step in range(options.max_length):
        output = decoder.step(tokens, state, layer_attention=layer_attention)
        trace.read(output)
        allowed = bans(own_log_probs(output.logits), words)
        tokens = choose(allowed, lanes, step)
        token_log_prob = allowed.gather(1, tokens[:, None]).squeeze(1)
        if log_prob is None:
            log_prob = torch.zeros_like(token_log_prob)
        stuck = token_log_prob == -math.inf
        ended = (tokens == special_ids.eos_id) & ~stuck
        total = log_prob + token_log_prob
        stays = ~(stuck | ended)
        if bool(stays.all()):
            rows = torch.arange(lanes.shape[0], device=device)
        else:
            pictures = lanes // num_captions
            for mask, end_log_prob, finished in ((ended, total, True), (stuck, log_prob, False)):
                trace.end(
                    pictures[mask],
                    mask.nonzero().squeeze(1),
                    end_log_prob[mask],
                    finished=finished,
                )
            rows = stays.nonzero().squeeze(1)
            if rows.shape[0] == 0:
                break
            lanes, tokens, words = lanes[rows], tokens[rows], words[rows]
            total, token_log_prob = total[rows], token_log_prob[rows]
        trace.advance(rows, tokens, token_log_prob)
        log_prob = total
        if step + 1 == options.max_length:
            everyone = torch.arange(lanes.shape[0], device=device)
            trace.end(lanes // num_captions, everyone, log_prob, finished=False)
            break
        words = torch.cat([words, tokens[:, None]], dim=1)
        state = reorder_state(output.state, rows)
    return trace.hypotheses(num_pictures, num_captions, options.length_penalty)
