"""What ships: the files, the predictions beside them, and that they still caption the same."""

import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from captioner.evaluation.evaluate import tokenize_captions, tokenize_references
from captioner.evaluation.inputs import load_inputs
from captioner.inference.captioner import Captioner
from captioner.inference.checkpoint import (
    EXPORTED_FILES,
    PRETRAINED,
    SIZE_LIMIT,
    list_models,
)
from captioner.metrics.suite import score_captions

MODELS = list_models()
GOLDEN = Path(__file__).parent / "golden" / "drawn_captions.json"
TOKENS = "flickr8k/Flickr8k.token.txt"


def draw(name: str) -> Image.Image:
    """Simple pictures that anyone can draw again to the last bit."""
    picture = Image.new("RGB", (320, 240), "skyblue")
    pen = ImageDraw.Draw(picture)
    if name == "meadow":
        pen.rectangle((0, 130, 320, 240), fill="forestgreen")
        pen.ellipse((120, 120, 220, 180), fill="saddlebrown")
        pen.ellipse((205, 95, 245, 135), fill="saddlebrown")
        for x in (135, 155, 185, 205):
            pen.rectangle((x, 170, x + 8, 205), fill="saddlebrown")
    elif name == "sea":
        pen.rectangle((0, 120, 320, 240), fill="navy")
        pen.polygon([(100, 150), (220, 150), (200, 180), (120, 180)], fill="white")
        pen.polygon([(160, 60), (160, 145), (210, 145)], fill="red")
    elif name == "snow":
        pen.rectangle((0, 90, 320, 240), fill="white")
        pen.ellipse((140, 60, 170, 90), fill="peachpuff")
        pen.rectangle((140, 90, 170, 140), fill="red")
        pen.polygon([(120, 140), (200, 140), (205, 146), (115, 146)], fill="black")
    return picture


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_whole_and_small_enough(model: str) -> None:
    folder = PRETRAINED / model
    names = {path.name for path in folder.iterdir()}
    assert names == {*EXPORTED_FILES, "results-dev.json", "results-test.json", "metrics.json"}
    assert (folder / "model.safetensors").stat().st_size <= SIZE_LIMIT
    card = (folder / "README.md").read_text(encoding="utf-8")
    for heading in ("## Scores", "## How it was made", "## Limits", "## Terms"):
        assert heading in card, heading


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("model", MODELS)
def test_the_predictions_have_the_scores_that_are_said(
    model: str, split: str, shared_data: Path
) -> None:
    annotations = shared_data / TOKENS
    if not annotations.is_file():
        pytest.skip(f"needs {TOKENS} in the shared data")
    folder = PRETRAINED / model
    inputs = load_inputs(
        folder / f"results-{split}.json",
        annotations,
        split={"dev": "val", "test": "test"}[split],
    )
    assert len(inputs.hypotheses) == 1000
    captions = dict(
        zip(inputs.hypotheses, tokenize_captions(inputs.hypotheses.values()), strict=True)
    )
    scores = score_captions(captions, tokenize_references(inputs.references))
    said = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))[split]
    card = (folder / "README.md").read_text(encoding="utf-8")
    for name, score in scores.items():
        assert score.corpus == pytest.approx(said[name], abs=1e-9), name
        if split == "test":
            assert f"{100 * score.corpus:.1f} (" in card, name


@pytest.mark.parametrize("model", MODELS)
def test_drawn_pictures_get_the_same_words(model: str) -> None:
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))[model]
    captioner = Captioner.load(model)
    found = {name: captioner.caption(draw(name)).text for name in expected}
    assert found == expected
