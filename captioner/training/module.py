"""The Lightning module: loss, optimiser and free-running evaluation of one captioning model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_lightning import LightningModule

# At run time too: the command line reads the hints of the constructor.
from pytorch_lightning.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import AdamW

import captioner
from captioner.decoding import DecodingOptions, generate
from captioner.metrics.torch_metrics import CaptionScores
from captioner.models.encoder import CnnEncoder
from captioner.models.losses import caption_cross_entropy, doubly_stochastic_penalty
from captioner.text.tokenizer import detokenize
from captioner.text.vocabulary import Vocabulary
from captioner.training.initial_weights import load_initial_weights
from captioner.training.results import (
    check_complete,
    evaluate_split,
    merge_captions,
    write_captions,
    write_json,
)
from captioner.training.schedule import Schedule
from captioner.training.scheduled_sampling import replace_with_guesses
from captioner.training.self_critical import SelfCritic, SelfCriticalOptions
from captioner.types import CaptionBatch, ImageFeatures, ImageId, Split

if TYPE_CHECKING:
    from captioner.data.datamodule import CaptionDataModule
    from captioner.models.interfaces import CaptionDecoder

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the layout of a checkpoint's ``captioner`` entry."""

RESULTS_FILE = "results.json"
METRICS_FILE = "metrics.json"
VALIDATION_RESULTS_FILE = "val-results.json"


class TrainingLosses(NamedTuple):
    """What a training step makes small, and its parts.

    Attributes:
        total: ``cross_entropy + weight * attention_penalty``, scalar.
        cross_entropy: Mean over real tokens, label smoothing included, scalar.
        attention_penalty: Unweighted doubly stochastic penalty, scalar; None where unused.
    """

    total: Tensor
    cross_entropy: Tensor
    attention_penalty: Tensor | None


class CaptioningModule(LightningModule):
    """A picture encoder and a caption decoder, as they learn.

    The decoder is built when the vocabulary is known, in ``configure_model``. The encoder is
    part of the module and of its checkpoints also when training reads a feature store; its
    fingerprint must then be that of the encoder that made the store.

    Validation, test and prediction write captions freely, word after word, for the whole split.
    Captions and references are then scored once over the corpus, on the tokens of coco-caption's
    PTB tokenizer (``captioner.metrics``), so that scores compare with those of other projects.

    Args:
        encoder: Makes the encoder. Left out, it is the one of ``initial_weights`` or of
            ``--ckpt_path``.
        decoder: Makes the decoder from feature width and vocabulary size. Left out, it is the
            one of ``initial_weights`` or of ``--ckpt_path``.
        optimizer: Makes the optimizer of parameter groups; its learning rate is the peak.
        schedule: How the learning rate moves from step to step.
        encoder_lr: Peak learning rate of the encoder's trained part; the optimizer's by default.
        label_smoothing: Share of the probability that is spread over all words, in [0, 1).
        doubly_stochastic: Weight of the penalty on regions that a caption never or always looks
            at (Xu et al. 2015, eq. 14); 0 leaves it out.
        decoding: How ``test`` and ``predict`` write captions; kept with the model as its default.
        validation_decoding: How ``fit`` and ``validate`` write captions; ``decoding`` by default.
        validation_loss: Whether validation also reports the cross-entropy of the references.
        scheduled_sampling: Share of the words that are replaced by the model's own guesses where
            it reads a reference, in [0, 1]; it grows from 0 to this over the run (Bengio et al.
            2015).
        self_critical: Learn from the score of captions that the model draws, instead of from the
            references: a second stage, to be started from a trained model.
        initial_weights: Checkpoint, exported folder or shipped model whose weights are the
            start. Words are matched by spelling between the vocabularies.

    Raises:
        ValueError: If a value is out of its range.
    """

    decoder: nn.Module | None
    encoder: CnnEncoder

    def __init__(
        self,
        encoder: Callable[[], CnnEncoder] | None = None,
        decoder: Callable[[int, int], nn.Module] | None = None,
        optimizer: OptimizerCallable = lambda params: AdamW(params, lr=1e-3, weight_decay=0.01),
        schedule: Schedule = Schedule(),  # noqa: B008 - frozen
        encoder_lr: float | None = None,
        label_smoothing: float = 0.1,
        doubly_stochastic: float = 0.0,
        decoding: DecodingOptions = DecodingOptions(),  # noqa: B008 - frozen
        validation_decoding: DecodingOptions | None = None,
        validation_loss: bool = True,
        scheduled_sampling: float = 0.0,
        self_critical: SelfCriticalOptions | None = None,
        initial_weights: str | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= scheduled_sampling <= 1.0:
            raise ValueError(f"scheduled_sampling must be in [0, 1], got {scheduled_sampling}")
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        if doubly_stochastic < 0.0:
            raise ValueError(f"doubly_stochastic must not be negative, got {doubly_stochastic}")
        if encoder_lr is not None and encoder_lr <= 0.0:
            raise ValueError(
                f"encoder_lr must be above 0, got {encoder_lr}; freeze the encoder with "
                "encoder.trainable_from null"
            )
        if encoder is None or decoder is None:
            missing = "encoder" if encoder is None else "decoder"
            raise ValueError(
                f"no {missing}: name one (-c configs/model/sat.yaml), or start from a model that "
                "has one (--model.initial_weights NAME or --ckpt_path FILE)"
            )
        self.encoder = encoder()
        self.decoder = None
        self.optimizer_factory = optimizer
        self.schedule = schedule
        self.encoder_lr = encoder_lr
        self.label_smoothing = label_smoothing
        self.doubly_stochastic = doubly_stochastic
        self.decoding = decoding
        self.validation_decoding = validation_decoding or decoding
        self.validation_loss = validation_loss
        self.scheduled_sampling = scheduled_sampling
        self.self_critical = self_critical
        self.initial_weights = initial_weights
        self._decoder_factory = decoder
        self._captions: list[tuple[ImageId, str]] = []
        # In a dictionary, so that they are no parts of the model.
        self._scores: dict[Split, CaptionScores] = {}
        self._reference_losses: list[tuple[ImageId, float, int]] = []
        self._resumed_groups: list[dict[str, Any]] | None = None
        self._critic: SelfCritic | None = None

    # ---- building -------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Tell the data what normalisation the encoder's weights expect."""
        self.data.set_normalization(self.encoder.mean, self.encoder.std)

    def configure_model(self) -> None:
        """Build the decoder, now that the vocabulary is known. Does nothing the second time."""
        if self.decoder is None:
            self.build(self.data.vocabulary)

    def build(self, vocabulary: Vocabulary) -> None:
        """Build the decoder for a vocabulary and give it its first weights.

        Args:
            vocabulary: The words to learn.

        Raises:
            TypeError: If what ``decoder`` makes is no caption decoder.
            ValueError: If ``initial_weights`` do not fit.
        """
        decoder = self._decoder_factory(self.encoder.feature_dim, len(vocabulary))
        for name in ("init_state", "step", "config", "vocabulary_parameters"):
            if not hasattr(decoder, name):
                raise TypeError(
                    f"model.decoder makes a {type(decoder).__name__}, which has no {name!r}; it "
                    "must be a caption decoder (captioner.models.interfaces.CaptionDecoder)"
                )
        self.decoder = decoder
        if self.initial_weights is not None:
            load_initial_weights(
                self.initial_weights, self.encoder, self.caption_decoder, vocabulary
            )

    @property
    def data(self) -> CaptionDataModule:
        """The data module of the run."""
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise RuntimeError("CaptioningModule needs a CaptionDataModule: datamodule=...")
        return cast("CaptionDataModule", data)

    @property
    def caption_decoder(self) -> CaptionDecoder:
        """The decoder, as what it is for."""
        if self.decoder is None:
            raise RuntimeError("the decoder is not built yet; call build(vocabulary) first")
        return cast("CaptionDecoder", self.decoder)

    def check_features(self) -> None:
        """Make sure that ready-made features, if any, are those of this very encoder.

        Called when all weights are where they belong and nothing has run yet.

        Raises:
            ValueError: If another encoder made them, or the encoder is to be trained.
        """
        store = self.data.feature_store
        if store is None:
            return
        if next(iter(self.encoder.trainable_parameters()), None) is not None:
            raise ValueError(
                f"model.encoder is trained from {self.encoder.trainable_from!r}, but features come "
                f"ready-made from {store.folder}; train from pictures (data.features_path null) "
                "or freeze the encoder (model.encoder.init_args.trainable_from null)"
            )
        store.check(self.encoder.fingerprint(), self.data.preprocessing.to_dict())

    # ---- training -------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Check the feature store, and prepare the references that captions are rewarded by."""
        self.check_features()
        if self.self_critical is None:
            return
        if self.initial_weights is None and self.trainer.ckpt_path is None:
            logger.warning(
                "self-critical training starts from random weights, whose captions earn nothing to "
                "learn from; start from a trained model (--model.initial_weights NAME or CKPT)"
            )
        self._critic = SelfCritic(
            self.self_critical, self.data.references("train"), self.data.vocabulary
        )

    def encode(self, batch: CaptionBatch) -> ImageFeatures:
        """The regions of a batch's pictures, computed or from the feature store, (M, R, D)."""
        if batch.features is not None:
            return batch.features
        return cast("ImageFeatures", self.encoder(batch.images))

    def training_losses(self, batch: CaptionBatch) -> TrainingLosses:
        """The loss of a batch, over real tokens only.

        Args:
            batch: Pictures with at least one caption.
        """
        return self._losses_of(batch, self.encode(batch))

    def _losses_of(self, batch: CaptionBatch, features: ImageFeatures) -> TrainingLosses:
        tokens, token_mask, targets = shift_tokens(batch)
        share = self.scheduled_sampling * self._progress() if self.scheduled_sampling else 0.0
        if share > 0.0:
            tokens = replace_with_guesses(
                self.caption_decoder,
                features,
                tokens,
                token_mask,
                batch.picture,
                share,
                self.data.vocabulary.special_ids,
            )
        output = self.caption_decoder(
            features,
            tokens,
            token_mask,
            batch.picture,
            need_attention=self.doubly_stochastic > 0,
        )
        cross_entropy = caption_cross_entropy(output.logits, targets, self.label_smoothing)
        if self.doubly_stochastic == 0:
            return TrainingLosses(cross_entropy, cross_entropy, None)
        assert output.attention is not None
        penalty = doubly_stochastic_penalty(output.attention, token_mask)
        return TrainingLosses(
            cross_entropy + self.doubly_stochastic * penalty, cross_entropy, penalty
        )

    def _progress(self) -> float:
        """Share of the run that is done, 0..1; 1 in a run without an end."""
        total = float(self.trainer.estimated_stepping_batches)
        return min(1.0, self.trainer.global_step / total) if total < float("inf") else 1.0

    def self_critical_loss(self, batch: CaptionBatch, critic: SelfCritic) -> Tensor:
        """The loss of captions that the model draws of a batch's pictures.

        Args:
            batch: Pictures; their captions are read only for ``self_critical.cross_entropy``.
            critic: Draws and rewards.
        """
        size = len(batch.image_ids)
        features = self.encode(batch)
        losses = critic.losses(self.caption_decoder, features, batch.image_ids)
        loss = losses.loss
        weight = critic.options.cross_entropy
        if weight > 0.0:
            references = self._losses_of(batch, features)
            loss = loss + weight * references.total
            self.log("train/cross_entropy", references.cross_entropy, batch_size=size)
        self.log("train/reward", losses.reward, prog_bar=True, batch_size=size)
        for name in ("baseline", "length", "finished", "distinct"):
            self.log(f"train/{name}", getattr(losses, name), batch_size=size)
        return loss

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """One batch's loss."""
        size = len(batch.image_ids)
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log("train/learning_rate", rate, batch_size=size)
        if self._critic is not None:
            loss = self.self_critical_loss(batch, self._critic)
            self.log("train/loss", loss, batch_size=size)
            return loss
        losses = self.training_losses(batch)
        self.log("train/loss", losses.total, prog_bar=True, batch_size=size)
        self.log("train/cross_entropy", losses.cross_entropy, batch_size=size)
        if losses.attention_penalty is not None:
            self.log("train/attention_penalty", losses.attention_penalty, batch_size=size)
        return losses.total

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The trained parameters, the encoder's apart with their own learning rate."""
        decoder = [p for p in cast("nn.Module", self.decoder).parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [{"params": decoder}]
        encoder = list(self.encoder.trainable_parameters())
        if encoder:
            group: dict[str, Any] = {"params": encoder}
            if self.encoder_lr is not None:
                group["lr"] = self.encoder_lr
            groups.append(group)
        elif self.encoder_lr is not None:
            raise ValueError(
                f"encoder_lr is {self.encoder_lr}, but the encoder is frozen; name the stage to "
                "train from (model.encoder.init_args.trainable_from) or leave encoder_lr out"
            )
        return groups

    def configure_optimizers(self) -> Any:
        """The optimizer with a learning rate that moves per step."""
        optimizer = self.optimizer_factory(cast("Iterable[Any]", self.parameter_groups()))
        if self._resumed_groups is not None:
            check_same_optimizer(optimizer.param_groups, self._resumed_groups)
            self._resumed_groups = None
        total = float(self.trainer.estimated_stepping_batches)
        if self.schedule.kind == "cosine" and total == float("inf"):
            raise ValueError(
                "a cosine schedule needs an end: set trainer.max_epochs or trainer.max_steps, or "
                "model.schedule.kind constant"
            )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.schedule.factor(step, total)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    # ---- evaluation -----------------------------------------------------------------------

    def caption_batch(
        self, features: ImageFeatures, image_ids: Sequence[ImageId], options: DecodingOptions
    ) -> list[tuple[ImageId, str]]:
        """The best caption of each picture, with the picture's id.

        Args:
            features: Regions of M pictures.
            image_ids: Their ids.
            options: How captions are searched for.
        """
        vocabulary = self.data.vocabulary
        found = generate(self.caption_decoder, features, options, vocabulary.special_ids)
        texts = [detokenize(vocabulary.decode(best[0].token_ids)) for best in found]
        return list(zip(image_ids, texts, strict=True))

    def reference_losses(
        self, batch: CaptionBatch, features: ImageFeatures
    ) -> list[tuple[ImageId, float, int]]:
        """Summed cross-entropy and number of tokens of each picture's references.

        Without label smoothing, so that runs with different smoothing compare.
        """
        tokens, token_mask, targets = shift_tokens(batch)
        if not len(tokens):
            return []
        output = self.caption_decoder(
            features, tokens, token_mask, batch.picture, need_attention=False
        )
        losses = F.cross_entropy(output.logits.float(), targets, reduction="none")  # (P,)
        owner = batch.picture[:, None].expand_as(token_mask)[token_mask]  # (P,)
        sums = losses.new_zeros(len(batch.image_ids)).index_add_(0, owner, losses).tolist()
        counts = torch.bincount(owner, minlength=len(batch.image_ids)).tolist()
        return list(zip(batch.image_ids, sums, counts, strict=True))

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Caption the pictures of a batch."""
        features = self.encode(batch)
        captions = self.caption_batch(features, batch.image_ids, self.validation_decoding)
        self._scores["val"].update(*_unzip(captions))
        if self.validation_loss:
            self._reference_losses += self.reference_losses(batch, features)

    def on_validation_start(self) -> None:
        """Check the feature store, where ``fit`` has not done so."""
        if self.trainer.state.fn != "fit":
            self.check_features()

    def on_validation_epoch_start(self) -> None:
        """Forget the captions of the last time."""
        self._reset_scores("val")
        self._reference_losses = []

    def on_validation_epoch_end(self) -> None:
        """Score the captions of the whole split."""
        losses = {key: value for part in _gather(self._reference_losses) for key, *value in part}
        metric = self._scores["val"]
        captions = metric.captions()
        if self.trainer.sanity_checking:
            return
        complete = self._check_complete(captions, "val", self.trainer.limit_val_batches)
        if complete and self.trainer.is_global_zero:
            folder = Path(self.trainer.default_root_dir)
            write_captions(folder / VALIDATION_RESULTS_FILE, captions)
        metric.allow_missing = not complete
        scores = metric.score(captions)
        for name in ("CIDEr", "Bleu_4", "ROUGE_L"):
            self._log_score(f"val/{name}", scores[name].corpus)
        if losses:
            total = sum(loss for loss, _ in losses.values())
            self._log_score("val/loss", total / sum(count for _, count in losses.values()))

    def test_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Caption the pictures of a batch."""
        captions = self.caption_batch(self.encode(batch), batch.image_ids, self.decoding)
        self._scores["test"].update(*_unzip(captions))

    def on_test_start(self) -> None:
        """Check the feature store."""
        self.check_features()

    def on_test_epoch_start(self) -> None:
        """Forget the captions of the last time."""
        self._reset_scores("test")

    def on_test_epoch_end(self) -> None:
        """Score the captions of the whole split, and write both to the run's folder."""
        captions = self._scores["test"].captions()
        complete = self._check_complete(captions, "test", self.trainer.limit_test_batches)
        # METEOR takes its time and SPICE its memory: one process scores for all.
        metrics = self._on_first_process(
            lambda: evaluate_split(
                captions,
                self.data.references("test"),
                self.data.references("train"),
                split="test",
                decoding=self.decoding.to_dict(),
                data=self.data.fingerprint,
            )
        )
        for name, score in metrics["scores"].items():
            value = score["value"]
            self._log_score(f"test/{name}", float("nan") if value is None else value)
        if complete and self.trainer.is_global_zero:
            folder = Path(self.trainer.default_root_dir)
            write_captions(folder / RESULTS_FILE, captions)
            write_json(folder / METRICS_FILE, metrics)

    def predict_step(self, batch: CaptionBatch, batch_idx: int) -> list[tuple[ImageId, str]]:
        """Caption the pictures of a batch.

        Returns:
            Ids and captions.
        """
        captions = self.caption_batch(self.encode(batch), batch.image_ids, self.decoding)
        self._captions += captions
        return captions

    def on_predict_start(self) -> None:
        """Check the feature store."""
        self.check_features()

    def on_predict_epoch_start(self) -> None:
        """Forget the captions of the last time."""
        self._captions = []

    def on_predict_epoch_end(self) -> None:
        """Write the captions to the run's folder."""
        captions = self._gather_captions()
        loaders: Any = self.trainer.predict_dataloaders
        loader = loaders[0] if isinstance(loaders, list) else loaders
        expected = [record.image_id for record in loader.dataset.records]
        complete = self._check_complete(
            captions, "predict", self.trainer.limit_predict_batches, expected
        )
        if complete and self.trainer.is_global_zero:
            write_captions(Path(self.trainer.default_root_dir) / RESULTS_FILE, captions)

    def _reset_scores(self, split: Split) -> None:
        """Begin anew; the references are tokenised once and kept."""
        metric = self._scores.get(split)
        references = self.data.references(split)
        if metric is None or metric.references != references:
            metric = self._scores[split] = CaptionScores(references)
        metric.to(self.device)
        metric.reset()

    def _on_first_process(self, work: Callable[[], Any]) -> Any:
        """What ``work`` gives, done by one process; all of them stop where it fails."""
        result, error = None, None
        if self.trainer.is_global_zero:
            try:
                result = work()
            except Exception as caught:
                error = caught
        result, message = _gather((result, None if error is None else str(error)))[0]
        if error is not None:
            raise error
        if message is not None:
            raise RuntimeError(f"the first process failed: {message}")
        return result

    def _gather_captions(self) -> dict[ImageId, str]:
        captions = merge_captions(_gather(self._captions))
        self._captions = []
        return captions

    def _check_complete(
        self,
        captions: Mapping[ImageId, str],
        split: Split | str,
        limit: float | None,
        expected: Sequence[ImageId] | None = None,
    ) -> bool:
        """Whether every picture was captioned; only a limit that the user set may prevent it."""
        if expected is None:
            expected = list(self.data.references(cast("Split", split)))
        try:
            check_complete(captions, expected)
        except ValueError as error:
            if limit is None or (isinstance(limit, float) and limit == 1.0):
                raise
            logger.warning("part of the split only, nothing is written: %s", error)
            return False
        return True

    def _log_score(self, name: str, value: float) -> None:
        # Every process has computed the same value; their mean changes nothing.
        size = max(1, len(self.data.references("val")) if name.startswith("val") else 1)
        self.log(name, value, prog_bar=name.endswith("CIDEr"), sync_dist=True, batch_size=size)

    # ---- checkpoints ----------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what is needed to caption with the weights."""
        data = self.data
        checkpoint["captioner"] = {
            "format": FORMAT,
            "encoder": describe_part(self.encoder, self.encoder.config),
            "decoder": describe_part(cast("nn.Module", self.decoder), self.caption_decoder.config),
            "preprocessing": data.preprocessing.to_dict(),
            "vocabulary": data.vocabulary.to_dict(),
            "decoding": self.decoding.to_dict(),
            "provenance": {
                "captioner": captioner.__version__,
                "data": data.fingerprint,
                "seed": data.seed,
                "epoch": self.trainer.current_epoch,
                "step": self.trainer.global_step,
                "initial_weights": self.initial_weights,
                "validation": {
                    name: float(value)
                    for name, value in self.trainer.callback_metrics.items()
                    if name.startswith("val/")
                },
            },
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that says otherwise than the options."""
        data = self.data
        check_same_model(
            checkpoint,
            encoder=describe_part(self.encoder, self.encoder.config),
            decoder=describe_part(cast("nn.Module", self.decoder), self.caption_decoder.config),
            preprocessing=data.preprocessing.to_dict(),
        )
        if Vocabulary.from_dict(checkpoint["captioner"]["vocabulary"]) != data.vocabulary:
            raise ValueError(
                "the checkpoint's vocabulary is not the data module's; leave "
                "data.vocabulary_path out: the checkpoint brings its own"
            )
        if self.trainer.state.fn != "fit":
            return
        done = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        if self.trainer.max_epochs is not None and 0 <= self.trainer.max_epochs <= done:
            raise ValueError(
                f"the checkpoint has done {done} epochs and trainer.max_epochs is "
                f"{self.trainer.max_epochs}: there is nothing left to train; raise max_epochs, or "
                "start a new run from the weights with --model.initial_weights"
            )
        states = checkpoint.get("optimizer_states")
        self._resumed_groups = states[0]["param_groups"] if states else None


def shift_tokens(batch: CaptionBatch) -> tuple[Tensor, Tensor, Tensor]:
    """What a decoder reads, where it is real, and the words that should come.

    Returns:
        Input tokens (N, T) from BOS on, their mask (N, T) True where a word or the end is to
        come, and the packed targets (P,), T = L - 1.
    """
    tokens = batch.tokens[:, :-1]
    steps = torch.arange(tokens.shape[1], device=tokens.device)
    token_mask = steps < batch.lengths[:, None] - 1  # (N, T)
    return tokens, token_mask, batch.tokens[:, 1:][token_mask]


def describe_part(part: nn.Module, config: Mapping[str, object]) -> dict[str, object]:
    """A module as ``class_path`` and ``init_args``."""
    kind = type(part)
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": dict(config)}


def check_same_model(checkpoint: Mapping[str, Any], **current: Mapping[str, Any]) -> None:
    """Make sure that the options describe the model of a checkpoint.

    Args:
        checkpoint: A Lightning checkpoint.
        **current: The parts as the options describe them, by their names in the checkpoint.

    Raises:
        ValueError: If one of them differs, or the checkpoint is not one of ours.
    """
    saved = checkpoint.get("captioner")
    if not isinstance(saved, Mapping):
        raise ValueError(
            "the checkpoint has no 'captioner' entry: it was not written by `captioner fit`"
        )
    for name, mine in current.items():
        differences = list(_differences(_flatten(saved[name]), _flatten(mine)))
        if differences:
            raise ValueError(
                f"the checkpoint's {name} differs from the options: {'; '.join(differences)}; "
                "leave these options out, or start a new run from the weights alone with "
                "--model.initial_weights"
            )


def check_same_optimizer(
    groups: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]
) -> None:
    """Make sure that a resumed optimizer is the one that the options describe.

    Args:
        groups: Parameter groups as the options make them.
        saved: Those of the checkpoint, which will replace them.

    Raises:
        ValueError: If they differ.
    """
    if len(groups) != len(saved):
        raise ValueError(
            f"the checkpoint's optimizer has {len(saved)} parameter groups, the options give "
            f"{len(groups)}; was model.encoder.trainable_from changed?"
        )
    for mine, theirs in zip(groups, saved, strict=True):
        options = {k: v for k, v in mine.items() if k not in ("params", "initial_lr")}
        # The learning rate in a checkpoint is that of its last step; the peak is beside it.
        kept = {**theirs, "lr": theirs.get("initial_lr", theirs.get("lr"))}
        found = list(_differences({k: kept.get(k) for k in options}, options))
        if found:
            raise ValueError(
                f"resuming keeps the checkpoint's optimizer, but the options differ: "
                f"{'; '.join(found)}; leave them as they were, or start a new run from the "
                "weights alone with --model.initial_weights"
            )


def _differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterable[str]:
    for key in sorted({*theirs, *mine}):
        # Where the weights came from is no matter once the checkpoint brings them.
        if key.endswith("init_args.weights"):
            continue
        if _plain(theirs.get(key)) != _plain(mine.get(key)):
            yield f"{key} is {theirs.get(key)!r} in the checkpoint, {mine.get(key)!r} given"


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            flat.update(_flatten(inner, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = inner
    return flat


def _plain(value: Any) -> Any:
    """A value with tuples as lists, as JSON would have them."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _unzip(captions: Sequence[tuple[ImageId, str]]) -> tuple[list[ImageId], list[str]]:
    """Ids and captions apart."""
    return [image_id for image_id, _ in captions], [caption for _, caption in captions]


def _gather(value: Any) -> list[Any]:
    """The values of all processes, on each of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
