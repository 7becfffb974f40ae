"""Score a results file: every metric with its interval, diversity, and what to know beside them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from captioner.evaluation.inputs import Inputs, Problem
from captioner.metrics.bootstrap import REPLICATES, Interval, bootstrap_intervals
from captioner.metrics.diversity import Diversity, diversity
from captioner.metrics.document_frequencies import DocumentFrequencies
from captioner.metrics.score import Score
from captioner.metrics.suite import SCORE_NAMES, Suite
from captioner.metrics.tokenize_ptb import PTB_TOKENIZER_NAME, ptb_tokenize_captions

FORMAT = 1
"""Number of the layout of ``metrics.json``."""

TOKENIZER = PTB_TOKENIZER_NAME
"""Name of the tokenizer, equal to coco-caption's, that captions and references pass through."""

_EXAMPLES = 5


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn.

    Args:
        replicates: Resamples of the pictures.
        seed: The same seed gives the same intervals.
        level: Share of the resamples inside an interval.
    """

    replicates: int = REPLICATES
    seed: int = 0
    level: float = 0.95


@dataclass(frozen=True)
class Evaluation:
    """All that is known about one results file.

    Args:
        inputs: Captions and references as their files say them.
        tokens: Tokenised caption of each picture.
        scores: Scores by name, in COCO's order.
        intervals: Interval of each score; None where there is none.
        absent: Metrics that could not be computed, and why.
        diversity: How varied the captions are.
        frequencies: Where CIDEr's document frequencies come from.
        bootstrap: How the intervals were drawn.
    """

    inputs: Inputs
    tokens: Mapping[str, str]
    scores: Mapping[str, Score]
    intervals: Mapping[str, Interval | None]
    absent: Mapping[str, str]
    diversity: Diversity
    frequencies: str
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @property
    def num_references(self) -> int:
        """References of the pictures that are scored."""
        return sum(map(len, self.inputs.scored_references.values()))

    @property
    def ranking(self) -> str | None:
        """The score that pictures are best ordered by, None if none is defined."""
        names = ("CIDEr", "METEOR", "ROUGE_L", "SPICE", "Bleu_4", "Bleu_1")
        return next(
            (name for name in names if name in self.scores and self.scores[name].defined), None
        )

    def to_dict(self) -> dict[str, Any]:
        """What ``metrics.json`` holds."""
        return {
            **scores_to_dict(self.scores, self.intervals, self.absent),
            "pictures": len(self.inputs.hypotheses),
            "references": self.num_references,
            "complete": self.inputs.complete,
            "pictures_in_annotations": len(self.inputs.references),
            "tokenizer": TOKENIZER,
            "document_frequencies": self.frequencies,
            "bootstrap": asdict(self.bootstrap),
            "diversity": asdict(self.diversity),
            "inputs": {problem.kind: problem.to_dict() for problem in self.inputs.problems},
            "results": self.inputs.results,
            "annotations": self.inputs.annotations,
            "split": self.inputs.split,
        }


def scores_to_dict(
    scores: Mapping[str, Score],
    intervals: Mapping[str, Interval | None],
    absent: Mapping[str, str],
) -> dict[str, Any]:
    """The part of ``metrics.json`` that holds the scores, unscaled.

    Args:
        scores: Scores by name.
        intervals: Their intervals.
        absent: Metrics that could not be computed, and why.

    Returns:
        ``format``, ``scores`` (name -> ``value``, ``low``, ``high``; ``value`` is null with a
        ``reason`` where it is undefined) and ``absent`` (name -> reason), as JSON values.
    """
    values: dict[str, dict[str, object]] = {}
    for name, score in scores.items():
        interval = intervals.get(name)
        values[name] = {
            "value": score.corpus if score.defined else None,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
        }
        if score.reason is not None:
            values[name]["reason"] = score.reason
    return {"format": FORMAT, "scores": values, "absent": dict(absent)}


def tokenize_captions(captions: Iterable[str]) -> list[str]:
    """Captions as coco-caption's PTB tokenizer leaves them, words parted by single spaces."""
    # Models repeat themselves, so many captions are looked up and not made again.
    captions = list(captions)
    distinct = list(dict.fromkeys(captions))
    tokens = dict(zip(distinct, ptb_tokenize_captions(distinct), strict=True))
    return [tokens[caption] for caption in captions]


def tokenize_references(references: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """References of each picture, tokenised."""
    flat = iter(
        tokenize_captions(caption for captions in references.values() for caption in captions)
    )
    return {key: [next(flat) for _ in captions] for key, captions in references.items()}


def evaluate(
    inputs: Inputs,
    suite: Suite | None = None,
    *,
    frequencies: DocumentFrequencies | None = None,
    frequencies_name: str = "a file",
    training: Mapping[str, Sequence[str]] | None = None,
    bootstrap: Bootstrap | None = None,
    references: Mapping[str, Sequence[str]] | None = None,
) -> Evaluation:
    """Score captions against references.

    Args:
        inputs: Captions and references.
        suite: Metrics to compute; all that can be computed here by default.
        frequencies: CIDEr's document frequencies; those of all references by default, also of
            pictures that have no caption.
        frequencies_name: Where they come from.
        training: Captions that the model learned from, by picture.
        bootstrap: How the intervals are drawn.
        references: ``inputs.references`` tokenised, where that is done already.
    """
    suite = suite or Suite.probe()
    bootstrap = bootstrap or Bootstrap()
    hypotheses = dict(
        zip(inputs.hypotheses, tokenize_captions(inputs.hypotheses.values()), strict=True)
    )
    everything = references or tokenize_references(inputs.references)
    num = len(hypotheses)
    source = f"the references of {f'these {num:,} pictures' if num > 1 else 'this picture'}"
    if frequencies is not None:
        source = f"{frequencies_name} ({frequencies.num_pictures:,} pictures)"
    elif not inputs.complete and "CIDEr" in suite.metrics:
        # Counted over a part, n-grams would weigh otherwise than in the whole set.
        frequencies = DocumentFrequencies.count(everything.values(), TOKENIZER)
        source = f"the references of all {len(everything):,} pictures of {inputs.annotations}"
    scores, absent = suite.score(
        hypotheses, {key: everything[key] for key in hypotheses}, frequencies
    )
    if training is not None:
        inputs = _with_leaks(inputs, training)
    return Evaluation(
        inputs=inputs,
        tokens=hypotheses,
        scores=scores,
        intervals=bootstrap_intervals(
            scores, bootstrap.replicates, bootstrap.seed, bootstrap.level
        ),
        absent=absent,
        diversity=diversity(
            list(hypotheses.values()),
            None
            if training is None
            else tokenize_captions(c for captions in training.values() for c in captions),
        ),
        frequencies=source,
        bootstrap=bootstrap,
    )


def _with_leaks(inputs: Inputs, training: Mapping[str, Sequence[str]]) -> Inputs:
    """The inputs with a note on pictures that the model has been trained on."""
    seen = [key for key in inputs.hypotheses if key in training]
    if not seen:
        return inputs
    problem = Problem(
        "in_training",
        f"{len(seen):,} of the scored pictures are also in the training captions",
        len(seen),
        tuple(seen[:_EXAMPLES]),
    )
    values = {name: getattr(inputs, name) for name in inputs.__dataclass_fields__}
    return Inputs(**{**values, "problems": (*inputs.problems, problem)})


def per_image_csv(evaluation: Evaluation) -> str:
    """The scores of every picture as a table, unscaled; an undefined score is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [name for name in SCORE_NAMES if name in evaluation.scores]
    writer.writerow(("image_id", "caption", "tokens", "words", "references", *names))
    columns = [evaluation.scores[name].per_image for name in names]
    for key, caption in evaluation.inputs.hypotheses.items():
        tokens = evaluation.tokens[key]
        values = [column[key] for column in columns]
        writer.writerow(
            (
                key,
                caption,
                tokens,
                len(tokens.split()),
                len(evaluation.inputs.references[key]),
                *("" if math.isnan(value) else repr(value) for value in values),
            )
        )
    return file.getvalue()


def load_training(path: str | Path, split: str | None = None) -> dict[str, list[str]]:
    """Captions that a model learned from, by picture."""
    from captioner.evaluation.inputs import load_references

    return load_references(path, split)
