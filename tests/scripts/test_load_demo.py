import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs captioner[demo]")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "load_demo.py"


def test_waiting_times_and_what_maps_cost(tiny_models: dict[str, Path]) -> None:
    command = [sys.executable, str(SCRIPT), "--model", str(tiny_models["sat"])]
    command += ["--clients", "3", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, last = done.stdout.splitlines()
    assert re.match(r"tiny-sat: caption \d+ ms; with all its maps \d+ ms, [\d.]+ times", first)
    assert re.match(r"3 clients for \d+ s: \d+ captions \(.*\), 0 lost, p50 .* s, p95 .* s", last)


def test_a_picture_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "gone.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no picture at" in done.stderr
