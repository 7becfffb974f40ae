"""The memory of a search: what every row read, where it came from, and which captions ended.

Nothing that grows is moved while the search runs. Each step leaves its maps as the decoder gave
them and a pointer from every new row to its parent; the words of the captions that win are read
backwards along the pointers at the end.

Shapes: N rows of one step, R regions, V vocabulary, H captions that are returned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from captioner.models.interfaces import DecoderState, StepOutput
from captioner.types import Hypothesis


def own_log_probs(logits: Tensor) -> Tensor:
    """The model's own log-probabilities, in float32 or wider.

    Args:
        logits: What the decoder gave, (N, V).

    Returns:
        Log-softmax over V, (N, V); a row whose logits are all -inf stays so.

    Raises:
        ValueError: A logit is NaN or +inf.
    """
    if logits.dtype != torch.float64:
        logits = logits.float()
    log_probs = logits.log_softmax(dim=1)
    # NaN, +inf, and -inf throughout make a whole row NaN: one column tells.
    broken = log_probs[:, 0].isnan()
    if bool(broken.any()):
        impossible = (logits == -math.inf).all(dim=1)
        if not torch.equal(broken, impossible):
            raise ValueError(
                "the decoder's logits must be finite or -inf, got NaN or +inf; look for NaN in its "
                "weights and in the picture features, or decode in float32"
            )
        log_probs = log_probs.masked_fill(impossible[:, None], -math.inf)
    return log_probs


def reorder_state(state: DecoderState, rows: Tensor) -> DecoderState:
    """The state of the given rows; the same state where nothing moves."""
    num_rows = state.num_rows
    if rows.shape[0] == num_rows and torch.equal(rows, torch.arange(num_rows, device=rows.device)):
        return state
    return state.reorder(rows)


def length_norms(max_length: int, length_penalty: float) -> list[float]:
    """What a log-probability is divided by, for each length from 0 to ``max_length``.

    An empty caption without an end counts as one token.
    """
    return [float(max(length, 1)) ** length_penalty for length in range(max_length + 1)]


@dataclass(frozen=True)
class _Words:
    """One word more for every row: its parent at the step before, its id and log-probability."""

    parents: Tensor
    token_ids: Tensor
    log_probs: Tensor


@dataclass(frozen=True)
class _Endings:
    """Captions that ended after ``num_words`` words, each the row of that step."""

    num_words: int
    picture: Tensor
    rows: Tensor
    log_prob: Tensor
    finished: bool


@dataclass
class Trace:
    """Record a search step by step, then read the best captions from it.

    Call `read` with each step of the decoder, `end` for the rows whose caption ends before the
    next word, and `advance` with the rows that go on.
    """

    _maps: list[Tensor] = field(default_factory=list)
    _layer_maps: list[Tensor] = field(default_factory=list)
    _words: list[_Words] = field(default_factory=list)
    _endings: list[_Endings] = field(default_factory=list)

    def read(self, output: StepOutput[DecoderState]) -> None:
        """Keep the maps with which every row chooses its next word."""
        self._maps.append(output.attention)
        if output.layer_attention is not None:
            self._layer_maps.append(output.layer_attention)

    def end(self, picture: Tensor, rows: Tensor, log_prob: Tensor, *, finished: bool) -> None:
        """Let captions end with the words that their rows have so far.

        Args:
            picture: The picture of each caption, (N',).
            rows: The row of each caption, (N',).
            log_prob: The log-probability of each, with the end token where it came, (N',).
            finished: Whether the end token came.
        """
        if rows.shape[0]:
            self._endings.append(_Endings(len(self._words), picture, rows, log_prob, finished))

    def advance(self, parents: Tensor, token_ids: Tensor, log_probs: Tensor) -> None:
        """Go on with new rows, one word longer.

        Args:
            parents: Old row of each new row, (N',).
            token_ids: The word that it adds, (N',).
            log_probs: The model's log-probability of the word, (N',).
        """
        self._words.append(_Words(parents, token_ids, log_probs))

    def hypotheses(
        self, num_pictures: int, num_captions: int, length_penalty: float
    ) -> list[list[Hypothesis]]:
        """The best captions of each picture, best first.

        Captions that the model ended come before captions that were cut off, and the greater
        score first among each; the earlier one where scores are equal.

        Args:
            num_pictures: How many pictures there are.
            num_captions: How many captions to give of each, fewer where fewer ended.
            length_penalty: Exponent of the length in the score.
        """
        norms = length_norms(len(self._words) + 1, length_penalty)
        candidates: list[list[tuple[bool, float, int, int, float]]] = [
            [] for _ in range(num_pictures)
        ]
        for ending in self._endings:
            norm = norms[ending.num_words + ending.finished]
            for picture, row, log_prob in zip(
                ending.picture.tolist(), ending.rows.tolist(), ending.log_prob.tolist(), strict=True
            ):
                candidates[picture].append(
                    (ending.finished, log_prob / norm, ending.num_words, row, log_prob)
                )
        best = [
            sorted(found, key=lambda one: (not one[0], -one[1]))[:num_captions]
            for found in candidates
        ]
        flat = [one for found in best for one in found]
        tokens, log_probs, maps, layer_maps = self._read_back(
            [one[2] for one in flat], [one[3] for one in flat]
        )
        hypotheses = iter(
            Hypothesis(
                token_ids=tuple(tokens[index][:num_words]),
                token_log_probs=log_probs[index, :num_words],
                log_prob=log_prob,
                score=score,
                finished=finished,
                attention=maps[index, :num_words],
                layer_attention=None if layer_maps is None else layer_maps[index, :num_words],
            )
            for index, (finished, score, num_words, _, log_prob) in enumerate(flat)
        )
        return [[next(hypotheses) for _ in found] for found in best]

    def _read_back(
        self, num_words: list[int], rows: list[int]
    ) -> tuple[list[list[int]], Tensor, Tensor, Tensor | None]:
        """Follow the parents of H captions from their last word to their first.

        Args:
            num_words: Words of each caption.
            rows: Its row after its last word.

        Returns:
            On the CPU, of which the first ``num_words`` are meant: ids (H, T), log-probabilities
            (H, T), maps (H, T, R) and (H, T, layers, heads, R), in float32 or wider.
        """
        longest = max(num_words, default=0)
        device = self._maps[0].device
        lengths = torch.tensor(num_words, device=device)
        row = torch.tensor(rows, device=device)
        tokens = torch.zeros(len(rows), longest, dtype=torch.long, device=device)
        dtype = self._endings[0].log_prob.dtype
        log_probs = torch.zeros(len(rows), longest, dtype=dtype, device=device)
        maps = _room_for(self._maps[0], len(rows), longest)
        layer_maps = (
            _room_for(self._layer_maps[0], len(rows), longest) if self._layer_maps else None
        )
        for place in range(longest - 1, -1, -1):
            reached = (lengths > place).nonzero().squeeze(1)
            words, children = self._words[place], row[reached]
            parents = words.parents[children]
            tokens[reached, place] = words.token_ids[children]
            log_probs[reached, place] = words.log_probs[children]
            # The word was chosen with the map of its parent.
            maps[reached, place] = self._maps[place][parents].to(maps.dtype)
            if layer_maps is not None:
                layer_maps[reached, place] = self._layer_maps[place][parents].to(layer_maps.dtype)
            row[reached] = parents
        return (
            tokens.tolist(),
            log_probs.cpu(),
            maps.cpu(),
            None if layer_maps is None else layer_maps.cpu(),
        )


def _room_for(maps: Tensor, num_captions: int, num_words: int) -> Tensor:
    """Zeros (H, T, ...) for maps (N, ...), in float32 or wider."""
    dtype = torch.promote_types(maps.dtype, torch.float32)
    return maps.new_zeros((num_captions, num_words, *maps.shape[1:]), dtype=dtype)
