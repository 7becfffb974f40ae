"""Teach a CNN the words of a data set's captions, for training on cached features of it.

    python scripts/adapt_encoder.py --output encoder.safetensors -c configs/base.yaml \
        -c configs/data/flickr8k.yaml -c configs/model/sat.yaml \
        -c configs/experiment/adapt-encoder.yaml

takes the options of `captioner fit` (of which it reads data and encoder), trains the encoder from
the stage that model.encoder.init_args.trainable_from names, and writes the weights with the
smallest loss on the validation split. Models then see with them:

    --model.encoder.init_args.weights=file:encoder.safetensors

The folder beside the output (its name without the suffix) keeps the log and a checkpoint of every
epoch; the same command goes on from the last one. `--epochs 0` trains the linear layer alone and
tells what an encoder knows as it is: the loss on the validation split, and how well pictures are
ranked by the words that people use of them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

from captioner.allocator import keep_freed_memory
from captioner.data.datamodule import CaptionDataModule
from captioner.models.encoder import CnnEncoder, write_weights
from captioner.training.callbacks import AveragedWeights, StderrProgressBar
from captioner.training.data_commands import parse_data
from captioner.training.word_prediction import WordPredictionModule, WordPredictionOptions

logger = logging.getLogger("adapt_encoder")


def adapt(
    data: CaptionDataModule,
    encoder: CnnEncoder,
    folder: Path,
    options: WordPredictionOptions,
    *,
    epochs: int,
    decay: float,
    accelerator: str = "auto",
) -> Path | None:
    """Train, or go on training, and keep a checkpoint of every epoch.

    Args:
        data: Training and validation pictures with captions, read from their files.
        encoder: What learns; afterwards it has the last weights.
        folder: Where log and checkpoints are.
        options: How it learns.
        epochs: Passes over the training pictures; 0 trains the linear layer alone.
        decay: Of the moving average of the weights, which is what is kept; 0 for none.
        accelerator: Lightning's word for where to train.

    Returns:
        The checkpoint with the smallest validation loss; None without epochs.

    Raises:
        ValueError: Features are cached, or nothing of the encoder is trained.
    """
    if data.features_path is not None:
        raise ValueError(
            f"data.features_path is {data.features_path}, but an encoder that learns must see "
            "pictures: --data.features_path=null"
        )
    data.set_normalization(encoder.mean, encoder.std)
    module = WordPredictionModule(encoder, data.vocabulary, options)
    if epochs:
        module.check_trainable()
    last = folder / "last.ckpt"
    best = ModelCheckpoint(folder, filename="best", monitor="val/loss", save_last=True)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator=accelerator,
        devices=1,
        gradient_clip_val=5.0,
        num_sanity_val_steps=0,
        logger=CSVLogger(folder, name="csv", version=""),
        callbacks=[
            best,
            StderrProgressBar(),
            *([AveragedWeights(decay)] if decay else []),
        ],
    )
    if not last.is_file():
        device = trainer.strategy.root_device
        data.setup("fit")
        losses = module.to(device).fit_head(batch.to(device) for batch in data.train_dataloader())
        logger.info("linear layer alone: loss %s", ", ".join(f"{loss:.2f}" for loss in losses))
        (scores,) = trainer.validate(module, data, verbose=False)
        words = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        sys.stdout.write(f"before: {words}\n")
    if not epochs:
        return None
    trainer.fit(module, data, ckpt_path=str(last) if last.is_file() else None)
    return Path(best.best_model_path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Adapt an encoder and write its weights."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="a new .safetensors file")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--decay", type=float, default=0.99, help="of averaged weights; 0: none")
    parser.add_argument("--accelerator", default="auto", help="auto, cpu, gpu, mps")
    for name, default in asdict(WordPredictionOptions()).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default)
    options, rest = parser.parse_known_args(arguments)
    if options.output.suffix != ".safetensors":
        parser.error(f"--output must end in .safetensors, got {options.output}")
    if options.output.exists():
        parser.error(f"{options.output} is there already; name another file")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    keep_freed_memory()
    try:
        chosen = WordPredictionOptions(
            **{name: getattr(options, name) for name in WordPredictionOptions.__dataclass_fields__}
        )
        data, encoder = parse_data(rest)
        assert encoder is not None
        pl.seed_everything(data.seed)
        best = adapt(
            data,
            encoder,
            options.output.with_suffix(""),
            chosen,
            epochs=options.epochs,
            decay=options.decay,
            accelerator=options.accelerator,
        )
        if best is None:
            return 0
        state = torch.load(best, map_location="cpu", weights_only=True)["state_dict"]
        prefix = "encoder."
        encoder.load_state_dict(
            {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        )
        write_weights(encoder, options.output)
    except (OSError, ValueError, ImportError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{options.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
