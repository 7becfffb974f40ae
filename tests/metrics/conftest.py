"""Captions of COCO val2017 as the metric tests use them."""

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def val2017(shared_data: Path) -> tuple[dict[int, str], dict[int, list[str]]]:
    """The first caption (by annotation id) of each picture, and its others, as written."""
    path = shared_data / "coco" / "captions_val2017.json"
    if not path.is_file():
        pytest.skip("captions_val2017.json is not on this machine")
    annotations = json.loads(path.read_text(encoding="utf-8"))["annotations"]
    captions: dict[int, list[str]] = {}
    for annotation in sorted(annotations, key=lambda annotation: annotation["id"]):
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    hypotheses = {key: captions[key][0] for key in captions}
    references = {key: captions[key][1:] for key in captions}
    return hypotheses, references
