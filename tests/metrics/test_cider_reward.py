"""CIDEr-D as a reward: equal to the metric, whatever the batch."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from captioner.metrics import CiderReward, cider

GOLDEN = json.loads((Path(__file__).parent / "golden" / "scores.json").read_text("utf-8"))
HYPOTHESES: dict[str, str] = GOLDEN["hypotheses"]
REFERENCES: dict[str, list[str]] = GOLDEN["references"]


def test_reward_equals_the_package() -> None:
    scores = CiderReward(REFERENCES)(list(HYPOTHESES), list(HYPOTHESES.values()))
    expected = [GOLDEN["scores"]["CIDEr"]["per_image"][key] for key in HYPOTHESES]
    # 1e-9 is what the project promises; the sums differ in their order alone.
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-9)


def test_reward_of_val2017_equals_the_metric(
    val2017: tuple[dict[int, str], dict[int, list[str]]],
) -> None:
    hypotheses, references = val2017
    scores = CiderReward(references)(list(hypotheses), list(hypotheses.values()))
    expected = list(cider(hypotheses, references).per_image.values())
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12)


def test_batches_order_and_repeats_change_nothing() -> None:
    reward = CiderReward(REFERENCES)
    keys, captions = list(HYPOTHESES), list(HYPOTHESES.values())
    whole = reward(keys, captions)
    np.testing.assert_allclose(reward(keys[::-1], captions[::-1]), whole[::-1], atol=1e-12)
    single = [reward([key], [caption])[0] for key, caption in HYPOTHESES.items()]
    np.testing.assert_allclose(single, whole, atol=1e-12)
    np.testing.assert_allclose(reward(keys[:1] * 3, captions[:1] * 3), whole[[0, 0, 0]], atol=1e-12)
    assert reward([], []).shape == (0,)


def test_end_token_rewards_captions_that_end() -> None:
    reward = CiderReward(REFERENCES, end_token="<eos>")
    scores = reward(["equal"] * 2, [HYPOTHESES["equal"]] * 2, finished=[True, False])
    assert scores[0] == pytest.approx(10.0)
    assert scores[1] < 9.5
    ended = {key: f"{caption} <eos>" for key, caption in HYPOTHESES.items()}
    with_end = {key: [f"{caption} <eos>" for caption in REFERENCES[key]] for key in REFERENCES}
    expected = list(cider(ended, with_end).per_image.values())
    got = reward(list(HYPOTHESES), list(HYPOTHESES.values()))
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_a_copy_in_another_process_gives_the_same() -> None:
    reward = CiderReward(REFERENCES)
    copy = pickle.loads(pickle.dumps(reward))
    keys, captions = list(HYPOTHESES), list(HYPOTHESES.values())
    np.testing.assert_array_equal(copy(keys, captions), reward(keys, captions))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="references are empty"):
        CiderReward({})
    with pytest.raises(ValueError, match="only one picture"):
        CiderReward({1: ["a dog"]})
    with pytest.raises(ValueError, match="1 pictures have no reference caption"):
        CiderReward({1: ["a dog"], 2: []})
    with pytest.raises(ValueError, match="end_token must be one word"):
        CiderReward(REFERENCES, end_token="the end")
    reward = CiderReward({1: ["a dog"], 2: ["a cat"]})
    with pytest.raises(ValueError, match="without references \\(the first is 3\\)"):
        reward([3], ["a dog"])
    with pytest.raises(ValueError, match="equally long, got 1 and 2"):
        reward([1], ["a dog", "a cat"])
    with pytest.raises(ValueError, match="needs a reward with an end_token"):
        reward([1], ["a dog"], finished=[True])
