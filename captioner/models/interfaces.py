"""What a caption decoder is, so that training and decoding need to know no decoder.

Shapes: M pictures, N rows (captions in training, hypotheses in decoding), T input positions,
P real input positions of the whole batch, R regions, D feature width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from captioner.types import ImageFeatures


class DecoderState(Protocol):
    """Everything that a decoder remembers of N unfinished captions.

    A state is a frozen dataclass of batch-first tensors. What belongs to a picture (projected
    keys and values) is kept once per picture, beside a row -> picture index.
    """

    @property
    def num_rows(self) -> int:
        """N, the number of unfinished captions."""
        ...

    def reorder(self, rows: Tensor) -> Self:
        """A state whose row i is the old row ``rows[i]``.

        Serves to widen (repeat rows), to follow parents and to drop rows. Moves the index and
        the per-row tensors only.

        Args:
            rows: Old row of every new row, (N',) int64.
        """
        ...


StateT = TypeVar("StateT", bound=DecoderState)


@dataclass(frozen=True)
class DecoderOutput:
    """What a decoder says of whole captions, for real positions only.

    Args:
        logits: Scores of the next word, (P, V): one row per True in ``token_mask``, in
            row-major order, so that ``targets[token_mask]`` lines up.
        attention: Map of each position, (P, R), summing to 1 over R; None unless asked for.
    """

    logits: Tensor
    attention: Tensor | None


@dataclass(frozen=True)
class StepOutput(Generic[StateT]):
    """What a decoder says after one more token.

    Args:
        logits: Scores of the next word, (N, V).
        attention: The map that people see, (N, R), summing to 1 over R.
        state: The state after the token.
        layer_attention: Maps of each layer and head, (N, layers, heads, R), on request.
    """

    logits: Tensor
    attention: Tensor
    state: StateT
    layer_attention: Tensor | None = None


@runtime_checkable
class CaptionDecoder(Protocol):
    """A module that turns picture features into captions, word by word.

    Built as ``decoder_class(feature_dim=D, vocabulary_size=V, **options)``; ``config`` holds
    exactly the keyword arguments (JSON values) that build it again.
    """

    @property
    def config(self) -> Mapping[str, object]:
        """Keyword arguments that build this decoder again; JSON values only."""
        ...

    @property
    def vocabulary_parameters(self) -> tuple[str, ...]:
        """Names (as in ``state_dict``) of parameters with one row per vocabulary word."""
        ...

    def __call__(
        self,
        features: ImageFeatures,
        tokens: Tensor,
        token_mask: Tensor | None = None,
        picture: Tensor | None = None,
        *,
        need_attention: bool = True,
    ) -> DecoderOutput:
        """The module's ``forward``: scores for every real position of whole captions.

        Args:
            features: Picture regions, grid (M, R, D).
            tokens: Input tokens from BOS on, (N, T).
            token_mask: True where a position is real, (N, T), real ones first; all by default.
            picture: Row of each caption's picture, (N,), ascending; by default caption i
                belongs to picture i (then N = M).
            need_attention: Whether the maps are wanted; without them some decoders are faster.
        """
        ...

    def init_state(self, features: ImageFeatures) -> DecoderState:
        """The state before the first token, one row per picture (N = M)."""
        ...

    def step(
        self, tokens: Tensor, state: DecoderState, *, layer_attention: bool = False
    ) -> StepOutput[DecoderState]:
        """Read one token per row.

        Args:
            tokens: The last token of each row (BOS at first), (N,).
            state: The state before it.
            layer_attention: Whether the maps of every layer and head are wanted.
        """
        ...
