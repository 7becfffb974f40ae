import pytest

from captioner.metrics.document_frequencies import DocumentFrequencies
from captioner.metrics.score import MetricUnavailable
from captioner.metrics.suite import ALL_METRICS, SCORE_NAMES, Suite, score_captions

HYPOTHESES = {1: "a dog runs", 2: "two cats sit"}
REFERENCES = {1: ["a dog runs fast", "the dog"], 2: ["two cats sleep"]}


def test_unknown_metrics_are_refused_with_those_that_are_known():
    for wrong in (["BLEU"], "CIDEr", []):
        with pytest.raises(ValueError, match="names out of Bleu, METEOR, ROUGE_L, CIDEr, SPICE"):
            Suite.probe(wrong)


def test_what_cannot_be_computed_has_a_reason_and_no_score(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("captioner.metrics.meteor.meteor_unavailable", lambda: "no data")
    suite = Suite.probe(ALL_METRICS)
    assert suite.metrics == ("Bleu", "ROUGE_L", "CIDEr")
    assert suite.absent["METEOR"] == "no data"
    scores, absent = suite.score(HYPOTHESES, REFERENCES)
    assert absent == suite.absent
    assert list(scores) == [name for name in SCORE_NAMES if name not in ("METEOR", "SPICE")]


def test_meteor_that_fails_in_the_end_touches_no_other_score(monkeypatch):
    def fail(*_):
        raise MetricUnavailable("the disk is full")

    monkeypatch.setattr("captioner.metrics.meteor.meteor_unavailable", lambda: None)
    monkeypatch.setattr("captioner.metrics.meteor.meteor", fail)
    scores, absent = Suite.probe(["Bleu", "METEOR", "CIDEr"]).score(HYPOTHESES, REFERENCES)
    assert absent == {"METEOR": "the disk is full"}
    assert scores == score_captions(HYPOTHESES, REFERENCES, ["Bleu", "CIDEr"])


def test_given_frequencies_change_cider_alone():
    suite = Suite.probe(["Bleu", "ROUGE_L", "CIDEr"])
    own, _ = suite.score(HYPOTHESES, REFERENCES)
    frequencies = DocumentFrequencies.count([["a dog runs"], ["a cat"], ["a man sits"]])
    other, _ = suite.score(HYPOTHESES, REFERENCES, frequencies)
    assert list(other) == list(own)
    assert other["CIDEr"].corpus != pytest.approx(own["CIDEr"].corpus)
    assert {n: s for n, s in other.items() if n != "CIDEr"} == {
        n: s for n, s in own.items() if n != "CIDEr"
    }
