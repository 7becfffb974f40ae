"""Show, Attend and Tell: an LSTM that looks at the picture before each word.

Shapes: M pictures, N rows, T input positions, P real positions, R regions, D feature width,
C width of the values, A attention width, E embedding width, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioner.models.attention import (
    RowGroups,
    ScoreName,
    build_score,
    region_scores,
    weighted_regions,
)
from captioner.models.captions import StepLayout, pack_captions
from captioner.models.dropout import dropout
from captioner.models.interfaces import DecoderOutput, DecoderState, StepOutput
from captioner.models.recurrence import AttentiveRecurrence, lstm_gates
from captioner.types import ImageFeatures


@dataclass(frozen=True)
class ShowAttendTellState:
    """What the LSTM decoder remembers of N unfinished captions.

    Args:
        hidden: Hidden state, (N, H).
        cell: Cell, (N, H).
        picture: Row of ``keys`` and ``values`` that each caption looks at, (N,).
        keys: Projected regions for the scores, (M, R, A), once per picture.
        values: Projected regions for the context, (M, R, C), once per picture.
        groups: ``picture`` as a grid, so that the captions of a picture share its regions.
        num_regions: R. Without attention (``score="mean"``) the regions are kept as one, their
            mean: keys are then (M, 1, 0) and values (M, 1, C).
    """

    hidden: Tensor
    cell: Tensor
    picture: Tensor
    keys: Tensor
    values: Tensor
    groups: RowGroups
    num_regions: int

    @property
    def num_rows(self) -> int:
        """N, the number of unfinished captions."""
        return self.hidden.shape[0]

    def reorder(self, rows: Tensor) -> ShowAttendTellState:
        """A state whose row i is the old row ``rows[i]``; pictures stay where they are."""
        picture = self.picture[rows]
        return ShowAttendTellState(
            hidden=self.hidden[rows],
            cell=self.cell[rows],
            picture=picture,
            keys=self.keys,
            values=self.values,
            groups=RowGroups.build(picture, self.keys.shape[0]),
            num_regions=self.num_regions,
        )


class ShowAttendTellDecoder(nn.Module):
    """LSTM decoder with soft attention over picture regions.

    The regions are projected once per picture to values, and these to keys; all captions of the
    picture share both. Before each word the hidden state scores the regions, a gate weighs what
    was seen, and the LSTM reads it together with the word before.

    Args:
        feature_dim: D, width of the encoder's features.
        vocabulary_size: V, words and special tokens.
        hidden_dim: H, width of the LSTM.
        embedding_dim: E, width of the word embeddings and of the deep output layer.
        attention_dim: A, width in which regions and hidden state are compared. Without effect
            if ``score`` is ``mean``, where nothing is compared, so that one option turns a
            configuration into its counterpart without attention.
        value_dim: C, width to which the features are projected.
        score: How they are compared: ``additive`` is the paper's network, ``dot`` an inner
            product, ``scaled_dot`` the same over the square root of its width. ``mean`` compares
            nothing: each region weighs 1/R before every word, the context is the mean value, and
            neither queries nor keys exist. It shows what attention is worth, since nothing else
            differs.
        gate: Whether the hidden state weighs each channel of the context.
        dropout: Share of word embeddings and of deep-output units dropped in training.
        feature_dropout: Share of the values dropped in training.
        normalize_features: Whether each region's features are brought to mean 0 and variance 1
            first. A frozen CNN's features have scales of their own.
        tie_embeddings: Whether the output layer uses the word embeddings as its weights.

    Raises:
        ValueError: If a size is below 1, a dropout is out of [0, 1) or ``score`` is unknown.

    References:
        Xu et al. 2015, Show, Attend and Tell, sec. 3.1.2, eq. 1-7, and sec. 4.2.1 for the gate.
        We differ: the features are normalised and projected before anything else; the initial
        states come from one layer over the mean value; the gate has one entry per channel, not
        one in all.
        Vinyals et al. 2015, Show and Tell, for ``score="mean"``: one vector says the whole
        picture. We differ: they show it once, before the first word; here it is seen before
        each word, as the attending decoder sees its context.
    """

    def __init__(
        self,
        feature_dim: int,
        vocabulary_size: int,
        hidden_dim: int = 512,
        embedding_dim: int = 512,
        attention_dim: int = 512,
        value_dim: int = 512,
        score: ScoreName = "additive",
        gate: bool = True,
        dropout: float = 0.5,
        feature_dropout: float = 0.0,
        normalize_features: bool = True,
        tie_embeddings: bool = False,
    ) -> None:
        super().__init__()
        self._config: dict[str, object] = {
            "feature_dim": feature_dim,
            "vocabulary_size": vocabulary_size,
            "hidden_dim": hidden_dim,
            "embedding_dim": embedding_dim,
            "attention_dim": attention_dim,
            "value_dim": value_dim,
            "score": score,
            "gate": gate,
            "dropout": dropout,
            "feature_dropout": feature_dropout,
            "normalize_features": normalize_features,
            "tie_embeddings": tie_embeddings,
        }
        for name, value in self._config.items():
            if (name.endswith("_dim") or name == "vocabulary_size") and int(str(value)) < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, share in (("dropout", dropout), ("feature_dropout", feature_dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be in [0, 1), got {share}")
        self.feature_dim, self.hidden_dim = feature_dim, hidden_dim
        attention_dim = 0 if score == "mean" else attention_dim
        self.attention_dim, self.value_dim = attention_dim, value_dim
        self.gate, self.normalize_features = gate, normalize_features
        self.dropout, self.feature_dropout = dropout, feature_dropout

        self.embedding = nn.Embedding(vocabulary_size, embedding_dim)
        self.value = nn.Linear(feature_dim, value_dim)
        # With a product as score, a bias of the keys would cancel in the softmax.
        self.key = (
            nn.Linear(value_dim, attention_dim, bias=score == "additive") if attention_dim else None
        )
        self.score = build_score(score, attention_dim)
        self.initial = nn.Linear(value_dim, 2 * hidden_dim)  # hidden state, then cell
        # Rows: query (A), gate of the context (C, if there is one), LSTM gates (4H). The bias
        # of the LSTM gates is here, once.
        self.from_hidden = nn.Linear(
            hidden_dim, attention_dim + (value_dim if gate else 0) + 4 * hidden_dim
        )
        self.from_word = nn.Linear(embedding_dim, 4 * hidden_dim, bias=False)
        self.from_context = nn.Linear(value_dim, 4 * hidden_dim, bias=False)
        self.deep_hidden = nn.Linear(hidden_dim, embedding_dim)
        self.deep_context = nn.Linear(value_dim, embedding_dim, bias=False)
        self.output_weight = (
            None if tie_embeddings else nn.Parameter(torch.empty(vocabulary_size, embedding_dim))
        )
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        # Embeddings enter the deep output layer beside the bounded hidden state: keep them small.
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if self.output_weight is not None:
            nn.init.uniform_(self.output_weight, -0.1, 0.1)

    @property
    def config(self) -> Mapping[str, object]:
        """Keyword arguments that build this decoder again; JSON values only."""
        return dict(self._config)

    @property
    def vocabulary_parameters(self) -> tuple[str, ...]:
        """Names of the parameters with one row per vocabulary word."""
        if self.output_weight is None:
            return ("embedding.weight", "output_bias")
        return ("embedding.weight", "output_weight", "output_bias")

    def _project(self, features: ImageFeatures) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys (M, R, A), values (M, R, C), initial hidden state and cell (M, H).

        Without attention, one region stands for all: keys (M, 1, 0), values (M, 1, C).
        """
        grid = features.grid
        if grid.shape[2] != self.feature_dim:
            raise ValueError(
                f"features are {grid.shape[2]} wide, but this decoder was built for feature_dim="
                f"{self.feature_dim}; use the encoder that it was trained with"
            )
        grid = grid.to(self.value.weight.dtype)
        if self.normalize_features:
            # Without gain and bias of its own: the projection that follows has both.
            grid = F.layer_norm(grid, (self.feature_dim,))
        values = torch.relu(self.value(grid))
        values = dropout(values, self.feature_dropout, self.training)
        mean = values.mean(1)
        hidden, cell = torch.tanh(self.initial(mean)).chunk(2, dim=1)
        if self.key is None:  # All regions weigh the same: their mean stands for them.
            return mean.new_empty(len(mean), 1, 0), mean.unsqueeze(1), hidden, cell
        return self.key(values), values, hidden, cell

    def _maps(self, attention: Tensor, num_regions: int) -> Tensor:
        """Attention over the regions (P, R), from that over what ``_project`` gave."""
        if self.key is not None:
            return attention
        return attention.new_full((len(attention), num_regions), 1 / num_regions)

    def _words(self, tokens: Tensor) -> Tensor:
        return dropout(self.embedding(tokens), self.dropout, self.training)

    def _logits(self, words: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Deep output layer (eq. 7) over packed positions or rows, (P, V)."""
        deep = words + self.deep_hidden(hidden) + self.deep_context(context)
        deep = dropout(deep, self.dropout, self.training)
        weight = self.embedding.weight if self.output_weight is None else self.output_weight
        return F.linear(deep, weight, self.output_bias)

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
            features: Picture regions, grid (M, R, D).
            tokens: Input tokens from BOS on, (N, T).
            token_mask: True where a position is real, (N, T), real ones first; all by default.
            picture: Row of each caption's picture, (N,); caption i has picture i by default.
            need_attention: Whether the maps are wanted. They cost nothing here.

        Returns:
            Logits (P, V) and attention (P, R), one row per real position in row-major order.

        Raises:
            ValueError: If shapes or the feature width do not fit.
        """
        packed = pack_captions(features, tokens, token_mask, picture)
        keys, values, hidden, cell = self._project(features)
        layout = StepLayout.build(packed, keys.shape[0], keys.device)
        words = self._words(packed.tokens)  # (P, E)
        word_gates = self.from_word(words[layout.positions])  # (P, 4H)
        captions = packed.picture.to(keys.device)[layout.rows]
        # The recurrence runs in full precision: its sums over time are long and its matrices
        # small, so half precision would cost accuracy and gain little.
        with torch.autocast(keys.device.type, enabled=False):
            inputs = (word_gates, hidden[captions], cell[captions], keys, values)
            dtype = self.from_hidden.weight.dtype
            hiddens, contexts, attention = AttentiveRecurrence.apply(
                layout,
                self.score,
                *(tensor.to(dtype) for tensor in inputs),
                self.from_hidden.weight,
                self.from_hidden.bias,
                self.from_context.weight,
                *self.score.weights(),
            )
        logits = self._logits(words, hiddens[layout.inverse], contexts[layout.inverse])
        if not need_attention:
            return DecoderOutput(logits, None)
        maps = self._maps(attention[layout.inverse], features.grid.shape[1])
        return DecoderOutput(logits, maps)

    def init_state(self, features: ImageFeatures) -> ShowAttendTellState:
        """The state before the first token, one row per picture.

        Raises:
            ValueError: If the feature width does not fit.
        """
        keys, values, hidden, cell = self._project(features)
        picture = torch.arange(keys.shape[0], device=keys.device)
        groups = RowGroups.build(picture, keys.shape[0])
        num_regions = features.grid.shape[1]
        return ShowAttendTellState(hidden, cell, picture, keys, values, groups, num_regions)

    def step(
        self, tokens: Tensor, state: DecoderState, *, layer_attention: bool = False
    ) -> StepOutput[DecoderState]:
        """Read one token per row.

        Args:
            tokens: The last token of each row (BOS at first), (N,).
            state: The state before it.
            layer_attention: Whether ``layer_attention`` (N, 1, 1, R) is wanted: one layer, one
                head, the same map.

        Returns:
            Logits (N, V), the map that the word is made from (N, R) and the next state.
        """
        if not isinstance(state, ShowAttendTellState):
            raise TypeError(
                f"state must come from this decoder's init_state, got a {type(state).__name__}"
            )
        words = self._words(tokens)
        from_hidden = self.from_hidden(state.hidden)
        query = from_hidden[:, : self.attention_dim]
        scores = region_scores(self.score, query, state.keys, state.groups)
        attention = scores.softmax(dim=1)
        context = weighted_regions(attention, state.values, state.groups)
        if self.gate:
            opening = from_hidden[:, self.attention_dim : self.attention_dim + self.value_dim]
            context = opening.sigmoid() * context
        sums = self.from_word(words) + from_hidden[:, -4 * self.hidden_dim :]
        hidden, cell, _ = lstm_gates(sums + self.from_context(context), state.cell)
        logits = self._logits(words, hidden, context)
        attention = self._maps(attention, state.num_regions)
        after = replace(state, hidden=hidden, cell=cell)
        maps = attention[:, None, None] if layer_attention else None
        return StepOutput(logits, attention, after, maps)
