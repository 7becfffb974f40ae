"""Pure edits of next-word scores, shared by every search.

A processor takes logits (N, V) and the words of each row so far (N, T), without BOS, and
returns logits (N, V) in which impossible words are -inf. It changes neither argument. A row
may come out all -inf: the searches then end its caption there. Log-probabilities are logits too
(the softmax of both is the same), and the searches hand those in.

Shapes: N rows, V vocabulary, T words so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from captioner.decoding.options import DecodingOptions
from captioner.types import SpecialIds

LogitsProcessor: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``(logits (N, V), words (N, T)) -> logits (N, V)``."""


@dataclass(frozen=True)
class BanTokens:
    """Make some tokens impossible everywhere.

    Args:
        token_ids: Their ids.
    """

    token_ids: tuple[int, ...]

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V) without the banned tokens."""
        logits = logits.clone()
        for token_id in self.token_ids:  # far quicker than one index_fill of a few columns
            logits[:, token_id] = -math.inf
        return logits


@dataclass(frozen=True)
class MinLength:
    """Make the end impossible before a caption has enough words.

    Args:
        min_length: Fewest words.
        eos_id: The end token.
    """

    min_length: int
    eos_id: int

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V), without the end token while T < min_length."""
        if words.shape[1] >= self.min_length:
            return logits
        return BanTokens((self.eos_id,))(logits, words)


@dataclass(frozen=True)
class NoRepeatNgram:
    """Make every word impossible that would complete a word sequence a second time.

    Args:
        size: Length of the sequences, at least 1.

    References:
        Paulus et al. 2017, A Deep Reinforced Model for Abstractive Summarization, section 2.5
        (trigrams there).
    """

    size: int

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V) without the words that repeat a sequence."""
        num_words = words.shape[1]
        if num_words < self.size:
            return logits
        seen = words.unfold(1, self.size, 1)  # (N, T - size + 1, size)
        beginning = words[:, num_words - self.size + 1 :]  # (N, size - 1)
        repeats = (seen[:, :, :-1] == beginning[:, None]).all(dim=2)
        rows, places = repeats.nonzero(as_tuple=True)
        banned = seen[rows, places, -1]
        return logits.index_put((rows, banned), logits.new_tensor(-math.inf))


@dataclass(frozen=True)
class Temperature:
    """Sharpen (below 1) or flatten (above 1) the distribution.

    The greatest logit becomes 0 first, so that no temperature overflows.

    Args:
        temperature: Above 0.
    """

    temperature: float

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V), at most 0, divided by the temperature."""
        return (logits - _finite_maximum(logits)) / self.temperature


@dataclass(frozen=True)
class TopK:
    """Keep the k likeliest words of each row; among equal ones, any.

    Args:
        k: At least 1; more than V keeps all.

    References:
        Fan et al. 2018, Hierarchical Neural Story Generation, section 5.4.
    """

    k: int

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V) with at most k of them finite in each row."""
        if self.k >= logits.shape[1]:
            return logits
        likeliest = logits.topk(self.k, dim=1).indices
        dropped = torch.ones_like(logits, dtype=torch.bool).scatter_(1, likeliest, False)
        return logits.masked_fill(dropped, -math.inf)


@dataclass(frozen=True)
class TopP:
    """Keep the nucleus: the fewest likeliest words with at least a given probability.

    A word stays if those before it, likeliest first, do not have that probability yet. So the
    likeliest word always stays.

    Args:
        p: In (0, 1].

    References:
        Holtzman et al. 2020, The Curious Case of Neural Text Degeneration, section 3.1, eq. 2.
    """

    p: float

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V) with the nucleus of each row finite."""
        if self.p == 1.0:
            return logits
        ordered, token_ids = logits.sort(dim=1, descending=True)
        probabilities = _probabilities(ordered)
        before = probabilities.cumsum(dim=1) - probabilities
        before[:, 0] = 0.0  # the subtraction may leave a rounding error
        return logits.masked_fill(
            torch.zeros_like(logits, dtype=torch.bool).scatter_(1, token_ids, before >= self.p),
            -math.inf,
        )


@dataclass(frozen=True)
class Chain:
    """Apply processors one after the other, after a forced beginning.

    Args:
        processors: In the order of their use.
        prefix: Words that every caption begins with. While they last, each is the only possible
            word, whatever the processors would say of it.
    """

    processors: tuple[LogitsProcessor, ...]
    prefix: tuple[int, ...] = ()

    def __call__(self, logits: Tensor, words: Tensor) -> Tensor:
        """Logits (N, V) of what may come next."""
        num_words = words.shape[1]
        if num_words < len(self.prefix):
            forced = self.prefix[num_words]
            if forced >= logits.shape[1]:
                raise ValueError(
                    f"prefix must hold ids below {logits.shape[1]} (vocabulary), got {forced}"
                )
            only = torch.full_like(logits, -math.inf)
            only[:, forced] = logits[:, forced]
            return only
        for processor in self.processors:
            logits = processor(logits, words)
        return logits


def build_bans(
    options: DecodingOptions, special_ids: SpecialIds, prefix: Sequence[int] = ()
) -> Chain:
    """What no caption may hold, whatever the search.

    PAD and BOS are never words; EOS waits for the minimum length.

    Args:
        options: Minimum length, repetitions, the unknown word.
        special_ids: The tokens that are no words.
        prefix: Words that every caption begins with.
    """
    never = [special_ids.pad_id, special_ids.bos_id]
    if options.ban_unk:
        never.append(special_ids.unk_id)
    processors: list[LogitsProcessor] = [BanTokens(tuple(never))]
    if options.min_length > 0:
        processors.append(MinLength(options.min_length, special_ids.eos_id))
    if options.no_repeat_ngram > 0:
        processors.append(NoRepeatNgram(options.no_repeat_ngram))
    return Chain(tuple(processors), tuple(prefix))


def build_sampling(options: DecodingOptions) -> Chain:
    """How sampling changes the distribution: temperature, then top-k, then top-p."""
    processors: list[LogitsProcessor] = []
    if options.temperature != 1.0:
        processors.append(Temperature(options.temperature))
    if options.top_k is not None:
        processors.append(TopK(options.top_k))
    if options.top_p is not None:
        processors.append(TopP(options.top_p))
    return Chain(tuple(processors))


def _finite_maximum(logits: Tensor) -> Tensor:
    """Greatest logit of each row, (N, 1); 0 where all are -inf."""
    maximum = logits.amax(dim=1, keepdim=True)
    return maximum.masked_fill(maximum == -math.inf, 0.0)


def _probabilities(logits: Tensor) -> Tensor:
    """Softmax in float64, (N, V); zeros where all logits are -inf."""
    weights = (logits.double() - _finite_maximum(logits)).exp()
    return weights / weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
