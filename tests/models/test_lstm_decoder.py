"""Show, Attend and Tell: its equations written out word by word, and torch.nn's LSTM."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from captioner.models.lstm_decoder import ShowAttendTellDecoder
from captioner.models.recurrence import lstm_gates
from captioner.types import ImageFeatures

D, V, H, E, A, C = 10, 23, 8, 6, 7, 9


def test_gates_are_those_of_torch():
    reference = nn.LSTMCell(5, H).double()
    inputs, hidden, cell = (torch.randn(3, n, dtype=torch.float64) for n in (5, H, H))
    sums = F.linear(inputs, reference.weight_ih, reference.bias_ih)
    sums = sums + F.linear(hidden, reference.weight_hh, reference.bias_hh)
    found = lstm_gates(sums, cell)
    for mine, theirs in zip(found[:2], reference(inputs, (hidden, cell)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("gate", [True, False])
def test_one_caption_by_the_papers_equations(gate):
    """Xu et al. 2015, eq. 1-7, with the decoder's own weights and torch's LSTMCell."""
    decoder = ShowAttendTellDecoder(D, V, H, E, A, C, gate=gate).double().eval()
    grid = torch.randn(6, D, dtype=torch.float64)
    tokens = torch.randint(V, (5,))

    split = [A, C, 4 * H] if gate else [A, 4 * H]
    weights = decoder.from_hidden.weight.split(split)
    biases = decoder.from_hidden.bias.split(split)
    lstm = nn.LSTMCell(E + C, H).double()
    with torch.no_grad():
        lstm.weight_ih.copy_(
            torch.cat((decoder.from_word.weight, decoder.from_context.weight), dim=1)
        )
        lstm.weight_hh.copy_(weights[-1])
        lstm.bias_hh.copy_(biases[-1])
        lstm.bias_ih.zero_()

    normal = (grid - grid.mean(1, keepdim=True)) / (
        grid.var(1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    values = decoder.value(normal).relu()  # annotation vectors a_i
    hidden, cell = decoder.initial(values.mean(0)).tanh().chunk(2)
    logits, maps = [], []
    for token in tokens:
        query = weights[0] @ hidden + biases[0]
        scores = torch.stack(
            [decoder.score.weight @ torch.tanh(decoder.key(a) + query) for a in values]
        )  # eq. 4
        attention = scores.exp() / scores.exp().sum()  # eq. 5
        context = sum(weight * a for weight, a in zip(attention, values, strict=True))  # eq. 13
        if gate:  # sec. 4.2.1
            context = torch.sigmoid(weights[1] @ hidden + biases[1]) * context
        word = decoder.embedding.weight[token]
        hidden, cell = lstm(torch.cat((word, context)), (hidden, cell))  # eq. 1-3
        deep = word + decoder.deep_hidden(hidden) + decoder.deep_context(context)
        logits.append(decoder.output_weight @ deep + decoder.output_bias)  # eq. 7
        maps.append(attention)

    output = decoder(ImageFeatures(grid[None], 2, 3), tokens[None])
    torch.testing.assert_close(output.logits, torch.stack(logits))
    torch.testing.assert_close(output.attention, torch.stack(maps))


@pytest.mark.parametrize("gate", [True, False])
def test_without_attention_all_but_the_attention_stays(gate):
    """``score="mean"`` is the attending decoder whose scores are all equal.

    That is what makes the comparison with and without attention a fair one: the attending
    decoder with a zero vector ``v`` weighs each region 1/R, and then says the same.
    """
    attending = ShowAttendTellDecoder(D, V, H, E, A, C, gate=gate).double().eval()
    mean = ShowAttendTellDecoder(D, V, H, E, A, C, "mean", gate=gate).double().eval()
    with torch.no_grad():
        attending.score.weight.zero_()
    state = attending.state_dict()
    for name in ("key.weight", "key.bias", "score.weight"):
        del state[name]
    for name in ("from_hidden.weight", "from_hidden.bias"):
        state[name] = state[name][A:]  # without the queries
    mean.load_state_dict(state)  # strict: there is nothing else

    features = ImageFeatures(torch.randn(3, 6, D, dtype=torch.float64), 2, 3)
    tokens, picture = torch.randint(V, (4, 5)), torch.tensor([0, 0, 1, 2])
    mask = torch.arange(5) < torch.tensor([[5], [2], [4], [1]])
    expected, found = (decoder(features, tokens, mask, picture) for decoder in (attending, mean))
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.attention, expected.attention)
    assert torch.equal(found.attention, torch.full_like(found.attention, 1 / 6))
    found.logits.square().sum().backward()
    expected.logits.square().sum().backward()
    gradients = dict(attending.named_parameters())
    for name, parameter in mean.named_parameters():
        reference = gradients[name].grad
        reference = reference[A:] if name.startswith("from_hidden") else reference
        torch.testing.assert_close(parameter.grad, reference)


def test_without_attention_the_order_of_regions_is_not_seen():
    """Vinyals et al. 2015: one vector, the mean, says the whole picture."""
    decoder = ShowAttendTellDecoder(D, V, H, E, A, C, score="mean").double().eval()
    grid, tokens = torch.randn(1, 6, D, dtype=torch.float64), torch.randint(V, (1, 4))
    turned = decoder(ImageFeatures(grid.flip(1), 2, 3), tokens)
    torch.testing.assert_close(turned.logits, decoder(ImageFeatures(grid, 2, 3), tokens).logits)


def test_the_gradient_without_attention_is_that_of_finite_differences():
    decoder = ShowAttendTellDecoder(D, V, 3, 2, A, 4, score="mean").double().eval()
    tokens, picture = torch.randint(V, (3, 3)), torch.tensor([0, 0, 1])

    def logits(grid, *parameters):
        named = dict(zip(dict(decoder.named_parameters()), parameters, strict=True))
        arguments = (ImageFeatures(grid, 1, 2), tokens, None, picture)
        return torch.func.functional_call(decoder, named, arguments).logits

    grid = torch.randn(2, 2, D, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(logits, (grid, *decoder.parameters()), fast_mode=True)


def test_without_attention_the_width_of_the_attention_has_no_effect():
    one, other = (ShowAttendTellDecoder(D, V, H, E, n, C, score="mean") for n in (A, 2 * A))
    shapes = [{name: tensor.shape for name, tensor in d.state_dict().items()} for d in (one, other)]
    assert shapes[0] == shapes[1]
    assert not any("key" in name or "score" in name for name in shapes[0])
    assert one.from_hidden.out_features == C + 4 * H
    assert other.config["attention_dim"] == 2 * A
    again = ShowAttendTellDecoder(**other.config)
    again.load_state_dict(other.state_dict())


def test_tied_embeddings_are_the_output_weights():
    untied = ShowAttendTellDecoder(D, V, H, E, A, C).double().eval()
    tied = ShowAttendTellDecoder(D, V, H, E, A, C, tie_embeddings=True).double().eval()
    state = untied.state_dict()
    state["output_weight"] = state["embedding.weight"]
    untied.load_state_dict(state)
    del state["output_weight"]
    tied.load_state_dict(state)
    features = ImageFeatures(torch.randn(2, 6, D, dtype=torch.float64), 2, 3)
    tokens = torch.randint(V, (2, 4))
    assert torch.equal(tied(features, tokens).logits, untied(features, tokens).logits)


def test_feature_dropout_acts_in_training_only():
    decoder = ShowAttendTellDecoder(D, V, H, E, A, C, dropout=0.0, feature_dropout=0.5)
    features, tokens = ImageFeatures(torch.randn(2, 6, D), 2, 3), torch.randint(V, (2, 4))
    exact = decoder.eval()(features, tokens).logits
    assert not torch.equal(decoder.train()(features, tokens).logits, exact)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_dim": 0}, "hidden_dim must be at least 1, got 0"),
        ({"vocabulary_size": -1}, "vocabulary_size must be at least 1, got -1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"feature_dropout": -0.1}, r"feature_dropout must be in \[0, 1\), got -0.1"),
        ({"score": "cosine"}, "score must be"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ShowAttendTellDecoder(**{"feature_dim": D, "vocabulary_size": V, **options})
