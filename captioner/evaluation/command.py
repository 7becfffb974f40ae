"""What ``captioner evaluate`` and ``captioner compare`` do, without their command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from captioner.evaluation.compare import compare
from captioner.evaluation.evaluate import (
    TOKENIZER,
    Bootstrap,
    evaluate,
    load_training,
    per_image_csv,
    tokenize_references,
)
from captioner.evaluation.inputs import Inputs, load_inputs
from captioner.evaluation.tables import comparison_table, evaluation_table
from captioner.files import write_whole
from captioner.metrics.document_frequencies import DocumentFrequencies
from captioner.metrics.spice import SpiceOptions
from captioner.metrics.suite import ALL_METRICS, SCORE_NAMES, Suite

METRICS_FILE = "metrics.json"
PER_IMAGE_FILE = "per_image.csv"
REPORT_FILE = "report.html"
COMPARISON_FILE = "comparison.json"

Note = Callable[[str], None]
"""Takes a line that is for the user and not part of the result."""


@dataclass(frozen=True)
class Settings:
    """Options that both commands share.

    Args:
        split: Part of the annotations.
        metrics: Metrics that were asked for by name; None for all that can be computed.
        allow_missing: Score the pictures that have a caption.
        df: File of document frequencies.
        output: Folder for the files.
        bootstrap: How intervals are drawn.
        spice: How SPICE's tool is run.
    """

    split: str | None = None
    metrics: Sequence[str] | None = None
    allow_missing: bool = False
    df: str | None = None
    output: str | None = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    spice: SpiceOptions = field(default_factory=SpiceOptions)


def metric_name(text: str) -> str:
    """The metric that a word of the user means, whatever its case.

    Raises:
        ValueError: There is no such metric.
    """
    wanted = text.lower().replace("-", "_")
    for name in ALL_METRICS:
        if wanted == name.lower() or (name == "Bleu" and wanted in _BLEU):
            return name
    raise ValueError(f"metrics must be names out of {', '.join(ALL_METRICS)}, got {text!r}")


_BLEU = {name.lower() for name in SCORE_NAMES if name.startswith("Bleu")}


def run_evaluate(
    results: str,
    annotations: str,
    settings: Settings,
    note: Note,
    *,
    save_df: str | None = None,
    train_annotations: str | None = None,
    train_split: str | None = None,
    pictures: str | None = None,
) -> tuple[str, int]:
    """Score a results file and write what was asked for.

    Args:
        results: Captions of a model.
        annotations: What people wrote.
        settings: Options.
        note: Told what is odd about the inputs, and of absent metrics before they are missed.
        save_df: File to write the document frequencies of all references to.
        train_annotations: Captions that the model learned from.
        train_split: Part of them.
        pictures: Folder of the pictures, for the report.

    Returns:
        The table, and the exit status: 1 where a metric that was asked for by name is absent.

    Raises:
        InputError: Captions are missing or contradict each other.
        FileNotFoundError: A file is not there.
        ValueError: A file cannot be read.
    """
    if pictures is not None and settings.output is None:
        raise ValueError("--pictures is for the report; say where it goes: --output DIR")
    if train_annotations is None and train_split is not None:
        raise ValueError("--train-split is a part of --train-annotations FILE; give that too")
    suite = _probe(settings, note)
    frequencies = None if settings.df is None else DocumentFrequencies.load(settings.df, TOKENIZER)
    inputs = load_inputs(
        results, annotations, split=settings.split, allow_missing=settings.allow_missing
    )
    _tell(inputs, note)
    training = None
    if train_annotations is not None:
        same = Path(train_annotations).resolve() == Path(annotations).resolve()
        if same and train_split is None:
            raise ValueError(
                "--train-annotations is the file that is scored against; say which part of it is "
                "for training, such as --train-split train"
            )
        training = load_training(train_annotations, train_split)
    found = None
    if pictures is not None:
        from captioner.evaluation.report import find_pictures

        found = find_pictures(pictures, list(inputs.hypotheses))
        if len(found) < len(inputs.hypotheses):
            num = len(inputs.hypotheses)
            note(f"note: {num - len(found):,} of {num:,} scored pictures are not below {pictures}")
    # Before the work, so that a folder that cannot be made does not cost it.
    folder = None if settings.output is None else Path(settings.output)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    references = tokenize_references(inputs.references)
    if save_df is not None:
        DocumentFrequencies.count(references.values(), TOKENIZER).save(save_df)
    evaluation = evaluate(
        inputs,
        suite,
        frequencies=frequencies,
        frequencies_name=Path(settings.df or "").name,
        training=training,
        bootstrap=settings.bootstrap,
        references=references,
    )
    for problem in evaluation.inputs.problems[len(inputs.problems) :]:
        note(f"note: {problem.to_text()}")
    for name in evaluation.absent.keys() - suite.absent.keys():
        note(f"{name} is absent: {evaluation.absent[name]}")
    if folder is not None:
        from captioner.evaluation.report import build_report

        write_whole(folder / METRICS_FILE, _json(evaluation.to_dict()))
        write_whole(folder / PER_IMAGE_FILE, per_image_csv(evaluation))
        write_whole(folder / REPORT_FILE, build_report(evaluation, found))
    missed = set(settings.metrics or ()) & set(evaluation.absent)
    return evaluation_table(evaluation), 1 if missed else 0


def run_compare(
    first: str, second: str, annotations: str, settings: Settings, note: Note
) -> tuple[str, int]:
    """Compare two results files.

    Args:
        first: Captions of A.
        second: Captions of B.
        annotations: What people wrote.
        settings: Options.
        note: Told what is odd about the inputs.

    Returns:
        The table, and the exit status: 1 where a metric that was asked for by name is absent.

    Raises:
        InputError: Captions are missing or contradict each other.
        FileNotFoundError: A file is not there.
        ValueError: A file cannot be read.
    """
    suite = _probe(settings, note)
    frequencies = None if settings.df is None else DocumentFrequencies.load(settings.df, TOKENIZER)
    one, other = (
        load_inputs(path, annotations, split=settings.split, allow_missing=settings.allow_missing)
        for path in (first, second)
    )
    for inputs in (one, other):
        _tell(inputs, lambda line, name=inputs.results: note(f"{name}: {line}"))  # type: ignore[misc]
    folder = None if settings.output is None else Path(settings.output)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    comparison = compare(
        one,
        other,
        suite,
        frequencies=frequencies,
        frequencies_name=Path(settings.df or "").name,
        bootstrap=settings.bootstrap,
    )
    if folder is not None:
        write_whole(folder / COMPARISON_FILE, _json(comparison.to_dict()))
    absent = {**comparison.first.absent, **comparison.second.absent}
    missed = set(settings.metrics or ()) & set(absent)
    return comparison_table(comparison), 1 if missed else 0


def _probe(settings: Settings, note: Note) -> Suite:
    suite = Suite.probe(settings.metrics or ALL_METRICS, settings.spice)
    for name, reason in suite.absent.items():
        note(f"{name} is absent: {reason}")
    return suite


def _tell(inputs: Inputs, note: Note) -> None:
    for problem in inputs.problems:
        note(f"note: {problem.to_text()}")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
