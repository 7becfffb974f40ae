"""Eight pictures come back word for word: the whole path learns, for both decoders."""

import json
from pathlib import Path

import pytest

from captioner.training.cli import CaptioningCLI

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("model", ["sat", "transformer"])
def test_eight_captions_come_back_word_for_word(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPTIONER_DATA", str(tmp_path))
    files = ("base.yaml", f"model/{model}.yaml", "debug/overfit.yaml")
    # An untrained little encoder tells eight drawings apart, and takes no time.
    small = {
        "sat": ["hidden_dim=64", "embedding_dim=64", "attention_dim=32", "value_dim=64"],
        "transformer": ["model_dim=64", "num_layers=2", "num_heads=4"],
    }[model]
    cli = CaptioningCLI(
        [
            "fit",
            *(f"-c={CONFIGS / file}" for file in files),
            f"--run_dir={tmp_path / 'run'}",
            "--trainer.accelerator=cpu",
            "--trainer.enable_progress_bar=false",
            "--trainer.logger=false",
            "--trainer.check_val_every_n_epoch=100",
            "--model.encoder.init_args.backbone=timm/test_efficientnet",
            "--model.encoder.init_args.stage=blocks.2",
            "--model.encoder.init_args.weights=null",
            "--model.optimizer.init_args.lr=5e-3",
            "--data.preprocessing.height=64",
            "--data.preprocessing.width=64",
            *(f"--model.decoder.init_args.{option}" for option in small),
        ]
    )
    results = json.loads((tmp_path / "run" / "val-results.json").read_text(encoding="utf-8"))
    written = {row["image_id"]: row["caption"] for row in results}
    expected = {r.image_id: r.captions[0] for r in cli.datamodule.records if r.split == "val"}
    assert len(expected) == 8
    assert written == expected
    assert cli.trainer.callback_metrics["train/loss"] < 0.1
