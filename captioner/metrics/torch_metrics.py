"""The metrics as torchmetrics classes: fed batch by batch, scored once over the whole set.

Nothing is averaged over batches or processes. The state is the captions themselves; they are
gathered from all processes, the pictures that a distributed sampler repeated count once, and
``compute`` refuses to score while pictures are missing. This is the only module here that
imports PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

from captioner.metrics.document_frequencies import DocumentFrequencies
from captioner.metrics.score import ImageKey, MetricUnavailable, Score
from captioner.metrics.suite import METRICS, Suite

_EXAMPLES = 5


class CaptionScores(Metric):
    """Corpus scores of a model's captions of a split.

    Args:
        references: Captions that people wrote, at least one for each picture of the split, as
            they stand; they are tokenised once.
        metrics: Names out of ``captioner.metrics.suite.ALL_METRICS``.
        tokenize: Makes words of a caption; coco-caption's PTB tokenizer by default.
        frequencies: CIDEr's document frequencies; those of ``references`` by default.
        allow_missing: Score the pictures that have a caption; otherwise missing ones are an
            error.
        **kwargs: What every torchmetrics class takes.

    Raises:
        ValueError: An unknown metric.
        MetricUnavailable: A metric that cannot be computed on this machine.

    >>> scores = CaptionScores({1: ["A dog."], 2: ["Two cats."]}, ["ROUGE_L"], str.split)
    >>> scores.update([1, 2], ["A dog.", "Two cats."])
    >>> {name: round(value.item(), 4) for name, value in scores.compute().items()}
    {'ROUGE_L': 1.0}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    payload: list[Tensor]

    def __init__(
        self,
        references: Mapping[ImageKey, Sequence[str]],
        metrics: Sequence[str] = METRICS,
        tokenize: Callable[[str], Sequence[str]] | None = None,
        *,
        frequencies: DocumentFrequencies | None = None,
        allow_missing: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.references = dict(references)
        self.suite = Suite.probe(metrics)
        for name, reason in self.suite.absent.items():
            raise MetricUnavailable(f"{name}: {reason}")
        self.frequencies = frequencies
        self.allow_missing = allow_missing
        self._tokenize = tokenize
        self._tokens: dict[ImageKey, list[str]] | None = None
        # Captions as bytes: tensors are what torchmetrics gathers, on any device.
        self.add_state("payload", default=[], dist_reduce_fx="cat")

    def update(self, image_ids: Sequence[ImageKey], captions: Sequence[str]) -> None:
        """Take a batch.

        Args:
            image_ids: Ids of the pictures, numbers or texts.
            captions: Caption of each.

        Raises:
            ValueError: The two differ in length.
        """
        if len(image_ids) != len(captions):
            raise ValueError(
                f"image_ids and captions must be equally long, got {len(image_ids)} and "
                f"{len(captions)}"
            )
        lines = "".join(
            f"{json.dumps([image_id, caption])}\n"
            for image_id, caption in zip(image_ids, captions, strict=True)
        )
        if lines:
            data = bytearray(lines, "ascii")
            self.payload.append(torch.frombuffer(data, dtype=torch.uint8).to(self.device))

    def captions(self) -> dict[ImageKey, str]:
        """The captions so far of all processes, one of each picture, in the order of the ids.

        Every process has to call this together.
        """
        with self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=not self._is_synced,
            should_unsync=not self._is_synced,
        ):
            return self._merge()

    def score(self, captions: Mapping[ImageKey, str]) -> dict[str, Score]:
        """Score captions that were gathered, with the scores of single pictures.

        Args:
            captions: What ``captions`` gave.

        Raises:
            ValueError: Pictures without a caption, or captions of pictures without references.
            MetricUnavailable: A metric cannot be computed on this machine, or its tool failed.
        """
        missing = sorted(set(self.references) - set(captions), key=str)
        unknown = sorted(set(captions) - set(self.references), key=str)
        if (missing and not self.allow_missing) or unknown or not captions:
            raise ValueError(
                f"captions of {len(captions):,} pictures do not cover the "
                f"{len(self.references):,} that have references: {_name('missing', missing)}; "
                f"{_name('unknown', unknown)}"
            )
        tokenize = self._tokenizer()
        if self._tokens is None:
            self._tokens = {
                key: [" ".join(tokenize(text)) for text in texts]
                for key, texts in self.references.items()
            }
        frequencies = self.frequencies
        if frequencies is None and missing and "CIDEr" in self.suite.metrics:
            # Counted over a part, n-grams would weigh otherwise than in the whole set.
            frequencies = DocumentFrequencies.count(self._tokens.values())
        scores, absent = self.suite.score(
            {key: " ".join(tokenize(text)) for key, text in captions.items()},
            {key: self._tokens[key] for key in captions},
            frequencies,
        )
        for name, reason in absent.items():
            raise MetricUnavailable(f"{name}: {reason}")
        return scores

    def compute(self) -> dict[str, Tensor]:
        """Corpus scores by name, unscaled; NaN where a score is undefined."""
        scores = self.score(self._merge())
        return {
            name: torch.tensor(score.corpus, dtype=torch.float64, device=self.device)
            if self.device.type != "mps"
            else torch.tensor(score.corpus)
            for name, score in scores.items()
        }

    def _merge(self) -> dict[ImageKey, str]:
        captions: dict[ImageKey, str] = {}
        if len(self.payload):
            data = bytes(dim_zero_cat(self.payload).to(torch.uint8).cpu().numpy())
            for line in data.decode("ascii").splitlines():
                image_id, caption = json.loads(line)
                # Rounding differs from batch to batch, so a repeated picture may have got another
                # caption; the first counts.
                captions.setdefault(image_id, caption)
        return {image_id: captions[image_id] for image_id in sorted(captions, key=str)}

    def _tokenizer(self) -> Callable[[str], Sequence[str]]:
        if self._tokenize is not None:
            return self._tokenize
        from captioner.metrics.tokenize_ptb import ptb_tokenize

        return ptb_tokenize

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None
    ) -> None:
        # A process without captions has to send bytes too: torchmetrics would send floats.
        if not self.payload:
            self.payload = [torch.zeros(0, dtype=torch.uint8, device=self.device)]
        super()._sync_dist(dist_sync_fn, process_group)


class _OneScore(CaptionScores):
    """One score alone, as a scalar."""

    _metric: str
    _name: str

    def __init__(
        self,
        references: Mapping[ImageKey, Sequence[str]],
        tokenize: Callable[[str], Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(references, [self._metric], tokenize, **kwargs)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The corpus score, unscaled; NaN where it is undefined."""
        return super().compute()[self._name]


class Bleu(_OneScore):
    """BLEU-1 to BLEU-4 of a split; see ``CaptionScores``.

    Args:
        references: Captions that people wrote.
        tokenize: Makes words of a caption.
        order: Longest n-gram, 1 .. 4.
        **kwargs: As for ``CaptionScores``.
    """

    _metric = "Bleu"

    def __init__(
        self,
        references: Mapping[ImageKey, Sequence[str]],
        tokenize: Callable[[str], Sequence[str]] | None = None,
        *,
        order: int = 4,
        **kwargs: Any,
    ) -> None:
        if order not in (1, 2, 3, 4):
            raise ValueError(f"order must be 1, 2, 3 or 4, got {order}")
        super().__init__(references, tokenize, **kwargs)
        self._name = f"Bleu_{order}"


class RougeL(_OneScore):
    """ROUGE-L of a split; see ``CaptionScores``."""

    _metric = _name = "ROUGE_L"


class Cider(_OneScore):
    """CIDEr-D of a split; see ``CaptionScores``."""

    _metric = _name = "CIDEr"


class Meteor(_OneScore):
    """METEOR of a split; see ``CaptionScores``."""

    _metric = _name = "METEOR"


class Spice(_OneScore):
    """SPICE of a split; see ``CaptionScores``."""

    _metric = _name = "SPICE"


def _name(what: str, ids: Sequence[ImageKey]) -> str:
    shown = ", ".join(str(i) for i in ids[:_EXAMPLES])
    more = ", ..." if len(ids) > _EXAMPLES else ""
    return f"{len(ids):,} {what}" + (f" ({shown}{more})" if ids else "")
