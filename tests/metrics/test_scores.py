"""BLEU, ROUGE-L and CIDEr against pycocoevalcap, and where it would crash or mislead."""

import contextlib
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.metrics import Score, bleu, cider, rouge_l, score_captions

# The package sums in another order; 1e-9 is what the project promises, and the differences seen
# are below 1e-14.
TOLERANCE = 1e-9
GOLDEN = json.loads((Path(__file__).parent / "golden" / "scores.json").read_text("utf-8"))
WORDS = ["a", "the", "dog", "cat", "red", "runs", "on", "grass"]


def package_scores(
    hypotheses: dict[int, str], references: dict[int, list[str]]
) -> dict[str, tuple[float, np.ndarray]]:
    """What pycocoevalcap gives, per picture in the order of the references."""
    pytest.importorskip("pycocoevalcap")
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    captions = {key: [caption] for key, caption in hypotheses.items()}
    with contextlib.redirect_stdout(io.StringIO()):
        blue, each_blue = Bleu(4).compute_score(references, captions)
        rouge, each_rouge = Rouge().compute_score(references, captions)
        consensus, each_consensus = Cider().compute_score(references, captions)
    scores = {f"Bleu_{i + 1}": (blue[i], np.array(each_blue[i])) for i in range(4)}
    return {**scores, "ROUGE_L": (rouge, each_rouge), "CIDEr": (consensus, each_consensus)}


def assert_equal_to_package(hypotheses: dict[int, str], references: dict[int, list[str]]) -> None:
    ours = score_captions(hypotheses, references)
    theirs = package_scores(hypotheses, references)
    assert list(ours) == list(theirs)
    for name, (corpus, each) in theirs.items():
        got = np.array([ours[name].per_image[key] for key in references])
        assert ours[name].corpus == pytest.approx(corpus, abs=TOLERANCE), name
        np.testing.assert_allclose(got, each, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("name", list(GOLDEN["scores"]))
def test_scores_equal_the_golden_file(name: str) -> None:
    score = score_captions(GOLDEN["hypotheses"], GOLDEN["references"])[name]
    expected = GOLDEN["scores"][name]
    assert score.corpus == pytest.approx(expected["corpus"], abs=TOLERANCE)
    assert list(score.per_image) == list(expected["per_image"])
    for key, value in expected["per_image"].items():
        assert score.per_image[key] == pytest.approx(value, abs=TOLERANCE), key


def test_single_functions_give_what_the_suite_gives() -> None:
    hypotheses, references = GOLDEN["hypotheses"], GOLDEN["references"]
    suite = score_captions(hypotheses, references)
    alone = {f"Bleu_{i + 1}": score for i, score in enumerate(bleu(hypotheses, references))}
    alone["ROUGE_L"] = rouge_l(hypotheses, references)
    alone["CIDEr"] = cider(hypotheses, references)
    assert alone == suite


def test_val2017_equals_the_package(
    val2017: tuple[dict[int, str], dict[int, list[str]]],
) -> None:
    hypotheses, references = val2017
    assert_equal_to_package(
        {key: " ".join(caption.lower().split()) for key, caption in hypotheses.items()},
        {
            key: [" ".join(caption.lower().split()) for caption in captions]
            for key, captions in references.items()
        },
    )


captions = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
pictures = st.lists(
    st.tuples(captions, st.lists(captions, min_size=1, max_size=4)), min_size=2, max_size=5
)


@given(pictures)
@settings(max_examples=60, deadline=None)
def test_random_captions_equal_the_package(pictures: list[tuple[str, list[str]]]) -> None:
    hypotheses = {i: caption for i, (caption, _) in enumerate(pictures)}
    references = {i: captions for i, (_, captions) in enumerate(pictures)}
    if cider(hypotheses, references).defined:
        assert_equal_to_package(hypotheses, references)


@given(pictures)
@settings(max_examples=60, deadline=None)
def test_order_of_references_and_pictures_changes_nothing(
    pictures: list[tuple[str, list[str]]],
) -> None:
    hypotheses = {i: caption for i, (caption, _) in enumerate(pictures)}
    references = {i: captions for i, (_, captions) in enumerate(pictures)}
    scores = score_captions(hypotheses, references)
    turned = score_captions(
        dict(reversed(hypotheses.items())), {key: value[::-1] for key, value in references.items()}
    )
    for name, score in scores.items():
        assert turned[name].corpus == pytest.approx(score.corpus, abs=1e-12, nan_ok=True)
        assert turned[name].per_image == pytest.approx(score.per_image, abs=1e-12, nan_ok=True)
        if name != "CIDEr":
            values = [score.corpus, *score.per_image.values()]
            # The tiny constants let a precision exceed 1 by 1e-15 / 1e-9 at most.
            assert all(0.0 <= value <= 1.0 + 1e-6 for value in values)


def test_a_caption_equal_to_every_reference_has_the_top_score() -> None:
    references = {1: ["a red dog runs on grass"] * 2, 2: ["the cat sleeps in the sun"]}
    scores = score_captions({key: value[0] for key, value in references.items()}, references)
    assert scores["Bleu_4"].corpus == pytest.approx(1.0, abs=1e-6)
    assert scores["ROUGE_L"].corpus == pytest.approx(1.0)
    assert scores["CIDEr"].corpus == pytest.approx(10.0)


def test_bleu_of_the_corpus_is_not_the_mean_of_the_pictures() -> None:
    score = bleu({1: "a dog runs", 2: "a cat"}, {1: ["a dog runs"], 2: ["two birds in a tree"]})[0]
    assert score.corpus != pytest.approx(sum(score.per_image.values()) / 2, abs=0.01)


def test_cider_of_one_picture_is_undefined_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    score = score_captions({7: "a dog"}, {7: ["a dog", "the dog"]})["CIDEr"]
    assert math.isnan(score.corpus)
    assert math.isnan(score.per_image[7])
    assert not score.defined
    assert score.reason is not None
    assert "only one picture" in score.reason
    assert "CIDEr is undefined" in caplog.text


def test_cider_of_pictures_with_the_same_references_is_undefined() -> None:
    score = cider({1: "a dog", 2: "a cat"}, {1: ["a dog"], 2: ["a dog"]})
    assert not score.defined
    assert "hold the same" in (score.reason or "")


def test_nothing_but_empty_captions() -> None:
    scores = score_captions({1: "", 2: ""}, {1: [""], 2: [""]})
    assert scores["Bleu_1"].corpus == 0.0
    assert not scores["CIDEr"].defined


def test_missing_and_unknown_pictures_are_named_and_counted() -> None:
    hypotheses = dict.fromkeys(range(10), "a dog")
    references = {i: ["a dog"] for i in range(3, 20)}
    with pytest.raises(ValueError, match="not for the same pictures") as error:
        score_captions(hypotheses, references)
    message = str(error.value)
    assert "hypotheses (10) and references (17)" in message
    assert "10 pictures have references but no caption (10, 11, 12, 13, 14, ...)" in message
    assert "3 pictures have a caption but no references (0, 1, 2)" in message


def test_ids_that_agree_as_text_only_are_explained() -> None:
    with pytest.raises(ValueError, match="agree as text"):
        rouge_l({"1": "a dog", "2": "a"}, {1: ["a dog"], 2: ["a"]})  # type: ignore[type-var]


def test_a_picture_without_references_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 picture has no reference caption \\(2\\)"):
        bleu({1: "a", 2: "b"}, {1: ["a"], 2: []})


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to score"):
        cider({}, {})


@pytest.mark.parametrize(
    ("hypotheses", "references", "match"),
    [
        ({1: ["a"]}, {1: ["a"]}, "hypotheses must map each id to one string, got list for 1"),
        ({1: "a"}, {1: "a"}, "references must map each id to a sequence of strings"),
        ({1: "a"}, {1: [["a"]]}, "references must map each id to a sequence of strings"),
    ],
)
def test_wrong_types_are_errors(hypotheses: object, references: object, match: str) -> None:
    with pytest.raises(TypeError, match=match):
        rouge_l(hypotheses, references)  # type: ignore[arg-type]


@pytest.mark.parametrize("metrics", [("Bleu", "METEOR"), "CIDEr"])
def test_unknown_metrics_are_errors(metrics: object) -> None:
    with pytest.raises(ValueError, match="metrics must be names out of Bleu, ROUGE_L, CIDEr"):
        score_captions({1: "a"}, {1: ["a"]}, metrics=metrics)  # type: ignore[arg-type]


def test_only_the_metrics_asked_for_are_computed() -> None:
    hypotheses, references = GOLDEN["hypotheses"], GOLDEN["references"]
    assert list(score_captions(hypotheses, references, ["ROUGE_L"])) == ["ROUGE_L"]
    assert list(score_captions(hypotheses, references, ["CIDEr"])) == ["CIDEr"]


def test_importing_metrics_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import captioner.metrics; "
        "assert not any(name.startswith('captioner.') and '.metrics' not in name "
        "for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_score_is_frozen() -> None:
    score = Score(1.0, {1: 1.0})
    with pytest.raises(AttributeError):
        score.corpus = 2.0  # type: ignore[misc]
