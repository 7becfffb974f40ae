"""How captions are searched for: one frozen value that rejects contradictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

Method: TypeAlias = Literal["greedy", "beam", "sample"]


@dataclass(frozen=True)
class DecodingOptions:
    """Choose a search and its limits.

    Lengths count words: BOS and EOS are none. ``greedy`` and ``sample`` leave ``beam_size``
    aside.

    Args:
        method: ``greedy`` takes the best word each time, ``beam`` keeps the ``beam_size`` best
            beginnings, ``sample`` draws words at random.
        beam_size: Hypotheses that beam search keeps per picture, at least 1; 1 is greedy.
        length_penalty: Exponent a of score = log_prob / length ** a, from 0 to 10, where length
            counts the words and the end token where it came. 0 favours short captions, 1 is the
            mean log-probability per token.
        min_length: Fewest words; the end token is impossible before.
        max_length: Most words; a caption that reaches it without an end is cut off there.
        no_repeat_ngram: Length of the word sequences that may come only once in a caption; 0
            allows every repetition, 1 no word twice.
        ban_unk: Whether the unknown word is impossible.
        temperature: Divides the logits before sampling, above 0; below 1 is bolder in favour of
            likely words.
        top_k: Sample from the k likeliest words only, at least 1.
        top_p: Sample from the fewest words that together have this probability, in (0, 1].
        num_captions: Captions per picture, best first; beam search gives at most
            ``beam_size``, greedy search one.

    Raises:
        ValueError: A value is out of range, or two options contradict each other.

    References:
        Length penalty: Wu et al. 2016, Google's Neural Machine Translation System, eq. 14, has
        ((5 + length) / 6) ** a, as has Vaswani et al. 2017, Attention Is All You Need, section
        6.1, with a = 0.6. We leave out the constants 5 and 6: captions are short, and with them
        a caption of 5 words and one of 15 would differ too little. There is no coverage penalty.

    >>> DecodingOptions(beam_size=3).to_dict()["beam_size"]
    3
    >>> DecodingOptions(method="greedy", num_captions=2)
    Traceback (most recent call last):
    ValueError: greedy search finds one caption per picture, got num_captions=2; use method beam \
or sample
    """

    method: Method = "beam"
    beam_size: int = 5
    length_penalty: float = 0.7
    min_length: int = 0
    max_length: int = 50
    no_repeat_ngram: int = 0
    ban_unk: bool = True
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    num_captions: int = 1

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"method must be greedy, beam or sample, got {self.method!r}")
        _check_int("beam_size", self.beam_size, 1)
        _check_float("length_penalty", self.length_penalty, low=0.0, low_allowed=True, high=10.0)
        _check_int("min_length", self.min_length, 0)
        _check_int("max_length", self.max_length, 1)
        _check_int("no_repeat_ngram", self.no_repeat_ngram, 0)
        if not isinstance(self.ban_unk, bool):
            raise ValueError(f"ban_unk must be true or false, got {self.ban_unk!r}")
        _check_float("temperature", self.temperature, low=0.0, low_allowed=False)
        if self.top_k is not None:
            _check_int("top_k", self.top_k, 1)
        if self.top_p is not None:
            _check_float("top_p", self.top_p, low=0.0, low_allowed=False, high=1.0)
        _check_int("num_captions", self.num_captions, 1)
        self._check_together()

    def _check_together(self) -> None:
        """Reject values that are fine alone and contradict each other."""
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length must be at most max_length, got min_length={self.min_length} and "
                f"max_length={self.max_length}"
            )
        if self.method == "greedy" and self.num_captions > 1:
            raise ValueError(
                "greedy search finds one caption per picture, got "
                f"num_captions={self.num_captions}; use method beam or sample"
            )
        if self.method == "beam" and self.num_captions > self.beam_size:
            raise ValueError(
                f"num_captions must be at most beam_size, got num_captions={self.num_captions} "
                f"and beam_size={self.beam_size}; raise beam_size"
            )
        if self.method != "sample":
            for name, neutral in (("temperature", 1.0), ("top_k", None), ("top_p", None)):
                if getattr(self, name) != neutral:
                    raise ValueError(
                        f"{name} has no effect on method {self.method}, got "
                        f"{name}={getattr(self, name)}; leave it out or use method sample"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Every option by name, as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DecodingOptions:
        """Build options from what `to_dict` gave; options left out keep their defaults.

        Raises:
            ValueError: A name is unknown, or the values are not allowed.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise ValueError(
                f"unknown decoding option {', '.join(map(repr, unknown))}; known are "
                f"{', '.join(known)}"
            )
        return cls(**data)


def _check_int(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def _check_float(
    name: str, value: object, *, low: float, low_allowed: bool, high: float = math.inf
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if value < low or (value == low and not low_allowed):
        raise ValueError(
            f"{name} must be {'at least' if low_allowed else 'above'} {low}, got {value}"
        )
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {value}")
