"""A callback that ends a run after its first epoch, as a fault or a kill would."""

from pytorch_lightning import Callback, LightningModule, Trainer


class Break(Callback):
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            raise RuntimeError("broken on purpose")
