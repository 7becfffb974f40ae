"""Teach an encoder the words that people use of pictures, before a decoder learns from it.

An ImageNet classifier knows breeds of dogs, not "man", "jumping" or "red". A linear layer on the
mean of the grid learns which words the captions of a picture use, first alone, then together with
the last stages of the encoder. The layer is thrown away, the encoder stays.

Shapes: M pictures, N captions, L tokens of the longest, D channels, W words to predict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim import AdamW
from torchmetrics.classification import MultilabelAveragePrecision

from captioner.models.encoder import CnnEncoder
from captioner.training.schedule import Schedule
from captioner.types import CaptionBatch

if TYPE_CHECKING:
    from captioner.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class WordPredictionOptions:
    """How an encoder learns words.

    Args:
        lr: Peak learning rate of the encoder's trained part.
        head_lr: Peak learning rate of the linear layer.
        weight_decay: Of both.
        dropout: Share of the mean features that are left out, in [0, 1).
        head_epochs: Passes of the linear layer alone over the features of all pictures.
        warmup_steps: Steps over which both learning rates rise to their peaks.

    Raises:
        ValueError: A value is out of its range.
    """

    lr: float = 2e-4
    head_lr: float = 5e-4
    weight_decay: float = 0.05
    dropout: float = 0.3
    head_epochs: int = 8
    warmup_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("lr", "head_lr"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("weight_decay", "head_epochs", "warmup_steps"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


def share_of_captions(batch: CaptionBatch, words: Tensor, vocabulary_size: int) -> Tensor:
    """The share of each picture's captions that use each word at least once.

    Args:
        batch: Pictures with their captions.
        words: Ids of the words that count, (W,).
        vocabulary_size: Number of ids.

    Returns:
        Shares in [0, 1], (M, W) float32; 0 for a picture without captions.
    """
    num_pictures = len(batch.image_ids)
    used = torch.zeros(len(batch.tokens), vocabulary_size, device=batch.tokens.device)
    real = torch.arange(batch.tokens.shape[1], device=used.device) < batch.lengths[:, None]
    rows, positions = real.nonzero(as_tuple=True)
    used[rows, batch.tokens[rows, positions]] = 1.0
    captions = torch.zeros(num_pictures, device=used.device)
    captions.index_add_(0, batch.picture, torch.ones(len(used), device=used.device))
    sums = torch.zeros(num_pictures, len(words), device=used.device)
    sums.index_add_(0, batch.picture, used[:, words])
    return sums / captions.clamp(min=1.0)[:, None]


class WordPredictionModule(LightningModule):
    """An encoder and a linear layer that predict the words of a picture's captions.

    The loss is the binary cross-entropy between predicted probabilities and the share of the
    picture's captions that use each word, summed over words. Validation reports it as
    ``val/loss``, and ``val/average_precision``, the mean over words of the average precision
    with which pictures are ranked that at least one caption uses the word for.

    Args:
        encoder: The encoder, with what is to learn made trainable (``trainable_from``); one that
            is frozen can be validated after ``fit_head``, which tells what it knows already.
        vocabulary: Its words are predicted, without the special entries.
        options: How.

    References:
        Wu et al. 2016, What Value Do Explicit High Level Concepts Have in Vision to Language
        Problems?, sec. 3.1 (words of captions as labels); Kumar et al. 2022, Fine-Tuning can
        Distort Pretrained Features and Underperform Out-of-Distribution, sec. 3 (the linear
        layer first, so that features are not bent to a random one).
    """

    words: Tensor

    def __init__(
        self,
        encoder: CnnEncoder,
        vocabulary: Vocabulary,
        options: WordPredictionOptions = WordPredictionOptions(),
    ) -> None:
        super().__init__()
        special = vocabulary.special_ids
        excluded = {special.pad_id, special.bos_id, special.eos_id, special.unk_id}
        words = [number for number in range(len(vocabulary)) if number not in excluded]
        self.encoder = encoder
        self.options = options
        self.vocabulary_size = len(vocabulary)
        self.register_buffer("words", torch.tensor(words), persistent=False)
        self.head = nn.Linear(encoder.feature_dim, len(words))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.schedule = Schedule(kind="cosine", warmup_steps=options.warmup_steps)
        self.average_precision = MultilabelAveragePrecision(len(words))

    def mean_features(self, batch: CaptionBatch) -> Tensor:
        """Mean of each picture's regions, (M, D) float32."""
        grid: Tensor = self.encoder(batch.images).grid
        return grid.float().mean(dim=1)

    def targets(self, batch: CaptionBatch) -> Tensor:
        """What the layer is to predict of a batch, (M, W)."""
        return share_of_captions(batch, self.words, self.vocabulary_size)

    def loss(self, means: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy summed over words, mean over pictures, scalar.

        Args:
            means: Mean features, (M, D).
            targets: Shares of captions, (M, W).
        """
        logits = self.head(F.dropout(means, self.options.dropout, self.training))
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(means)

    def fit_head(self, batches: Iterable[CaptionBatch], *, batch_size: int = 64) -> list[float]:
        """Train the linear layer alone, on features that are computed once.

        Args:
            batches: All training pictures, once, on the module's device.
            batch_size: Pictures in a step.

        Returns:
            Mean loss of each epoch.
        """
        means, targets = self._compute(batches)
        # From how often a word is used at all; otherwise the first steps learn only that.
        self.head.bias.data = targets.mean(0).clamp(1e-4, 1 - 1e-4).logit()
        steps = self.options.head_epochs * -(-len(means) // batch_size)
        optimizer = AdamW(self.head.parameters(), lr=2e-3, weight_decay=self.options.weight_decay)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        losses: list[float] = []
        training = self.training
        self.train()
        for _ in range(self.options.head_epochs):
            total = 0.0
            for rows in torch.randperm(len(means), device=means.device).split(batch_size):  # type: ignore[no-untyped-call]
                loss = self.loss(means[rows], targets[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                scheduler.step()
                total += float(loss.detach()) * len(rows)
            losses.append(total / len(means))
        self.train(training)
        return losses

    @torch.no_grad()
    def _compute(self, batches: Iterable[CaptionBatch]) -> tuple[Tensor, Tensor]:
        training = self.encoder.training
        self.encoder.eval()
        pairs = [(self.mean_features(batch), self.targets(batch)) for batch in batches]
        self.encoder.train(training)
        means, targets = zip(*pairs, strict=True)
        return torch.cat(means), torch.cat(targets)

    def check_trainable(self) -> None:
        """Make sure that there is something to train but the linear layer.

        Raises:
            ValueError: Nothing of the encoder is trainable.
        """
        if next(iter(self.encoder.trainable_parameters()), None) is None:
            raise ValueError(
                "no part of the encoder is trained: name the stage from which it is, such as "
                "--model.encoder.init_args.trainable_from=blocks.5"
            )

    # ---- Lightning ------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Refuse to train where nothing but the linear layer would learn."""
        self.check_trainable()

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """One batch's loss."""
        loss = self.loss(self.mean_features(batch), self.targets(batch))
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.image_ids))
        return loss

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Loss and ranking of one batch."""
        logits = self.head(self.mean_features(batch))
        targets = self.targets(batch)
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        size = len(batch.image_ids)
        self.log("val/loss", loss / size, prog_bar=True, batch_size=size, on_epoch=True)
        self.average_precision.update(logits, (targets > 0).long())
        self.log("val/average_precision", self.average_precision, batch_size=size)

    def configure_optimizers(self) -> Any:
        """AdamW with a rate of its own for each part, and the schedule."""
        options = self.options
        groups = [
            {"params": list(self.encoder.trainable_parameters()), "lr": options.lr},
            {"params": list(self.head.parameters()), "lr": options.head_lr},
        ]
        optimizer = AdamW(groups, weight_decay=options.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.schedule.factor(step, total)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }
