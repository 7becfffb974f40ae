"""Schedule, random states, results on disk and run folders, each by itself."""

import json
import random
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner.training.drawn import DrawnPictures
from captioner.training.random_state import get_random_state, set_random_state
from captioner.training.results import (
    check_complete,
    evaluate_split,
    merge_captions,
    write_captions,
    write_json,
)
from captioner.training.runs import claim_run_folder, create_run_folder, describe_run
from captioner.training.schedule import Schedule


def test_schedule_warms_up_and_ends_at_its_fraction() -> None:
    schedule = Schedule(warmup_steps=10, final_fraction=0.1)
    factors = [schedule.factor(step, 110) for step in range(111)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == 1.0
    assert factors[:10] == sorted(factors[:10])
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[60] == pytest.approx(0.55)  # half of the cosine
    assert factors[110] == pytest.approx(0.1)
    assert Schedule("constant", warmup_steps=0).factor(10**6, float("inf")) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "linear"}, "kind must be 'cosine' or 'constant', got 'linear'"),
        ({"warmup_steps": -1}, "warmup_steps must not be negative, got -1"),
        ({"final_fraction": 1.5}, r"final_fraction must be in \[0, 1\], got 1.5"),
    ],
)
def test_schedule_rejects(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**options)


def test_random_state_travels_through_a_file(tmp_path: Path) -> None:
    def draw() -> tuple[object, ...]:
        return (
            random.random(),
            random.gauss(0, 1),
            np.random.rand(),
            np.random.randn(),
            torch.rand(3).tolist(),
        )

    random.gauss(0, 1)  # leaves a second value behind, as NumPy's randn does
    np.random.randn()
    torch.save(get_random_state(), tmp_path / "state.pt")
    first = draw()
    assert draw() != first
    set_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw() == first


def test_json_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"a": "ä"})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "ä"}
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_repeated_pictures_count_once_whatever_the_share() -> None:
    alone = merge_captions([[(1, "a"), (2, "b"), (10, "c")]])
    shared = merge_captions([[(1, "a"), (10, "c")], [(2, "b"), (1, "a")]])
    assert list(alone.items()) == list(shared.items())


def test_missing_and_strange_pictures_are_named() -> None:
    check_complete([2, 1], [1, 2])
    with pytest.raises(ValueError, match=r"2 missing \(3, 4\); 1 not in it \(9\)"):
        check_complete([1, 2, 9], [1, 2, 3, 4])


def test_scores_are_those_of_coco_captions_tokens() -> None:
    metrics = evaluate_split(
        {1: "a dog 's toy", "b.jpg": "two cats sleep here"},
        {1: ["A dog's toy ."], "b.jpg": ["Two cats sleep here!"]},
        {2: ["Two cats sleep here."]},
        split="test",
        decoding={"beam_size": 2},
    )
    for name in ("Bleu_1", "ROUGE_L"):
        assert metrics["scores"][name]["value"] == pytest.approx(1.0)
    assert set(metrics["scores"]["CIDEr"]) == {"value", "low", "high"}
    assert metrics["diversity"]["in_training"] == 0.5
    assert metrics["split"] == "test"
    assert metrics["decoding"] == {"beam_size": 2}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_captions_are_a_coco_results_file(tmp_path: Path) -> None:
    write_captions(tmp_path / "r.json", {7: "a dog", "b.jpg": "a cat"})
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) == [
        {"image_id": 7, "caption": "a dog"},
        {"image_id": "b.jpg", "caption": "a cat"},
    ]


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    now = datetime(2025, 1, 2, 3, 4, 5)
    names = [create_run_folder(tmp_path, "x", now).name for _ in range(3)]
    assert names == ["20250102-030405", "20250102-030405-2", "20250102-030405-3"]
    with pytest.raises(ValueError, match="run_name must be the name of a folder"):
        create_run_folder(tmp_path, "a/b", now)


def test_a_named_run_folder_must_be_empty(tmp_path: Path) -> None:
    claim_run_folder(tmp_path / "new")
    claim_run_folder(tmp_path / "new")
    (tmp_path / "new" / "x").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        claim_run_folder(tmp_path / "new")


def test_the_command_can_be_pasted_into_a_shell() -> None:
    run = describe_run(["fit", "--run_name", "two words"], seed=1)
    assert run["command"] == "captioner fit --run_name 'two words'"
    assert json.loads(json.dumps(run)) == run


def test_drawn_pictures_are_eight_and_differ(tmp_path: Path) -> None:
    records = DrawnPictures(tmp_path / "drawn").records()
    assert [r.split for r in records] == ["train"] * 8 + ["val"] * 8 + ["test"] * 8
    assert len({r.captions for r in records}) == 8
    assert len({r.path.read_bytes() for r in records}) == 8
    assert DrawnPictures(tmp_path / "drawn").records() == records
