"""What else the model might have said at every place of a caption.

Shapes: H captions, T words of the longest one, P real positions of them all, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from captioner.decoding.generate import evaluating
from captioner.decoding.trace import own_log_probs
from captioner.models.interfaces import CaptionDecoder
from captioner.types import Hypothesis, ImageFeatures, SpecialIds

Place: TypeAlias = tuple[tuple[int, float], ...]
"""The likeliest other tokens at one place, (id, log-probability), likeliest first."""


def find_alternatives(
    decoder: CaptionDecoder,
    features: ImageFeatures,
    captions: Sequence[Sequence[Hypothesis]],
    special_ids: SpecialIds,
    count: int = 5,
    *,
    ban_unk: bool = True,
) -> list[list[tuple[Place, ...]]]:
    """The likeliest tokens at every place of captions, besides the one that stands there.

    All captions are read once more, teacher-forced and together, which costs about as much as one
    step of the search for every word. The distribution is the model's own, before bans and
    temperature. The end of the caption is a place of its own: what might have come after the last
    word. PAD and BOS are never words and left out.

    Args:
        decoder: The decoder that wrote the captions.
        features: The pictures, grid (M, R, D).
        captions: What ``generate`` found for each of them.
        special_ids: The tokens that are no words.
        count: Alternatives per place, at least 1; fewer where the vocabulary is smaller.
        ban_unk: Whether the unknown word is left out too.

    Returns:
        For each picture and caption T + 1 places.

    Raises:
        ValueError: ``count`` is out of range.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    flat = [(m, one) for m, found in enumerate(captions) for one in found]
    if not flat:
        return [[] for _ in captions]
    device = features.grid.device
    lengths = torch.tensor([len(one.token_ids) + 1 for _, one in flat])
    longest = int(lengths.max())
    rows = [[special_ids.bos_id, *one.token_ids] for _, one in flat]
    padding = special_ids.pad_id
    tokens = torch.tensor([row + [padding] * (longest - len(row)) for row in rows], device=device)
    mask = (torch.arange(longest) < lengths[:, None]).to(device)
    picture = torch.tensor([m for m, _ in flat], device=device)
    # What stands at every place: the words, then the end where the model ended the caption.
    chosen = [
        token_id
        for _, one in flat
        for token_id in (*one.token_ids, special_ids.eos_id if one.finished else None)
    ]
    left_out = {special_ids.pad_id, special_ids.bos_id}
    if ban_unk:
        left_out.add(special_ids.unk_id)
    with evaluating(decoder), torch.inference_mode():
        output = decoder(features, tokens, mask, picture, need_attention=False)
        log_probs = own_log_probs(output.logits)  # (P, V)
        width = min(count + len(left_out) + 1, log_probs.shape[1])
        best = log_probs.topk(width, dim=1)
    places = [
        tuple(
            (token_id, log_prob)
            for token_id, log_prob in zip(ids, values, strict=True)
            if token_id != here and token_id not in left_out
        )[:count]
        for here, ids, values in zip(
            chosen, best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]
    result: list[list[tuple[Place, ...]]] = [[] for _ in captions]
    start = 0
    for (m, _), length in zip(flat, lengths.tolist(), strict=True):
        result[m].append(tuple(places[start : start + length]))
        start += length
    return result
