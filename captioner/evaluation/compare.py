"""Two results files on the same pictures: which is better, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from captioner.evaluation.evaluate import (
    TOKENIZER,
    Bootstrap,
    Evaluation,
    evaluate,
    tokenize_references,
)
from captioner.evaluation.inputs import InputError, Inputs
from captioner.metrics.bootstrap import Difference, paired_bootstrap
from captioner.metrics.document_frequencies import DocumentFrequencies
from captioner.metrics.suite import Suite


@dataclass(frozen=True)
class Comparison:
    """Scores of two systems on the same pictures.

    Args:
        first: Evaluation of A.
        second: Evaluation of B.
        differences: B - A by score; None where it is undefined.
    """

    first: Evaluation
    second: Evaluation
    differences: Mapping[str, Difference | None]

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values, unscaled."""
        return {
            "format": 1,
            "a": self.first.to_dict(),
            "b": self.second.to_dict(),
            "differences": {
                name: None if found is None else asdict(found)
                for name, found in self.differences.items()
            },
            "bootstrap": asdict(self.first.bootstrap),
            "tokenizer": TOKENIZER,
        }


def compare(
    first: Inputs,
    second: Inputs,
    suite: Suite | None = None,
    *,
    frequencies: DocumentFrequencies | None = None,
    frequencies_name: str = "a file",
    bootstrap: Bootstrap | None = None,
) -> Comparison:
    """Compare two systems by a paired bootstrap over pictures.

    Args:
        first: Captions of A and references.
        second: Captions of B and the same references.
        suite: Metrics to compute; all that can be computed here by default.
        frequencies: CIDEr's document frequencies; those of all references by default.
        frequencies_name: Where they come from.
        bootstrap: How resamples are drawn.

    Raises:
        ValueError: The two are held to different references.
        InputError: The two have no picture in common.
    """
    if first.references != second.references:
        raise ValueError("A and B must be held to the same references; give one annotations file")
    suite = suite or Suite.probe()
    bootstrap = bootstrap or Bootstrap()
    common = [key for key in first.hypotheses if key in second.hypotheses]
    if not common:
        raise InputError([f"{first.results} and {second.results} have no picture in common"])
    references = tokenize_references(first.references)
    one, other = (
        evaluate(
            replace(inputs, hypotheses={key: inputs.hypotheses[key] for key in common}),
            suite,
            frequencies=frequencies,
            frequencies_name=frequencies_name,
            bootstrap=bootstrap,
            references=references,
        )
        for inputs in (first, second)
    )
    differences = paired_bootstrap(
        one.scores, other.scores, bootstrap.replicates, bootstrap.seed, bootstrap.level
    )
    return Comparison(one, other, differences)
