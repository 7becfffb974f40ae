"""A hand-made decoder over a written-out table, and searches so plain that they cannot be wrong."""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from captioner.decoding import DecodingOptions
from captioner.models.interfaces import StepOutput
from captioner.types import Hypothesis, ImageFeatures, SpecialIds

PAD, BOS, EOS, UNK = range(4)
IDS = SpecialIds()
REGIONS, LAYERS, HEADS = 3, 2, 2
History = tuple[int, ...]


@dataclass(frozen=True)
class TableState:
    """What every row has read, BOS left out."""

    picture: tuple[int, ...]
    history: tuple[History, ...]

    @property
    def num_rows(self) -> int:
        return len(self.picture)

    def reorder(self, rows: Tensor) -> "TableState":
        assert rows.dtype == torch.long
        assert rows.dim() == 1
        chosen = rows.tolist()
        return TableState(
            tuple(self.picture[row] for row in chosen), tuple(self.history[row] for row in chosen)
        )


class TableDecoder:
    """Next-word probabilities looked up by picture and all words so far.

    The number of a picture is the first value of its grid, so it keeps its table in any batch.
    """

    def __init__(
        self, next_logits: Callable[[int, History], Tensor], dtype: torch.dtype = torch.float64
    ) -> None:
        self.next_logits = next_logits
        self.dtype = dtype
        self.rows_per_step: list[int] = []
        self.config: Mapping[str, object] = {}
        self.vocabulary_parameters: tuple[str, ...] = ()

    def init_state(self, features: ImageFeatures) -> TableState:
        self.rows_per_step = []
        numbers = tuple(int(number) for number in features.grid[:, 0, 0])
        return TableState(numbers, ((),) * len(numbers))

    def step(
        self, tokens: Tensor, state: TableState, *, layer_attention: bool = False
    ) -> StepOutput[TableState]:
        self.rows_per_step.append(state.num_rows)
        assert tokens.shape == (state.num_rows,)
        history = []
        for past, token in zip(state.history, tokens.tolist(), strict=True):
            assert (token == BOS) == (past == () and tokens[0] == BOS)
            assert token not in (PAD, EOS), "an ended caption was read on"
            history.append(() if token == BOS else (*past, token))
        rows = list(zip(state.picture, history, strict=True))
        logits = torch.stack([self.next_logits(picture, past) for picture, past in rows])
        maps = torch.stack([layer_maps_of(picture, past) for picture, past in rows])
        return StepOutput(
            logits=logits.to(self.dtype),
            attention=maps[:, -1].mean(dim=1),
            state=TableState(state.picture, tuple(history)),
            layer_attention=maps if layer_attention else None,
        )


def layer_maps_of(picture: int, history: History) -> Tensor:
    """The maps (layers, heads, R) with which a picture's caption goes on after some words."""
    noise = random.Random(f"map {picture} {history}")
    values = [noise.gauss(0, 1) for _ in range(LAYERS * HEADS * REGIONS)]
    return torch.tensor(values, dtype=torch.float64).view(LAYERS, HEADS, REGIONS).softmax(-1)


def random_decoder(
    vocabulary_size: int = 7, end: float = 0.0, dtype: torch.dtype = torch.float64
) -> TableDecoder:
    """A table of noise, special tokens included; ``end`` is added to the end token's logit."""

    def next_logits(picture: int, history: History) -> Tensor:
        noise = random.Random(f"word {picture} {history}")
        logits = torch.tensor(
            [noise.gauss(0, 1.5) for _ in range(vocabulary_size)], dtype=torch.float64
        )
        logits[EOS] += end
        return logits

    return TableDecoder(next_logits, dtype)


def written_decoder(
    table: Mapping[History, Mapping[int, float]], vocabulary_size: int = 8
) -> TableDecoder:
    """Probabilities by history; what the table leaves out is impossible."""

    def next_logits(picture: int, history: History) -> Tensor:
        logits = torch.full((vocabulary_size,), -math.inf, dtype=torch.float64)
        for token, probability in table.get(history, {}).items():
            logits[token] = math.log(probability)
        return logits

    return TableDecoder(next_logits)


def pictures(*numbers: int) -> ImageFeatures:
    grid = torch.zeros(len(numbers), REGIONS, 2, dtype=torch.float64)
    for row, number in enumerate(numbers):
        grid[row] = number
    return ImageFeatures(grid, 1, REGIONS)


@dataclass(frozen=True)
class Caption:
    """A caption as brute force finds it."""

    token_ids: History
    finished: bool
    log_prob: float
    score: float


def brute_force(
    decoder: TableDecoder,
    picture: int,
    options: DecodingOptions,
    vocabulary_size: int = 7,
    prefix: Sequence[int] = (),
) -> list[Caption]:
    """Every allowed caption of a picture, best first."""
    words = [UNK] * (not options.ban_unk) + list(range(4, vocabulary_size))
    found = []
    for length in range(options.max_length + 1):
        for token_ids in itertools.product(words, repeat=length):
            if repeats(token_ids, options.no_repeat_ngram) or token_ids[: len(prefix)] != tuple(
                prefix
            ):
                continue
            for finished in (False, True):
                if finished and (length < options.min_length or length == options.max_length):
                    continue
                if not finished and length != options.max_length:
                    continue
                log_prob = float(rescore(decoder, picture, token_ids, finished).sum())
                score = log_prob / (length + finished) ** options.length_penalty
                found.append(Caption(token_ids, finished, log_prob, score))
    return sorted(found, key=lambda caption: (not caption.finished, -caption.score))


def repeats(token_ids: History, size: int) -> bool:
    """Whether a sequence of the given size comes twice."""
    if size == 0:
        return False
    grams = [token_ids[i : i + size] for i in range(len(token_ids) - size + 1)]
    return len(set(grams)) < len(grams)


def rescore(decoder: TableDecoder, picture: int, token_ids: History, finished: bool) -> Tensor:
    """The model's own log-probability of each token, the end included where it came."""
    tokens = (*token_ids, EOS) if finished else token_ids
    return torch.tensor(
        [
            float(decoder.next_logits(picture, tokens[:i]).log_softmax(0)[tokens[i]])
            for i in range(len(tokens))
        ],
        dtype=torch.float64,
    )


def check_hypothesis(
    decoder: TableDecoder, picture: int, hypothesis: Hypothesis, options: DecodingOptions
) -> None:
    """Numbers and maps are those of the caption's own words."""
    token_ids = hypothesis.token_ids
    expected = rescore(decoder, picture, token_ids, hypothesis.finished)
    torch.testing.assert_close(hypothesis.token_log_probs, expected[: len(token_ids)])
    assert hypothesis.log_prob == pytest.approx(float(expected.sum()), abs=1e-12)
    length = max(1, len(token_ids) + hypothesis.finished)
    assert hypothesis.score == pytest.approx(hypothesis.log_prob / length**options.length_penalty)
    assert hypothesis.attention.shape == (len(token_ids), REGIONS)
    assert hypothesis.layer_attention is not None
    assert hypothesis.layer_attention.shape == (len(token_ids), LAYERS, HEADS, REGIONS)
    for place in range(len(token_ids)):
        maps = layer_maps_of(picture, token_ids[:place])
        torch.testing.assert_close(hypothesis.layer_attention[place], maps)
        torch.testing.assert_close(hypothesis.attention[place], maps[-1].mean(0))


def summary(found: Sequence[Sequence[Hypothesis]]) -> list[list[tuple[object, ...]]]:
    """What can be compared with ==."""
    return [
        [
            (
                one.token_ids,
                one.finished,
                round(one.log_prob, 9),
                round(one.score, 9),
                [round(value, 9) for value in one.token_log_probs.tolist()],
                [[round(value, 9) for value in row] for row in one.attention.tolist()],
            )
            for one in captions
        ]
        for captions in found
    ]


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """The names above, for tests that cannot import them."""
    return SimpleNamespace(
        PAD=PAD,
        BOS=BOS,
        EOS=EOS,
        UNK=UNK,
        IDS=IDS,
        TableDecoder=TableDecoder,
        random_decoder=random_decoder,
        written_decoder=written_decoder,
        pictures=pictures,
        brute_force=brute_force,
        repeats=repeats,
        rescore=rescore,
        check_hypothesis=check_hypothesis,
        summary=summary,
    )
