import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.decoding import DecodingOptions, generate

EOS, A, B, C = 2, 4, 5, 6


def beam(**values):
    return DecodingOptions(method="beam", **values)


def test_beam_search_sees_past_the_first_word(tools):
    # Greedy takes A (0.6) and pays for it; B (0.4) leads to the better caption.
    decoder = tools.written_decoder(
        {
            (): {A: 0.6, B: 0.4},
            (A,): {A: 0.3, B: 0.3, C: 0.3, EOS: 0.1},
            (B,): {EOS: 0.9, C: 0.1},
            (A, A): {EOS: 1.0},
            (A, B): {EOS: 1.0},
            (A, C): {EOS: 1.0},
        }
    )
    options = beam(beam_size=2, length_penalty=0.0)
    [[best]] = generate(decoder, tools.pictures(0), options, tools.IDS)
    assert best.token_ids == (B,)
    assert best.finished
    assert best.log_prob == pytest.approx(math.log(0.36))
    assert best.score == best.log_prob
    torch.testing.assert_close(best.token_log_probs, torch.tensor([0.4]).double().log())
    [[greedy]] = generate(decoder, tools.pictures(0), DecodingOptions(method="greedy"), tools.IDS)
    assert greedy.token_ids == (A, A)
    assert greedy.log_prob == pytest.approx(math.log(0.18))


def test_a_finished_caption_is_not_lost_to_unfinished_ones(tools):
    # After A, ending (0.2) is worse than both ways on (0.4 each), whose ends are improbable.
    table = {
        (): {A: 1.0},
        (A,): {B: 0.4, C: 0.4, EOS: 0.2},
        (A, B): {EOS: 0.01, B: 0.99},
        (A, C): {EOS: 0.01, C: 0.99},
        (A, B, B): {A: 0.5, B: 0.49, EOS: 0.01},
        (A, C, C): {A: 0.5, C: 0.49, EOS: 0.01},
    }
    options = beam(beam_size=3, max_length=4, length_penalty=0.0)
    [[best]] = generate(tools.written_decoder(table), tools.pictures(0), options, tools.IDS)
    assert best.token_ids == (A,)
    assert best.finished
    assert best.log_prob == pytest.approx(math.log(0.2))


@pytest.mark.parametrize(
    ("length_penalty", "expected"), [(0.0, (A,)), (0.4, (A,)), (0.42, (B, B, B)), (1.0, (B, B, B))]
)
def test_the_length_penalty_counts_words_and_the_end(tools, length_penalty, expected):
    # log 0.3 / 2 ** a against log 0.2 / 4 ** a: equal at a = 0.4187.
    decoder = tools.written_decoder(
        {
            (): {A: 0.3, B: 0.2, C: 0.5},
            (A,): {EOS: 1.0},
            (B,): {B: 1.0},
            (B, B): {B: 1.0},
            (B, B, B): {EOS: 1.0},
            (C,): {A: 0.5, B: 0.5},
        }
    )
    options = beam(beam_size=9, max_length=6, length_penalty=length_penalty, num_captions=2)
    [[best, second]] = generate(decoder, tools.pictures(0), options, tools.IDS)
    assert best.token_ids == expected
    length = len(expected) + 1
    log_prob = math.log(0.3 if expected == (A,) else 0.2)
    assert best.score == pytest.approx(log_prob / length**length_penalty)
    assert second.score <= best.score


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"min_length": 3, "max_length": 6},
        {"no_repeat_ngram": 1, "max_length": 9},
        {"no_repeat_ngram": 2, "length_penalty": 0.0},
        {"ban_unk": False, "max_length": 2},
    ],
)
def test_beam_1_is_greedy(tools, values):
    decoder, features = tools.random_decoder(), tools.pictures(*range(12))
    greedy = generate(decoder, features, DecodingOptions(method="greedy", **values), tools.IDS)
    narrow = generate(decoder, features, beam(beam_size=1, **values), tools.IDS)
    assert tools.summary(narrow) == tools.summary(greedy)


@pytest.mark.parametrize(
    "values",
    [
        {"length_penalty": 0.0},
        {"length_penalty": 0.7},
        {"length_penalty": 2.0, "min_length": 2},
        {"min_length": 4},
        {"no_repeat_ngram": 1, "ban_unk": False},
        {"no_repeat_ngram": 2, "length_penalty": 1.0},
    ],
)
@pytest.mark.parametrize("end", [0.0, 3.0, -3.0])
@pytest.mark.parametrize("num_captions", [1, 120])
def test_a_wide_beam_is_brute_force(tools, values, end, num_captions):
    decoder = tools.random_decoder(end=end)
    options = beam(beam_size=600, max_length=4, num_captions=num_captions, **values)
    found = generate(decoder, tools.pictures(0, 1, 2), options, tools.IDS, layer_attention=True)
    for picture, hypotheses in enumerate(found):
        expected = tools.brute_force(decoder, picture, options)[:num_captions]
        assert [one.token_ids for one in hypotheses] == [one.token_ids for one in expected]
        assert [one.finished for one in hypotheses] == [one.finished for one in expected]
        for one, caption in zip(hypotheses, expected, strict=True):
            assert one.score == pytest.approx(caption.score, rel=1e-12)
            tools.check_hypothesis(decoder, picture, one, options)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.5])
def test_stopping_early_changes_no_answer(tools, length_penalty):
    decoder, features = tools.random_decoder(end=1.0), tools.pictures(*range(30))
    values = {"beam_size": 4, "max_length": 8, "length_penalty": length_penalty}
    stopped = generate(decoder, features, beam(**values), tools.IDS)
    steps_stopped = sum(decoder.rows_per_step)
    # With all beams asked for, a picture goes on until every one of them has ended.
    full = generate(decoder, features, beam(num_captions=4, **values), tools.IDS)
    assert tools.summary(stopped) == tools.summary([captions[:1] for captions in full])
    # The greater the exponent, the more a longer caption may still gain.
    saved = sum(decoder.rows_per_step) - steps_stopped
    assert saved > 0 if length_penalty < 1 else saved >= 0


def test_pictures_and_beams_that_ended_leave_the_batch(tools):
    table = {(): {A: 0.6, B: 0.4}, (A,): {EOS: 1.0}, (B,): {B: 1.0}, (B, B): {EOS: 1.0}}
    short = {(): {A: 1.0}, (A,): {EOS: 1.0}}
    decoders = [tools.written_decoder(table), tools.written_decoder(short)]
    decoder = tools.TableDecoder(
        lambda picture, history: decoders[picture].next_logits(picture, history)
    )
    options = beam(beam_size=2, length_penalty=1.0, num_captions=2)
    found = generate(decoder, tools.pictures(0, 1), options, tools.IDS)
    # One row a picture at first; then A and B, and A; then B alone, until it ends.
    assert decoder.rows_per_step == [2, 3, 1]
    assert [[one.token_ids for one in captions] for captions in found] == [[(A,), (B, B)], [(A,)]]


def test_a_finished_caption_keeps_its_place(tools):
    decoder = tools.written_decoder(
        {
            (): {A: 0.6, B: 0.4},
            (A,): {EOS: 0.5, B: 0.3, C: 0.2},
            (B,): {C: 0.65, A: 0.35},
            (B, C): {A: 0.5, C: 0.4, EOS: 0.1},
            (B, C, A): {EOS: 1.0},
            (B, C, C): {EOS: 1.0},
        }
    )
    options = beam(beam_size=2, num_captions=2)
    [captions] = generate(decoder, tools.pictures(0), options, tools.IDS)
    # A has ended (0.3) beside B C (0.26); from then on one place is left.
    assert decoder.rows_per_step == [1, 2, 1, 1]
    assert {one.token_ids for one in captions} == {(A,), (B, C, A)}


def test_a_beam_that_never_ended_is_an_answer_with_its_last_word(tools):
    decoder = tools.random_decoder(end=-math.inf)
    for method in ("greedy", "beam", "sample"):
        options = DecodingOptions(method=method, max_length=5)
        for captions in generate(decoder, tools.pictures(0, 1), options, tools.IDS):
            assert len(captions) == 1
            assert len(captions[0].token_ids) == 5
            assert not captions[0].finished
            assert captions[0].log_prob == pytest.approx(float(captions[0].token_log_probs.sum()))


def test_captions_cut_off_rank_behind_finished_ones(tools):
    # Going on for ever costs nothing; ending after A costs much.
    table = {(): {A: 1.0}, (A,): {B: 0.9, EOS: 0.1}, (A, B): {C: 1.0}}
    options = beam(beam_size=2, max_length=3, num_captions=2)
    [[first, second]] = generate(
        tools.written_decoder(table), tools.pictures(0), options, tools.IDS
    )
    assert (first.token_ids, first.finished) == ((A,), True)
    assert (second.token_ids, second.finished) == ((A, B, C), False)
    assert second.score > first.score


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_when_no_word_is_left_the_caption_ends_there(tools, method):
    decoder = tools.random_decoder(vocabulary_size=6)
    options = DecodingOptions(method=method, no_repeat_ngram=1, min_length=5, max_length=9)
    for [caption] in generate(decoder, tools.pictures(0, 1, 2), options, tools.IDS):
        assert sorted(caption.token_ids) == [4, 5]
        assert not caption.finished
        assert math.isfinite(caption.log_prob)
        assert math.isfinite(caption.score)


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_a_model_that_can_say_nothing_gives_an_empty_caption(tools, method):
    options = DecodingOptions(method=method)
    found = generate(
        tools.written_decoder({}), tools.pictures(0, 1), options, tools.IDS, layer_attention=True
    )
    for [caption] in found:
        assert caption.token_ids == ()
        assert caption.log_prob == 0.0
        assert not caption.finished
        assert caption.attention.shape == (0, 3)
        assert caption.layer_attention.shape == (0, 2, 2, 3)


def test_beams_that_no_word_continues_make_room_for_others(tools):
    # A is likelier and leads nowhere.
    decoder = tools.written_decoder({(): {A: 0.9, B: 0.1}, (B,): {C: 1.0}, (B, C): {EOS: 1.0}})
    [captions] = generate(decoder, tools.pictures(0), beam(beam_size=2, num_captions=2), tools.IDS)
    assert [(one.token_ids, one.finished) for one in captions] == [((B, C), True), ((A,), False)]


def test_several_captions_are_different_and_best_first(tools):
    decoder = tools.random_decoder()
    options = beam(beam_size=5, num_captions=5)
    for captions in generate(decoder, tools.pictures(*range(9)), options, tools.IDS):
        assert len({(one.token_ids, one.finished) for one in captions}) == 5
        ranks = [(one.finished, one.score) for one in captions]
        assert ranks == sorted(ranks, reverse=True)


@settings(deadline=None, max_examples=60)
@given(
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    beam_size=st.integers(1, 9),
    length_penalty=st.floats(0, 2),
    lengths=st.tuples(st.integers(0, 7), st.integers(1, 7)).map(sorted),
    no_repeat_ngram=st.integers(0, 3),
    ban_unk=st.booleans(),
    end=st.sampled_from([-math.inf, -2.0, 0.0, 2.0]),
)
def test_whatever_the_options(
    tools, numbers, beam_size, length_penalty, lengths, no_repeat_ngram, ban_unk, end
):
    decoder = tools.random_decoder(vocabulary_size=8, end=end)
    options = beam(
        beam_size=beam_size,
        num_captions=beam_size,
        length_penalty=length_penalty,
        min_length=lengths[0],
        max_length=lengths[1],
        no_repeat_ngram=no_repeat_ngram,
        ban_unk=ban_unk,
    )
    found = generate(decoder, tools.pictures(*numbers), options, tools.IDS, layer_attention=True)
    assert len(found) == len(numbers)
    for number, captions in zip(numbers, found, strict=True):
        assert 1 <= len(captions) <= beam_size
        for one in captions:
            tools.check_hypothesis(decoder, number, one, options)
            assert not {tools.PAD, tools.BOS, tools.EOS} & set(one.token_ids)
            assert not (ban_unk and tools.UNK in one.token_ids)
            assert len(one.token_ids) <= options.max_length
            assert not tools.repeats(one.token_ids, no_repeat_ngram)
            if one.finished:
                assert len(one.token_ids) >= options.min_length
    alone = [generate(decoder, tools.pictures(n), options, tools.IDS)[0] for n in numbers]
    assert tools.summary(found) == tools.summary(alone)
