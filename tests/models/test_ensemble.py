"""Ensembles: the mean of the members' probabilities, computed by hand, in float64."""

import json
import math

import pytest
import torch
from torch import nn

from captioner.decoding import DecodingOptions, generate
from captioner.models.ensemble import (
    EnsembleDecoder,
    EnsembleEncoder,
    EnsembleFeatures,
    mean_log_probs,
)
from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.transformer_decoder import TransformerDecoder
from captioner.types import ImageFeatures, SpecialIds

D, V = 10, 13
LSTM = {"hidden_dim": 8, "embedding_dim": 6, "attention_dim": 7, "value_dim": 9}
TRANSFORMER = {"model_dim": 12, "num_layers": 2, "num_heads": 3}


def lstm(feature_dim=D, **options):
    return ShowAttendTellDecoder(feature_dim, V, **{**LSTM, **options}).double().eval()


def transformer(feature_dim=D):
    return TransformerDecoder(feature_dim, V, **TRANSFORMER).double().eval()


def seen(rows=2, cols=3, width=D, pictures=4):
    return ImageFeatures(
        3 * torch.randn(pictures, rows * cols, width, dtype=torch.float64), rows, cols
    )


def mean_of(logits):
    """The logarithm of the mean of the softmaxes, as one writes it down."""
    return torch.stack([one.exp() / one.exp().sum(1, keepdim=True) for one in logits]).mean(0).log()


def test_the_mean_is_that_of_the_probabilities():
    logits = [5 * torch.randn(3, V, dtype=torch.float64) for _ in range(3)]
    torch.testing.assert_close(mean_log_probs(logits), mean_of(logits))
    assert mean_log_probs([one.half() for one in logits]).dtype == torch.float32


def test_what_one_member_cannot_say_another_can():
    first = torch.tensor([[0.0, -math.inf, 0.0]])
    nothing = torch.full((1, 3), -math.inf)
    torch.testing.assert_close(
        mean_log_probs([first, torch.zeros(1, 3)]).exp(), torch.tensor([[5 / 12, 1 / 6, 5 / 12]])
    )
    mean = mean_log_probs([first, nothing]).exp()
    torch.testing.assert_close(mean, torch.tensor([[0.25, 0.0, 0.25]]))
    assert (mean_log_probs([nothing, nothing]) == -math.inf).all()
    assert mean_log_probs([first, first * math.nan]).isnan().any()  # the search says so


@pytest.mark.parametrize("build", [lstm, transformer])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(method="greedy"),
        DecodingOptions(beam_size=4, num_captions=3, length_penalty=0.7),
        DecodingOptions(method="sample", num_captions=3),
    ],
)
def test_a_model_alone_or_with_itself_is_that_model(build, copies, options):
    member, features = build(), seen()
    found, expected = (
        generate(decoder, features, options, SpecialIds(), generator=generator)
        for decoder, generator in (
            (EnsembleDecoder([member] * copies), torch.Generator().manual_seed(3)),
            (member, torch.Generator().manual_seed(3)),
        )
    )
    for captions, others in zip(found, expected, strict=True):
        for one, other in zip(captions, others, strict=True):
            assert one.token_ids == other.token_ids
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-9)
            torch.testing.assert_close(one.token_log_probs, other.token_log_probs)
            torch.testing.assert_close(one.attention, other.attention)


def test_every_step_has_the_mean_probability_and_the_mean_map():
    members, features = [lstm(), transformer(), lstm(score="mean")], seen()
    ensemble = EnsembleDecoder(members)
    state, states = ensemble.init_state(features), [m.init_state(features) for m in members]
    rows = torch.tensor([0, 0, 2, 3, 1])
    state, states = state.reorder(rows), [one.reorder(rows) for one in states]
    assert state.num_rows == 5
    for tokens in torch.randint(V, (4, 5)):
        output = ensemble.step(tokens, state, layer_attention=True)
        outputs = [m.step(tokens, s) for m, s in zip(members, states, strict=True)]
        torch.testing.assert_close(output.logits, mean_of([one.logits for one in outputs]))
        maps = torch.stack([one.attention for one in outputs], dim=1)
        torch.testing.assert_close(output.attention, maps.mean(1))
        torch.testing.assert_close(output.layer_attention, maps[:, None])
        state, states = output.state, [one.state for one in outputs]


def test_a_beam_is_ranked_by_the_mean_probability():
    """Two members that differ: a wide beam finds the best captions of the mixture."""
    members, features, ids = [lstm(), transformer()], seen(pictures=2), SpecialIds()
    with torch.no_grad():
        for member in members:
            for parameter in member.parameters():
                parameter.mul_(3)
    options = DecodingOptions(beam_size=8, num_captions=8, max_length=5)
    found = generate(EnsembleDecoder(members), features, options, ids)
    alone = [generate(member, features, options, ids) for member in members]
    assert any(found[0][0].token_ids != one[0][0].token_ids for one in alone)
    for picture, captions in enumerate(found):
        here = features.select(slice(picture, picture + 1))
        for caption in captions:
            rest = [ids.eos_id] * caption.finished
            tokens = torch.tensor([[ids.bos_id, *caption.token_ids, *rest]])
            with torch.no_grad():
                logits = [member(here, tokens[:, :-1]).logits for member in members]
            log_probs = mean_of(logits).gather(1, tokens[0, 1:, None])
            assert caption.log_prob == pytest.approx(float(log_probs.sum()), abs=1e-9)


def test_members_may_see_other_grids_through_other_encoders():
    first, second = lstm(), transformer(feature_dim=4)
    features = EnsembleFeatures.join([seen(), seen(3, 3, width=4)])
    ensemble = EnsembleDecoder([first, second, first], encoders=[0, 1, 0])
    tokens = torch.randint(V, (4, 5))
    output = ensemble(features, tokens)
    outputs = [m(part, tokens) for m, part in zip((first, second), features.parts, strict=True)]
    logits = [outputs[0].logits, outputs[1].logits, outputs[0].logits]
    torch.testing.assert_close(output.logits, mean_of(logits))
    torch.testing.assert_close(output.attention, outputs[0].attention)  # of its grid alone
    assert ensemble(features, tokens, need_attention=False).attention is None
    # The order of the members decides whose grid is shown.
    output = EnsembleDecoder([second, first], encoders=[1, 0])(features, tokens)
    torch.testing.assert_close(output.attention, outputs[1].attention)

    options = DecodingOptions(beam_size=3, max_length=6)
    together = generate(ensemble, features, options, SpecialIds())
    for picture, [caption] in enumerate(together):
        one = features.select(slice(picture, picture + 1))
        [[alone]] = generate(ensemble, one, options, SpecialIds())
        assert alone.token_ids == caption.token_ids
        assert alone.log_prob == pytest.approx(caption.log_prob, abs=1e-9)
        torch.testing.assert_close(alone.attention, caption.attention)


def test_maps_that_are_not_shown_are_left_out():
    members, features, tokens = [lstm(), lstm()], seen(), torch.randint(V, (4, 3))
    output = EnsembleDecoder(members, shown=[0])(features, tokens)
    torch.testing.assert_close(output.attention, members[0](features, tokens).attention)


class Shrink(nn.Module):
    """An encoder that averages squares of ``size`` pixels."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, images):
        grid = nn.functional.avg_pool2d(images, self.size)
        return ImageFeatures(grid.flatten(2).mT, *grid.shape[2:])


def test_every_encoder_takes_its_own_view():
    small, large = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 12, 16)
    encoder = EnsembleEncoder([Shrink(4), Shrink(4), Shrink(2)], views=[0, 1, 0])
    features = encoder(small, large)
    assert [(one.rows, one.cols) for one in features.parts] == [(2, 2), (3, 4), (4, 4)]
    assert torch.equal(features.grid, Shrink(4)(small).grid)
    assert torch.equal(features.parts[1].grid, Shrink(4)(large).grid)
    one = features.to("cpu").select(slice(1, 2))
    assert isinstance(one, EnsembleFeatures)
    assert torch.equal(one.parts[2].grid, Shrink(2)(small).grid[1:])


def test_the_config_tells_the_members_and_is_json():
    ensemble = EnsembleDecoder([lstm(), transformer()])
    config = json.loads(json.dumps(ensemble.config))
    assert [one["class_path"].rpartition(".")[2] for one in config["members"]] == [
        "ShowAttendTellDecoder",
        "TransformerDecoder",
    ]
    assert config["members"][0]["init_args"]["vocabulary_size"] == V


def test_what_cannot_be_an_ensemble_is_refused():
    with pytest.raises(ValueError, match="at least one member, got none"):
        EnsembleDecoder([])
    with pytest.raises(ValueError, match="at least one encoder, got none"):
        EnsembleEncoder([])
    other = ShowAttendTellDecoder(D, V + 1, **LSTM)
    with pytest.raises(ValueError, match="13 entries in member 0 and 14 in member 1"):
        EnsembleDecoder([lstm(), other])
    with pytest.raises(ValueError, match=r"encoders must have one index .* got \(0,\)"):
        EnsembleDecoder([lstm(), lstm()], encoders=[0])
    with pytest.raises(ValueError, match=r"shown must name members 0\.\.1, got \(0, 2\)"):
        EnsembleDecoder([lstm(), lstm()], shown=[2])
    with pytest.raises(ValueError, match="features of 2 encoders, got those of 1"):
        EnsembleDecoder([lstm(), lstm()], encoders=[0, 1]).init_state(seen())
    with pytest.raises(ValueError, match="got 4 from the first and 3 from another"):
        EnsembleFeatures.join([seen(), seen(pictures=3)])
