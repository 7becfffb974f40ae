"""Callbacks that end a run: with a fault after its first epoch, or as `kill` does."""

import os
import signal
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer


class Break(Callback):
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            raise RuntimeError("broken on purpose")


class Terminate(Callback):
    """Is asked to stop after its first batch, as by `kill`."""

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
