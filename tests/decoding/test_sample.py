import collections
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.decoding import DecodingOptions, generate
from captioner.decoding.sample import invert_distribution

EOS, A, B, C = 2, 4, 5, 6
FORK = {(): {A: 0.5, B: 0.3, C: 0.2}, (A,): {EOS: 1.0}, (B,): {EOS: 1.0}, (C,): {EOS: 1.0}}


def sample(**values):
    return DecodingOptions(method="sample", **values)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {A: 0.5, B: 0.3, C: 0.2}),
        ({"temperature": 0.5}, {A: 0.25 / 0.38, B: 0.09 / 0.38, C: 0.04 / 0.38}),
        ({"top_k": 2}, {A: 0.625, B: 0.375, C: 0.0}),
        ({"top_p": 0.7}, {A: 0.625, B: 0.375, C: 0.0}),
        ({"top_p": 0.3}, {A: 1.0, B: 0.0, C: 0.0}),
        ({"top_k": 2, "top_p": 0.6}, {A: 1.0, B: 0.0, C: 0.0}),
    ],
)
def test_words_come_as_often_as_their_probability_says(tools, values, expected):
    count = 2000
    options = sample(num_captions=count, **values)
    decoder = tools.written_decoder(FORK)
    [captions] = generate(decoder, tools.pictures(0), options, tools.IDS, generator=seeded())
    assert len(captions) == count
    for word, probability in expected.items():
        share = sum(one.token_ids == (word,) for one in captions) / count
        # Four standard deviations of a binomial share.
        assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / count)
    # The model's own log-probabilities, whatever was done to the distribution.
    for one in captions[:: count // 9]:
        own = math.log(FORK[()][one.token_ids[0]])
        assert one.log_prob == pytest.approx(own)
        assert float(one.token_log_probs[0]) == pytest.approx(own)


def test_every_word_is_a_draw_of_its_own(tools):
    coin = {A: 0.5, B: 0.5}
    table = {past: coin for n in range(3) for past in itertools.product((A, B), repeat=n)}
    options = sample(num_captions=800, max_length=3)
    [captions] = generate(
        tools.written_decoder(table), tools.pictures(0), options, tools.IDS, generator=seeded()
    )
    counts = collections.Counter(one.token_ids for one in captions)
    assert len(counts) == 8
    # 100 expected of each of eight; four standard deviations are 37.
    assert all(63 <= count <= 137 for count in counts.values())


def test_log_probabilities_and_maps_are_those_of_the_words(tools):
    decoder = tools.random_decoder(vocabulary_size=9)
    options = sample(num_captions=6, temperature=2.0, top_k=4, max_length=6, no_repeat_ngram=2)
    found = generate(decoder, tools.pictures(3, 1, 7), options, tools.IDS, layer_attention=True)
    for number, captions in zip((3, 1, 7), found, strict=True):
        assert len(captions) == 6
        assert len({one.token_ids for one in captions}) > 1
        for one in captions:
            tools.check_hypothesis(decoder, number, one, options)


def test_the_same_seed_gives_the_same_captions_and_another_one_others(tools):
    decoder, features = tools.random_decoder(9), tools.pictures(*range(6))
    options = sample(num_captions=3)

    def draw(seed):
        found = generate(decoder, features, options, tools.IDS, generator=seeded(seed))
        return tools.summary(found)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_without_a_generator_the_global_seed_counts(tools):
    decoder, features, options = tools.random_decoder(9), tools.pictures(0, 1), sample()
    torch.manual_seed(5)
    first = tools.summary(generate(decoder, features, options, tools.IDS))
    second = tools.summary(generate(decoder, features, options, tools.IDS))
    torch.manual_seed(5)
    assert tools.summary(generate(decoder, features, options, tools.IDS)) == first
    assert second != first


def test_a_picture_draws_the_same_in_batches_of_any_size(tools):
    decoder, numbers, options = tools.random_decoder(9), range(8), sample(num_captions=2)
    together = generate(decoder, tools.pictures(*numbers), options, tools.IDS, generator=seeded())
    for size in (1, 3):
        generator, parts = seeded(), []
        for start in range(0, 8, size):
            features = tools.pictures(*numbers[start : start + size])
            parts += generate(decoder, features, options, tools.IDS, generator=generator)
        assert tools.summary(parts) == tools.summary(together)


def test_other_pictures_of_the_batch_change_nothing(tools):
    decoder, options = tools.random_decoder(9), sample(num_captions=2)
    draws = [
        generate(decoder, tools.pictures(*batch), options, tools.IDS, generator=seeded())[1]
        for batch in ((0, 5, 1), (8, 5), (3, 5, 4, 2))
    ]
    assert tools.summary(draws[:1]) == tools.summary(draws[1:2]) == tools.summary(draws[2:])


def test_equal_pictures_of_a_batch_draw_apart(tools):
    decoder, options = tools.random_decoder(12), sample(max_length=8)
    found = generate(decoder, tools.pictures(*[4] * 8), options, tools.IDS, generator=seeded())
    assert len({captions[0].token_ids for captions in found}) > 4


def test_more_captions_leave_the_first_one_as_it_was(tools):
    decoder = tools.random_decoder(9)
    one, three = (
        generate(
            decoder,
            tools.pictures(2, 3),
            sample(num_captions=n),
            tools.IDS,
            generator=seeded(),
        )
        for n in (1, 3)
    )
    for few, many in zip(one, three, strict=True):
        assert few[0].token_ids in {caption.token_ids for caption in many}


@pytest.mark.parametrize("values", [{"top_k": 1}, {"temperature": 1e-9}, {"top_p": 1e-9}])
def test_without_chance_sampling_is_greedy(tools, values):
    decoder, features = tools.random_decoder(9), tools.pictures(*range(10))
    greedy = generate(decoder, features, DecodingOptions(method="greedy"), tools.IDS)
    drawn = generate(decoder, features, sample(**values), tools.IDS)
    assert tools.summary(drawn) == tools.summary(greedy)


@settings(deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.floats(-30, 30), st.just(-math.inf)), min_size=1, max_size=9
    ).filter(lambda row: max(row) > -math.inf),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2**-53)),
)
def test_a_draw_is_the_first_word_whose_cumulative_probability_exceeds_the_number(logits, uniform):
    row = torch.tensor([logits], dtype=torch.float64)
    token = int(invert_distribution(row, torch.tensor([uniform], dtype=torch.float64)))
    assert row[0, token] > -math.inf
    cumulative = list(itertools.accumulate(row[0].softmax(0).tolist()))
    assert uniform <= cumulative[token] + 1e-12
    assert token == 0 or uniform >= cumulative[token - 1] - 1e-12
