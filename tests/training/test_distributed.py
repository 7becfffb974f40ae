"""Two processes give the validation scores of one."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def validate(config: Path, folder: Path, *arguments: str) -> tuple[dict[str, str], list[object]]:
    command = [sys.executable, "-m", "captioner.training.cli", "validate", f"-c={config}"]
    done = subprocess.run(
        [*command, f"--run_dir={folder}", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **{k: v for k, v in os.environ.items() if k != "CAPTIONER_RUN_DIR"},
            "OMP_NUM_THREADS": "1",
        },
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with (folder / "csv" / "metrics.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    results = json.loads((folder / "val-results.json").read_text(encoding="utf-8"))
    return row, results


@pytest.mark.slow
def test_two_processes_validate_like_one(
    tiny_config: Path, trained: tuple[object, Path], drawn_pictures: Path, tmp_path: Path
) -> None:
    # five pictures do not divide evenly among two processes
    table = tmp_path / "own.csv"
    rows = ["image,caption,split"]
    for i, path in enumerate(sorted(drawn_pictures.glob("*.*g"))):
        colour, shape = path.stem.split("_")
        rows.append(f"{path},a {colour} {shape},{'val' if i < 5 else 'train'}")
    table.write_text("\n".join(rows), encoding="utf-8")
    common = (
        f"--ckpt_path={trained[1] / 'last.ckpt'}",
        f"--data.source.init_args.table={table}",
        "--data.eval_batch_size=1",
    )
    one, one_results = validate(tiny_config, tmp_path / "one", *common)
    two, two_results = validate(
        tiny_config,
        tmp_path / "two",
        *common,
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
    )
    assert json.loads((tmp_path / "two" / "run.json").read_text())["processes"] == 2
    assert two_results == one_results
    assert len(one_results) == 5
    for name in ("val/CIDEr", "val/Bleu_4", "val/ROUGE_L"):
        assert two[name] == one[name]
    # sums of float32 log-probabilities in batches of their own
    assert float(two["val/loss"]) == pytest.approx(float(one["val/loss"]), rel=1e-6)
