"""A tiny model on drawn pictures, as a configuration."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Config = dict[str, object]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # The command line sets these for the processes that it starts.
    monkeypatch.setenv("CAPTIONER_DATA", "data")
    monkeypatch.setenv("CAPTIONER_RUN_DIR", "")
    monkeypatch.setenv("CAPTIONER_DEBUG", "1")


@pytest.fixture(scope="session")
def tiny_config(drawn_pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with everything that a run on the drawn pictures needs."""
    config = {
        "seed_everything": 3,
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
            "gradient_clip_val": 5.0,
        },
        "model": {
            "encoder": {
                "class_path": "captioner.models.encoder.CnnEncoder",
                "init_args": {"backbone": "timm/test_efficientnet", "stage": "blocks.2"},
            },
            "decoder": {
                "class_path": "captioner.models.lstm_decoder.ShowAttendTellDecoder",
                "init_args": {
                    "hidden_dim": 16,
                    "embedding_dim": 16,
                    "attention_dim": 8,
                    "value_dim": 16,
                    "dropout": 0.3,
                },
            },
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 5e-3}},
            "schedule": {"warmup_steps": 2},
            "doubly_stochastic": 0.01,
            "decoding": {"beam_size": 2, "max_length": 8},
            "validation_decoding": {"method": "greedy", "max_length": 8},
        },
        "data": {
            "source": {
                "class_path": "captioner.data.sources.CaptionTable",
                "init_args": {"table": str(drawn_pictures / "captions.csv")},
            },
            "preprocessing": {"height": 32, "width": 32},
            "views": ["plain", "flip"],
            "captions_per_image": 1,
            "batch_size": 3,
            "min_count": 1,
            "num_workers": 0,
        },
        "samples": {"num_pictures": 1},
    }
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run_cli(tiny_config: Path) -> Callable[..., object]:
    """Runs a sub-command on the tiny configuration and returns the CLI object."""
    from captioner.training.cli import CaptioningCLI

    def run(command: str, run_dir: Path, *arguments: str) -> CaptioningCLI:
        return CaptioningCLI([command, f"-c={tiny_config}", f"--run_dir={run_dir}", *arguments])

    return run


@pytest.fixture(scope="session")
def trained(
    run_cli: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> tuple[object, Path]:
    """A finished run of two epochs: the CLI object and the run's folder."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    return run_cli("fit", folder), folder
