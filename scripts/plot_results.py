"""Several models on the same pictures: a Markdown table and a plot with 95 % intervals.

    python scripts/plot_results.py data/flickr8k/Flickr8k.token.txt --split test \
        "no attention=runs/mean/results.json" "soft attention=runs/sat/results.json" \
        --output comparison.svg

The table goes to stdout: every score x100 with its interval, and how probable a difference as
large as that in CIDEr and METEOR to the first model is by chance (paired bootstrap, two-sided).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from captioner.evaluation.compare import Comparison, compare
from captioner.evaluation.evaluate import Bootstrap
from captioner.evaluation.inputs import InputError, load_inputs
from captioner.metrics.suite import Suite

SHOWN = ("Bleu_4", "METEOR", "ROUGE_L", "CIDEr")
TESTED = ("CIDEr", "METEOR")
TITLES = {"Bleu_4": "BLEU-4", "ROUGE_L": "ROUGE-L"}


def parse_model(text: str) -> tuple[str, Path]:
    """``NAME=FILE`` as both.

    >>> parse_model("soft attention=sat.json")
    ('soft attention', PosixPath('sat.json'))
    """
    name, found, path = text.partition("=")
    if not (found and name and path):
        raise argparse.ArgumentTypeError(f"must be NAME=FILE, got {text!r}")
    return name, Path(path)


def table(comparisons: Mapping[str, Comparison], metrics: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown; the first comparison is the first model with itself."""
    tested = [name for name in TESTED if name in metrics]
    titles = [TITLES.get(name, name) for name in metrics]
    columns = ["model", *titles, *(f"p, {TITLES.get(name, name)}" for name in tested)]
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for number, (model, comparison) in enumerate(comparisons.items()):
        evaluation = comparison.second
        cells = [model]
        for name in metrics:
            interval = evaluation.intervals.get(name)
            shown = "" if interval is None else f" ({_x100(interval.low)}..{_x100(interval.high)})"
            cells.append(f"{_x100(evaluation.scores[name].corpus)}{shown}")
        for name in tested:
            difference = comparison.differences.get(name)
            cells.append("" if number == 0 or difference is None else f"{difference.p_value:.3f}")
        yield f"| {' | '.join(cells)} |"


def plot(comparisons: Mapping[str, Comparison], metrics: Sequence[str], path: Path) -> None:
    """A point and its interval for every model, one panel a metric."""
    models = list(comparisons)
    with plt.rc_context({"font.size": 9, "svg.hashsalt": "captioner", "svg.fonttype": "none"}):
        figure, panels = plt.subplots(
            1,
            len(metrics),
            figsize=(2.1 * len(metrics) + 1.2, 0.42 * len(models) + 0.9),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for panel, name in zip(panels[0], metrics, strict=True):
            for row, comparison in enumerate(comparisons.values()):
                score = 100 * comparison.second.scores[name].corpus
                interval = comparison.second.intervals.get(name)
                if interval is not None:
                    ends = [100 * interval.low, 100 * interval.high]
                    panel.plot(ends, [row, row], color=f"C{row}", linewidth=2, alpha=0.6)
                panel.plot([score], [row], "o", color=f"C{row}", markersize=6)
                panel.annotate(
                    f"{score:.1f}", (score, row), (0, 6), textcoords="offset points", ha="center"
                )
            panel.set_title(TITLES.get(name, name), fontsize=9)
            panel.margins(x=0.15)
            panel.grid(axis="x", alpha=0.3)
            panel.spines[["top", "right", "left"]].set_visible(False)
            panel.tick_params(axis="y", length=0)
        panels[0][0].set_yticks(range(len(models)), models)
        panels[0][0].set_ylim(len(models) - 0.5, -0.7)
        # Without a date, so that the same results give the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, metadata=metadata)
        plt.close(figure)


def _x100(value: float) -> str:
    return f"{100 * value:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Score, tabulate and plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("annotations", type=Path, help="what people wrote")
    parser.add_argument("models", nargs="+", type=parse_model, metavar="NAME=FILE")
    parser.add_argument("--split", help="part of the annotations")
    parser.add_argument("--metrics", nargs="+", default=list(SHOWN), choices=SHOWN)
    parser.add_argument("--output", type=Path, help="where the plot goes, .svg, .png or .pdf")
    parser.add_argument("--replicates", type=int, default=Bootstrap().replicates)
    options = parser.parse_args(arguments)
    if len(dict(options.models)) < len(options.models):
        parser.error("two models have the same name; give each a name of its own")
    wanted = ["Bleu" if name.startswith("Bleu") else name for name in options.metrics]
    suite = Suite.probe(wanted)
    for name, reason in suite.absent.items():
        parser.error(f"{name} cannot be computed here: {reason}; leave it out with --metrics")
    try:
        inputs = [
            load_inputs(path, options.annotations, split=options.split)
            for _, path in options.models
        ]
        bootstrap = Bootstrap(replicates=options.replicates)
        comparisons = {
            name: compare(inputs[0], other, suite, bootstrap=bootstrap)
            for (name, _), other in zip(options.models, inputs, strict=True)
        }
    except (OSError, ValueError, InputError) as error:
        parser.error(str(error))
    sys.stdout.write("\n".join(table(comparisons, options.metrics)) + "\n")
    if options.output is not None:
        plot(comparisons, options.metrics, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
