"""What the page does, as plain functions: it shows results and computes none of its own."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import numpy as np
from PIL import Image

from captioner.data.images import ImageReadError, read_image
from captioner.inference.captioner import Captioner
from captioner.inference.checkpoint import CARD_FILE, find_model, list_models
from captioner.inference.overlay import (
    colormap_table,
    find_undrawable,
    picture_url,
    render_animation,
    render_figure,
    render_figure_svg,
    select_maps,
)
from captioner.inference.records import caption_record
from captioner.types import CaptionResult

COLORMAPS = ("inferno", "magma", "viridis", "cividis")
"""Colour maps to choose from: perceptually even, and told apart by colour-blind people."""

NUM_ALTERNATIVES = 5

MAX_PIXELS = 50_000_000
MAX_UPLOAD_BYTES = 64 * 1024**2
MAX_BEAMS = 10
MAX_WORDS = 50
SHOWN_SIDE = 1600
"""Larger pictures are sent to the browser in this size; captions and files are of the whole."""

EXPORTS = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "gif": "image/gif",
    "webp": "image/webp",
}

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


class DemoError(Exception):
    """Something that the visitor can put right; the message says how."""


@dataclass(frozen=True)
class View:
    """How a file that is taken along draws the maps.

    Args:
        layer: Number of the layer, from 0; the maps that the decoder shows if None.
        head: Number of the head, from 0; the mean of them if None.
        opacity: Share of the map in the mixture.
        smooth: Whether maps are interpolated between the regions.
        colormap: One of ``COLORMAPS``.
    """

    layer: int | None = None
    head: int | None = None
    opacity: float = 0.6
    smooth: bool = True
    colormap: str = COLORMAPS[0]

    @classmethod
    def from_request(cls, data: Mapping[str, Any]) -> View:
        """What a browser asks for; whatever is not as it should be takes its default."""
        opacity: Any = data.get("opacity")
        colormap = data.get("colormap")
        return cls(
            layer=_whole_or_none(data.get("layer")),
            head=_whole_or_none(data.get("head")),
            opacity=min(1.0, max(0.0, float(opacity))) if _is_number(opacity) else 0.6,
            smooth=data.get("smooth") is not False,
            colormap=colormap if colormap in COLORMAPS else COLORMAPS[0],
        )


class TimeLimit:
    """Runs one function at a time for each of a few threads, and answers in time or says so.

    Args:
        seconds: How long a request may take.
        threads: How many requests run at once.
    """

    def __init__(self, seconds: float, threads: int = 2) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="caption")

    def run(
        self,
        function: Callable[_Arguments, _Answer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Answer:
        """What the function returns.

        Raises:
            DemoError: It took too long. A function that has begun goes on in its thread until
                it is done: pictures, words and beams are limited, so that it will be.
        """
        stop = threading.Event()

        def work() -> _Answer:
            if stop.is_set():
                raise TimeoutError
            return function(*args, **kwargs)

        future = self._threads.submit(work)
        try:
            return future.result(self.seconds)
        except TimeoutError as error:
            stop.set()
            future.cancel()
            raise DemoError(
                f"This took longer than {self.seconds:g} seconds and was given up. Try again "
                "in a moment, with a smaller picture or fewer beams."
            ) from error


def load_captioners(models: Sequence[str] | None = None) -> dict[str, Captioner]:
    """The captioners that the page offers, by the name that it shows for them.

    Each has captioned one picture already, so that the first visitor does not wait longer.

    Args:
        models: Names, folders or checkpoints; all that ship by default.

    Raises:
        FileNotFoundError: One of them is not there, or none was given and none ships.
        ValueError: One of them cannot be read.
    """
    captioners = {name: Captioner.load(source) for name, source in _name_models(models).items()}
    if not captioners:
        raise FileNotFoundError(
            "no model ships with this installation; give one: captioner demo --model DIR"
        )
    for captioner in captioners.values():
        captioner.caption(Image.new("RGB", (64, 64), "grey"), alternatives=1)
    return captioners


def _name_models(models: Sequence[str] | None) -> dict[str, str]:
    """The models to load, by the name that the page shows for them."""
    named: dict[str, str] = {}
    for source in dict.fromkeys(models or list_models()):
        name = Path(source).name
        named[source if name in named else name] = source
    return named


def find_captioner(captioners: Mapping[str, Captioner], model: object) -> Captioner:
    """The captioner of a name.

    Raises:
        DemoError: There is none.
    """
    if not isinstance(model, str) or model not in captioners:
        raise DemoError(f"There is no model {model!r} here; choose {' or '.join(captioners)}.")
    return captioners[model]


def read_upload(source: str | Path | IO[bytes] | None) -> Image.Image:
    """An uploaded picture, upright in RGB.

    Raises:
        DemoError: There is none, it cannot be read, or it is too large.
    """
    if source is None:
        raise DemoError("Add a picture first: drop one into the box, or pick an example.")
    try:
        _check_pixels(source)
        return read_image(source)
    except (ImageReadError, FileNotFoundError) as error:
        # The message names the file, which has a name of the server's here.
        name = getattr(source, "name", "the picture") if hasattr(source, "read") else source
        reason = str(error).removeprefix(f"{name}: ")
        if reason.startswith(("is ", "has ", "does ", "cannot ")):
            reason = f"it {reason}"
        raise DemoError(
            f"This file cannot be read as a picture ({reason}). Try another one, such as a JPEG, "
            "PNG or WebP file."
        ) from error


def decoding_options(
    captioner: Captioner,
    method: str | None = None,
    beam_size: float | None = None,
    length_penalty: float | None = None,
    max_length: float | None = None,
    temperature: float | None = None,
    top_k: float | None = None,
    top_p: float | None = None,
    num_captions: float | None = None,
) -> dict[str, Any]:
    """Decoding options of a request; those that are None stay the model's own.

    Returns:
        Arguments for ``Captioner.describe``.

    Raises:
        DemoError: An option is out of range, or two contradict each other.
    """
    whole = {"beam_size": beam_size, "max_length": max_length, "top_k": top_k}
    whole["num_captions"] = num_captions
    options: dict[str, Any] = {
        name: int(value) if _is_number(value) and value == int(value) else value
        for name, value in whole.items()
        if value is not None
    }
    others = {"length_penalty": length_penalty, "temperature": temperature, "top_p": top_p}
    options |= {name: value for name, value in others.items() if value is not None}
    if method is not None:
        options["method"] = method
    limits = {"beam_size": MAX_BEAMS, "num_captions": MAX_BEAMS, "max_length": MAX_WORDS}
    for name, limit in limits.items():
        if _is_number(options.get(name)) and options[name] > limit:
            raise DemoError(f"{name} must be at most {limit} here, got {options[name]}.")
    try:
        captioner.resolve_options(**options)
    except (TypeError, ValueError) as error:
        raise DemoError(f"{error}.") from error
    return options


def describe_picture(
    captioner: Captioner,
    image: Image.Image,
    options: Mapping[str, Any],
    *,
    seed: int | None = None,
    prefix: Sequence[str] = (),
    layer_attention: bool = True,
) -> tuple[CaptionResult, ...]:
    """The captions of a picture, best first, with their alternatives.

    Raises:
        DemoError: The beginning holds words that the model does not know, or is too long.
    """
    try:
        [item] = captioner.describe(
            [image],
            seed=seed,
            prefix=prefix,
            alternatives=NUM_ALTERNATIVES,
            layer_attention=layer_attention,
            **options,
        )
    except ValueError as error:
        raise DemoError(f"{error}.") from error
    return item.captions


def view_picture(
    model: str,
    captioner: Captioner,
    image: Image.Image,
    options: Mapping[str, Any],
    *,
    seed: int | None = None,
    prefix: Sequence[str] = (),
    asked: object = None,
) -> str:
    """Caption a picture for the page's viewer.

    Args:
        model: Its name on the page.
        captioner: The model.
        image: The picture.
        options: Decoding options, as ``decoding_options`` gives them.
        seed: Makes sampling repeatable.
        prefix: Words that the caption begins with.
        asked: The page's number of this request. The viewer passes over answers to requests
            that a later one has overtaken.

    Returns:
        JSON that holds the picture, the captions and every map that the decoder used, so that
        the viewer needs to ask for nothing more.

    Raises:
        DemoError: See ``describe_picture``.
    """
    start = time.perf_counter()
    results = describe_picture(captioner, image, options, seed=seed, prefix=prefix)
    seconds = time.perf_counter() - start
    shown = image
    if max(image.size) > SHOWN_SIDE:
        shown = image.copy()
        shown.thumbnail((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.LANCZOS)
    chosen = captioner.resolve_options(**options)
    best = results[0]
    return json.dumps(
        {
            "key": time.time_ns(),  # the same caption twice is two answers
            "asked": asked,
            "model": model,
            "picture": picture_url(shown),
            "width": image.width,
            "height": image.height,
            "crop_box": best.crop_box,
            "rows": best.attention.shape[1],
            "cols": best.attention.shape[2],
            "seconds": round(seconds, 3),
            "options": dict(options),
            "seed": seed,
            "search": describe_search(chosen.to_dict()),
            "forced": sum(word != "<eos>" for word in prefix),
            "captions": [_view_caption(result) for result in results],
        },
        ensure_ascii=False,
    )


def view_nothing(asked: object = None, error: str = "") -> str:
    """What the viewer gets in place of a caption: why there is none, or nothing at all."""
    return json.dumps({"key": time.time_ns(), "asked": asked, "error": error}, ensure_ascii=False)


def api_answer(model: str, image_name: str, results: Sequence[CaptionResult]) -> dict[str, Any]:
    """What ``/caption`` answers: one JSON object about the best caption, and a list of them all.

    The keys of ``captioner caption --format jsonl``, and ``model``, ``alternatives`` (for every
    word the likeliest others), ``attention`` (T, rows, cols), ``rows``, ``cols``, ``captions``.
    """
    best = results[0]
    alternatives = best.alternatives or ()
    return {
        **caption_record(image_name, best),
        "model": model,
        "alternatives": [
            [{"word": other.word, "log_prob": round(other.log_prob, 6)} for other in place]
            for place in alternatives[: len(best.words)]
        ],
        "attention": best.attention.tolist(),
        "rows": best.attention.shape[1],
        "cols": best.attention.shape[2],
        "captions": [
            {
                "caption": result.text,
                "log_prob": round(float(result.log_prob), 6),
                "score": round(float(result.score), 6),
                "finished": result.finished,
            }
            for result in results
        ],
    }


def export_caption(
    captioner: Captioner,
    image: Image.Image,
    words: Sequence[str],
    finished: bool,
    kind: str,
    view: View,
) -> bytes:
    """A file to take along: the figure of a caption, or its animation.

    The caption is given by its words, and the decoder reads them once more: so the maps are
    those of these words, whatever search found them.

    Args:
        captioner: The model that wrote the caption.
        image: The picture.
        words: The caption's words.
        finished: Whether the model ended it.
        kind: A key of ``EXPORTS``.
        view: How maps are drawn.

    Raises:
        DemoError: The request is none that the page makes.
    """
    if kind not in EXPORTS:
        raise DemoError(f"There is no file of kind {kind!r}; choose {', '.join(EXPORTS)}.")
    if len(words) > MAX_WORDS:
        raise DemoError(f"A caption has at most {MAX_WORDS} words here, got {len(words)}.")
    prefix = [*words, "<eos>"] if finished else list(words)
    if not prefix:
        raise DemoError("This caption has no words to draw.")
    [result] = describe_picture(
        captioner,
        image,
        {"method": "greedy", "max_length": len(prefix), "min_length": 0, "num_captions": 1},
        prefix=prefix,
    )
    try:
        result = select_maps(result, view.layer, view.head)
    except ValueError as error:
        raise DemoError(f"{error}.") from error
    how: dict[str, Any] = {
        "opacity": view.opacity,
        "smooth": view.smooth,
        "colormap": view.colormap,
    }
    if kind == "svg":
        return render_figure_svg(image, result, **how).encode()
    if kind == "png":
        file = io.BytesIO()
        render_figure(image, result, **how).save(file, "PNG")
        return file.getvalue()
    return render_animation(image, result, "gif" if kind == "gif" else "webp", **how)


def font_note(words: Sequence[str], kind: str) -> str:
    """What to say of a file whose words this machine has no font for; SVG holds them as text."""
    boxes = "" if kind == "svg" else find_undrawable(" ".join(words))
    if not boxes:
        return ""
    return (
        f"No font on the server has {boxes[:20]}: boxes stand in the file. Take the SVG, which "
        "holds the words as text, or have a font installed for them, such as Noto Sans CJK."
    )


def to_download(name: str, kind: str, content: bytes, note: str = "") -> str:
    """A file as JSON that the page's script offers for download; the server keeps nothing."""
    data = base64.b64encode(content).decode("ascii")
    # The same file twice is two downloads.
    key = f"{time.time_ns()}"
    return json.dumps({"name": name, "url": f"data:{kind};base64,{data}", "key": key, "note": note})


def colormap_tables() -> dict[str, str]:
    """The colours of every colour map, 256 times three bytes in base64."""
    return {
        name: base64.b64encode(colormap_table(name).tobytes()).decode("ascii") for name in COLORMAPS
    }


_DECODERS = {
    "ShowAttendTellDecoder": "Show, Attend and Tell",
    "TransformerDecoder": "Transformer",
}


def describe_models(
    captioners: Mapping[str, Captioner], models: Sequence[str] | None = None
) -> dict[str, str]:
    """What the page says of each model that ``load_captioners`` made of the same ``models``."""
    return {
        name: describe_model(captioners[name], read_card(source))
        for name, source in _name_models(models).items()
    }


def read_card(source: str) -> str:
    """The card (``README.md``) of an exported model; empty for a checkpoint, which has none."""
    try:
        return (find_model(source) / CARD_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def describe_model(captioner: Captioner, card: str = "") -> str:
    """A few words about a model: what it is, what it was trained on, the terms of its weights.

    All of it is what the model's own files say: ``provenance`` in its configuration (``dataset``,
    ``licence``), else its card (what follows "**Data:**", and the sentence that begins with "The
    weights are"). What they do not say is said to be missing.
    """
    config: Mapping[str, Any] = captioner.config
    decoder = str(config["decoder"].get("class_path", "")).rpartition(".")[2]
    decoder = _DECODERS.get(decoder, decoder)
    backbone = str(config["encoder"].get("init_args", {}).get("backbone", ""))
    encoder = backbone.rpartition("/")[2]
    what = f"{decoder} on {encoder}" if encoder else decoder
    provenance: Mapping[str, Any] = config.get("provenance") or {}
    plain = " ".join(card.replace("*", "").split())
    data = str(
        provenance.get("dataset")
        or _find(r"- Data: ((?:\([^)]*\)|[^(,;])*?)(?:[,;]|\.? - |$)", plain)
    )
    terms = str(provenance.get("licence") or _find(r"The (weights are [^:;.]*)", plain))
    parts = [
        f"{what}, {len(captioner.vocabulary):,} words",
        f"trained on {data}" if data else "training data not named",
        terms or "terms not given",
    ]
    return "; ".join(parts) + "."


def _find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else ""


def describe_search(options: Mapping[str, Any]) -> str:
    """Decoding options in words.

    >>> describe_search({"method": "beam", "beam_size": 3, "length_penalty": 0.7})
    'beam search of 3, length penalty 0.7'
    """
    if options["method"] == "beam":
        return f"beam search of {options['beam_size']}, length penalty {options['length_penalty']}"
    if options["method"] == "greedy":
        return "greedy search"
    text = f"sampling, temperature {options['temperature']}"
    return text if options["top_p"] is None else f"{text}, top-p {options['top_p']}"


def _view_caption(result: CaptionResult) -> dict[str, Any]:
    alternatives = result.alternatives or ((),) * (len(result.words) + 1)
    layers = result.layer_attention
    words_alone = float(np.sum(result.word_log_probs, dtype=np.float64))
    return {
        "text": result.text,
        "words": [
            {"word": word, "log_prob": round(float(value), 6)}
            for word, value in zip(result.words, result.word_log_probs, strict=True)
        ],
        "alternatives": [
            [{"word": other.word, "log_prob": round(other.log_prob, 6)} for other in place]
            for place in alternatives
        ],
        "finished": result.finished,
        "end_log_prob": result.log_prob - words_alone if result.finished else None,
        "log_prob": result.log_prob,
        "score": result.score,
        "attention": _to_base64(result.attention),
        # One layer with one head is the map that is shown anyway.
        "layers": None
        if layers is None or layers.shape[1] * layers.shape[2] == 1
        else {
            "layers": layers.shape[1],
            "heads": layers.shape[2],
            "data": _to_base64(layers),
        },
    }


def _to_base64(values: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    """Values as little-endian float32, row-major, in base64."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode("ascii")


def _check_pixels(source: str | Path | IO[bytes]) -> None:
    """Refuse a picture by its header, before its pixels take memory."""
    try:
        with Image.open(source) as image:
            width, height = image.size
    except Image.DecompressionBombError as error:
        raise DemoError(f"This picture has more than {MAX_PIXELS:,} pixels.") from error
    except Exception:  # our loader says better what is wrong
        return
    finally:
        if not isinstance(source, str | Path):
            source.seek(0, os.SEEK_SET)
    if width * height > MAX_PIXELS:
        raise DemoError(
            f"This picture has {width} x {height} pixels, more than the {MAX_PIXELS:,} that are "
            "taken here; make a smaller copy."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
