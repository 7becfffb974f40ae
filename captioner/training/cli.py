"""``captioner fit|validate|test|predict``: Lightning's command line for captioning."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities.exceptions import SIGTERMException

from captioner.data.datamodule import CaptionDataModule
from captioner.training.callbacks import (
    AtomicCheckpointIO,
    BestCheckpoint,
    RandomStates,
    RunRecorder,
    SampleCaptions,
    StderrProgressBar,
)
from captioner.training.initial_weights import read_model_config
from captioner.training.module import CaptioningModule
from captioner.training.runs import (
    CONFIG_FILE,
    claim_run_folder,
    create_run_folder,
    describe_run,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

COMMANDS = ("fit", "validate", "test", "predict")

DATA_ROOT_VARIABLE = "CAPTIONER_DATA"
"""Environment variable with the folder of data sets, as configurations name it."""

_RUN_DIR_VARIABLE = "CAPTIONER_RUN_DIR"  # how processes that this one starts learn the folder


class CaptioningCLI(LightningCLI):
    """Compose a run from configuration files and flags, and do it.

    Beside Lightning's own options there are ``--run_name``, ``--runs_dir`` and ``--run_dir``
    (where the run is kept), ``--data_root`` (where configurations look for data),
    ``--checkpoint.*``, ``--early_stopping.*`` and ``--samples.*``.

    With ``--ckpt_path`` or ``--model.initial_weights`` the model that is named there is the
    lowest layer of the configuration: its encoder, decoder, preprocessing, vocabulary and
    decoding options hold where no file and no flag says otherwise.

    Args:
        args: Arguments of the ``captioner`` command, the sub-command first.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self._arguments = list(args)
        # Files are read while flags are parsed, so this flag must be known before.
        early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        early.add_argument("--data_root")
        data_root = early.parse_known_args(self._arguments)[0].data_root
        if data_root is not None:
            os.environ[DATA_ROOT_VARIABLE] = data_root
        self._run_folder = Path()
        # For ${oc.env:CAPTIONER_DATA,data} and for what a file says twice.
        own = {"parser_mode": "omegaconf"}
        super().__init__(
            CaptioningModule,
            CaptionDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            parser_kwargs={**own, **{command: dict(own) for command in COMMANDS}},
            args=self._arguments,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    # ---- options --------------------------------------------------------------------------

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the seed; it is always set, so that every run can be repeated."""
        parser.add_argument(
            "--seed_everything",
            type=int,
            default=self.seed_everything_default,
            help="Seed of weights, dropout and of the order of the data.",
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what a run needs beside trainer, model and data."""
        parser.add_argument(
            "--data_root",
            type=str,
            default=os.environ.get(DATA_ROOT_VARIABLE, "data"),
            help="Folder in which configurations look for data sets; only a flag can set it, or "
            f"the environment variable {DATA_ROOT_VARIABLE}.",
        )
        parser.add_argument(
            "--run_name", type=str, default="captioner", help="Name of the experiment."
        )
        parser.add_argument(
            "--runs_dir",
            type=str,
            default="runs",
            help="Each run makes a folder of its own, RUNS_DIR/RUN_NAME/DATE-TIME.",
        )
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="The run's folder itself, which must be new or empty.",
        )
        parser.add_lightning_class_args(BestCheckpoint, "checkpoint")
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.add_lightning_class_args(SampleCaptions, "samples")
        parser.set_defaults(
            {
                "checkpoint.monitor": "val/CIDEr",
                "checkpoint.mode": "max",
                "checkpoint.filename": "best",
                "checkpoint.auto_insert_metric_name": False,
                "checkpoint.enable_version_counter": False,
                "checkpoint.save_top_k": 1,
                # Only there is an epoch over, so that a resumed run begins with the next one.
                "checkpoint.save_on_train_epoch_end": True,
                "early_stopping.monitor": "val/CIDEr",
                "early_stopping.mode": "max",
                "early_stopping.patience": 3,
                # A run that --trainer.max_steps ends within its first epoch has no score yet.
                "early_stopping.strict": False,
                # CIDEr is undefined where the references share no words with the captions.
                "early_stopping.check_finite": False,
            }
        )
        parser.link_arguments("seed_everything", "data.seed")

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, and the arguments of the trainer's methods that are not options."""
        # Checkpoints hold tensors and plain values only: nobody needs weights_only=False.
        own = {"model", "datamodule", "weights_only"}
        return {
            "fit": own | {"train_dataloaders", "val_dataloaders"},
            "validate": own | {"dataloaders"},
            "test": own | {"dataloaders"},
            "predict": own | {"dataloaders", "return_predictions"},
        }

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the options, on top of those of the model that the run starts from."""
        arguments = [str(argument) for argument in args]
        self.config = parser.parse_args(arguments)
        command = self.config["subcommand"]
        options = self.config[command]
        checkpoint, weights = options.get("ckpt_path"), options["model"]["initial_weights"]
        if checkpoint and not Path(checkpoint).is_file():
            parser.error(f"ckpt_path must be a checkpoint file, there is none at {checkpoint}")
        if options["trainer"]["default_root_dir"] is not None:
            parser.error("trainer.default_root_dir is not used; say --runs_dir or --run_dir")
        source = checkpoint or weights
        if source is None:
            if command != "fit":
                parser.error(
                    f"nothing to {command}: name a model with --ckpt_path FILE or "
                    "--model.initial_weights NAME"
                )
            return
        try:
            layer = describe_source(read_model_config(source), source, resume=bool(checkpoint))
        except (ValueError, FileNotFoundError) as error:
            parser.error(str(error))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.yaml"
            path.write_text(yaml.safe_dump(layer), encoding="utf-8")
            place = arguments.index(command) + 1
            self.config = parser.parse_args(
                [*arguments[:place], f"--config={path}", *arguments[place:]]
            )
            # The layer is no file of the user's.
            self.config[command]["config"] = self.config[command]["config"][1:]

    # ---- parts ----------------------------------------------------------------------------

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with the run's folder, loggers and callbacks."""
        options = self.config[self.subcommand]
        trainer: dict[str, Any] = {**self.config_init[self.subcommand]["trainer"], **kwargs}
        check_precision(trainer.get("precision"))
        self._run_folder = self._find_run_folder()
        trainer["default_root_dir"] = str(self._run_folder)
        if trainer.get("logger") in (None, True):
            trainer["logger"] = [
                CSVLogger(self._run_folder, name="csv", version=""),
                TensorBoardLogger(self._run_folder, name="tensorboard", version=""),
            ]
        plugins = trainer.get("plugins") or []
        trainer["plugins"] = [
            *(plugins if isinstance(plugins, list) else [plugins]),
            AtomicCheckpointIO(),
        ]
        callbacks = trainer.get("callbacks") or []
        trainer["callbacks"] = [
            *(callbacks if isinstance(callbacks, list) else [callbacks]),
            RunRecorder(
                self._run_folder,
                describe_run(self._arguments, options["seed_everything"]),
                self._save_config,
            ),
        ]
        if trainer.get("enable_progress_bar") is not False:
            trainer["callbacks"].append(StderrProgressBar())
        if self.subcommand == "fit":
            trainer["callbacks"] += self._fit_callbacks(trainer)
        else:
            trainer["enable_checkpointing"] = False
        return self.trainer_class(**trainer)

    def _fit_callbacks(self, trainer: Mapping[str, Any]) -> list[Callback]:
        parts = self.config_init[self.subcommand]
        callbacks: list[Callback] = [RandomStates()]
        validates = trainer.get("limit_val_batches") != 0
        if validates:
            callbacks += [parts["samples"], parts["early_stopping"]]
        if trainer.get("enable_checkpointing") is False:
            return callbacks
        if validates:
            best: BestCheckpoint = parts["checkpoint"]
            if best.dirpath is None:
                best.dirpath = str(self._run_folder)
            callbacks.append(best)
        # After the best one, so that the last knows which is the best.
        last = ModelCheckpoint(
            dirpath=self._run_folder,
            filename="last",
            enable_version_counter=False,
            save_on_train_epoch_end=True,
        )
        return [*callbacks, last]

    def _find_run_folder(self) -> Path:
        """The folder; made by the first process, the others are told it."""
        options = self.config[self.subcommand]
        if _rank():
            # RunRecorder and ModelCheckpoint take the first process's word for it; processes
            # that were started in another way know no better name until then.
            return Path(os.environ.get(_RUN_DIR_VARIABLE, options["runs_dir"]))
        if options["run_dir"] is not None:
            folder = claim_run_folder(options["run_dir"])
        else:
            folder = create_run_folder(options["runs_dir"], options["run_name"])
        folder = folder.absolute()
        os.environ[_RUN_DIR_VARIABLE] = str(folder)
        return folder

    def _save_config(self, folder: Path) -> None:
        parser = self._subcommand_parsers[str(self.subcommand)]
        parser.save(self.config[self.subcommand], str(folder / CONFIG_FILE), multifile=False)


def check_precision(precision: object) -> None:
    """Refuse what would compute in half precision or float64 throughout.

    Raises:
        ValueError: It is neither full nor mixed precision.

    >>> check_precision("bf16-mixed")
    """
    allowed = ("32", "32-true", "16-mixed", "bf16-mixed")
    if precision is not None and str(precision) not in allowed:
        raise ValueError(
            f"trainer.precision must be one of {', '.join(allowed)}, got {precision}; weights are "
            "kept in float32"
        )


def _rank() -> int:
    """Number of this process; Lightning works it out from the environment when imported."""
    return int(getattr(rank_zero_only, "rank", None) or 0)


def describe_source(config: Mapping[str, Any], source: str, *, resume: bool) -> dict[str, Any]:
    """The options that a model's own configuration stands for.

    Args:
        config: Configuration of a checkpoint or of an exported model.
        source: Where it is from.
        resume: Whether all of the checkpoint is taken over (``--ckpt_path``), not its weights
            alone (``--model.initial_weights``). Then the encoder is trained as it was.

    Returns:
        A nested dictionary as a YAML file would give it.
    """
    encoder = dict(config["encoder"]["init_args"])
    # All weights come from the source; what they were once made from need not be there.
    encoder["weights"] = None
    if not resume:
        encoder["trainable_from"] = None
    known = ("feature_dim", "vocabulary_size")  # the module gives these
    decoder = {k: v for k, v in config["decoder"]["init_args"].items() if k not in known}
    return {
        "model": {
            "encoder": {"class_path": config["encoder"]["class_path"], "init_args": encoder},
            "decoder": {"class_path": config["decoder"]["class_path"], "init_args": decoder},
            "decoding": dict(config.get("decoding") or {}),
        },
        "data": {
            "preprocessing": dict(config["preprocessing"]),
            "vocabulary_path": str(source),
        },
    }


def main(args: Sequence[str]) -> int:
    """Run a sub-command.

    Args:
        args: ``fit``, ``validate``, ``test`` or ``predict``, and its options.

    Returns:
        0 when all went well, 1 for data or files that cannot be used, 2 for wrong arguments, 143
        when the run was terminated (SIGTERM).
        Errors are one message on stderr; with the environment variable CAPTIONER_DEBUG set
        they are raised.
    """
    logging.basicConfig(
        level=logging.WARNING if _rank() else logging.INFO,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # A frozen encoder is in evaluation mode on purpose, and a run's folder holds its record.
    warnings.filterwarnings("ignore", r"Found \d+ module\(s\) in eval mode")
    warnings.filterwarnings("ignore", r"Checkpoint directory .* exists and is not empty")
    warnings.filterwarnings("ignore", "You're using the WeightAveraging callback with a model that")
    # Only fit needs the callbacks of fit.
    warnings.filterwarnings("ignore", r"Be aware that when using `ckpt_path`, callbacks used")
    try:
        CaptioningCLI(args)
    except SIGTERMException:
        sys.stderr.write(
            "captioner: terminated; --ckpt_path RUN/last.ckpt goes on from the last whole epoch\n"
        )
        return 128 + signal.SIGTERM
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (ValueError, OSError, ImportError, MisconfigurationException) as error:
        if os.environ.get("CAPTIONER_DEBUG"):
            raise
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        sys.stderr.write(f"captioner: {describe_error(error)}{notes}\n")
        return 1
    return 0


def describe_error(error: BaseException) -> str:
    r"""The message of an error, without the traceback that a data loader's worker puts into it.

    >>> describe_error(ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal "
    ...     "Traceback (most recent call last):\n  File ...\nValueError: no picture"))
    'ValueError: no picture'
    """
    text = str(error).strip() or type(error).__name__
    if text.startswith("Caught ") and "Original Traceback" in text:
        return text.splitlines()[-1]
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
