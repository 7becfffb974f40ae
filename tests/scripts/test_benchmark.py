"""The benchmark runs on tiny sizes and prints JSON with ratios on stdout alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "benchmark.py"
TINY = ["--batch-size", "2", "--rounds", "1", "--threads", "1"]


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "round 1 of 1" in done.stderr
    return json.loads(done.stdout)


def test_decoders():
    sizes = "--rows 2 --cols 3 --channels 8 --vocabulary 30 --min-tokens 2 --max-tokens 3"
    result = run("decoders", *TINY, *sizes.split(), "--words", "3", "--beam-size", "2")
    assert result["settings"]["threads"] == 1
    for part, unit in (
        ("training", "captions_per_second"),
        ("beam_search", "pictures_per_second"),
    ):
        assert set(result[part]) == {"lstm", "transformer", "naive"}
        for name, figures in result[part].items():
            assert figures[unit] > 0
            assert ("times_naive" in figures) == (name != "naive")
            assert result["parameters"][name] > 0


def test_encoder():
    result = run(
        "encoder", *TINY, "--backbone", "torchvision/resnet18", "--stage", "layer1", "--size", "32"
    )
    assert result["grid"] == [8, 8, 64]
    assert result["encoder"]["pictures_per_second"] > 0


def test_allocator():
    network = "--backbone torchvision/resnet18 --stage layer1 --size 32"
    result = run("allocator", *TINY, *network.split())
    speeds = result["pictures_per_second"]
    assert result["times_given_back"] == pytest.approx(
        speeds["kept"] / speeds["given_back"], abs=0.006
    )


@pytest.mark.java
def test_metrics(tmp_path):
    pytest.importorskip("pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("there is no Java on this machine")
    texts = ["a dog runs", "a brown dog runs fast", "two cats", "two cats sleep on a mat"]
    annotations = [{"id": i, "image_id": i // 2, "caption": text} for i, text in enumerate(texts)]
    path = tmp_path / "captions.json"
    path.write_text(json.dumps({"annotations": annotations}))
    result = run("metrics", str(path), "--rounds", "1")
    assert result["pictures"] == 2
    for what in ("tokens_bleu_rouge_cider", "meteor", "cider_reward"):
        assert result[what]["times_package"] > 0
