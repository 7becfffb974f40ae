"""The table holds the scores of `captioner evaluate`, and the plot is the same every time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "plot_results.py"
REFERENCES = {f"{i}": [f"a dog number {i} runs", f"dog {i} plays outside"] for i in range(8)}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    good = {key: captions[0] for key, captions in REFERENCES.items()}
    poor = dict.fromkeys(REFERENCES, "a cat sleeps")
    for name, content in (("references", REFERENCES), ("good", good), ("poor", poor)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_table_and_plot(files: Path, tmp_path: Path) -> None:
    arguments = [str(files / "references.json"), f"poor={files / 'poor.json'}"]
    arguments += [f"good={files / 'good.json'}", "--metrics", "Bleu_4", "CIDEr"]
    arguments += ["--replicates", "50"]
    first = run(*arguments, "--output", str(tmp_path / "a.svg"))
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0] == "| model | BLEU-4 | CIDEr | p, CIDEr |"
    assert lines[2].startswith("| poor | 0.0 (")
    assert lines[2].endswith("|  |")
    assert lines[3].startswith("| good | 100.0 (100.0..100.0) |")
    assert float(lines[3].split("|")[4]) < 0.05
    run(*arguments, "--output", str(tmp_path / "b.svg"))
    picture = (tmp_path / "a.svg").read_bytes()
    assert picture == (tmp_path / "b.svg").read_bytes()
    assert b"good" in picture
    assert b"BLEU-4" in picture


def test_mistakes_are_one_message(files: Path) -> None:
    references = str(files / "references.json")
    for arguments, message in (
        ([f"{files / 'good.json'}"], "must be NAME=FILE"),
        ([f"a={files / 'good.json'}", f"a={files / 'poor.json'}"], "same name"),
        ([f"a={files / 'nothing.json'}"], "nothing.json"),
    ):
        done = run(references, *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
