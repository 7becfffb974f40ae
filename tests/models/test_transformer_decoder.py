"""The Transformer's layers, against torch.nn's with copied weights."""

import math

import pytest
import torch
from torch import nn

from captioner.models.attention import RowGroups
from captioner.models.transformer_decoder import (
    GridEncoderLayer,
    GridPositions,
    TransformerDecoder,
    TransformerLayer,
    sinusoids,
)
from captioner.types import ImageFeatures

D, V, WIDTH, HEADS, INNER = 10, 23, 12, 3, 20


def copy_layer(layer, reference):
    """Give torch.nn's layer the weights of ours."""
    pairs = {"linear1": layer.feedforward.enter, "linear2": layer.feedforward.leave}
    if isinstance(layer, TransformerLayer):
        pairs |= {"norm1": layer.self_norm, "norm2": layer.cross_norm}
        pairs |= {"norm3": layer.feedforward_norm, "self_attn.out_proj": layer.self_out}
        pairs |= {"multihead_attn.out_proj": layer.cross_out}
        query, rest = layer.cross_query, layer.cross_key_value
        cross = reference.multihead_attn
        cross.in_proj_weight.copy_(torch.cat((query.weight, rest.weight)))
        cross.in_proj_bias.copy_(torch.cat((query.bias, rest.bias)))
    else:
        pairs |= {"norm1": layer.attention_norm, "norm2": layer.feedforward_norm}
        pairs |= {"self_attn.out_proj": layer.attention_out}
    reference.self_attn.in_proj_weight.copy_(layer.qkv.weight)
    reference.self_attn.in_proj_bias.copy_(layer.qkv.bias)
    for name, module in pairs.items():
        reference.get_submodule(name).load_state_dict(module.state_dict())


def randomize(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def test_grid_encoder_layer_is_that_of_torch():
    with torch.no_grad():
        layer = randomize(GridEncoderLayer(WIDTH, HEADS, INNER, 0.3))
        reference = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, batch_first=True, norm_first=True, dtype=torch.float64
        ).eval()
        copy_layer(layer, reference)
        regions = torch.randn(2, 6, WIDTH, dtype=torch.float64)
        torch.testing.assert_close(layer(regions), reference(regions))


@pytest.mark.parametrize("need_attention", [True, False])
def test_decoder_layers_are_those_of_torch(need_attention):
    """A whole decoder without grid encoder, rebuilt from torch.nn's parts."""
    with torch.no_grad():
        decoder = TransformerDecoder(D, V, WIDTH, 2, HEADS, INNER, encoder_layers=0)
        decoder = randomize(decoder)
        references = []
        for layer in decoder.layers:
            references.append(
                nn.TransformerDecoderLayer(
                    WIDTH, HEADS, INNER, batch_first=True, norm_first=True, dtype=torch.float64
                ).eval()
            )
            copy_layer(layer, references[-1])
        grid = torch.randn(2, 6, D, dtype=torch.float64)
        tokens = torch.randint(V, (2, 4))

        normal = nn.functional.layer_norm(grid, (D,))
        regions = decoder.project(normal) + decoder.grid_positions(2, 3, normal)
        regions = decoder.region_norm(regions)
        places = sinusoids(torch.arange(4, dtype=torch.float64), WIDTH)
        words = decoder.embedding(tokens) * math.sqrt(WIDTH) + places
        causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
        for reference in references[:-1]:
            words = reference(words, regions, causal, tgt_is_causal=True)
        # The last layer's map: mean over heads of its cross-attention.
        last = references[-1]
        read = words + last._sa_block(last.norm1(words), causal, None, is_causal=True)
        _, maps = last.multihead_attn(last.norm2(read), regions, regions)
        words = last(words, regions, causal, tgt_is_causal=True)
        logits = decoder.output_norm(words) @ decoder.embedding.weight.T + decoder.output_bias

        output = decoder(ImageFeatures(grid, 2, 3), tokens, need_attention=need_attention)
        torch.testing.assert_close(output.logits, logits.flatten(0, 1))
        if need_attention:
            torch.testing.assert_close(output.attention, maps.flatten(0, 1))


def test_looking_with_and_without_maps_gives_the_same_words():
    layer = randomize(TransformerLayer(WIDTH, HEADS, INNER, 0.0))
    key, value = layer.project_regions(torch.randn(2, 6, WIDTH, dtype=torch.float64))
    words = torch.randn(5, WIDTH, dtype=torch.float64)
    groups = RowGroups.build(torch.tensor([1, 0, 1, 1, 0]), 2)
    with_maps, maps = layer.look(words, key, value, groups, need_maps=True)
    without, no_maps = layer.look(words, key, value, groups, need_maps=False)
    torch.testing.assert_close(with_maps, without)
    assert maps.shape == (5, HEADS, 6)
    assert no_maps is None


@pytest.mark.parametrize("width", [1, 5, 12])
def test_sinusoids_are_those_of_the_paper_up_to_channel_order(width):
    places = sinusoids(torch.arange(9, dtype=torch.float64), width)
    half = (width + 1) // 2
    assert places.shape == (9, width)
    for place in range(9):
        for channel in range(width):
            angle = place / 10000 ** ((channel % half) / half)
            expected = math.sin(angle) if channel < half else math.cos(angle)
            assert places[place, channel].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("width", [12, 13])
def test_grid_positions_tell_rows_from_columns(kind, width):
    places = GridPositions(kind, width, 8).double()
    vectors = places(3, 5, torch.zeros(1, dtype=torch.float64)).view(3, 5, width)
    assert len(vectors.flatten(0, 1).unique(dim=0)) == 15
    # Row-major: going down changes by the same step in every column, and likewise across.
    down, across = vectors.diff(dim=0), vectors.diff(dim=1)
    torch.testing.assert_close(down, down[:, :1].expand_as(down))
    torch.testing.assert_close(across, across[:1].expand_as(across))


def test_learned_positions_say_where_they_end():
    decoder = TransformerDecoder(
        *(D, V, WIDTH, 1, HEADS),
        word_positions="learned",
        grid_positions="learned",
        max_positions=3,
        max_grid_size=2,
    ).eval()
    tokens = torch.randint(V, (1, 4))
    features = ImageFeatures(torch.randn(1, 4, D), 2, 2)
    with pytest.raises(ValueError, match=r"reaches 4 tokens with BOS.*max_positions=3"):
        decoder(features, tokens)
    with pytest.raises(ValueError, match=r"the grid is 1 x 4.*max_grid_size=2"):
        decoder(ImageFeatures(torch.randn(1, 4, D), 1, 4), tokens[:, :3])
    state = decoder.init_state(features)
    for _ in range(3):
        state = decoder.step(tokens[:, 0], state).state
    with pytest.raises(ValueError, match="reaches 4 tokens with BOS"):
        decoder.step(tokens[:, 0], state)


@pytest.mark.parametrize("chosen", [0, 1, -1, -2])
def test_the_map_is_that_of_the_layer_that_was_chosen(chosen):
    decoder = TransformerDecoder(D, V, WIDTH, 2, HEADS, map_layer=chosen).double().eval()
    features = ImageFeatures(torch.randn(2, 6, D, dtype=torch.float64), 2, 3)
    tokens = torch.randint(V, (2, 1))
    step = decoder.step(tokens[:, 0], decoder.init_state(features), layer_attention=True)
    torch.testing.assert_close(step.attention, step.layer_attention[:, chosen].mean(1))
    torch.testing.assert_close(decoder(features, tokens).attention, step.attention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_dim": 10}, "model_dim=10 and num_heads=3"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"feedforward_dim": 0}, "feedforward_dim must be at least 1, got 0"),
        ({"encoder_layers": -1}, "encoder_layers must be 0 or more, got -1"),
        ({"dropout": 1.5}, r"dropout must be in \[0, 1\), got 1.5"),
        ({"word_positions": "rotary"}, "word_positions must be .* got 'rotary'"),
        ({"map_layer": 2}, r"map_layer must name one of num_layers=2 layers \(-2\.\.1\), got 2"),
    ],
)
def test_impossible_options_are_refused(options, message):
    fine = {"feature_dim": D, "vocabulary_size": V, "model_dim": 12, "num_layers": 2}
    with pytest.raises(ValueError, match=message):
        TransformerDecoder(**{**fine, "num_heads": 3, **options})
