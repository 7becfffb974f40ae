"""Whole runs of a tiny model: what they leave behind, and that it fits together."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from captioner.cli import main as captioner_command
from captioner.inference.captioner import Captioner
from captioner.metrics.suite import SCORE_NAMES
from captioner.training.cli import CaptioningCLI, main

RunCli = Callable[..., CaptioningCLI]
Trained = tuple[CaptioningCLI, Path]


def weights(folder: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    return torch.load(folder / name, weights_only=True)["state_dict"]


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_fit_leaves_a_whole_record(trained: Trained) -> None:
    cli, folder = trained
    assert {entry.name for entry in folder.iterdir()} == {
        "best.ckpt",
        "config.yaml",
        "csv",
        "last.ckpt",
        "run.json",
        "tensorboard",
        "val-results.json",
    }
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert run["command"].startswith("captioner fit -c=")
    assert run["seed"] == 3
    assert run["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert run["data"] == {"fingerprint": cli.datamodule.fingerprint, "pictures": 12}
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert config["model"]["decoder"]["init_args"]["hidden_dim"] == 16
    assert config["trainer"]["max_epochs"] == 2
    rows = (folder / "csv" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert {"train/loss", "val/CIDEr", "val/Bleu_4", "val/ROUGE_L", "val/loss"} <= set(
        rows[0].split(",")
    )
    results = json.loads((folder / "val-results.json").read_text(encoding="utf-8"))
    assert {row["image_id"] for row in results} == set(cli.datamodule.references("val"))


def test_checkpoint_is_plain_and_captions_like_the_module(trained: Trained) -> None:
    cli, folder = trained
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    entry = checkpoint["captioner"]
    assert json.loads(json.dumps(entry)) == entry
    assert entry["format"] == 1
    assert entry["decoder"]["init_args"]["vocabulary_size"] == len(cli.datamodule.vocabulary)
    assert entry["provenance"]["data"] == cli.datamodule.fingerprint
    assert {name.partition(".")[0] for name in checkpoint["state_dict"]} == {"encoder", "decoder"}
    # validation captions were made by the same weights, in a batch and from tensors
    captioner = Captioner.load(folder / "last.ckpt", device="cpu")
    written = json.loads((folder / "val-results.json").read_text(encoding="utf-8"))
    paths = {r.image_id: r.path for r in cli.datamodule.records}
    for row in written:
        result = captioner.caption(paths[row["image_id"]], method="greedy")
        assert result.text == row["caption"]


def test_the_config_of_a_run_runs_again(trained: Trained, tmp_path: Path) -> None:
    _, folder = trained
    CaptioningCLI(["fit", f"-c={folder / 'config.yaml'}", f"--run_dir={tmp_path / 'again'}"])
    assert_same_weights(folder, tmp_path / "again")


def test_test_writes_captions_and_metrics(
    trained: Trained, run_cli: RunCli, tmp_path: Path
) -> None:
    cli, folder = trained
    run_cli("test", tmp_path / "test", f"--ckpt_path={folder / 'best.ckpt'}")
    results = json.loads((tmp_path / "test" / "results.json").read_text(encoding="utf-8"))
    assert {row["image_id"] for row in results} == set(cli.datamodule.references("test"))
    metrics = json.loads((tmp_path / "test" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["tokenizer"] == "ptb-1"
    assert metrics["split"] == "test"
    assert metrics["pictures"] == 2
    assert metrics["decoding"]["beam_size"] == 2
    assert {*metrics["scores"], *metrics["absent"]} == set(SCORE_NAMES)
    assert {"Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "ROUGE_L", "CIDEr"} <= set(metrics["scores"])
    # The results file, scored by hand, gives the same.
    annotations = tmp_path / "refs.json"
    annotations.write_text(json.dumps(cli.datamodule.references("test")), encoding="utf-8")
    arguments = [str(tmp_path / "test" / "results.json"), str(annotations)]
    assert captioner_command(["evaluate", *arguments, f"--output={tmp_path / 'again'}"]) == 0
    again = json.loads((tmp_path / "again" / "metrics.json").read_text(encoding="utf-8"))
    assert again["scores"] == metrics["scores"]
    assert set(again) <= set(metrics)


def test_predict_needs_no_model_options_beside_the_checkpoint(
    trained: Trained, drawn_pictures: Path, tmp_path: Path
) -> None:
    _, folder = trained
    CaptioningCLI(
        [
            "predict",
            f"--ckpt_path={folder / 'last.ckpt'}",
            f"--run_dir={tmp_path / 'predict'}",
            "--data.source=captioner.data.sources.CaptionTable",
            f"--data.source.init_args.table={drawn_pictures / 'captions.csv'}",
            "--data.predict_split=val",
            "--data.num_workers=0",
            "--trainer.accelerator=cpu",
            "--trainer.enable_progress_bar=false",
            "--model.decoding.method=greedy",
        ]
    )
    results = json.loads((tmp_path / "predict" / "results.json").read_text(encoding="utf-8"))
    assert results == json.loads((folder / "val-results.json").read_text(encoding="utf-8"))


def test_part_of_a_split_writes_nothing(
    trained: Trained, run_cli: RunCli, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, folder = trained
    run_cli(
        "test",
        tmp_path / "part",
        f"--ckpt_path={folder / 'last.ckpt'}",
        "--trainer.limit_test_batches=1",
        "--data.eval_batch_size=1",
    )
    assert not (tmp_path / "part" / "results.json").exists()
    assert not (tmp_path / "part" / "metrics.json").exists()
    assert "1 missing" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_run_is_the_run_without_a_break(
    run_cli: RunCli, tmp_path: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = f"--data.num_workers={num_workers}"
    run_cli("fit", tmp_path / "whole", workers, "--trainer.max_epochs=3")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        run_cli(
            "fit",
            tmp_path / "broken",
            workers,
            "--trainer.max_epochs=3",
            "--trainer.callbacks=breaking.Break",
        )
    assert torch.load(tmp_path / "broken" / "last.ckpt", weights_only=True)["epoch"] == 0
    run_cli(
        "fit",
        tmp_path / "resumed",
        workers,
        "--trainer.max_epochs=3",
        f"--ckpt_path={tmp_path / 'broken' / 'last.ckpt'}",
    )
    assert_same_weights(tmp_path / "whole", tmp_path / "resumed")
    best = [weights(tmp_path / name, "best.ckpt") for name in ("whole", "resumed")]
    assert all(torch.equal(tensor, best[1][name]) for name, tensor in best[0].items())
    states = [
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["optimizer_states"][0]
        for name in ("whole", "resumed")
    ]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    for key, state in states[0]["state"].items():
        assert torch.equal(state["exp_avg"], states[1]["state"][key]["exp_avg"])


def test_a_terminated_run_says_so(
    tiny_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    arguments = ["fit", f"-c={tiny_config}", f"--run_dir={tmp_path / 'run'}"]
    assert main([*arguments, "--trainer.callbacks=breaking.Terminate"]) == 143
    assert "captioner: terminated; --ckpt_path" in capsys.readouterr().err


def test_wrong_options_are_one_message(
    tiny_config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trained: Trained,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, folder = trained
    monkeypatch.delenv("CAPTIONER_DEBUG")  # as people see it
    common = [f"-c={tiny_config}", f"--run_dir={tmp_path / 'run'}"]
    checkpoint = f"--ckpt_path={folder / 'last.ckpt'}"
    cases = [
        (["fit", *common, "--model.no_such_option=1"], "no_such_option"),
        (["fit", *common, "--ckpt_path=nowhere.ckpt"], "nowhere.ckpt"),
        (["fit", *common, "--trainer.default_root_dir=x"], "runs_dir"),
        (["test", *common], "nothing to test"),
        (["test", *common, "--model.initial_weights=no-such-model"], "no-such-model"),
        (["fit", *common, checkpoint, "--data.seed=4"], "data.seed"),
    ]
    for arguments, message in cases:
        assert main(arguments) == 2, arguments
        assert message in capsys.readouterr().err
    assert main(["fit", *common, "--trainer.precision=bf16-true"]) == 1
    assert "must be one of 32, 32-true, 16-mixed, bf16-mixed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_ends_within_its_first_epoch_leaves_a_checkpoint(
    run_cli: RunCli, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="could not find the monitored key"):
        run_cli("fit", tmp_path / "short", "--trainer.max_steps=1", "--data.batch_size=4")
    assert (tmp_path / "short" / "last.ckpt").is_file()


def test_options_that_a_checkpoint_overrides_are_errors(
    run_cli: RunCli, trained: Trained, tmp_path: Path
) -> None:
    _, folder = trained
    checkpoint = f"--ckpt_path={folder / 'last.ckpt'}"
    more = "--trainer.max_epochs=3"
    with pytest.raises(ValueError, match=r"hidden_dim is 16 in the checkpoint, 8 given"):
        run_cli("fit", tmp_path / "a", checkpoint, more, "--model.decoder.init_args.hidden_dim=8")
    with pytest.raises(ValueError, match=r"width is 32 in the checkpoint, 48 given"):
        run_cli("test", tmp_path / "b", checkpoint, "--data.preprocessing.width=48")
    with pytest.raises(ValueError, match=r"lr is 0.005 in the checkpoint, 0.5 given"):
        run_cli("fit", tmp_path / "c", checkpoint, more, "--model.optimizer.init_args.lr=0.5")
    with pytest.raises(ValueError, match="seed"):
        run_cli("fit", tmp_path / "d", checkpoint, more, "--seed_everything=4")
    with pytest.raises(ValueError, match="max_epochs"):
        run_cli("fit", tmp_path / "e", checkpoint)


def test_initial_weights_match_words_by_spelling(
    run_cli: RunCli, trained: Trained, drawn_pictures: Path, tmp_path: Path
) -> None:
    old_cli, folder = trained
    old_words = old_cli.datamodule.vocabulary.words
    table = tmp_path / "own.csv"
    rows = ["image,caption,split"]
    for i, name in enumerate(sorted(p.name for p in drawn_pictures.glob("*.*g"))[:6]):
        split = "val" if i == 5 else "train"
        rows.append(f"{drawn_pictures / name},wonderful zebra zebra is a zebra {i},{split}")
    table.write_text("\n".join(rows), encoding="utf-8")
    cli = run_cli(
        "fit",
        tmp_path / "run",
        f"--model.initial_weights={folder / 'last.ckpt'}",
        "--data.extend_vocabulary=true",
        f"--data.source.init_args.table={table}",
        "--trainer.max_epochs=0",
    )
    words = cli.datamodule.vocabulary.words
    assert words[: len(old_words)] == old_words
    assert "zebra" in words
    old = weights(folder)
    new = cli.model.state_dict()
    embedding = "decoder.embedding.weight"
    assert torch.equal(new[embedding][: len(old_words)], old[embedding])
    assert torch.equal(new["decoder.value.weight"], old["decoder.value.weight"])
    # another vocabulary altogether: rows go to the same words
    cli = run_cli(
        "fit",
        tmp_path / "other",
        f"--model.initial_weights={folder / 'last.ckpt'}",
        "--data.vocabulary_path=null",
        f"--data.source.init_args.table={table}",
        "--trainer.max_epochs=0",
    )
    words = cli.datamodule.vocabulary.words
    assert words.index("a") != old_words.index("a")
    row = cli.model.state_dict()[embedding][words.index("a")]
    assert torch.equal(row, old[embedding][old_words.index("a")])
    with pytest.raises(ValueError, match=r"does not fit model.decoder: .*value.weight"):
        run_cli(
            "fit",
            tmp_path / "wrong",
            f"--model.initial_weights={folder / 'last.ckpt'}",
            "--model.decoder.init_args.value_dim=8",
        )


def test_run_folder_is_never_overwritten(run_cli: RunCli, trained: Trained) -> None:
    _, folder = trained
    with pytest.raises(FileExistsError, match=r"not empty \(best.ckpt"):
        run_cli("fit", folder)


def test_loss_falls_and_scores_are_finite(trained: Trained) -> None:
    cli, _ = trained
    metrics = cli.trainer.callback_metrics
    assert math.isfinite(metrics["val/loss"])
    assert 0 <= metrics["val/ROUGE_L"] <= 1
