"""What every decoder owes: the protocol of captioner.models.interfaces, in float64."""

import json

import pytest
import torch
from torch import nn

from captioner.models.ensemble import EnsembleDecoder
from captioner.models.interfaces import CaptionDecoder
from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.transformer_decoder import TransformerDecoder
from captioner.types import ImageFeatures

D, V, ROWS, COLS = 10, 23, 2, 3
LSTM = {"hidden_dim": 8, "embedding_dim": 6, "attention_dim": 7, "value_dim": 9}
TRANSFORMER = {"model_dim": 12, "num_layers": 2, "num_heads": 3}


def build_ensemble(feature_dim, vocabulary_size):
    return EnsembleDecoder(
        [
            ShowAttendTellDecoder(feature_dim, vocabulary_size, **LSTM),
            TransformerDecoder(feature_dim, vocabulary_size, **TRANSFORMER),
        ]
    )


DECODERS = {
    "lstm": (ShowAttendTellDecoder, LSTM),
    "lstm-dot": (ShowAttendTellDecoder, {**LSTM, "score": "dot", "gate": False}),
    "lstm-scaled-tied": (
        ShowAttendTellDecoder,
        {**LSTM, "score": "scaled_dot", "tie_embeddings": True, "normalize_features": False},
    ),
    "lstm-mean": (ShowAttendTellDecoder, {**LSTM, "score": "mean"}),
    "lstm-mean-tied": (
        ShowAttendTellDecoder,
        {**LSTM, "score": "mean", "gate": False, "tie_embeddings": True},
    ),
    "transformer": (TransformerDecoder, TRANSFORMER),
    "transformer-learned": (
        TransformerDecoder,
        {
            **TRANSFORMER,
            "encoder_layers": 0,
            "word_positions": "learned",
            "grid_positions": "learned",
            "tie_embeddings": False,
            "normalize_features": False,
            "map_layer": 0,
            "feedforward_dim": 5,
        },
    ),
    "ensemble": (build_ensemble, {}),
}
PICTURE = torch.tensor([0, 0, 0, 1, 3, 3])  # picture 2 has no caption
LENGTHS = torch.tensor([3, 5, 2, 4, 1, 5])
MASK = torch.arange(5) < LENGTHS.unsqueeze(1)


@pytest.fixture(params=DECODERS)
def decoder(request):
    decoder_class, options = DECODERS[request.param]
    return decoder_class(feature_dim=D, vocabulary_size=V, **options).double().eval()


@pytest.fixture
def features():
    return ImageFeatures(torch.randn(4, ROWS * COLS, D, dtype=torch.float64), ROWS, COLS)


@pytest.fixture
def tokens():
    return torch.randint(V, (6, 5))


def step_by_step(decoder, features, tokens, picture, layer_attention=False):
    """Logits (N, T, V), attention (N, T, R) and layer maps of steps over all positions."""
    state = decoder.init_state(features).reorder(picture)
    outputs = []
    for column in tokens.T:
        outputs.append(decoder.step(column, state, layer_attention=layer_attention))
        state = outputs[-1].state
    logits = torch.stack([output.logits for output in outputs], dim=1)
    attention = torch.stack([output.attention for output in outputs], dim=1)
    return logits, attention, [output.layer_attention for output in outputs]


def test_it_is_a_decoder_by_the_protocol(decoder):
    assert isinstance(decoder, CaptionDecoder)


def test_steps_equal_the_teacher_forced_pass(decoder, features, tokens):
    output = decoder(features, tokens, MASK, PICTURE)
    logits, attention, _ = step_by_step(decoder, features, tokens, PICTURE)
    assert output.logits.shape == (int(LENGTHS.sum()), V)
    torch.testing.assert_close(output.logits, logits[MASK])
    torch.testing.assert_close(output.attention, attention[MASK])
    with torch.inference_mode():
        logits, attention, _ = step_by_step(decoder, features, tokens, PICTURE)
    torch.testing.assert_close(output.logits, logits[MASK])
    torch.testing.assert_close(output.attention, attention[MASK])


def test_gradients_equal_those_of_the_steps(decoder, features, tokens):
    """The gradient of the whole pass, partly written by hand, is that of plain autograd."""
    features.grid.requires_grad_()
    inputs = [features.grid, *decoder.parameters()]
    output = decoder(features, tokens, MASK, PICTURE)
    logits, attention, _ = step_by_step(decoder, features, tokens, PICTURE)
    into_logits, into_maps = torch.randn_like(output.logits), torch.randn_like(output.attention)
    found = torch.autograd.grad(
        (output.logits * into_logits).sum() + (output.attention * into_maps).sum(), inputs
    )
    expected = torch.autograd.grad(
        (logits[MASK] * into_logits).sum() + (attention[MASK] * into_maps).sum(), inputs
    )
    for mine, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, reference)


def test_maps_are_distributions_and_optional(decoder, features, tokens):
    output = decoder(features, tokens, MASK, PICTURE)
    assert output.attention.shape == (int(LENGTHS.sum()), ROWS * COLS)
    assert (output.attention >= 0).all()
    torch.testing.assert_close(output.attention.sum(1), torch.ones_like(output.attention[:, 0]))
    without = decoder(features, tokens, MASK, PICTURE, need_attention=False)
    assert without.attention is None
    torch.testing.assert_close(without.logits, output.logits)


def test_layer_maps_hold_the_map_that_people_see(decoder, features, tokens):
    _, attention, maps = step_by_step(decoder, features, tokens, PICTURE, layer_attention=True)
    layers = len(decoder.layers) if isinstance(decoder, TransformerDecoder) else 1
    heads = 3 if isinstance(decoder, TransformerDecoder) else 1
    heads = len(decoder.members) if isinstance(decoder, EnsembleDecoder) else heads
    shown = decoder.map_layer if isinstance(decoder, TransformerDecoder) else 0
    for step, layer_maps in enumerate(maps):
        assert layer_maps.shape == (6, layers, heads, ROWS * COLS)
        torch.testing.assert_close(layer_maps[:, shown].mean(1), attention[:, step])
        torch.testing.assert_close(layer_maps.sum(3), torch.ones_like(layer_maps.sum(3)))


def test_by_default_all_positions_are_real_and_captions_belong_in_order(decoder, features):
    tokens = torch.randint(V, (4, 3))
    plain = decoder(features, tokens)
    said = decoder(features, tokens, torch.ones(4, 3, dtype=torch.bool), torch.arange(4))
    assert torch.equal(plain.logits, said.logits)


def test_padding_changes_nothing(decoder, features, tokens):
    output = decoder(features, tokens, MASK, PICTURE)
    other = torch.where(MASK, tokens, torch.randint(V, tokens.shape))
    other = torch.cat((other, torch.randint(V, (6, 3))), dim=1)
    mask = torch.cat((MASK, torch.zeros(6, 3, dtype=torch.bool)), dim=1)
    padded = decoder(features, other, mask, PICTURE)
    torch.testing.assert_close(padded.logits, output.logits)
    torch.testing.assert_close(padded.attention, output.attention)


def test_neither_row_order_nor_company_changes_anything(decoder, features, tokens):
    output = decoder(features, tokens, MASK, PICTURE)
    ends = LENGTHS.cumsum(0).tolist()
    for row, (picture, length, end) in enumerate(
        zip(PICTURE.tolist(), LENGTHS.tolist(), ends, strict=True)
    ):
        one = ImageFeatures(features.grid[picture : picture + 1], ROWS, COLS)
        alone = decoder(one, tokens[row : row + 1, :length])
        torch.testing.assert_close(alone.logits, output.logits[end - length : end])
        torch.testing.assert_close(alone.attention, output.attention[end - length : end])
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    moved = decoder(features, tokens[order], MASK[order], PICTURE[order])
    starts = [0, *ends[:-1]]
    positions = torch.cat([torch.arange(starts[row], ends[row]) for row in order])
    torch.testing.assert_close(moved.logits, output.logits[positions])


@pytest.mark.parametrize(
    "rows",
    [
        [0, 0, 1, 1, 2, 2, 3, 3],  # widen
        [3, 0, 1, 0, 2],  # follow and mix
        [1, 3],  # drop
        [2, 2, 2],
    ],
)
def test_reorder_moves_rows_and_leaves_pictures(decoder, features, rows):
    tokens = torch.randint(V, (4, 3))
    state = decoder.init_state(features)
    for column in tokens.T[:2]:
        state = decoder.step(column, state).state
    assert state.num_rows == 4
    before = decoder.step(tokens[:, 2], state)
    rows = torch.tensor(rows)
    moved = state.reorder(rows)
    assert moved.num_rows == len(rows)
    after = decoder.step(tokens[rows, 2], moved)
    torch.testing.assert_close(after.logits, before.logits[rows])
    torch.testing.assert_close(after.attention, before.attention[rows])
    # What belongs to the picture is the very same memory.
    for name, value in vars(state).items():
        if name in ("keys", "values", "region_keys", "region_values"):
            assert getattr(moved, name) is value
    # The state that was moved is untouched, and the rows move on once more.
    torch.testing.assert_close(decoder.step(tokens[:, 2], state).logits, before.logits)
    again = decoder.step(tokens[rows, 0], after.state.reorder(torch.arange(len(rows))))
    torch.testing.assert_close(
        again.logits, decoder.step(tokens[rows, 0], before.state.reorder(rows)).logits
    )


def test_the_picture_is_projected_once_and_padding_never_worked_on(decoder, features, tokens):
    if isinstance(decoder, EnsembleDecoder):
        pytest.skip("what its members do")
    seen = {"regions": [], "words": []}
    regions = decoder.value if isinstance(decoder, ShowAttendTellDecoder) else decoder.project
    regions.register_forward_hook(lambda _, inputs, __: seen["regions"].append(inputs[0].shape))
    for module in decoder.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == V:
            module.register_forward_hook(lambda _, i, __: seen["words"].append(i[0].numel()))
    decoder(features, tokens, MASK, PICTURE)
    assert seen == {"regions": [(4, ROWS * COLS, D)], "words": [int(LENGTHS.sum())]}
    seen["regions"].clear()
    step_by_step(decoder, features, tokens, PICTURE)
    assert seen["regions"] == [(4, ROWS * COLS, D)]


def test_every_parameter_gets_a_gradient(decoder, features, tokens):
    decoder.train()
    output = decoder(features, tokens, MASK, PICTURE)
    output.logits.square().sum().backward()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_config_builds_the_same_decoder_and_is_json(decoder, features, tokens):
    if isinstance(decoder, EnsembleDecoder):
        pytest.skip("it is joined from modules, not built from its config")
    config = json.loads(json.dumps(decoder.config))
    again = type(decoder)(**config).double().eval()
    assert again.config == decoder.config
    again.load_state_dict(decoder.state_dict())
    expected = decoder(features, tokens, MASK, PICTURE).logits
    assert torch.equal(again(features, tokens, MASK, PICTURE).logits, expected)


def test_vocabulary_parameters_are_all_with_a_row_per_word(decoder):
    by_shape = {name for name, value in decoder.state_dict().items() if value.shape[0] == V}
    assert set(decoder.vocabulary_parameters) == by_shape


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (3, 2), (1, 7), (5, 5)])
def test_any_grid_will_do(decoder, rows, cols):
    grid = ImageFeatures(torch.randn(2, rows * cols, D, dtype=torch.float64), rows, cols)
    tokens = torch.randint(V, (2, 4))
    output = decoder(grid, tokens)
    logits, attention, _ = step_by_step(decoder, grid, tokens, torch.arange(2))
    torch.testing.assert_close(output.logits, logits.flatten(0, 1))
    torch.testing.assert_close(output.attention, attention.flatten(0, 1))


def test_no_captions_give_no_logits(decoder, features):
    empty = torch.zeros(0, dtype=torch.int64)
    output = decoder(features, torch.zeros(0, 4, dtype=torch.int64), None, empty)
    assert output.logits.shape == (0, V)
    assert output.attention.shape == (0, ROWS * COLS)


@pytest.mark.parametrize("training", [True, False])
def test_bfloat16_autocast_works_and_stays_close(decoder, features, tokens, training):
    decoder = decoder.float().train(training)
    half = ImageFeatures(features.grid.half(), ROWS, COLS)  # as a feature store gives them
    with torch.autocast("cpu", torch.bfloat16):
        output = decoder(half, tokens, MASK, PICTURE)
        logits, attention, _ = step_by_step(decoder, half, tokens, PICTURE)
        output.logits.float().sum().backward()
    decoder.eval()
    with torch.no_grad():
        exact = decoder(features, tokens, MASK, PICTURE)
    assert output.logits.isfinite().all()
    assert logits.isfinite().all()
    if not training:
        # bfloat16 keeps 8 bits: errors of a few per cent of logits of about 1.
        torch.testing.assert_close(output.logits.float(), exact.logits, rtol=0.1, atol=0.1)
        torch.testing.assert_close(logits[MASK].float(), exact.logits, rtol=0.1, atol=0.1)
        torch.testing.assert_close(attention[MASK].float(), exact.attention, rtol=0.1, atol=0.1)


def test_dropout_acts_in_training_only(decoder, features, tokens):
    first = decoder(features, tokens, MASK, PICTURE).logits
    assert torch.equal(decoder(features, tokens, MASK, PICTURE).logits, first)
    decoder.train()
    assert not torch.equal(decoder(features, tokens, MASK, PICTURE).logits, first)


def test_wrong_inputs_are_named(decoder, features, tokens):
    narrow = ImageFeatures(torch.zeros(4, ROWS * COLS, 7, dtype=torch.float64), ROWS, COLS)
    with pytest.raises(ValueError, match=r"features are 7 wide.*feature_dim=10"):
        decoder(narrow, tokens, MASK, PICTURE)
    with pytest.raises(ValueError, match=r"features are 7 wide.*feature_dim=10"):
        decoder.init_state(narrow)
    with pytest.raises(ValueError, match="6 captions for 4 pictures: give `picture`"):
        decoder(features, tokens, MASK)
    with pytest.raises(ValueError, match=r"picture must name rows 0\.\.3"):
        decoder(features, tokens, MASK, PICTURE + 1)
    with pytest.raises(ValueError, match=r"picture must be \(6,\), got \(5,\)"):
        decoder(features, tokens, MASK, PICTURE[1:])
    with pytest.raises(ValueError, match="real positions of each caption first"):
        decoder(features, tokens, MASK.flip(1), PICTURE)
    with pytest.raises(ValueError, match="token_mask must be boolean"):
        decoder(features, tokens, MASK.long(), PICTURE)
    with pytest.raises(ValueError, match=r"tokens must be \(N, T\)"):
        decoder(features, tokens[0])
    with pytest.raises(TypeError, match="must come from this decoder's init_state"):
        decoder.step(tokens[:, 0], object())
