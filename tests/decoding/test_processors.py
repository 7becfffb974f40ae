import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.decoding import DecodingOptions
from captioner.decoding.processors import (
    BanTokens,
    Chain,
    MinLength,
    NoRepeatNgram,
    Temperature,
    TopK,
    TopP,
    build_bans,
    build_sampling,
)
from captioner.types import SpecialIds

NO_WORDS = torch.zeros(2, 0, dtype=torch.long)


def finite(logits):
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in logits]


@pytest.mark.parametrize(
    "processor",
    [
        BanTokens((0, 1)),
        MinLength(9, 2),
        NoRepeatNgram(1),
        NoRepeatNgram(2),
        Temperature(0.3),
        TopK(2),
        TopP(0.5),
        Chain((BanTokens((0,)), TopK(3)), prefix=(5, 5, 5, 5)),
        build_bans(DecodingOptions(min_length=3, no_repeat_ngram=2), SpecialIds()),
    ],
)
def test_processors_are_pure(processor):
    logits, words = torch.randn(2, 7), torch.tensor([[4, 5, 4], [6, 6, 6]])
    kept = logits.clone(), words.clone()
    first, second = processor(logits, words), processor(logits, words)
    assert torch.equal(logits, kept[0])
    assert torch.equal(words, kept[1])
    assert torch.equal(first, second)
    assert not torch.equal(first, logits)


def test_bans_leave_the_other_logits_alone():
    logits = torch.randn(2, 7)
    banned = build_bans(DecodingOptions(min_length=1), SpecialIds())(logits, NO_WORDS)
    assert finite(banned) == [{4, 5, 6}, {4, 5, 6}]
    assert torch.equal(banned[:, 4:], logits[:, 4:])


def test_the_unknown_word_may_be_allowed():
    banned = build_bans(DecodingOptions(ban_unk=False), SpecialIds())(torch.zeros(2, 5), NO_WORDS)
    assert finite(banned) == [{2, 3, 4}, {2, 3, 4}]


def test_the_end_waits_for_the_minimum_length():
    ban, words = MinLength(2, 2), torch.full((1, 2), 4)
    assert finite(ban(torch.zeros(1, 5), words[:, :1])) == [{0, 1, 3, 4}]
    assert finite(ban(torch.zeros(1, 5), words)) == [{0, 1, 2, 3, 4}]


@settings(deadline=None)
@given(
    words=st.integers(0, 8).flatmap(
        lambda length: st.lists(
            st.lists(st.integers(0, 3), min_size=length, max_size=length), min_size=1, max_size=4
        )
    ),
    size=st.integers(1, 4),
)
def test_exactly_the_words_that_would_repeat_a_sequence_are_banned(words, size):
    tokens = torch.tensor(words, dtype=torch.long).view(len(words), -1)
    banned = NoRepeatNgram(size)(torch.zeros(len(words), 5), tokens)
    for row, past in zip(finite(banned), words, strict=True):
        seen = {tuple(past[i : i + size]) for i in range(len(past) - size + 1)}
        beginning = past[len(past) - size + 1 :] if size > 1 else []
        repeated = {w for w in range(5) if len(past) >= size and (*beginning, w) in seen}
        assert row == set(range(5)) - repeated


def test_temperature_keeps_the_order_and_never_overflows():
    logits = torch.tensor([[1.0, 3.0, 2.0, -math.inf], [-math.inf] * 4])
    for temperature in (1e-300, 0.5, 1e300):
        changed = Temperature(temperature)(logits.double(), NO_WORDS)
        assert not changed.isnan().any()
        assert changed[0].argmax() == 1
        assert changed[0, 3] == -math.inf
        assert changed[1].isneginf().all()
    expected = (logits[0] / 0.5).softmax(0)
    torch.testing.assert_close(Temperature(0.5)(logits, NO_WORDS)[0].softmax(0), expected)


def test_top_k_keeps_exactly_k_even_of_equal_ones():
    assert [len(row) for row in finite(TopK(2)(torch.zeros(2, 6), NO_WORDS))] == [2, 2]
    assert finite(TopK(2)(torch.tensor([[1.0, 5, 3, 4], [9, 0, 8, 1]]), NO_WORDS)) == [
        {1, 3},
        {0, 2},
    ]
    assert finite(TopK(9)(torch.zeros(2, 3), NO_WORDS)) == [{0, 1, 2}] * 2


def test_top_p_keeps_the_nucleus():
    logits = torch.tensor([[0.1, 0.5, 0.3, 0.1], [0.25, 0.25, 0.25, 0.25]]).log()
    assert finite(TopP(0.79)(logits, NO_WORDS))[0] == {1, 2}
    assert finite(TopP(0.81)(logits, NO_WORDS))[0] > {1, 2}
    assert finite(TopP(0.5)(logits, NO_WORDS))[0] == {1}
    assert len(finite(TopP(0.6)(logits, NO_WORDS))[1]) == 3
    assert finite(TopP(1.0)(logits, NO_WORDS)) == [{0, 1, 2, 3}] * 2


@settings(deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.floats(-1e30, 1e30), st.just(-math.inf), st.floats(-3, 3)),
        min_size=1,
        max_size=12,
    ),
    p=st.floats(0, 1, exclude_min=True),
    k=st.integers(1, 14),
    temperature=st.floats(1e-6, 1e6),
)
def test_sampling_keeps_the_likeliest_word_and_no_nan(logits, p, k, temperature):
    row = torch.tensor([logits], dtype=torch.float64)
    options = DecodingOptions(method="sample", temperature=temperature, top_k=k, top_p=p)
    kept = build_sampling(options)(row, NO_WORDS[:1])
    assert not kept.isnan().any()
    if row.isfinite().any():
        assert kept[0, int(row.argmax())].isfinite() or len(set(logits)) < len(logits)
        assert 1 <= kept.isfinite().sum() <= k
    nucleus = TopP(p)(row, NO_WORDS[:1])
    assert torch.equal(nucleus[nucleus.isfinite()], row[nucleus.isfinite()])


def test_a_forced_beginning_is_exempt_from_bans():
    chain = build_bans(DecodingOptions(), SpecialIds(), prefix=(3, 4))
    logits = torch.randn(2, 6)
    forced = chain(logits, NO_WORDS)
    assert finite(forced) == [{3}, {3}]
    assert torch.equal(forced[:, 3], logits[:, 3])
    assert finite(chain(logits, torch.tensor([[3, 4], [3, 4]]))) == [{2, 4, 5}] * 2
    with pytest.raises(ValueError, match="prefix must hold ids below 4"):
        chain(logits[:, :4], torch.tensor([[3], [3]]))
