"""The page itself: its parts, its server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

# Nothing leaves the machine: Gradio asks this when it is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr

import captioner
from captioner.demo.handlers import (
    EMPTY_CAPTION,
    DemoError,
    caption_picture,
    describe_model,
    load_captioners,
)

ATTRIBUTION_FILE = "ATTRIBUTION.json"

_TITLE = """\
# captioner
A caption for your picture, and for every word a map of where the model looked.
"""
_FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]


def build_demo(models: Sequence[str] | None = None, examples: Path | None = None) -> gr.Blocks:
    """The page, with its models loaded.

    Args:
        models: Names, folders or checkpoints to choose from; all that ship by default.
        examples: Folder of example pictures with their ``ATTRIBUTION.json``; those beside a
            checkout of the repository by default.

    Raises:
        FileNotFoundError: A model is not there.
        ValueError: A model cannot be read.
    """
    captioners = load_captioners(models)
    names = list(captioners)
    examples = find_examples() if examples is None else examples

    def run(path: str | None, model: str) -> tuple[Any, Any]:
        try:
            shown = caption_picture(captioners, model, path)
        except DemoError as error:
            raise gr.Error(str(error), title="That did not work", duration=None) from error
        return shown.caption, gr.Gallery(
            value=shown.overlays, visible=bool(shown.overlays), selected_index=None
        )

    def run_if_any(path: str | None, model: str) -> tuple[Any, Any]:
        if path is None:
            return EMPTY_CAPTION, gr.Gallery(value=[], visible=False)
        return run(path, model)

    def about(model: str) -> str:
        return describe_model(captioners[model])

    page: gr.Blocks
    with gr.Blocks(title="captioner", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gr.Markdown(_TITLE, elem_id="title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=320):
                picture = _picture_input()
                model = gr.Radio(
                    names, value=names[0], label="Model", elem_id="model", visible=len(names) > 1
                )
                note = gr.Markdown(about(names[0]), elem_id="about")
                button = gr.Button("Caption", variant="primary", elem_id="run")
            with gr.Column(scale=3, min_width=320):
                caption = gr.HTML(EMPTY_CAPTION, elem_id="caption", padding=False)
                overlays = gr.Gallery(
                    label="Where the model looked, word by word",
                    show_label=False,
                    container=False,
                    elem_id="overlays",
                    object_fit="contain",
                    format="jpeg",
                    interactive=False,
                    visible=False,
                    buttons=["download", "fullscreen"],
                )
        # Below both, so that on a phone the caption comes before them.
        _add_examples(examples, picture)
        outputs = [caption, overlays]
        shared: dict[str, Any] = {"inputs": [picture, model], "outputs": outputs}
        picture.change(run_if_any, **shared, api_visibility="private", trigger_mode="always_last")
        model.change(run_if_any, **shared, api_visibility="private", trigger_mode="always_last")
        model.change(about, model, note, api_visibility="private", show_progress="hidden")
        button.click(run, **shared, api_name="caption")
    return page


def launch(
    models: Sequence[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    announce: Callable[[str], object] | None = None,
    block: bool = True,
) -> gr.Blocks:
    """Serve the page until interrupted.

    Args:
        models: See ``build_demo``.
        host: Address to listen at; only this machine by default.
        port: Port to listen at; 0 takes a free one.
        announce: Called with the page's address once it answers.
        block: Whether to wait until the server is stopped.

    Returns:
        The page, served; ``close()`` stops it.

    Raises:
        OSError: The port is taken.
    """
    page = build_demo(models)
    examples = find_examples()
    try:
        _, url, _ = page.launch(
            server_name=host,
            server_port=port or _free_port(host),
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            inbrowser=False,
            ssr_mode=False,
            show_error=True,
            footer_links=[],
            allowed_paths=[] if examples is None else [str(examples)],
            theme=gr.themes.Soft(font=_FONT, font_mono=_MONO),
            css=resources.files("captioner.demo").joinpath("page.css").read_text("utf-8"),
        )
    except OSError as error:
        raise OSError(
            f"cannot serve at {host}:{port} ({error}); choose another port with --port"
        ) from error
    if announce is not None:
        announce(url)
    if block:
        page.block_thread()
    return page


def find_examples() -> Path | None:
    """The folder of example pictures of a checkout; None in an installed package."""
    folder = Path(captioner.__file__).resolve().parents[1] / "demo" / "examples"
    return folder if (folder / ATTRIBUTION_FILE).is_file() else None


def read_attribution(folder: Path) -> list[dict[str, str]]:
    """Every example picture with its title, author, licence and source."""
    entries: list[dict[str, str]] = json.loads(
        (folder / ATTRIBUTION_FILE).read_text(encoding="utf-8")
    )
    return entries


def _picture_input() -> gr.Image:
    """A box for one picture whose file reaches our own loader byte for byte.

    Gradio's own pre-processing would open the file with Pillow and write it anew where its
    mode is not the wanted one, and would fail before our loader could say why.
    """
    picture = gr.Image(
        label="Picture",
        type="filepath",
        sources=["upload", "clipboard", "webcam"],
        elem_id="picture",
        height=340,
        buttons=["fullscreen"],
    )

    def as_uploaded(payload: Any) -> str | None:
        return None if payload is None else payload.path

    # A subclass would have Gradio write an interface file beside this one.
    setattr(picture, "preprocess", as_uploaded)  # noqa: B010 - mypy allows no method assignment
    return picture


def _add_examples(folder: Path | None, picture: gr.Image) -> None:
    if folder is None:
        return
    entries = read_attribution(folder)
    gr.Examples(
        [[str(folder / entry["file"])] for entry in entries],
        inputs=picture,
        label="Examples",
        cache_examples=False,
        elem_id="examples",
    )
    gr.Markdown("Examples: " + "; ".join(map(_attribution, entries)), elem_id="attribution")


def _attribution(entry: Mapping[str, str]) -> str:
    return f"[{entry['title']}]({entry['source']}) by {entry['author']} ({entry['licence']})"


def _free_port(host: str) -> int:
    import socket

    with socket.socket() as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port


__all__ = ["build_demo", "find_examples", "launch", "read_attribution"]
