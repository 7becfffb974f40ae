"""The searches with the decoders that ship, held against their own teacher-forced scores."""

import itertools

import pytest
import torch

from captioner.decoding import DecodingOptions, find_alternatives, generate
from captioner.models.ensemble import EnsembleDecoder
from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.transformer_decoder import TransformerDecoder
from captioner.types import ImageFeatures, SpecialIds

IDS = SpecialIds()
ROWS, COLS, DIM = 2, 3, 10


def build(name, vocabulary_size, end):
    """A random decoder in float64, so that ties cannot flip."""
    if name == "ensemble":
        return EnsembleDecoder([build(n, vocabulary_size, end) for n in ("lstm", "transformer")])
    torch.manual_seed(4)
    if name != "transformer":
        decoder = ShowAttendTellDecoder(
            *(DIM, vocabulary_size),
            hidden_dim=12,
            embedding_dim=9,
            attention_dim=8,
            value_dim=7,
            score="mean" if name == "lstm-mean" else "additive",
        )
    else:
        decoder = TransformerDecoder(
            DIM, vocabulary_size, model_dim=12, num_layers=2, num_heads=3, encoder_layers=1
        )
    decoder = decoder.double().eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            # Sharper than a new network, so that captions differ; means differ less than regions.
            parameter.mul_(6 if name == "lstm-mean" else 4)
        decoder.output_bias.zero_()
        decoder.output_bias[IDS.eos_id] += end
    return decoder


def random_features(count):
    generator = torch.Generator().manual_seed(7)
    grid = torch.randn(count, ROWS * COLS, DIM, generator=generator, dtype=torch.float64)
    return ImageFeatures(3 * grid, ROWS, COLS)


def teacher_force(decoder, features, found):
    """Log-probability and map of every token of every caption, the end included if it came."""
    flat = [(m, one) for m, captions in enumerate(found) for one in captions]
    rows = [[IDS.bos_id, *one.token_ids, *[IDS.eos_id] * one.finished] for _, one in flat]
    longest = max(len(row) for row in rows)
    tokens = torch.tensor([row + [IDS.pad_id] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(longest - 1) < lengths[:, None] - 1
    picture = torch.tensor([m for m, _ in flat])
    with torch.no_grad():
        output = decoder(features, tokens[:, :-1], mask, picture)
    targets = tokens[:, 1:][mask]
    log_probs = output.logits.log_softmax(1).gather(1, targets[:, None]).squeeze(1)
    sizes = (lengths - 1).tolist()
    parts = zip(log_probs.split(sizes), output.attention.split(sizes), strict=True)
    return [(one, *part) for (_, one), part in zip(flat, parts, strict=True)]


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(method="greedy", max_length=12),
        DecodingOptions(beam_size=5, num_captions=5, max_length=12),
        DecodingOptions(beam_size=3, min_length=4, no_repeat_ngram=2, max_length=8),
        DecodingOptions(method="sample", num_captions=4, max_length=12, temperature=1.5, top_p=0.9),
    ],
)
@pytest.mark.parametrize("end", [-3.0, 2.0])
def test_scores_and_maps_are_those_of_teacher_forcing(name, options, end):
    decoder, features = build(name, 17, end), random_features(6)
    found = generate(decoder, features, options, IDS, layer_attention=True)
    assert len(found) == 6
    lengths = set()
    for one, log_probs, attention in teacher_force(decoder, features, found):
        num_words = len(one.token_ids)
        lengths.add(num_words)
        torch.testing.assert_close(one.token_log_probs, log_probs[:num_words])
        assert one.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-9)
        torch.testing.assert_close(one.attention, attention[:num_words])
        torch.testing.assert_close(one.attention.sum(1), torch.ones(num_words).double())
        assert one.layer_attention.shape[0] == num_words
        torch.testing.assert_close(one.layer_attention[:, -1].mean(1), one.attention)
    assert end < 0 or len(lengths) > 1, "captions of one length test no ragged batch"


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_a_batch_is_its_pictures_one_by_one(name, method):
    decoder, features = build(name, 17, 1.0), random_features(8)
    options = DecodingOptions(method=method, max_length=10)

    def caption(grid, generator):
        part = ImageFeatures(grid, ROWS, COLS)
        generator = generator if method == "sample" else None
        return [
            (
                one.token_ids,
                one.finished,
                round(one.score, 9),
                one.attention.numpy().round(9).tolist(),
            )
            for captions in generate(decoder, part, options, IDS, generator=generator)
            for one in captions
        ]

    together = caption(features.grid, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    alone = [one for grid in features.grid.split(1) for one in caption(grid, generator)]
    assert alone == together
    assert len({tokens for tokens, *_ in together}) > 1


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
def test_beam_1_is_greedy(name):
    decoder, features = build(name, 17, 1.0), random_features(8)
    greedy, narrow = (
        generate(decoder, features, options, IDS)
        for options in (DecodingOptions(method="greedy"), DecodingOptions(beam_size=1))
    )
    for [one], [other] in zip(greedy, narrow, strict=True):
        assert one.token_ids == other.token_ids
        assert one.score == pytest.approx(other.score, abs=1e-12)
        torch.testing.assert_close(one.attention, other.attention)


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
def test_a_wide_beam_is_brute_force(name):
    decoder, features = build(name, 7, 0.0), random_features(2)
    options = DecodingOptions(beam_size=300, num_captions=200, max_length=4)
    found = generate(decoder, features, options, IDS)
    for picture, captions in enumerate(found):
        expected = []
        for length in range(5):
            for words in itertools.product((4, 5, 6), repeat=length):
                finished = length < 4
                row = torch.tensor([[IDS.bos_id, *words, *[IDS.eos_id] * finished]])
                part = ImageFeatures(features.grid[picture : picture + 1], ROWS, COLS)
                with torch.no_grad():
                    logits = decoder(part, row[:, :-1]).logits
                log_prob = float(logits.log_softmax(1).gather(1, row[0, 1:, None]).sum())
                score = log_prob / (length + finished) ** options.length_penalty
                expected.append((not finished, -score, words))
        expected.sort()
        assert [one.token_ids for one in captions] == [words for *_, words in expected]
        assert [one.score for one in captions] == pytest.approx([-s for _, s, _ in expected])


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
def test_training_mode_and_gradients_do_not_reach_decoding(name):
    decoder, features = build(name, 17, 0.0), random_features(2)
    options = DecodingOptions(beam_size=2)
    expected = generate(decoder, features, options, IDS)
    found = generate(decoder.train(), features, options, IDS)
    assert decoder.training
    assert [[one.log_prob for one in captions] for captions in found] == [
        [one.log_prob for one in captions] for captions in expected
    ]
    assert not any(one.attention.requires_grad for captions in found for one in captions)


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
@pytest.mark.parametrize("ban_unk", [True, False])
def test_alternatives_are_the_models_own(name, ban_unk):
    """Step by step through every caption: the likeliest tokens besides the one there."""
    decoder, features = build(name, 17, 0.0), random_features(3)
    options = DecodingOptions(beam_size=4, num_captions=4, max_length=7, ban_unk=ban_unk)
    found = generate(decoder, features, options, IDS)
    ended = generate(decoder, features, options, IDS, prefix=(5, 9, IDS.eos_id))
    found = [captions + more for captions, more in zip(found, ended, strict=True)]
    alternatives = find_alternatives(decoder, features, found, IDS, 5, ban_unk=ban_unk)
    assert {one.finished for captions in found for one in captions} == {True, False}
    for m, (captions, beside) in enumerate(zip(found, alternatives, strict=True)):
        own = ImageFeatures(features.grid[m : m + 1], ROWS, COLS)
        for one, places in zip(captions, beside, strict=True):
            assert len(places) == len(one.token_ids) + 1
            state, last = decoder.init_state(own), IDS.bos_id
            stands = [*one.token_ids, IDS.eos_id if one.finished else None]
            for here, place in zip(stands, places, strict=True):
                with torch.no_grad():
                    output = decoder.step(torch.tensor([last]), state)
                state, last = output.state, here
                log_probs = output.logits.log_softmax(1)[0]
                skip = {IDS.pad_id, IDS.bos_id, here} | ({IDS.unk_id} if ban_unk else set())
                wanted = [i for i in log_probs.argsort(descending=True).tolist() if i not in skip]
                assert [token_id for token_id, _ in place] == wanted[:5]
                torch.testing.assert_close(
                    torch.tensor([value for _, value in place]),
                    log_probs[wanted[:5]].to(torch.float32),
                )


def test_alternatives_of_small_vocabularies_and_of_nothing():
    decoder, features = build("lstm", 6, 0.0), random_features(2)
    found = generate(decoder, features, DecodingOptions(max_length=3), IDS)
    for captions in find_alternatives(decoder, features, found, IDS):
        assert all(len(place) <= 3 for places in captions for place in places)
    assert find_alternatives(decoder, features, [[], []], IDS) == [[], []]
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        find_alternatives(decoder, features, found, IDS, 0)
    assert not decoder.training


@pytest.mark.parametrize("name", ["lstm", "lstm-mean", "transformer", "ensemble"])
@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_a_prefix_with_its_end_is_the_whole_caption(name, method):
    """Forcing a caption anew gives what teacher forcing gives."""
    decoder, features = build(name, 17, 0.0), random_features(1)
    options = DecodingOptions(method=method, max_length=20)
    found = generate(decoder, features, options, IDS, prefix=(5, 9, 7, IDS.eos_id))
    [(one, log_probs, attention)] = teacher_force(decoder, features, found)
    assert (one.token_ids, one.finished) == ((5, 9, 7), True)
    torch.testing.assert_close(one.token_log_probs, log_probs[:3])
    torch.testing.assert_close(one.attention, attention[:3])
    assert one.log_prob == pytest.approx(float(log_probs.sum()))
