"""The reference run: the first caption of every val2017 picture against its others."""

import json
from pathlib import Path

import pytest

from captioner.cli import main

# pycocoevalcap 1.2 with its jars, Java 17.
EXPECTED = {
    "Bleu_4": 0.19553851792504892,
    "ROUGE_L": 0.47175835819545,
    "CIDEr": 0.886544201761606,
    "METEOR": 0.242095692289399,
}


@pytest.mark.slow
def test_the_first_caption_of_every_picture_against_the_others(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((shared_data / "coco" / "captions_val2017.json").read_text(encoding="utf-8"))
    captions: dict[int, list[str]] = {}
    for annotation in sorted(data["annotations"], key=lambda annotation: annotation["id"]):
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    results, references = tmp_path / "first.json", tmp_path / "others.json"
    results.write_text(
        json.dumps([{"image_id": key, "caption": texts[0]} for key, texts in captions.items()])
    )
    references.write_text(json.dumps({key: texts[1:] for key, texts in captions.items()}))
    assert main(["evaluate", str(results), str(references), "--output", str(tmp_path / "out")]) == 0
    assert "5,000 pictures, 20,014 references" in capsys.readouterr().out
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    for name, value in EXPECTED.items():
        if name in metrics["absent"]:
            assert name == "METEOR"
            continue
        # METEOR's aligner breaks ties of its beam in its own way.
        tolerance = 1e-4 if name == "METEOR" else 1e-9
        found = metrics["scores"][name]
        assert found["value"] == pytest.approx(value, abs=tolerance)
        assert found["low"] < value < found["high"]
