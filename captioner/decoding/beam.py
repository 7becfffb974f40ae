"""Beam search over a batch of pictures.

Shapes: M pictures, K beams, N unfinished rows of all pictures, V vocabulary, T words so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.decoding.options import DecodingOptions
from captioner.decoding.processors import build_bans
from captioner.decoding.trace import Trace, length_norms, own_log_probs, reorder_state
from captioner.models.interfaces import CaptionDecoder
from captioner.types import Hypothesis, ImageFeatures, SpecialIds


def beam_search(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    options: DecodingOptions,
    special_ids: SpecialIds,
    *,
    layer_attention: bool = False,
    prefix: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Keep the ``beam_size`` most probable beginnings of each picture's caption.

    A picture has K places. At each step its unfinished beams and all their continuations compete
    by log-probability for the places that are open. A continuation by the end token is a
    finished caption: it takes its place for good, cannot be lost to unfinished ones, and costs no
    further step. So K = 1 is greedy search, and a beam wide enough for every caption finds the
    best of all.

    A picture leaves the batch once its places are all taken by finished captions, or once its
    ``num_captions`` best finished captions cannot be beaten. The latter is exact: a log-probability
    only falls, and no length divides it by more than the greatest one, so an unfinished beam of
    log-probability p ends with a score of at most p / max_length ** length_penalty.

    At the maximum length, unfinished beams are answers too. They rank behind finished captions
    whatever their score, for it lacks the cost of an end. So do beams that no word could continue.

    The arguments are those of `captioner.decoding.generate`, which also sets eval and inference
    mode: call that.

    Returns:
        For each picture its ``num_captions`` best captions, best first; fewer where there are not
        as many captions at all.

    References:
        Sutskever et al. 2014, Sequence to Sequence Learning with Neural Networks, section 3.2 (a
        finished hypothesis leaves the beam). We differ: its place stays taken, so the beam
        narrows. Length penalty: see `DecodingOptions`. Unfinished beams are compared by
        log-probability alone, for all of them are equally long; only finished captions and final
        answers are divided by their length.
    """
    num_pictures, device = features.grid.shape[0], features.grid.device
    beam_size, num_captions = options.beam_size, options.num_captions
    bans = build_bans(options, special_ids, prefix)
    norms = length_norms(options.max_length, options.length_penalty)
    ranks = torch.arange(beam_size, device=device)

    # Rows exist only for unfinished beams: at first one per picture.
    picture = torch.arange(num_pictures, device=device)  # (N,)
    place = torch.zeros_like(picture)  # (N,) the row's place among the K of its picture
    tokens = torch.full_like(picture, special_ids.bos_id)
    words = tokens[:, None][:, :0]  # (N, 0)
    log_prob: Tensor | None = None
    state = decoder.init_state(features)

    open_places = torch.full_like(picture, beam_size)  # (M,)
    any_finished = False
    # Scores of the best finished captions of each picture, greatest first, in float64 as the
    # final ranking computes them.
    best_scores = torch.full(
        (num_pictures, num_captions), -math.inf, dtype=torch.float64, device=device
    )
    trace = Trace()
    for step in range(options.max_length):
        output = decoder.step(tokens, state, layer_attention=layer_attention)
        trace.read(output)
        allowed = bans(own_log_probs(output.logits), words)
        # No more than K continuations of one row can be among the K best of its picture.
        width = min(beam_size, allowed.shape[1])
        word_log_probs, word_ids = _top(allowed, width)  # (N, width)
        if log_prob is None:
            log_prob = word_log_probs.new_zeros(num_pictures)
        continued = log_prob[:, None] + word_log_probs  # (N, width)
        stuck = (continued[:, 0] == -math.inf).nonzero().squeeze(1)
        trace.end(picture[stuck], stuck, log_prob[stuck], finished=False)

        # Lay the rows out by picture; places without a row are impossible.
        table = continued.new_full((num_pictures, beam_size, width), -math.inf)
        table[picture, place] = continued
        row_at = torch.zeros_like(table[:, :, 0], dtype=torch.long)  # (M, K)
        row_at[picture, place] = torch.arange(picture.shape[0], device=device)
        totals, index = _top(table.flatten(1), beam_size)  # (M, K), best first
        parents = row_at.gather(1, index.div(width, rounding_mode="floor"))
        columns = index % width
        chosen_ids = word_ids[parents, columns]  # (M, K)

        chosen = (ranks < open_places[:, None]) & (totals > -math.inf)
        ended = chosen & (chosen_ids == special_ids.eos_id)
        live = chosen & ~ended
        if bool(ended.any()):
            any_finished = True
            of_picture, rank = ended.nonzero(as_tuple=True)
            trace.end(
                of_picture, parents[of_picture, rank], totals[of_picture, rank], finished=True
            )
            open_places = open_places - ended.sum(dim=1)
            scores = (totals.double() / norms[step + 1]).masked_fill(~ended, -math.inf)
            best_scores = _top(torch.cat([best_scores, scores], dim=1), num_captions)[0]
        if any_finished:
            best_live = totals.double().masked_fill(~live, -math.inf).amax(dim=1)  # (M,)
            beatable = best_live / norms[options.max_length] > best_scores[:, -1]
            live = live & beatable[:, None]

        picture, place = live.nonzero(as_tuple=True)
        if picture.shape[0] == 0:
            break
        rows, columns = parents[picture, place], columns[picture, place]
        tokens, log_prob = chosen_ids[picture, place], totals[picture, place]
        trace.advance(rows, tokens, word_log_probs[rows, columns])
        if step + 1 == options.max_length:
            everyone = torch.arange(rows.shape[0], device=device)
            trace.end(picture, everyone, log_prob, finished=False)
            break
        words = torch.cat([words[rows], tokens[:, None]], dim=1)
        state = reorder_state(output.state, rows)
    return trace.hypotheses(num_pictures, num_captions, options.length_penalty)


def _top(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest values of each row and where they are, greatest first.

    For k = 1 the first of equal ones, as in greedy search.
    """
    if k == 1:
        greatest = values.max(dim=1, keepdim=True)
        return greatest.values, greatest.indices
    best = values.topk(k, dim=1)
    return best.values, best.indices
