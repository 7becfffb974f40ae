"""What the page does, as plain functions: it shows a result and computes nothing of its own."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from captioner.data.images import ImageReadError, read_image
from captioner.inference.captioner import Captioner
from captioner.inference.checkpoint import list_models
from captioner.inference.overlay import attention_overlay, format_probability
from captioner.types import CaptionResult

EMPTY_CAPTION = (
    '<p class="caption empty">The caption comes here, with one map for every word: '
    "add a picture or pick an example.</p>"
)
"""What stands in the caption's place before there is one, as HTML."""


class DemoError(Exception):
    """Something that the visitor can put right; the message says how."""


@dataclass(frozen=True)
class Shown:
    """What the page shows of one caption.

    Args:
        caption: The caption as HTML, its words tinted by their probability.
        overlays: One picture per word, at the picture's own size, with its label.
    """

    caption: str
    overlays: list[tuple[Image.Image, str]]


def load_captioners(models: Sequence[str] | None = None) -> dict[str, Captioner]:
    """The captioners that the page offers, by the name that it shows for them.

    Args:
        models: Names, folders or checkpoints; all that ship by default.

    Raises:
        FileNotFoundError: One of them is not there, or none was given and none ships.
        ValueError: One of them cannot be read.
    """
    sources = list(models) if models else list(list_models())
    if not sources:
        raise FileNotFoundError(
            "no model ships with this installation; give one: captioner demo --model DIR"
        )
    captioners: dict[str, Captioner] = {}
    for source in dict.fromkeys(sources):
        name = Path(source).name
        captioners[source if name in captioners else name] = Captioner.load(source)
    return captioners


def caption_picture(captioners: Mapping[str, Captioner], model: str, path: str | None) -> Shown:
    """Caption an uploaded picture.

    Args:
        captioners: What ``load_captioners`` gave.
        model: The name of one of them.
        path: The uploaded file as it came.

    Raises:
        DemoError: There is no picture, it cannot be read, or there is no such model.
    """
    if path is None:
        raise DemoError("Add a picture first: drop one into the box, or pick an example.")
    if model not in captioners:
        raise DemoError(f"There is no model {model!r} here; choose {' or '.join(captioners)}.")
    try:
        image = read_image(path)
    except (ImageReadError, FileNotFoundError) as error:
        # The message names the file, which has a name of the server's here.
        reason = str(error).removeprefix(f"{path}: ")
        raise DemoError(
            f"This file cannot be read as a picture: {reason}. Try another one, such as a JPEG, "
            "PNG or WebP file."
        ) from error
    result = captioners[model].caption(image)
    return Shown(caption=caption_html(result), overlays=word_overlays(image, result))


def word_overlays(image: Image.Image, result: CaptionResult) -> list[tuple[Image.Image, str]]:
    """Every word's map over the picture, with the word and its probability."""
    return [
        (
            attention_overlay(image, attention, result.crop_box),
            f"{word} · {format_probability(float(log_prob))}",
        )
        for word, log_prob, attention in zip(
            result.words, result.word_log_probs, result.attention, strict=True
        )
    ]


def caption_html(result: CaptionResult) -> str:
    """The caption with every word underlined the more, the surer the model was of it."""
    if not result.words:
        return '<p class="caption empty">The model found no words for this picture.</p>'
    words = []
    for word, log_prob in zip(result.words, result.word_log_probs, strict=True):
        probability = math.exp(float(log_prob))
        words.append(
            f'<span class="word" style="--sure: {probability:.3f}" '
            f'title="{format_probability(float(log_prob))}">{html.escape(word)}</span>'
        )
    whole = format_probability(result.log_prob / (len(result.words) + result.finished))
    return (
        f'<p class="caption" aria-label="{html.escape(result.text)}">{" ".join(words)}</p>'
        f'<p class="note">Probability per word, on average: {whole}. '
        "The stronger the line below a word, the surer the model was of it.</p>"
    )


def describe_model(captioner: Captioner) -> str:
    """One line about a model, as Markdown."""
    config: Mapping[str, Any] = captioner.config
    decoder = str(config["decoder"].get("class_path", "")).rpartition(".")[2]
    encoder = config["encoder"].get("init_args", {}).get("backbone", "")
    options = captioner.options
    search = f"beam search of {options.beam_size}" if options.method == "beam" else options.method
    parts = [decoder, f"on {encoder}" if encoder else "", f"{len(captioner.vocabulary):,} words"]
    return ", ".join([" ".join(filter(None, parts[:2])), parts[2], search])
