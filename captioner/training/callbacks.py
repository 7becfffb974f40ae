"""What happens around training: random states, run records, samples, checkpoints on disk."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, TQDMProgressBar, WeightAveraging
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from captioner.data.images import read_image
from captioner.data.sources import filter_records
from captioner.inference.captioner import Captioner
from captioner.inference.checkpoint import LoadedModel
from captioner.inference.overlay import render_figure
from captioner.training.random_state import RandomState, get_random_state, set_random_state
from captioner.training.results import write_json
from captioner.training.runs import RUN_FILE

if TYPE_CHECKING:
    from pytorch_lightning.callbacks.progress.tqdm_progress import Tqdm

    from captioner.training.module import CaptioningModule

logger = logging.getLogger(__name__)


class RandomStates(Callback):
    """Carry the random states of all processes in the checkpoint.

    The states at the end of an epoch are those with which the first step of the next one
    begins, in a run without a break as well as in a resumed one. What happens in between
    (making data loaders, showing samples) draws random numbers in one and not in the other.
    """

    def __init__(self) -> None:
        self._states: list[RandomState] | None = None
        self._mid_epoch = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin the epoch where the last one ended."""
        states, self._states = self._states, None
        self._mid_epoch = True
        if states is None:
            return
        if len(states) != trainer.world_size:
            logger.warning(
                "the checkpoint holds the random states of %d processes, there are %d now: the "
                "run goes on, but is not the one it would have been",
                len(states),
                trainer.world_size,
            )
            return
        set_random_state(states[trainer.global_rank])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the states for the next epoch and the checkpoint; before checkpoints are saved."""
        self._states = self._gather()
        self._mid_epoch = False

    def state_dict(self) -> dict[str, Any]:
        """The states of all processes, by rank."""
        states = self._gather() if self._states is None or self._mid_epoch else self._states
        return {"processes": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the states until training goes on."""
        self._states = list(state_dict["processes"])

    @staticmethod
    def _gather() -> list[RandomState]:
        own = get_random_state()
        if not (dist.is_available() and dist.is_initialized()):
            return [own]
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, own)
        return states


class BestCheckpoint(ModelCheckpoint):
    """The best checkpoint of a run, and of the run that it resumes.

    A resumed run has a folder of its own. The best checkpoint so far comes along, so that the
    new folder holds the best of the whole training also when no later epoch is better.
    """

    _inherited: tuple[Path, Path] | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the score of the best checkpoint, and note where it is."""
        old = Path(state_dict["best_model_path"])
        if self.dirpath is None or not old.is_file():
            logger.warning(
                "the best checkpoint so far is not at %s any more; the best of the epochs to come "
                "will be kept",
                old,
            )
            return
        new = Path(self.dirpath) / old.name
        self._inherited = (old, new)
        score = state_dict["best_model_score"]
        super().load_state_dict(
            {
                **state_dict,
                "dirpath": self.dirpath,
                "best_model_path": str(new),
                "kth_best_model_path": str(new),
                "best_k_models": {str(new): score},
                "last_model_path": "",
            }
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the best checkpoint along."""
        super().on_train_start(trainer, pl_module)
        if self._inherited is not None and trainer.is_global_zero:
            old, new = self._inherited
            temporary = new.with_name(f".{new.name}.tmp")
            shutil.copyfile(old, temporary)
            temporary.replace(new)
        self._inherited = None


class RunRecorder(Callback):
    """Write down what runs, in the run's own folder, before it begins.

    Args:
        folder: The run's folder as the first process knows it; the others learn it from there.
        run: What ``describe_run`` found.
        save_config: Writes the resolved configuration to a folder.
    """

    def __init__(
        self, folder: Path, run: Mapping[str, Any], save_config: Callable[[Path], None]
    ) -> None:
        self.folder = folder
        self.run = dict(run)
        self.save_config = save_config

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write the record; the data module has been set up before."""
        folder = Path(trainer.strategy.broadcast(str(self.folder)))
        if not trainer.is_global_zero:
            return
        self.save_config(folder)
        data = cast("CaptioningModule", pl_module).data
        write_json(
            folder / RUN_FILE,
            {
                **self.run,
                "processes": trainer.world_size,
                "data": {"fingerprint": data.fingerprint, "pictures": len(data.records)},
            },
        )
        logger.info("this run is kept in %s", folder)


class SampleCaptions(Callback):
    """Show the captions and maps of a few validation pictures in TensorBoard, each epoch.

    Args:
        num_pictures: How many pictures, the first of the split; 0 shows none.
    """

    def __init__(self, num_pictures: int = 4) -> None:
        if num_pictures < 0:
            raise ValueError(f"num_pictures must not be negative, got {num_pictures}")
        self.num_pictures = num_pictures

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Caption the pictures from their files, as a user would, and log the figures."""
        boards = [board for board in trainer.loggers if isinstance(board, TensorBoardLogger)]
        if trainer.sanity_checking or not trainer.is_global_zero or not boards:
            return
        module = cast("CaptioningModule", pl_module)
        data = module.data
        model = LoadedModel(
            encoder=module.encoder,
            decoder=module.caption_decoder,
            preprocessing=data.preprocessing,
            vocabulary=data.vocabulary,
            decoding=module.validation_decoding,
            config={},
        )
        captioner = Captioner(model, str(module.device))
        for record in filter_records(data.records, "val")[: self.num_pictures]:
            if not record.path.is_file():  # training from a feature store needs no pictures
                continue
            result = captioner.caption(record.path, seed=0)
            figure = np.asarray(render_figure(read_image(record.path), result))
            for board in boards:
                name = f"samples/{record.image_id}"
                board.experiment.add_image(name, figure, trainer.global_step, dataformats="HWC")
                board.experiment.add_text(name, result.text, trainer.global_step)


class AveragedWeights(WeightAveraging):
    """An exponential moving average of the weights: it is what is validated, saved and exported.

    Training goes on with the weights themselves. What does not move stays as it is to the last
    bit: a frozen encoder is still the one that made a feature store. (In Lightning's own
    ``EMAWeightAveraging`` it drifts by rounding.)

    Args:
        decay: Share of the average that is kept at every step, in (0, 1); the average reaches
            back about 1 / (1 - decay) steps.

    Raises:
        ValueError: If ``decay`` is out of its range.
    """

    def __init__(self, decay: float = 0.998) -> None:
        if not 0.0 < decay < 1.0:
            raise ValueError(f"decay must be in (0, 1), got {decay}")
        super().__init__(avg_fn=functools.partial(_approach, 1.0 - decay))
        self.decay = decay

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Copy the model to where it is trained."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)


def _approach(share: float, average: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
    """``average``, moved towards ``current``; equal values stay equal."""
    return average.lerp(current, share) if average.is_floating_point() else current


class StderrProgressBar(TQDMProgressBar):
    """Lightning's progress bar, on stderr: stdout is for results."""

    def init_train_tqdm(self) -> Tqdm:
        """The bar of an epoch."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_train_tqdm()

    def init_validation_tqdm(self) -> Tqdm:
        """The bar of a validation."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_validation_tqdm()

    def init_test_tqdm(self) -> Tqdm:
        """The bar of a test."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_test_tqdm()

    def init_predict_tqdm(self) -> Tqdm:
        """The bar of a prediction."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_predict_tqdm()

    def init_sanity_tqdm(self) -> Tqdm:
        """The bar of the check before training."""
        with contextlib.redirect_stdout(sys.stderr):
            return super().init_sanity_tqdm()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints on disk that are whole whenever the process is killed.

    Lightning writes to the temporary folder, which may be on another disk, and moves the file.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write beside the target, then take its place."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
