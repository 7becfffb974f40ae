"""A pre-norm Transformer that reads the picture grid and writes the caption.

Shapes: M pictures, N rows, T input positions, P real positions, R regions, D feature width,
d model width, h heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioner.models.attention import RowGroups
from captioner.models.captions import PackedCaptions, pack_captions
from captioner.models.dropout import Dropout
from captioner.models.interfaces import DecoderOutput, DecoderState, StepOutput
from captioner.types import ImageFeatures

PositionKind: TypeAlias = Literal["sinusoidal", "learned"]


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sinusoidal positions: sines in the first half of the channels, cosines in the second.

    Args:
        positions: Positions, (T,), in steps.
        width: Number of channels.

    Returns:
        Vectors of the positions, (T, width), entries in [-1, 1].

    References:
        Vaswani et al. 2017, sec. 3.5. We differ in the order of the channels only.
    """
    half = (width + 1) // 2
    exponents = torch.arange(half, device=positions.device, dtype=positions.dtype) / half
    angles = positions.unsqueeze(1) * torch.pow(10000.0, -exponents)
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :width]


def split_channels(inputs: Tensor, *parts: int) -> Tensor:
    """Split the last dimension into ``parts`` and what remains: (..., d) -> (..., *parts, d')."""
    return inputs.reshape(*inputs.shape[:-1], *parts, inputs.shape[-1] // math.prod(parts))


class WordPositions(nn.Module):
    """Vectors that tell the words of a caption apart by their place.

    Args:
        kind: ``sinusoidal`` (any length) or ``learned``.
        width: d, channels.
        max_positions: Places that learned vectors cover, BOS included.
    """

    def __init__(self, kind: PositionKind, width: int, max_positions: int) -> None:
        super().__init__()
        self.width, self.max_positions = width, max_positions
        self.table = nn.Embedding(max_positions, width) if kind == "learned" else None
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, start: int, stop: int, like: Tensor) -> Tensor:
        """Vectors of the places from ``start`` to before ``stop``, (stop - start, d).

        Raises:
            ValueError: If learned vectors do not reach that far.
        """
        positions = torch.arange(start, stop, device=like.device)
        if self.table is None:
            return sinusoids(positions.to(like.dtype), self.width)
        if stop > self.max_positions:
            raise ValueError(
                f"a caption reaches {stop} tokens with BOS, but this decoder learned "
                f"max_positions={self.max_positions}; lower max_length or train with more"
            )
        vectors: Tensor = self.table(positions)
        return vectors


class GridPositions(nn.Module):
    """Vectors that tell the regions of a grid apart, by row and by column.

    Args:
        kind: ``sinusoidal`` (any grid; half of the channels for the row, half for the column) or
            ``learned`` (a vector for the row plus one for the column).
        width: d, channels.
        max_size: Rows and columns that learned vectors cover.
    """

    def __init__(self, kind: PositionKind, width: int, max_size: int) -> None:
        super().__init__()
        self.width, self.max_size = width, max_size
        self.learned = kind == "learned"
        if self.learned:
            self.row = nn.Embedding(max_size, width)
            self.col = nn.Embedding(max_size, width)
            nn.init.normal_(self.row.weight, std=0.1)
            nn.init.normal_(self.col.weight, std=0.1)

    def forward(self, rows: int, cols: int, like: Tensor) -> Tensor:
        """Vectors of the regions, (rows * cols, d), row-major.

        Raises:
            ValueError: If learned vectors do not cover the grid.
        """
        row = torch.arange(rows, device=like.device)
        col = torch.arange(cols, device=like.device)
        if self.learned:
            if max(rows, cols) > self.max_size:
                raise ValueError(
                    f"the grid is {rows} x {cols}, but this decoder learned max_grid_size="
                    f"{self.max_size} rows and columns; use smaller pictures or train with more"
                )
            vectors: Tensor = self.row(row).unsqueeze(1) + self.col(col)
            return vectors.flatten(0, 1)
        by_row = sinusoids(row.to(like.dtype), self.width - self.width // 2)
        by_col = sinusoids(col.to(like.dtype), self.width // 2)
        return torch.cat((by_row.repeat_interleave(cols, dim=0), by_col.repeat(rows, 1)), dim=1)


class FeedForward(nn.Module):
    """Two layers that treat each position alone (Vaswani et al. 2017, sec. 3.3)."""

    def __init__(self, width: int, inner_width: int, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Linear(width, inner_width)
        self.dropout = Dropout(dropout)
        self.leave = nn.Linear(inner_width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs (..., d) of inputs (..., d)."""
        outputs: Tensor = self.leave(self.dropout(F.relu(self.enter(inputs))))
        return outputs


class GridEncoderLayer(nn.Module):
    """Pre-norm self-attention among the regions of a picture, then a feed-forward layer.

    References:
        Vaswani et al. 2017, sec. 3.1 (encoder); Xiong et al. 2020 (pre-norm).
    """

    def __init__(self, width: int, num_heads: int, inner_width: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        # No dropout inside, as in the paper: over all regions it would cost a tenth of the time.
        self.feedforward = FeedForward(width, inner_width, 0.0)
        self.dropout = Dropout(dropout)

    def forward(self, regions: Tensor) -> Tensor:
        """Regions (M, R, d) that know of each other."""
        qkv = split_channels(self.qkv(self.attention_norm(regions)), 3, self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (M, h, R, d / h)
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        regions = regions + self.dropout(self.attention_out(seen))
        added: Tensor = self.dropout(self.feedforward(self.feedforward_norm(regions)))
        return regions + added


class TransformerLayer(nn.Module):
    """One decoder layer: words among themselves, words over regions, feed-forward; pre-norm.

    The layer sees packed rows (P, d); only its two attentions need another layout.

    References:
        Vaswani et al. 2017, sec. 3.1 (decoder); Xiong et al. 2020 (pre-norm).
    """

    def __init__(self, width: int, num_heads: int, inner_width: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.self_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.self_out = nn.Linear(width, width)
        self.cross_norm = nn.LayerNorm(width)
        self.cross_query = nn.Linear(width, width)
        self.cross_key_value = nn.Linear(width, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = FeedForward(width, inner_width, dropout)
        self.dropout = Dropout(dropout)

    def project_regions(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-attention keys and values of regions (M, R, d), (M, h, R, d / h) each."""
        key_value = split_channels(self.cross_key_value(regions), 2, self.num_heads)
        key, value = key_value.permute(2, 0, 3, 1, 4)
        return key, value

    def look(
        self, words: Tensor, key: Tensor, value: Tensor, groups: RowGroups, need_maps: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-attention of words (P, d) over their pictures, and its maps (P, h, R)."""
        query = groups.spread(self.cross_query(self.cross_norm(words)))  # (M, G, d)
        query = split_channels(query, self.num_heads).transpose(1, 2)  # (M, h, G, d / h)
        maps = None
        if need_maps:
            scores = query @ key.mT / math.sqrt(query.shape[-1])
            weights = scores.softmax(dim=-1)  # (M, h, G, R)
            seen = weights.to(value.dtype) @ value
            maps = groups.collect(weights.transpose(1, 2))
        else:
            seen = F.scaled_dot_product_attention(query, key, value)
        seen = groups.collect(seen.transpose(1, 2).flatten(2))  # (P, d)
        return words + self.dropout(self.cross_out(seen)), maps

    def think(self, words: Tensor) -> Tensor:
        """Feed-forward layer over words (P, d)."""
        added: Tensor = self.dropout(self.feedforward(self.feedforward_norm(words)))
        return words + added


@dataclass(frozen=True)
class TransformerState:
    """What the Transformer decoder remembers of N unfinished captions.

    Args:
        cache: Self-attention keys (first) and values (second) of the t words so far,
            (N, layers, 2, h, t, d / h).
        picture: Row of the region keys and values that each caption looks at, (N,).
        region_keys: Cross-attention keys, (M, h, R, d / h) per layer, once per picture.
        region_values: Cross-attention values, likewise.
        groups: ``picture`` as a grid, so that the captions of a picture share its regions.
    """

    cache: Tensor
    picture: Tensor
    region_keys: tuple[Tensor, ...]
    region_values: tuple[Tensor, ...]
    groups: RowGroups

    @property
    def num_rows(self) -> int:
        """N, the number of unfinished captions."""
        return self.cache.shape[0]

    def reorder(self, rows: Tensor) -> TransformerState:
        """A state whose row i is the old row ``rows[i]``; pictures stay where they are."""
        picture = self.picture[rows]
        return TransformerState(
            cache=self.cache[rows],
            picture=picture,
            region_keys=self.region_keys,
            region_values=self.region_values,
            groups=RowGroups.build(picture, len(self.groups.counts)),
        )


class TransformerDecoder(nn.Module):
    """Transformer decoder over picture regions.

    The regions are projected, given 2-D positions and passed through optional self-attention
    layers once per picture; the words attend to them in every decoder layer.

    Args:
        feature_dim: D, width of the encoder's features.
        vocabulary_size: V, words and special tokens.
        model_dim: d, width of the model.
        num_layers: Decoder layers.
        num_heads: Heads of every attention; must divide ``model_dim``.
        feedforward_dim: Inner width of the feed-forward layers; 4 d by default.
        encoder_layers: Self-attention layers over the grid, 0 or more.
        word_positions: ``sinusoidal`` (any length) or ``learned``.
        grid_positions: ``sinusoidal`` (any grid) or ``learned`` (rows plus columns).
        max_positions: Tokens of a caption, BOS included, that learned word positions cover.
        max_grid_size: Rows and columns that learned grid positions cover.
        dropout: Share of embeddings, regions, residual branches and inner units of the decoder
            layers dropped in training.
        normalize_features: Whether each region's features are brought to mean 0 and variance 1
            first. A frozen CNN's features have scales of their own.
        tie_embeddings: Whether the output layer uses the word embeddings as its weights.
        map_layer: Layer whose cross-attention, averaged over heads, is the map that people see;
            negative numbers count from the last.

    Raises:
        ValueError: If a size is out of range or ``num_heads`` does not divide ``model_dim``.

    References:
        Vaswani et al. 2017, Attention Is All You Need, sec. 3; Xiong et al. 2020 (pre-norm);
        Press and Wolf 2017 (tied embeddings). We differ: no dropout on attention weights, so
        that a map is what was used.
    """

    def __init__(
        self,
        feature_dim: int,
        vocabulary_size: int,
        model_dim: int = 384,
        num_layers: int = 3,
        num_heads: int = 6,
        feedforward_dim: int | None = None,
        encoder_layers: int = 1,
        word_positions: PositionKind = "sinusoidal",
        grid_positions: PositionKind = "sinusoidal",
        max_positions: int = 128,
        max_grid_size: int = 32,
        dropout: float = 0.3,
        normalize_features: bool = True,
        tie_embeddings: bool = True,
        map_layer: int = -1,
    ) -> None:
        super().__init__()
        self._config: dict[str, object] = {
            "feature_dim": feature_dim,
            "vocabulary_size": vocabulary_size,
            "model_dim": model_dim,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "feedforward_dim": feedforward_dim,
            "encoder_layers": encoder_layers,
            "word_positions": word_positions,
            "grid_positions": grid_positions,
            "max_positions": max_positions,
            "max_grid_size": max_grid_size,
            "dropout": dropout,
            "normalize_features": normalize_features,
            "tie_embeddings": tie_embeddings,
            "map_layer": map_layer,
        }
        inner_width = 4 * model_dim if feedforward_dim is None else feedforward_dim
        for name, value in (
            ("feature_dim", feature_dim),
            ("vocabulary_size", vocabulary_size),
            ("model_dim", model_dim),
            ("num_layers", num_layers),
            ("num_heads", num_heads),
            ("feedforward_dim", inner_width),
            ("max_positions", max_positions),
            ("max_grid_size", max_grid_size),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if model_dim % num_heads:
            raise ValueError(
                f"model_dim must be a multiple of num_heads, got model_dim={model_dim} and "
                f"num_heads={num_heads}"
            )
        if encoder_layers < 0:
            raise ValueError(f"encoder_layers must be 0 or more, got {encoder_layers}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        for name, kind in (("word_positions", word_positions), ("grid_positions", grid_positions)):
            if kind not in ("sinusoidal", "learned"):
                raise ValueError(f'{name} must be "sinusoidal" or "learned", got {kind!r}')
        if not -num_layers <= map_layer < num_layers:
            raise ValueError(
                f"map_layer must name one of num_layers={num_layers} layers "
                f"({-num_layers}..{num_layers - 1}), got {map_layer}"
            )
        self.feature_dim, self.model_dim, self.num_heads = feature_dim, model_dim, num_heads
        self.normalize_features = normalize_features
        self.map_layer = map_layer % num_layers

        self.embedding = nn.Embedding(vocabulary_size, model_dim)
        self.word_positions = WordPositions(word_positions, model_dim, max_positions)
        self.grid_positions = GridPositions(grid_positions, model_dim, max_grid_size)
        self.project = nn.Linear(feature_dim, model_dim)
        self.encoder = nn.ModuleList(
            GridEncoderLayer(model_dim, num_heads, inner_width, dropout)
            for _ in range(encoder_layers)
        )
        self.region_norm = nn.LayerNorm(model_dim)
        self.layers = nn.ModuleList(
            TransformerLayer(model_dim, num_heads, inner_width, dropout) for _ in range(num_layers)
        )
        self.output_norm = nn.LayerNorm(model_dim)
        self.output_weight = (
            None if tie_embeddings else nn.Parameter(torch.empty(vocabulary_size, model_dim))
        )
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = Dropout(dropout)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        # Scaled by sqrt(d) on the way in, so that words are as large as their positions; as
        # output weights they give logits of variance 1.
        nn.init.normal_(self.embedding.weight, std=self.model_dim**-0.5)
        if self.output_weight is not None:
            nn.init.normal_(self.output_weight, std=self.model_dim**-0.5)

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

    def _regions(self, features: ImageFeatures) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Cross-attention keys and values of each layer, (M, h, R, d / h)."""
        grid = features.grid
        if grid.shape[2] != self.feature_dim:
            raise ValueError(
                f"features are {grid.shape[2]} wide, but this decoder was built for feature_dim="
                f"{self.feature_dim}; use the encoder that it was trained with"
            )
        grid = grid.to(self.project.weight.dtype)
        if self.normalize_features:
            # Without gain and bias of its own: the projection that follows has both.
            grid = F.layer_norm(grid, (self.feature_dim,))
        regions = self.project(grid)
        regions = regions + self.grid_positions(features.rows, features.cols, regions)
        regions = self.dropout(regions)
        for layer in self.encoder:
            regions = layer(regions)
        regions = self.region_norm(regions)
        pairs = [layer.project_regions(regions) for layer in self._layers()]
        return tuple(key for key, _ in pairs), tuple(value for _, value in pairs)

    def _layers(self) -> list[TransformerLayer]:
        return [layer for layer in self.layers if isinstance(layer, TransformerLayer)]

    def _words(self, tokens: Tensor, positions: Tensor) -> Tensor:
        embedded = self.embedding(tokens) * math.sqrt(self.model_dim)
        words: Tensor = self.dropout(embedded + positions)
        return words

    def _logits(self, words: Tensor) -> Tensor:
        weight = self.embedding.weight if self.output_weight is None else self.output_weight
        return F.linear(self.output_norm(words), weight, self.output_bias)

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
            need_attention: Whether the maps are wanted; without them attention is faster.

        Returns:
            Logits (P, V) and attention (P, R), the mean over heads of ``map_layer``, one row per
            real position in row-major order.

        Raises:
            ValueError: If shapes, the feature width or learned positions do not fit.
        """
        packed = pack_captions(features, tokens, token_mask, picture)
        keys, values = self._regions(features)
        num_rows, num_steps = tokens.shape
        lengths = torch.tensor(packed.lengths, dtype=torch.int64)
        groups = RowGroups.build(
            packed.picture.repeat_interleave(lengths), len(features.grid), keys[0].device
        )
        positions = self.word_positions(0, num_steps, self.embedding.weight)
        words = self._words(packed.tokens, positions[packed.cells % num_steps])  # (P, d)
        maps: Tensor | None = None
        for index, layer in enumerate(self._layers()):
            words = self._read(layer, words, packed, (num_rows, num_steps))
            need_maps = need_attention and index == self.map_layer
            words, layer_maps = layer.look(words, keys[index], values[index], groups, need_maps)
            words = layer.think(words)
            maps = layer_maps if need_maps else maps
        attention = None if maps is None else maps.mean(1)
        return DecoderOutput(self._logits(words), attention)

    def _read(
        self,
        layer: TransformerLayer,
        words: Tensor,
        packed: PackedCaptions,
        shape: tuple[int, int],
    ) -> Tensor:
        """Causal self-attention of packed words (P, d), laid out as (N, h, T, d / h) for it.

        Padding comes last, so that the causal mask alone keeps it out of real positions.
        """
        qkv = layer.qkv(layer.self_norm(words))  # (P, 3 d)
        padded = qkv.new_zeros(shape[0] * shape[1], qkv.shape[1]).index_copy(0, packed.cells, qkv)
        padded = split_channels(padded.view(*shape, qkv.shape[1]), 3, self.num_heads)
        query, key, value = padded.permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        read = read.transpose(1, 2).reshape(shape[0] * shape[1], self.model_dim)
        added: Tensor = layer.dropout(layer.self_out(read[packed.cells]))
        return words + added

    def init_state(self, features: ImageFeatures) -> TransformerState:
        """The state before the first token, one row per picture.

        Raises:
            ValueError: If the feature width or learned grid positions do not fit.
        """
        keys, values = self._regions(features)
        num_pictures, _, _, head_dim = keys[0].shape
        cache = keys[0].new_empty(num_pictures, len(keys), 2, self.num_heads, 0, head_dim)
        picture = torch.arange(num_pictures, device=cache.device)
        return TransformerState(
            cache, picture, keys, values, RowGroups.build(picture, num_pictures)
        )

    def step(
        self, tokens: Tensor, state: DecoderState, *, layer_attention: bool = False
    ) -> StepOutput[DecoderState]:
        """Read one token per row.

        Args:
            tokens: The last token of each row (BOS at first), (N,).
            state: The state before it.
            layer_attention: Whether ``layer_attention`` (N, layers, h, R) is wanted.

        Returns:
            Logits (N, V), the map of ``map_layer`` averaged over heads (N, R) and the next state.

        Raises:
            ValueError: If learned positions do not reach that far.
        """
        if not isinstance(state, TransformerState):
            raise TypeError(
                f"state must come from this decoder's init_state, got a {type(state).__name__}"
            )
        past = state.cache.shape[4]
        position = self.word_positions(past, past + 1, self.embedding.weight)
        words = self._words(tokens, position)  # (N, d)
        entries: list[Tensor] = []
        maps: list[Tensor] = []
        for index, layer in enumerate(self._layers()):
            qkv = split_channels(layer.qkv(layer.self_norm(words)), 3, self.num_heads)
            entry = torch.cat((state.cache[:, index], qkv[:, 1:].unsqueeze(3)), dim=3)
            entries.append(entry)  # (N, 2, h, t + 1, d / h)
            read = F.scaled_dot_product_attention(qkv[:, 0].unsqueeze(2), entry[:, 0], entry[:, 1])
            words = words + layer.dropout(layer.self_out(read.flatten(1)))
            need_maps = layer_attention or index == self.map_layer
            words, layer_maps = layer.look(
                *(words, state.region_keys[index], state.region_values[index]),
                *(state.groups, need_maps),
            )
            words = layer.think(words)
            if layer_maps is not None:
                maps.append(layer_maps)
        after = TransformerState(
            torch.stack(entries, dim=1),
            *(state.picture, state.region_keys, state.region_values, state.groups),
        )
        chosen = maps[self.map_layer] if layer_attention else maps[0]
        return StepOutput(
            self._logits(words),
            chosen.mean(1),
            after,
            torch.stack(maps, dim=1) if layer_attention else None,
        )
