"""Several metrics at once, under the names that COCO gives them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from captioner.metrics.bleu import bleu_from_matches
from captioner.metrics.cider import cider_from_matches
from captioner.metrics.document_frequencies import DocumentFrequencies, cider_with_frequencies
from captioner.metrics.ngrams import ReferenceNgrams
from captioner.metrics.rouge import rouge_l
from captioner.metrics.score import KeyT, MetricUnavailable, Score, check_ids
from captioner.metrics.spice import SpiceOptions, SpiceTool, probe_spice, run_spice

METRICS = ("Bleu", "ROUGE_L", "CIDEr")
"""What ``score_captions`` can compute; ``Bleu`` gives ``Bleu_1`` to ``Bleu_4``."""

ALL_METRICS = ("Bleu", "METEOR", "ROUGE_L", "CIDEr", "SPICE")
"""Also those that need data or a tool of their own."""

SCORE_NAMES = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "SPICE")
"""Every score that ``Suite`` can give, in COCO's order."""

_logger = logging.getLogger(__name__)


def score_captions(
    hypotheses: Mapping[KeyT, str],
    references: Mapping[KeyT, Sequence[str]],
    metrics: Sequence[str] = METRICS,
) -> dict[str, Score]:
    """Score tokenised captions.

    Args:
        hypotheses: Tokenised caption of each picture, words parted by single spaces.
        references: Tokenised captions that people wrote, at least one for each picture; tokenise
            both sides in the same way.
        metrics: Names out of ``METRICS``.

    Returns:
        Scores by name, ``Bleu_1`` to ``Bleu_4``, ``ROUGE_L``, ``CIDEr``, unscaled as coco-caption
        gives them. A score that is undefined is NaN and carries the reason.

    Raises:
        ValueError: An unknown metric, ids that differ between the sides, or a picture without
            references.

    >>> scores = score_captions(
    ...     {1: "a dog runs", 2: "two cats"}, {1: ["a dog runs"], 2: ["two cats sleep"]}
    ... )
    >>> round(scores["ROUGE_L"].corpus, 4)
    0.8861
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown or isinstance(metrics, str):
        raise ValueError(f"metrics must be names out of {', '.join(METRICS)}, got {metrics!r}")
    keys = check_ids(hypotheses, references)
    scores: dict[str, Score] = {}
    if "Bleu" in metrics or "CIDEr" in metrics:
        index = ReferenceNgrams([references[key] for key in keys])
        lengths, matches = index.match([hypotheses[key] for key in keys], np.arange(len(keys)))
        if "Bleu" in metrics:
            for order, score in enumerate(bleu_from_matches(keys, index, lengths, matches), 1):
                scores[f"Bleu_{order}"] = score
    if "ROUGE_L" in metrics:
        scores["ROUGE_L"] = rouge_l(hypotheses, references)
    if "CIDEr" in metrics:
        scores["CIDEr"] = cider_from_matches(keys, index, lengths, matches)
    for name, score in scores.items():
        if score.reason is not None:
            _logger.warning("%s is undefined: %s", name, score.reason)
    return scores


@dataclass(frozen=True)
class Suite:
    """Metrics that were looked for before anything is computed.

    Args:
        metrics: Those that can be computed here, out of ``ALL_METRICS``.
        absent: Why the others cannot.
        spice: SPICE's tool, where it can be run.
    """

    metrics: tuple[str, ...]
    absent: Mapping[str, str]
    spice: SpiceTool | None = None

    @classmethod
    def probe(
        cls, metrics: Sequence[str] = ALL_METRICS, spice: SpiceOptions | None = None
    ) -> Suite:
        """Find out which of the metrics can be computed on this machine.

        Args:
            metrics: Names out of ``ALL_METRICS``.
            spice: How SPICE's tool is to be run.

        Raises:
            ValueError: An unknown metric.
        """
        unknown = [name for name in metrics if name not in ALL_METRICS]
        if unknown or isinstance(metrics, str) or not metrics:
            raise ValueError(
                f"metrics must be names out of {', '.join(ALL_METRICS)}, got {metrics!r}"
            )
        absent: dict[str, str] = {}
        tool = None
        for name in metrics:
            try:
                if name == "SPICE":
                    tool = probe_spice(spice)
                elif name == "METEOR":
                    from captioner.metrics.meteor import meteor_unavailable

                    if (reason := meteor_unavailable()) is not None:
                        absent[name] = reason
            except MetricUnavailable as error:
                absent[name] = str(error)
        chosen = tuple(name for name in ALL_METRICS if name in metrics and name not in absent)
        return cls(chosen, absent, tool)

    def score(
        self,
        hypotheses: Mapping[KeyT, str],
        references: Mapping[KeyT, Sequence[str]],
        frequencies: DocumentFrequencies | None = None,
    ) -> tuple[dict[str, Score], dict[str, str]]:
        """Score tokenised captions with every metric that can be computed.

        A metric whose tool fails is left out with the reason; the others are not touched.

        Args:
            hypotheses: Tokenised caption of each picture, words parted by single spaces.
            references: Tokenised captions that people wrote, at least one for each picture.
            frequencies: CIDEr's document frequencies; those of ``references`` by default.

        Returns:
            Scores in the order of ``SCORE_NAMES``, and metrics that are absent with the reason.

        Raises:
            ValueError: Ids that differ between the sides, or a picture without references.
        """
        plain = [name for name in self.metrics if name in METRICS]
        if frequencies is not None and "CIDEr" in plain:
            plain.remove("CIDEr")
        scores = score_captions(hypotheses, references, plain)
        absent = dict(self.absent)
        if frequencies is not None and "CIDEr" in self.metrics:
            scores["CIDEr"] = cider_with_frequencies(hypotheses, references, frequencies)
        if "METEOR" in self.metrics:
            from captioner.metrics.meteor import meteor

            try:
                scores["METEOR"] = meteor(hypotheses, references)
            except MetricUnavailable as error:
                absent["METEOR"] = str(error)
        if self.spice is not None:
            try:
                scores["SPICE"] = run_spice(self.spice, hypotheses, references)
            except (MetricUnavailable, OSError) as error:
                absent["SPICE"] = str(error)
        return {name: scores[name] for name in SCORE_NAMES if name in scores}, absent
