import time

import numpy as np
import pytest

from captioner.metrics.bleu import bleu
from captioner.metrics.bootstrap import bootstrap_intervals, paired_bootstrap
from captioner.metrics.score import Score
from captioner.metrics.suite import score_captions

WORDS = ("a", "dog", "cat", "man", "on", "the", "grass", "runs", "sits", "red", "blue", "big")


def made_captions(num=40, seed=0):
    generator = np.random.default_rng(seed)

    def caption():
        return " ".join(generator.choice(WORDS, size=generator.integers(4, 11)))

    references = {i: [caption() for _ in range(1 + i % 4)] for i in range(num)}
    hypotheses = {
        i: texts[0] if generator.random() < 0.5 else caption() for i, texts in references.items()
    }
    return hypotheses, references


def resampled(hypotheses, references, replicates, seed):
    """The pictures of each resample, as the module draws them."""
    keys = list(hypotheses)
    generator = np.random.default_rng(seed)
    for row in generator.integers(0, len(keys), size=(replicates, len(keys))):
        chosen = [keys[i] for i in row]
        yield (
            {n: hypotheses[key] for n, key in enumerate(chosen)},
            {n: references[key] for n, key in enumerate(chosen)},
        )


@pytest.mark.parametrize("order", [0, 3])
def test_bleu_intervals_are_those_of_scoring_every_resample_anew(order):
    hypotheses, references = made_captions()
    values = [bleu(h, r)[order].corpus for h, r in resampled(hypotheses, references, 60, 3)]
    low, high = np.percentile(values, (2.5, 97.5))

    found = bootstrap_intervals({"B": bleu(hypotheses, references)[order]}, 60, seed=3)["B"]

    assert found.low == pytest.approx(low, abs=1e-12)
    assert found.high == pytest.approx(high, abs=1e-12)


def test_a_mean_of_pictures_is_resampled_without_counting_ngrams_anew():
    hypotheses, references = made_captions()
    scores = score_captions(hypotheses, references)
    per_image = np.array(list(scores["CIDEr"].per_image.values()))
    generator = np.random.default_rng(7)
    means = per_image[generator.integers(0, len(per_image), size=(50, len(per_image)))].mean(1)
    low, high = np.percentile(means, (2.5, 97.5))

    found = bootstrap_intervals(scores, 50, seed=7)

    assert found["CIDEr"].low == pytest.approx(low, abs=1e-12)
    assert found["CIDEr"].high == pytest.approx(high, abs=1e-12)


def test_intervals_hold_the_score_and_follow_the_seed():
    scores = score_captions(*made_captions())
    found = bootstrap_intervals(scores, 200)
    for name, score in scores.items():
        assert found[name].low < score.corpus < found[name].high
    assert bootstrap_intervals(scores, 200) == found
    assert bootstrap_intervals(scores, 200, seed=1) != found


def test_intervals_cover_the_true_mean_as_often_as_they_say():
    generator = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        values = generator.normal(0.5, 0.1, size=60)
        score = Score(float(values.mean()), dict(enumerate(values.tolist())))
        found = bootstrap_intervals({"x": score}, 300, seed=seed)["x"]
        covered += found.low <= 0.5 <= found.high
    # 200 draws of 0.95: standard deviation 3; percentiles are a little narrow at 60 pictures.
    assert 178 <= covered <= 199


def test_nothing_can_be_resampled_of_one_picture_or_of_what_is_undefined():
    one = score_captions({1: "a dog"}, {1: ["a dog runs"]})
    assert bootstrap_intervals(one) == dict.fromkeys(one)


def test_chunks_change_nothing(monkeypatch):
    scores = score_captions(*made_captions())
    whole = bootstrap_intervals(scores, 100)
    monkeypatch.setattr("captioner.metrics.bootstrap._CHUNK", 41)  # one resample at a time
    for name, found in bootstrap_intervals(scores, 100).items():
        # Sums of floats depend on how many rows a product of matrices has.
        assert (found.low, found.high) == pytest.approx((whole[name].low, whole[name].high), 1e-12)


def test_paired_difference_is_surer_than_the_two_intervals():
    hypotheses, references = made_captions(60)
    better = dict(hypotheses)
    for i in range(0, 60, 4):
        better[i] = references[i][0]
    first, second = score_captions(hypotheses, references), score_captions(better, references)
    found = paired_bootstrap(first, second, 500)["ROUGE_L"]

    assert found.value == pytest.approx(second["ROUGE_L"].corpus - first["ROUGE_L"].corpus)
    assert 0 < found.low < found.value < found.high
    assert found.p_value < 0.05
    assert (found.better, found.worse) == (
        sum(second["ROUGE_L"].per_image[i] > first["ROUGE_L"].per_image[i] for i in range(60)),
        0,
    )
    alone = bootstrap_intervals(second, 500)["ROUGE_L"]
    assert found.high - found.low < alone.high - alone.low


def test_swapping_the_systems_turns_the_sign():
    hypotheses, references = made_captions()
    other, _ = made_captions(seed=5)
    first, second = score_captions(hypotheses, references), score_captions(other, references)
    there, back = paired_bootstrap(first, second, 99), paired_bootstrap(second, first, 99)
    for name in first:
        assert there[name].value == -back[name].value
        assert there[name].low == pytest.approx(-back[name].high)
        assert there[name].p_value == back[name].p_value


def test_equal_systems_do_not_differ():
    scores = score_captions(*made_captions())
    for found in paired_bootstrap(scores, scores, 100).values():
        assert (found.value, found.low, found.high, found.p_value) == (0, 0, 0, 1)
        assert (found.better, found.worse) == (0, 0)


def test_systems_of_different_pictures_are_refused():
    hypotheses, references = made_captions()
    first = score_captions(hypotheses, references)
    less = [i for i in hypotheses if i]
    second = score_captions({i: hypotheses[i] for i in less}, {i: references[i] for i in less})
    with pytest.raises(ValueError, match="same pictures"):
        paired_bootstrap(first, second)


@pytest.mark.parametrize(("name", "value"), [("replicates", 0), ("level", 1.0), ("level", 0.0)])
def test_numbers_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        bootstrap_intervals({}, **{name: value})


def test_five_thousand_pictures_take_seconds():
    generator = np.random.default_rng(0)
    scores = {
        str(i): Score(0.5, dict(enumerate(generator.random(5000).tolist()))) for i in range(4)
    }
    start = time.process_time()
    bootstrap_intervals(scores, 1000)
    assert time.process_time() - start < 10  # about 0.3 s
