import pytest
import torch
from torch import nn

from captioner.decoding import DecodingOptions, generate

METHODS = ("greedy", "beam", "sample")


@pytest.mark.parametrize("method", METHODS)
def test_no_pictures_give_no_captions(tools, method):
    options = DecodingOptions(method=method)
    assert generate(tools.random_decoder(), tools.pictures(), options, tools.IDS) == []


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_a_batch_is_its_pictures_one_by_one_in_any_order(tools, method):
    decoder, numbers = tools.random_decoder(9), list(range(10))
    options = DecodingOptions(method=method, max_length=9)
    together = generate(decoder, tools.pictures(*numbers), options, tools.IDS)
    alone = [generate(decoder, tools.pictures(n), options, tools.IDS)[0] for n in numbers]
    backwards = generate(decoder, tools.pictures(*numbers[::-1]), options, tools.IDS)
    assert tools.summary(together) == tools.summary(alone) == tools.summary(backwards[::-1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_log_probabilities_are_float32_whatever_the_decoder_computes_in(tools, method, dtype):
    decoder = tools.random_decoder(dtype=dtype)
    [[caption]] = generate(
        decoder, tools.pictures(0), DecodingOptions(method=method, min_length=1), tools.IDS
    )
    assert caption.token_log_probs.dtype == torch.float32
    exact = sum(
        float(decoder.next_logits(0, caption.token_ids[:i]).to(dtype).float().log_softmax(0)[word])
        for i, word in enumerate(caption.token_ids)
    )
    assert float(caption.token_log_probs.sum()) == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_model_is_an_error_and_not_a_caption(tools, method, bad):
    decoder = tools.TableDecoder(lambda picture, history: torch.tensor([0.0] * 5 + [bad]))
    with pytest.raises(ValueError, match="logits must be finite or -inf, got NaN or"):
        generate(decoder, tools.pictures(0), DecodingOptions(method=method), tools.IDS)


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_returns_to_the_mode_that_it_was_in(tools, fails):
    inner = tools.random_decoder()

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout, self.frozen = nn.Dropout(), nn.Dropout()

        def init_state(self, features):
            return inner.init_state(features)

        def step(self, tokens, state, *, layer_attention=False):
            assert not any(module.training for module in self.modules())
            assert torch.is_inference_mode_enabled()
            if fails:
                raise RuntimeError("the decoder broke")
            return inner.step(tokens, state, layer_attention=layer_attention)

    decoder = Decoder().train()
    decoder.frozen.eval()
    if fails:
        with pytest.raises(RuntimeError, match="the decoder broke"):
            generate(decoder, tools.pictures(0), DecodingOptions(), tools.IDS)
    else:
        generate(decoder, tools.pictures(0), DecodingOptions(), tools.IDS)
    assert decoder.training
    assert decoder.dropout.training
    assert not decoder.frozen.training


def test_maps_of_all_layers_come_on_request_only(tools):
    for method in METHODS:
        options = DecodingOptions(method=method, min_length=2)
        [[caption]] = generate(tools.random_decoder(), tools.pictures(0), options, tools.IDS)
        assert caption.layer_attention is None
        torch.testing.assert_close(
            caption.attention.sum(1), torch.ones(len(caption.token_ids)).double()
        )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prefix", [(5,), (4, 4, 3), (6, 4, 5, 6)])
def test_a_prefix_begins_every_caption_and_is_reported(tools, method, prefix):
    decoder = tools.random_decoder()
    options = DecodingOptions(method=method, max_length=4, no_repeat_ngram=1)
    found = generate(
        decoder, tools.pictures(0, 1), options, tools.IDS, layer_attention=True, prefix=prefix
    )
    for picture, [caption] in enumerate(found):
        assert caption.token_ids[: len(prefix)] == prefix
        tools.check_hypothesis(decoder, picture, caption, options)


def test_a_wide_beam_after_a_prefix_is_brute_force(tools):
    decoder = tools.random_decoder()
    options = DecodingOptions(beam_size=99, max_length=4, num_captions=9)
    [captions] = generate(decoder, tools.pictures(0), options, tools.IDS, prefix=(5, 4))
    expected = tools.brute_force(decoder, 0, options, prefix=(5, 4))[:9]
    assert [one.token_ids for one in captions] == [one.token_ids for one in expected]


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ((4,) * 6, "prefix must have at most max_length=5 words, got 6"),
        ((1, 4), "prefix must hold ids of words, got 1"),
        ((2, 4), "prefix must hold ids of words, got 2"),
        ((-1,), "prefix must hold ids of words, got -1"),
        ((7,), "prefix must hold ids below 7"),
    ],
)
def test_a_prefix_that_no_caption_can_have_is_an_error(tools, prefix, message):
    with pytest.raises(ValueError, match=message):
        generate(
            tools.random_decoder(),
            tools.pictures(0),
            DecodingOptions(max_length=5),
            tools.IDS,
            prefix=prefix,
        )


def test_special_ids_are_those_that_are_given(tools):
    # A vocabulary that counts its special tokens from the end.
    ids = type(tools.IDS)(pad_id=6, bos_id=5, eos_id=4, unk_id=3)

    class Decoder(tools.TableDecoder):
        def step(self, tokens, state, *, layer_attention=False):
            swapped = torch.where(tokens == 5, tools.BOS, tokens + 10)
            return super().step(swapped, state, layer_attention=layer_attention)

    decoder = Decoder(tools.random_decoder().next_logits)
    for method in METHODS:
        options = DecodingOptions(method=method, max_length=5)
        for [caption] in generate(decoder, tools.pictures(0, 1, 2), options, ids):
            assert set(caption.token_ids) <= {0, 1, 2}
