"""Several models as one: the mean of their probabilities, word by word, in one search.

Shapes: M pictures, N rows, T input positions, P real positions, R regions, D feature width,
V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from captioner.models.interfaces import CaptionDecoder, DecoderOutput, DecoderState, StepOutput
from captioner.types import ImageFeatures


@dataclass(frozen=True)
class EnsembleFeatures(ImageFeatures):
    """The same pictures as several encoders see them.

    ``grid``, ``rows`` and ``cols`` are what the first of them sees.

    Args:
        others: What the other encoders see: M pictures each, in a grid and a width of their own.
    """

    others: tuple[ImageFeatures, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for other in self.others:
            if len(other.grid) != len(self.grid):
                raise ValueError(
                    f"encoders must have seen the same pictures, got {len(self.grid)} from the "
                    f"first and {len(other.grid)} from another"
                )

    @classmethod
    def join(cls, parts: Sequence[ImageFeatures]) -> EnsembleFeatures:
        """The features of one or more encoders, in their order."""
        first, *others = parts
        return cls(first.grid, first.rows, first.cols, tuple(others))

    @property
    def parts(self) -> tuple[ImageFeatures, ...]:
        """The features of each encoder."""
        return ImageFeatures(self.grid, self.rows, self.cols), *self.others

    def select(self, pictures: slice) -> EnsembleFeatures:
        """The features of some of the pictures."""
        return self.join([part.select(pictures) for part in self.parts])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> EnsembleFeatures:
        """The same features on another device."""
        return self.join([part.to(device, non_blocking) for part in self.parts])

    def pin_memory(self) -> EnsembleFeatures:
        """The same features in page-locked memory."""
        return self.join([part.pin_memory() for part in self.parts])


class EnsembleEncoder(nn.Module):
    """Several encoders that look at the same pictures, each prepared as it needs them.

    Args:
        encoders: Modules from pictures (M, 3, height, width) to ``ImageFeatures``.
        views: Which of the inputs each of them takes; encoder i takes input i by default.

    Raises:
        ValueError: If there is no encoder, or not one view for each.
    """

    def __init__(self, encoders: Sequence[nn.Module], views: Sequence[int] | None = None) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("an ensemble needs at least one encoder, got none")
        self.encoders = nn.ModuleList(encoders)
        self.views = _indices("views", views, len(encoders), "encoder")

    def forward(self, *images: Tensor) -> EnsembleFeatures:
        """The features of every encoder.

        Args:
            images: The M pictures in every preparation, (M, 3, height, width) each.
        """
        return EnsembleFeatures.join(
            [encoder(images[view]) for encoder, view in zip(self.encoders, self.views, strict=True)]
        )


@dataclass(frozen=True)
class EnsembleState:
    """What the members of an ensemble remember of N unfinished captions.

    Args:
        states: The state of each member, N rows each.
        shown: Members whose maps are averaged.
    """

    states: tuple[DecoderState, ...]
    shown: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """N, the number of unfinished captions."""
        return self.states[0].num_rows

    def reorder(self, rows: Tensor) -> EnsembleState:
        """A state whose row i is the old row ``rows[i]``."""
        return EnsembleState(tuple(state.reorder(rows) for state in self.states), self.shown)


class EnsembleDecoder(nn.Module):
    """Decoders of one vocabulary as one decoder, whose probabilities are the mean of theirs.

    The logits are the logarithm of that mean, so every search works on them as on those of a
    single model, and the log-probabilities that it reports are the ensemble's.

    The map of a word is the mean of the members' maps, over those members whose grid is that of
    the first one: maps of other grids do not lie on one another. ``layer_attention`` holds the
    maps of these members one by one, as heads of a single layer, so that their mean over the
    heads is the map. Members with layers and heads of their own are looked into alone.

    Args:
        members: Decoder modules, one or more.
        encoders: Which encoder's features each of them reads; all read the first by default.
        shown: Members whose maps may be averaged, always the first too; all by default. Leave
            out those that see another part of the picture than the first does.

    Raises:
        ValueError: If there is no member, sizes of their vocabularies differ, or ``encoders`` or
            ``shown`` do not fit them.

    References:
        Sutskever et al. 2014, Sequence to Sequence Learning with Neural Networks, sec. 3.6, and
        Vinyals et al. 2016, Show and Tell: Lessons learned from the 2015 MSCOCO Image Captioning
        Challenge, search with ensembles. The mean is that of the probabilities, a mixture of the
        models. In a mean of log-probabilities one member could forbid a word alone.
    """

    def __init__(
        self,
        members: Sequence[CaptionDecoder],
        encoders: Sequence[int] | None = None,
        shown: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble needs at least one member, got none")
        sizes = [member.config.get("vocabulary_size") for member in members]
        for i, size in enumerate(sizes):
            if size != sizes[0]:
                raise ValueError(
                    f"members must have one vocabulary, got {sizes[0]} entries in member 0 and "
                    f"{size} in member {i}"
                )
        self.members = nn.ModuleList(cast("Sequence[nn.Module]", members))
        read = (0,) * len(members) if encoders is None else encoders
        self.encoders = _indices("encoders", read, len(members), "member")
        self.shown = tuple(range(len(members)) if shown is None else sorted({0, *shown}))
        if self.shown[0] < 0 or self.shown[-1] >= len(members):
            raise ValueError(f"shown must name members 0..{len(members) - 1}, got {self.shown}")

    def _decoders(self) -> Sequence[CaptionDecoder]:
        return cast("Sequence[CaptionDecoder]", self.members)

    @property
    def config(self) -> Mapping[str, object]:
        """Class and configuration of each member; JSON values only, for the record.

        An ensemble is joined from modules: it is not built from this, nor stored as one model.
        """
        return {
            "members": [
                {
                    "class_path": f"{type(member).__module__}.{type(member).__qualname__}",
                    "init_args": dict(member.config),
                }
                for member in self._decoders()
            ],
            "encoders": list(self.encoders),
            "shown": list(self.shown),
        }

    @property
    def vocabulary_parameters(self) -> tuple[str, ...]:
        """Names of the parameters with one row per vocabulary word, of all members."""
        return tuple(
            f"members.{i}.{name}"
            for i, member in enumerate(self._decoders())
            for name in member.vocabulary_parameters
        )

    def _read(self, features: ImageFeatures) -> tuple[list[ImageFeatures], tuple[int, ...]]:
        """The features that each member reads, and the members whose maps lie on one another."""
        parts = features.parts if isinstance(features, EnsembleFeatures) else (features,)
        if len(parts) <= max(self.encoders):
            raise ValueError(
                f"the members read the features of {max(self.encoders) + 1} encoders, got those "
                f"of {len(parts)}; encode the pictures with the ensemble's EnsembleEncoder"
            )
        read = [parts[encoder] for encoder in self.encoders]
        grids = [(one.rows, one.cols) for one in read]
        return read, tuple(i for i in self.shown if grids[i] == grids[0])

    def forward(
        self,
        features: ImageFeatures,
        tokens: Tensor,
        token_mask: Tensor | None = None,
        picture: Tensor | None = None,
        *,
        need_attention: bool = True,
    ) -> DecoderOutput:
        """Score the next word at every real position of whole captions.

        Args:
            features: What the encoders see, ``EnsembleFeatures`` where there are several.
            tokens: Input tokens from BOS on, (N, T).
            token_mask: True where a position is real, (N, T), real ones first; all by default.
            picture: Row of each caption's picture, (N,); caption i has picture i by default.
            need_attention: Whether the maps are wanted.

        Returns:
            Log-probabilities (P, V) and attention (P, R), one row per real position in
            row-major order.

        Raises:
            ValueError: If shapes do not fit, or features of an encoder are missing.
        """
        read, shown = self._read(features)
        outputs = [
            member(part, tokens, token_mask, picture, need_attention=need_attention and i in shown)
            for i, (member, part) in enumerate(zip(self._decoders(), read, strict=True))
        ]
        logits = mean_log_probs([output.logits for output in outputs])
        if not need_attention:
            return DecoderOutput(logits, None)
        maps = [cast("Tensor", outputs[i].attention) for i in shown]
        return DecoderOutput(logits, torch.stack(maps, dim=1).mean(1))

    def init_state(self, features: ImageFeatures) -> EnsembleState:
        """The state before the first token, one row per picture.

        Raises:
            ValueError: If the features of an encoder are missing or of another width.
        """
        read, shown = self._read(features)
        pairs = zip(self._decoders(), read, strict=True)
        return EnsembleState(tuple(member.init_state(part) for member, part in pairs), shown)

    def step(
        self, tokens: Tensor, state: DecoderState, *, layer_attention: bool = False
    ) -> StepOutput[DecoderState]:
        """Read one token per row.

        Args:
            tokens: The last token of each row (BOS at first), (N,).
            state: The state before it.
            layer_attention: Whether ``layer_attention`` (N, 1, members shown, R) is wanted.

        Returns:
            Log-probabilities (N, V), the mean map (N, R) and the next state.
        """
        if not isinstance(state, EnsembleState):
            raise TypeError(
                f"state must come from this decoder's init_state, got a {type(state).__name__}"
            )
        outputs = [
            member.step(tokens, own)
            for member, own in zip(self._decoders(), state.states, strict=True)
        ]
        logits = mean_log_probs([output.logits for output in outputs])
        maps = torch.stack([outputs[i].attention for i in state.shown], dim=1)  # (N, shown, R)
        after = EnsembleState(tuple(output.state for output in outputs), state.shown)
        return StepOutput(logits, maps.mean(1), after, maps[:, None] if layer_attention else None)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean probability.

    Args:
        logits: What each member gave, (N, V).

    Returns:
        Log-probabilities (N, V) in float32 or wider. A member for which no word is possible
        (-inf throughout) gives each the probability 0.
    """
    log_probs = []
    for one in logits:
        wide = one if one.dtype == torch.float64 else one.float()
        impossible = wide.amax(dim=1, keepdim=True) == -math.inf
        log_probs.append(wide.log_softmax(dim=1).masked_fill(impossible, -math.inf))
    return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))


def _indices(name: str, given: Sequence[int] | None, count: int, what: str) -> tuple[int, ...]:
    """One index for each of ``count`` parts, 0, 1, .. by default."""
    indices = tuple(range(count) if given is None else given)
    if len(indices) != count or min(indices) < 0:
        raise ValueError(f"{name} must have one index of 0 or more for each {what}, got {indices}")
    return indices
