"""The ``captioner`` command: hands training to Lightning's CLI and the rest to plain functions.

Nothing heavy is imported before a sub-command needs it, so that ``--help`` is quick.

Exit status: 0 when all went well, 1 when something (a picture, say) could not be done, 2 for
wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from captioner import __version__
from captioner.allocator import keep_freed_memory

if TYPE_CHECKING:
    from captioner.inference.captioner import PictureCaptions
    from captioner.types import CaptionResult, ImageId

TRAINING_COMMANDS = ("fit", "validate", "test", "predict")
DEFAULT_MODEL = "sat-flickr8k"

_EPILOG = """\
training (options: captioner fit --help)
  captioner fit -c CONFIG.yaml ...       train a model
  captioner validate|test -c CONFIG ...  score a checkpoint (--ckpt_path)
  captioner predict -c CONFIG ...        caption a split

`captioner COMMAND --help` describes a command.
"""

_COCO_NAME = re.compile(r"(?:COCO_(?:train|val|test)20\d\d_)?(\d{12})\.jpg", re.IGNORECASE)


class _UsageError(Exception):
    """Wrong arguments that only show once something was read."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments after the program's name; the process's own by default.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _use_utf8()
    try:
        if arguments and arguments[0] in TRAINING_COMMANDS:
            return _run_training(arguments)
        parser = _build_parser()
        options, rest = parser.parse_known_args(arguments)
        if rest and not getattr(options, "takes_overrides", False):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        options.rest = rest
        _configure_logging()
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except _UsageError as error:
        return _fail(str(error), 2)
    except (FileNotFoundError, FileExistsError, ValueError, ImportError) as error:
        return _fail(_one_line(error), 2)
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(_one_line(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1 if stop.code else 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="captioner",
        description="Captions for pictures, with a map of what was looked at for every word.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"captioner {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_caption(commands)
    _add_export(commands)
    _add_demo(commands)
    _add_data(commands)
    _add_evaluate(commands)
    _add_compare(commands)
    return parser


# caption


def _add_caption(commands: Any) -> None:
    parser = commands.add_parser(
        "caption",
        help="caption pictures",
        description="Caption pictures. A folder stands for every picture below it, in name order.",
        allow_abbrev=False,
    )
    parser.add_argument("pictures", nargs="+", metavar="PICTURE|FOLDER")
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME|DIR",
        help="a model that ships, an exported folder or a checkpoint; given again, the models "
        f"caption together by the mean of their probabilities (default: {DEFAULT_MODEL})",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl", "coco"),
        default="text",
        help="text: path, tab, caption; jsonl: one object a line; coco: a results JSON",
    )
    parser.add_argument(
        "--attention",
        metavar="DIR",
        help="write the maps of every picture to DIR: NAME.EXT.png (figure), NAME.EXT.npz (values)",
    )
    _add_decoding(parser)
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--sample", action="store_true", help="draw words at random")
    sampling.add_argument("--temperature", type=float, metavar="X", help="below 1 is tamer")
    sampling.add_argument("--top-k", type=int, metavar="N", help="draw among the N likeliest words")
    sampling.add_argument(
        "--top-p", type=float, metavar="X", help="draw among the likeliest words of this mass"
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="the same samples every time")
    parser.add_argument(
        "--num-captions",
        type=_positive,
        metavar="N",
        help="captions for each picture: the best beams, or that many samples",
    )
    parser.add_argument("--batch-size", type=_positive, default=16, metavar="N")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.set_defaults(run=_caption)


def _add_decoding(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("beam search (defaults: what was chosen for the model)")
    group.add_argument("--beam-size", type=int, metavar="N", help="1 is greedy")
    group.add_argument("--length-penalty", type=float, metavar="X", help="higher favours longer")
    group.add_argument("--max-length", type=int, metavar="N", help="words at most")


def _caption(options: argparse.Namespace) -> int:
    """Caption pictures as they are named; see HOUSE rules of the command in the README."""
    overrides = _decoding_overrides(options)
    if options.format == "coco" and (options.num_captions or 1) > 1:
        raise _UsageError("--format coco holds one caption per picture; --num-captions must be 1")

    from captioner.data.images import find_images

    try:
        pictures = find_images(options.pictures)
    except FileNotFoundError as error:
        raise _UsageError(str(error)) from error
    if options.format == "coco":
        _check_unique([_image_id(path) for path in pictures], "id", "--format coco")
    attention = None if options.attention is None else Path(options.attention)
    if attention is not None:
        _check_attention_targets(attention, pictures)

    from captioner.inference.captioner import Captioner

    keep_freed_memory()
    models = options.model or [DEFAULT_MODEL]
    source = models if len(models) > 1 else models[0]
    captioner = Captioner.load(source, device=options.device)
    described = captioner.describe(
        pictures, batch_size=options.batch_size, seed=options.seed, **overrides
    )
    if attention is not None:
        attention.mkdir(parents=True, exist_ok=True)
    failed = 0
    results: list[dict[str, object]] = []
    from tqdm import tqdm

    with tqdm(total=len(pictures), unit="picture", disable=None, leave=False) as bar:
        for path, item in zip(pictures, described, strict=True):
            bar.update()
            if item.error is not None:
                failed += 1
                with bar.external_write_mode(file=sys.stderr):
                    print(f"captioner: {_one_line(item.error)}", file=sys.stderr)
                continue
            if attention is not None:
                _write_attention(attention, path, item)
            if options.format == "coco":
                results.append({"image_id": _image_id(path), "caption": item.captions[0].text})
                continue
            with bar.external_write_mode(file=sys.stdout):
                for caption in item.captions:
                    print(_format(path, caption, options.format), flush=True)
    if options.format == "coco":
        print(_to_json(results))
    if failed:
        print(f"captioner: {failed} of {len(pictures)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def _decoding_overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The decoding options that the arguments set."""
    names = ("beam_size", "length_penalty", "max_length", "num_captions")
    overrides = {n: getattr(options, n, None) for n in names}
    sampling = ("temperature", "top_k", "top_p", "seed")
    if getattr(options, "sample", False):
        for name in ("beam_size", "length_penalty"):
            if overrides[name] is not None:
                raise _UsageError(f"{_flag(name)} has no meaning with --sample; leave one out")
        overrides |= {n: getattr(options, n) for n in sampling if n != "seed"}
        overrides["method"] = "sample"
    else:
        for name in sampling:
            if getattr(options, name, None) is not None:
                raise _UsageError(f"{_flag(name)} needs --sample")
    return {name: value for name, value in overrides.items() if value is not None}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _image_id(path: Path) -> ImageId:
    """COCO's number where the name is one of COCO's, else the file name."""
    match = _COCO_NAME.fullmatch(path.name)
    return int(match[1]) if match else _as_text(path.name)


def _format(path: Path, result: CaptionResult, kind: str) -> str:
    """One line of output."""
    if kind == "text":
        # The line has one tab and one end, whatever the path holds.
        shown = _as_text(path).replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
        return f"{shown}\t{result.text}"
    from captioner.inference.records import caption_record

    return _to_json(caption_record(_as_text(path), result))


def _check_attention_targets(folder: Path, pictures: Sequence[Path]) -> None:
    """Every picture's maps get files of their own, and no picture is overwritten."""
    _check_unique([path.name for path in pictures], "file name", "--attention")
    inputs = {path.resolve() for path in pictures}
    for path in pictures:
        target = (folder / f"{path.name}.png").resolve()
        if target in inputs:
            raise _UsageError(
                f"--attention {folder} would overwrite the picture {target}; give another folder"
            )


def _check_unique(names: Sequence[object], what: str, option: str) -> None:
    repeated = [name for name, count in Counter(str(name) for name in names).items() if count > 1]
    if repeated:
        raise _UsageError(
            f"{option} needs pictures that differ in their {what}, and {len(repeated)} occur more "
            f"than once, such as {repeated[0]}; caption them in separate runs"
        )


def _write_attention(folder: Path, path: Path, item: PictureCaptions) -> None:
    """The figure and the maps of every caption of a picture."""
    import numpy as np

    from captioner.data.images import read_image
    from captioner.inference.overlay import render_figure

    image = read_image(path)
    for i, result in enumerate(item.captions):
        stem = folder / (path.name if i == 0 else f"{path.name}.{i + 1}")
        render_figure(image, result).save(f"{stem}.png")
        np.savez_compressed(
            f"{stem}.npz",
            attention=result.attention,
            words=np.array(result.words, dtype=np.str_),
            word_log_probs=result.word_log_probs,
            crop_box=np.array(result.crop_box),
            image_size=np.array(result.image_size),
            caption=np.array(result.text),
        )


# export


def _add_export(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="turn a checkpoint into a model folder",
        description="Write a Lightning checkpoint as a folder of safetensors and JSON.",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="CKPT")
    parser.add_argument("folder", metavar="DIR", help="its name is the model's name")
    parser.add_argument("--force", action="store_true", help="replace the model that is there")
    parser.add_argument(
        "--average-flip",
        action="store_true",
        help="look at every picture and its mirror image, which takes the encoder twice the time",
    )
    _add_decoding(parser)
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    from captioner.inference.checkpoint import WEIGHTS_FILE, export_model

    try:
        folder = export_model(
            options.checkpoint,
            options.folder,
            decoding=_decoding_overrides(options),
            average_flip=options.average_flip,
            force=options.force,
        )
    except FileExistsError as error:
        return _fail(str(error), 1)
    size = (folder / WEIGHTS_FILE).stat().st_size / 1e6
    print(f"{folder}\t{size:.1f} MB")
    return 0


# demo


def _add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="open the page where pictures are captioned",
        description="Serve the page where pictures are captioned.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        nargs="+",
        action="extend",
        metavar="NAME|DIR",
        help="models to choose from (default: all that ship)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=7860, help="port (default: %(default)s)")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    keep_freed_memory()
    launch = _import_extra("captioner.demo.app", "launch", "demo", ("gradio", "gradio_client"))
    launch(
        options.model,
        host=options.host,
        port=options.port,
        announce=lambda url: print(
            f"captioner: the page is at {url} (stop with Ctrl+C)", flush=True
        ),
    )
    return 0


# data


def _add_data(commands: Any) -> None:
    parser = commands.add_parser(
        "data",
        help="check a data set, build its vocabulary, compute its features",
        description="Prepare a data set.",
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    more = (
        "The data set is described as for `captioner fit`: -c CONFIG.yaml (any number of them) "
        "and options such as --data.batch_size 8."
    )

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Any:
        command = kinds.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. {more}",
            usage=f"captioner data {name} -c CONFIG.yaml ... [options]",
            allow_abbrev=False,
        )
        command.set_defaults(run=run, takes_overrides=True)
        return command

    check = add("check", "read every picture once and list what is wrong", _data_check)
    check.add_argument("--workers", type=_not_negative, default=2, metavar="N")
    vocabulary = add("vocabulary", "build the vocabulary of the training split", _data_vocabulary)
    vocabulary.add_argument("--output", required=True, metavar="FILE", help="vocabulary.json")
    vocabulary.add_argument("--force", action="store_true", help="replace a file that is there")
    features = add("features", "run the frozen encoder over all pictures once", _data_features)
    features.add_argument(
        "--output", metavar="DIR", help="where to write (default: data.features_path)"
    )
    features.add_argument(
        "--views",
        nargs="+",
        metavar="VIEW",
        help="plain comes first (default: plain, flip and data.views)",
    )
    features.add_argument(
        "--precision",
        choices=["32-true", "16-mixed", "bf16-mixed"],
        default="32-true",
        help="how the encoder computes; bf16-mixed is faster on CPUs that have bfloat16",
    )
    features.add_argument("--batch-size", type=_positive, default=32, metavar="N")
    features.add_argument("--num-workers", type=_not_negative, default=0, metavar="N")


def _parse_data(arguments: Sequence[str], *, need_encoder: bool = False) -> tuple[Any, Any]:
    """The data module and the encoder that configurations describe."""
    parse = _import_extra(
        "captioner.training.data_commands", "parse_data", "train", _TRAIN_PACKAGES
    )
    data_module, encoder = parse(list(arguments), need_encoder=need_encoder)
    return data_module, encoder


def _data_check(options: argparse.Namespace) -> int:
    data_module, _ = _parse_data(options.rest)

    from captioner.data.check import check_records

    report = check_records(data_module.records, progress=True, workers=options.workers)
    print(report.to_text())
    return 0 if report.ok else 1


def _data_vocabulary(options: argparse.Namespace) -> int:
    output = Path(options.output)
    if output.exists() and not options.force:
        raise _UsageError(f"{output} is there already; --force replaces it")
    data_module, _ = _parse_data(options.rest)
    vocabulary = data_module.vocabulary
    output.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.save(output)
    print(f"{output}\t{len(vocabulary)} entries")
    return 0


def _data_features(options: argparse.Namespace) -> int:
    keep_freed_memory()
    data_module, encoder = _parse_data(options.rest, need_encoder=True)
    output = options.output or data_module.features_path
    if output is None:
        raise _UsageError("say where the features go: --output DIR or --data.features_path DIR")

    from captioner.training.features import extract_features

    views = options.views or list(dict.fromkeys(("plain", "flip", *data_module.views)))
    data_module.set_normalization(encoder.mean, encoder.std)
    extract_features(
        data_module.records,
        encoder,
        data_module.preprocessing,
        Path(output),
        views=tuple(views),
        batch_size=options.batch_size,
        num_workers=options.num_workers,
        precision=options.precision,
        progress=True,
    )
    print(output)
    return 0


# evaluate, compare


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score a results file against annotations",
        description=(
            "Score captions as coco-caption does, with intervals. RESULTS is a COCO results JSON, "
            "{id: caption}, or the JSON lines of `captioner caption`; ANNOTATIONS is any data set "
            "that trains, or {id: [captions]}. Ids compare as text."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("results", metavar="RESULTS")
    parser.add_argument("annotations", metavar="ANNOTATIONS")
    _add_scoring(parser, "write metrics.json, per_image.csv and report.html to DIR")
    parser.add_argument(
        "--pictures", metavar="DIR", help="where the pictures are, for the report's thumbnails"
    )
    parser.add_argument(
        "--save-df", metavar="FILE", help="keep the references' document frequencies (.json[.gz])"
    )
    parser.add_argument(
        "--train-annotations",
        metavar="FILE",
        help="what the model learned from: tells which captions are copies",
    )
    parser.add_argument("--train-split", metavar="S", help="part of --train-annotations")
    parser.set_defaults(run=_evaluate)


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="tell which of two results files is better, and how sure that is",
        description="Compare two results files on the same pictures (paired bootstrap).",
        allow_abbrev=False,
    )
    parser.add_argument("first", metavar="A")
    parser.add_argument("second", metavar="B")
    parser.add_argument("annotations", metavar="ANNOTATIONS")
    _add_scoring(parser, "write comparison.json to DIR")
    parser.set_defaults(run=_compare)


def _add_scoring(parser: argparse.ArgumentParser, output: str) -> None:
    parser.add_argument("--split", metavar="S", help="part of the annotations, such as test")
    parser.add_argument("--output", metavar="DIR", help=output)
    parser.add_argument(
        "--metrics",
        nargs="+",
        metavar="NAME",
        help="Bleu METEOR ROUGE_L CIDEr SPICE (default: all that can be computed here)",
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="score the pictures that have a caption"
    )
    parser.add_argument("--df", metavar="FILE", help="CIDEr's document frequencies of a corpus")
    parser.add_argument(
        "--replicates",
        type=_positive,
        default=1000,
        metavar="N",
        help="resamples of the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=_not_negative, default=0, metavar="N", help="of the resamples (default: 0)"
    )
    group = parser.add_argument_group("SPICE")
    group.add_argument("--spice-heap", default="8G", metavar="SIZE", help="Java's memory")
    group.add_argument("--spice-timeout", type=float, default=3600, metavar="SECONDS")
    group.add_argument("--spice-cache", metavar="DIR", help="parsed captions (default: your cache)")


def _scoring_settings(options: argparse.Namespace) -> Any:
    from captioner.evaluation.command import Settings, metric_name
    from captioner.evaluation.evaluate import Bootstrap
    from captioner.metrics.spice import SpiceOptions

    metrics = None
    if options.metrics is not None:
        metrics = list(dict.fromkeys(metric_name(name) for name in options.metrics))
    return Settings(
        split=options.split,
        metrics=metrics,
        allow_missing=options.allow_missing,
        df=options.df,
        output=options.output,
        bootstrap=Bootstrap(replicates=options.replicates, seed=options.seed),
        spice=SpiceOptions(
            heap=options.spice_heap,
            timeout=options.spice_timeout,
            cache=None if options.spice_cache is None else Path(options.spice_cache),
        ),
    )


def _evaluate(options: argparse.Namespace) -> int:
    from captioner.evaluation.command import run_evaluate

    settings = _scoring_settings(options)
    return _score(
        lambda: run_evaluate(
            options.results,
            options.annotations,
            settings,
            _note,
            save_df=options.save_df,
            train_annotations=options.train_annotations,
            train_split=options.train_split,
            pictures=options.pictures,
        )
    )


def _compare(options: argparse.Namespace) -> int:
    from captioner.evaluation.command import run_compare

    settings = _scoring_settings(options)
    return _score(
        lambda: run_compare(options.first, options.second, options.annotations, settings, _note)
    )


def _score(run: Callable[[], tuple[str, int]]) -> int:
    """Print the table; captions that must not be scored are listed and give status 1."""
    from captioner.evaluation.inputs import InputError

    try:
        table, status = run()
    except InputError as error:
        for problem in error.problems:
            print(f"captioner: error: {problem}", file=sys.stderr)
        return 1
    print(table)
    return status


def _note(line: str) -> None:
    print(f"captioner: {line}", file=sys.stderr)


# training

_TRAIN_PACKAGES = (
    "pytorch_lightning",
    "jsonargparse",
    "omegaconf",
    "tensorboard",
    "torchmetrics",
    "pycocotools",
    "nltk",
)


def _run_training(arguments: list[str]) -> int:
    keep_freed_memory()
    run = _import_extra("captioner.training.cli", "main", "train", _TRAIN_PACKAGES)
    status: int = run(arguments)
    return status


# shared


def _import_extra(module: str, name: str, extra: str, packages: Sequence[str]) -> Any:
    """A name from a module that needs optional packages."""
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise _UsageError(
            f"this command needs {error.name}; install it with `pip install 'captioner[{extra}]'`"
        ) from error


def _positive(text: str) -> int:
    return _whole(text, 1)


def _not_negative(text: str) -> int:
    return _whole(text, 0)


def _port(text: str) -> int:
    number = _whole(text, 0)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"must be at most 65535, got {text}")
    return number


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
    return number


def _to_json(value: object) -> str:
    """JSON in one line, readable in any language; a path that is no valid text is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True)
    return text


def _as_text(path: str | Path) -> str:
    """A path as UTF-8 reads it, whatever the locale that Python read it with."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _fail(message: str, status: int) -> int:
    print(f"captioner: error: {message}", file=sys.stderr)
    return status


def _use_utf8() -> None:
    """UTF-8 whatever the locale; file names that are no text come out as the bytes they are."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="surrogateescape")


def _configure_logging() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stderr)


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
