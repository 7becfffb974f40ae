import json
from dataclasses import FrozenInstanceError

import pytest

from captioner.decoding import DecodingOptions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "best"}, "method must be greedy, beam or sample, got 'best'"),
        ({"beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"beam_size": 2.0}, "beam_size must be a whole number, got 2.0"),
        ({"beam_size": True}, "beam_size must be a whole number"),
        ({"length_penalty": -0.1}, "length_penalty must be at least 0.0, got -0.1"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number"),
        ({"length_penalty": 11}, "length_penalty must be at most 10.0, got 11"),
        ({"min_length": -1}, "min_length must be at least 0, got -1"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"min_length": 6, "max_length": 5}, "min_length must be at most max_length, got"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be at least 0"),
        ({"ban_unk": 1}, "ban_unk must be true or false, got 1"),
        ({"method": "sample", "temperature": 0}, "temperature must be above 0.0, got 0"),
        ({"method": "sample", "temperature": float("inf")}, "temperature must be a finite number"),
        ({"method": "sample", "top_k": 0}, "top_k must be at least 1, got 0"),
        ({"method": "sample", "top_p": 0.0}, "top_p must be above 0.0, got 0.0"),
        ({"method": "sample", "top_p": 1.5}, "top_p must be at most 1.0, got 1.5"),
        ({"method": "sample", "num_captions": 0}, "num_captions must be at least 1, got 0"),
        ({"method": "greedy", "num_captions": 2}, "greedy search finds one caption per picture"),
        ({"beam_size": 2, "num_captions": 3}, "num_captions must be at most beam_size"),
        ({"temperature": 0.5}, "temperature has no effect on method beam"),
        ({"method": "greedy", "top_k": 5}, "top_k has no effect on method greedy"),
        ({"top_p": 0.9}, "top_p has no effect on method beam"),
    ],
)
def test_contradictions_are_rejected_at_construction(values, message):
    with pytest.raises(ValueError, match=message):
        DecodingOptions(**values)


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(),
        DecodingOptions(method="greedy", min_length=3, max_length=3),
        DecodingOptions(method="sample", temperature=0.7, top_k=5, top_p=0.9, num_captions=9),
        DecodingOptions(beam_size=3, num_captions=3, length_penalty=0, no_repeat_ngram=2),
    ],
)
def test_options_survive_json(options):
    assert DecodingOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_options_left_out_keep_their_defaults():
    assert DecodingOptions.from_dict({"beam_size": 3}) == DecodingOptions(beam_size=3)


def test_an_unknown_option_is_an_error_that_names_the_known_ones():
    with pytest.raises(ValueError, match="unknown decoding option 'beams'; known are method, beam"):
        DecodingOptions.from_dict({"beams": 3})


def test_options_are_frozen():
    with pytest.raises(FrozenInstanceError):
        DecodingOptions().beam_size = 3
