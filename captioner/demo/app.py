"""The page itself: its parts, its server."""

from __future__ import annotations

import filecmp
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

# Nothing leaves the machine: Gradio asks this when it is imported.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
from gradio.utils import get_upload_folder

import captioner
from captioner.demo.batch import Row, caption_items, count_items, read_items, to_html
from captioner.demo.handlers import (
    EXPORTS,
    MAX_BEAMS,
    MAX_UPLOAD_BYTES,
    DemoError,
    TimeLimit,
    View,
    api_answer,
    colormap_tables,
    decoding_options,
    describe_models,
    describe_picture,
    export_caption,
    find_captioner,
    font_note,
    load_captioners,
    read_upload,
    to_download,
    view_nothing,
    view_picture,
)
from captioner.inference.captioner import Captioner

ATTRIBUTION_FILE = "ATTRIBUTION.json"

REQUEST_SECONDS = 60.0
"""How long a visitor's request may take."""

MAX_QUEUE = 128
"""Requests that may wait; more are told to come back."""

_TITLE = """\
# captioner
A caption for your picture, and for every word a map of where the model looked.
"""
_FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]

_VIEWER = """\
window.captionerViewer(element, props, trigger, watch); // triggers "force_word", "export_file"
"""
_DOWNLOADER = "window.captionerDownload(props, watch);"
# Requests are numbered where they are made, in the page: answers may come in another order.
_ASK = "(_, ...inputs) => [window.captionerAsk(), ...inputs]"
_STOP = "() => [window.captionerStop()]"
_WAITING = """\
(files) => files?.length
  ? '<p class="state" role="status"><span>Waiting for its turn</span></p>' : ""
"""

_ADDRESS = "http://127.0.0.1:7860"
_API = """\
The page answers programs too, on the same address. With `pip install gradio_client`:

```python
from gradio_client import Client, handle_file

client = Client("{address}")
answer = client.predict(handle_file("photo.jpg"), api_name="/caption")
answer = client.predict(handle_file("photo.jpg"), model="{model}", beam_size=3, api_name="/caption")
print(answer["caption"])
```

Everything but the picture may be left out, and then is what was chosen for the model:
`model` ({models}), `method` (`greedy`, `beam`, `sample`), `beam_size`, `length_penalty`,
`max_length`, `temperature`, `top_k`, `top_p`, `seed`, `num_captions`.

The answer is one JSON object, with the same words as `captioner caption --format jsonl` gives:

| key | |
|---|---|
| `image`, `caption`, `words`, `word_log_probs`, `log_prob` | as on the command line |
| `model` | the model's name |
| `alternatives` | for every word the five likeliest others, `word` and `log_prob` |
| `attention`, `rows`, `cols` | for every word a map of rows x cols regions that sums to 1 |
| `captions` | all captions found, best first: `caption`, `log_prob`, `score`, `finished` |

A picture is uploaded with the request (`handle_file` does that); paths and addresses are refused.
"""


@dataclass(frozen=True)
class _Site:
    """What every request needs."""

    captioners: Mapping[str, Captioner]
    limit: TimeLimit
    uploads: Uploads
    about: Mapping[str, str]  # what the page says of each model
    stops: Stops


class Stops:
    """Which of its batches a visit has stopped: those with a number up to the one it gave."""

    def __init__(self) -> None:
        self._of_session: dict[str, float] = {}

    def stop(self, session: str | None, number: float) -> None:
        """Stop every batch that was asked for before this, also one that waits for its turn."""
        self._of_session[session or ""] = number

    def is_stopped(self, session: str | None, number: float) -> bool:
        """Whether a batch is to go no further."""
        return number <= self._of_session.get(session or "", -1)

    def forget(self, session: str | None) -> None:
        """Remove what is known of a visit that is over."""
        self._of_session.pop(session or "", None)


class Uploads:
    """The files that visitors have uploaded: gone from the disk when the last of them leaves.

    Args:
        examples: Folder of pictures that stay. Gradio keeps a copy of them where an upload of the
            same picture goes too.
    """

    def __init__(self, examples: Path | None = None) -> None:
        self._examples = {} if examples is None else {f.name: f for f in examples.iterdir()}
        self._of_session: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def keep(self, session: str | None, paths: Sequence[str]) -> None:
        """Note whose files these are."""
        if session is not None:
            with self._lock:
                self._of_session.setdefault(session, set()).update(paths)

    def forget(self, session: str | None) -> None:
        """Remove what a visitor uploaded, but for what another one did too."""
        with self._lock:
            gone = self._of_session.pop(session or "", set())
            for path in map(Path, gone.difference(*self._of_session.values())):
                if not self._is_example(path):
                    path.unlink(missing_ok=True)

    def _is_example(self, path: Path) -> bool:
        example = self._examples.get(path.name)
        return example is not None and path.exists() and filecmp.cmp(path, example, shallow=False)


@dataclass(frozen=True)
class _Side:
    """The controls and the viewer of one caption; a comparison has two."""

    model: gr.Radio
    chosen: Any  # the event of another model, after which its own options stand in the controls
    asked: gr.Number  # the number of the request, which the page's script fills in
    method: gr.Radio
    beam_size: gr.Slider
    length_penalty: gr.Slider
    temperature: gr.Slider
    top_p: gr.Slider
    seed: gr.Number
    num_captions: gr.Slider

    @property
    def decoding(self) -> list[Any]:
        """The controls of the search."""
        return [
            self.method,
            self.beam_size,
            self.length_penalty,
            self.temperature,
            self.top_p,
            self.seed,
            self.num_captions,
        ]


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
    threads = max(1, (os.cpu_count() or 2) // 2)
    # One thread more than requests at once: one that was given up may still be busy.
    examples = find_examples() if examples is None else examples
    site = _Site(
        captioners,
        TimeLimit(REQUEST_SECONDS, threads + 1),
        Uploads(examples),
        describe_models(captioners, models),
        Stops(),
    )

    page: gr.Blocks
    with gr.Blocks(title="captioner", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.Markdown(_TITLE, elem_id="title")
        with gr.Tab("One picture", id="one"):
            picture = _one_picture(site, examples, threads)
        with gr.Tab("Several", id="several"):
            _several_pictures(site)
        with gr.Tab("API", id="api"):
            names = list(captioners)
            models_named = ", ".join(f"`{name}`" for name in names)
            api_text = _API.format(address=_ADDRESS, model=names[-1], models=models_named)
            api = gr.Markdown(api_text, elem_id="api")
            # The address that the visitor came by.
            here = f"() => {json.dumps(api_text)}.replace({json.dumps(_ADDRESS)}, location.origin)"
            page.load(None, None, api, js=here, api_visibility="private")
        _caption_api(site, picture)

        def leave(request: gr.Request) -> None:
            site.uploads.forget(request.session_hash)
            site.stops.forget(request.session_hash)

        page.unload(leave)
    page.queue(max_size=MAX_QUEUE, default_concurrency_limit=threads, api_open=False)
    return page


def launch(
    models: Sequence[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    announce: Callable[[str], object] | None = None,
    block: bool = True,
) -> gr.Blocks:
    """Serve the page until interrupted. All models are loaded before it answers.

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
            max_file_size=MAX_UPLOAD_BYTES,
            allowed_paths=[] if examples is None else [str(examples)],
            theme=gr.themes.Soft(font=_FONT, font_mono=_MONO),
            head=_head(),
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


# One picture


def _one_picture(site: _Site, examples: Path | None, threads: int) -> gr.Image:
    names = list(site.captioners)
    with gr.Row(equal_height=False):
        with gr.Column(scale=3, min_width=300):
            picture = _picture_input()
            first = _side(site, names[0], "Model", "first")
            compare = gr.Checkbox(label="Compare with a second caption", elem_id="compare")
            with gr.Column(visible=False, elem_id="second-controls") as second_controls:
                second = _side(site, names[-1], "Second model", "second")
            button = gr.Button("Caption", variant="primary", elem_id="run")
        with gr.Column(scale=7, min_width=320), gr.Row(equal_height=False):
            with gr.Column(min_width=320):
                first_viewer = _viewer("first-viewer")
            with gr.Column(min_width=320, visible=False) as second_column:
                second_viewer = _viewer("second-viewer")
    downloads = gr.HTML(
        "", html_template='<div class="aside"></div>', js_on_load=_DOWNLOADER, elem_id="downloads"
    )
    # Below all, so that on a phone the caption comes before them.
    _add_examples(examples, picture)

    def caption(
        asked: int | None, path: str | None, request: gr.Request, model: str, *decoding: Any
    ) -> str:
        if path is None:
            return view_nothing(asked)
        site.uploads.keep(request.session_hash, [path])
        try:
            model_captioner = find_captioner(site.captioners, model)
            options, seed = _page_options(model_captioner, *decoding)
            return site.limit.run(
                lambda: view_picture(
                    model, model_captioner, read_upload(path), options, seed=seed, asked=asked
                )
            )
        except DemoError as error:
            # An answer too: after an error, Gradio would forget the request that waits behind it.
            return view_nothing(asked, str(error))

    def first_caption(
        request: gr.Request, asked: int | None, path: str | None, model: str, *rest: Any
    ) -> str:
        return caption(asked, path, request, model, *rest)

    def second_caption(
        request: gr.Request,
        asked: int | None,
        path: str | None,
        wanted: bool,
        model: str,
        *rest: Any,
    ) -> str:
        return caption(asked, path if wanted else None, request, model, *rest)

    def ask(path: str | None) -> None:
        with _told():
            if path is None:
                raise DemoError("Add a picture first: drop one into the box, or pick an example.")

    def force_word(path: str | None, event: gr.EventData) -> str:
        with _told():
            data = event._data or {}
            model = find_captioner(site.captioners, data.get("model"))
            options = decoding_options(model, **_known_options(data.get("options")))
            words = _words(data.get("words"))
            seed = data.get("seed")
            return site.limit.run(
                lambda: view_picture(
                    data["model"],
                    model,
                    read_upload(path),
                    options,
                    seed=seed if isinstance(seed, int) else None,
                    prefix=words,
                    asked=data.get("asked"),
                )
            )

    def export_file(path: str | None, event: gr.EventData) -> str:
        with _told():
            data = event._data or {}
            model = find_captioner(site.captioners, data.get("model"))
            kind = str(data.get("kind"))
            words = _words(data.get("words"))
            content = site.limit.run(
                lambda: export_caption(
                    model,
                    read_upload(path),
                    words,
                    data.get("finished") is True,
                    kind,
                    View.from_request(data),
                )
            )
            note = font_note(words, kind)
            return to_download(f"caption.{kind}", EXPORTS[kind], content, note)

    own: dict[str, Any] = {
        "api_visibility": "private",
        "concurrency_id": "model",
        "concurrency_limit": threads,
        "show_progress": "minimal",
    }
    both = [
        (first, first_viewer, first_caption, []),
        (second, second_viewer, second_caption, [compare]),
    ]
    for side, viewer, function, extra in both:
        inputs = [side.asked, picture, *extra, side.model, *side.decoding]
        triggers = [picture.change, side.method.input, button.click]
        triggers += [side.seed.submit]
        triggers += [slider.release for slider in side.decoding if isinstance(slider, gr.Slider)]
        if extra:
            triggers.append(compare.input)
        ask_last = own | {"trigger_mode": "always_last", "js": _ASK}
        gr.on(triggers, function, inputs, viewer, **ask_last)
        side.chosen.then(function, inputs, viewer, **ask_last)
        viewer.force_word(force_word, picture, viewer, **own)
        viewer.export_file(export_file, picture, downloads, **own | {"show_progress": "hidden"})
    button.click(ask, picture, api_visibility="private", show_progress="hidden")
    compare.change(
        lambda on: (gr.Column(visible=on), gr.Column(visible=on)),
        compare,
        [second_controls, second_column],
        api_visibility="private",
        show_progress="hidden",
        queue=False,
    )
    return picture


def _side(site: _Site, name: str, label: str, prefix: str) -> _Side:
    """The controls of one caption."""
    names = list(site.captioners)
    options = site.captioners[name].options
    model = gr.Radio(
        names, value=name, label=label, elem_id=f"{prefix}-model", visible=len(names) > 1
    )
    note = gr.Markdown(site.about[name], elem_classes=["about"])
    asked = gr.Number(precision=0, visible=False)
    with gr.Accordion("Decoding", open=False, elem_id=f"{prefix}-decoding"):
        method = gr.Radio(
            [("Beam search", "beam"), ("Greedy", "greedy"), ("Sampling", "sample")],
            value=options.method,
            label="Search",
            elem_id=f"{prefix}-method",
        )
        with gr.Group(visible=options.method == "beam") as beam_group:
            beam_size = gr.Slider(
                1, MAX_BEAMS, min(options.beam_size, MAX_BEAMS), step=1, label="Beam size"
            )
            length_penalty = gr.Slider(
                0,
                2,
                options.length_penalty,
                step=0.1,
                label="Length penalty",
                info="higher favours longer captions",
            )
        with gr.Group(visible=options.method == "sample") as sample_group:
            temperature = gr.Slider(
                0.1, 2, 1.0, step=0.1, label="Temperature", info="below 1 is tamer"
            )
            top_p = gr.Slider(
                0.05, 1, 0.9, step=0.05, label="Top-p", info="draw among the likeliest words"
            )
            seed = gr.Number(0, precision=0, label="Seed", minimum=0, maximum=2**53)
        num_captions = gr.Slider(
            1,
            MAX_BEAMS,
            3,
            step=1,
            label="Captions",
            info="as many as there are beams at most",
            visible=options.method != "greedy",
        )
    method.change(
        lambda chosen: (
            gr.Group(visible=chosen == "beam"),
            gr.Group(visible=chosen == "sample"),
            gr.Slider(visible=chosen != "greedy"),
        ),
        method,
        [beam_group, sample_group, num_captions],
        api_visibility="private",
        show_progress="hidden",
        queue=False,
    )
    # In the page itself, so that no choice that the visitor makes meanwhile is undone.
    chosen = model.input(
        None,
        model,
        [note, beam_size, length_penalty],
        js=f"(name) => ({json.dumps(_model_defaults(site))})[name]",
        api_visibility="private",
    )
    return _Side(
        model,
        chosen,
        asked,
        method,
        beam_size,
        length_penalty,
        temperature,
        top_p,
        seed,
        num_captions,
    )


def _model_defaults(site: _Site) -> dict[str, tuple[str, int, float]]:
    """What the page says of each model, and the beam search that was chosen for it."""
    return {
        name: (
            site.about[name],
            min(model.options.beam_size, MAX_BEAMS),
            model.options.length_penalty,
        )
        for name, model in site.captioners.items()
    }


def _viewer(name: str) -> gr.HTML:
    return gr.HTML(
        "",
        html_template='<div class="viewer"></div>',
        js_on_load=_VIEWER,
        apply_default_css=False,
        elem_id=name,
        elem_classes=["viewer-box"],
        padding=False,
    )


def _page_options(
    model: Captioner,
    method: str,
    beam_size: float,
    length_penalty: float,
    temperature: float,
    top_p: float,
    seed: float | None,
    num_captions: float,
) -> tuple[dict[str, Any], int | None]:
    """The decoding options that the page's controls say, and the seed of sampling."""
    if method == "beam":
        options = decoding_options(
            model,
            method,
            beam_size=beam_size,
            length_penalty=length_penalty,
            num_captions=min(num_captions, beam_size),
        )
        return options, None
    if method == "sample":
        options = decoding_options(
            model, method, temperature=temperature, top_p=top_p, num_captions=num_captions
        )
        return options, None if seed is None else int(seed)
    return decoding_options(model, method, num_captions=1), None


def _known_options(data: Any) -> dict[str, Any]:
    """Options that come back from the page's script; the names alone are checked here."""
    names = (
        "method",
        "beam_size",
        "length_penalty",
        "max_length",
        "temperature",
        "top_k",
        "top_p",
        "num_captions",
    )
    return {n: data[n] for n in names if n in data} if isinstance(data, dict) else {}


def _words(data: Any) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(word, str) for word in data):
        raise DemoError("The words of a caption are a list of texts.")
    return data


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
        height=280,
        buttons=["fullscreen"],
    )

    def as_uploaded(payload: Any) -> str | None:
        return None if payload is None else _uploaded(payload.path)

    # A subclass would have Gradio write an interface file beside this one.
    setattr(picture, "preprocess", as_uploaded)  # noqa: B010 - mypy allows no method assignment
    _refuse_addresses(picture)
    return picture


def _uploaded(path: Any) -> str:
    """A path that a request names, if something was uploaded there.

    Gradio checks only paths that come with the mark of its own clients; ``{"path":
    "/etc/hostname"}`` alone passes it by.
    """
    folder = Path(get_upload_folder()).resolve()
    if not isinstance(path, str) or not Path(path).resolve().is_relative_to(folder):
        raise gr.Error("Upload a file; paths of the server are not read.")
    return path


def _refuse_addresses(component: Any) -> None:
    """Have a component take uploads only: Gradio would fetch what an address names."""
    move = component.async_move_resource_to_block_cache

    async def move_file(resource: Any) -> Any:
        if isinstance(resource, str) and "://" in resource:
            raise gr.Error("Upload a file; addresses are not fetched.")
        return await move(resource)

    component.async_move_resource_to_block_cache = move_file


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


# Several pictures


def _several_pictures(site: _Site) -> None:
    names = list(site.captioners)
    gr.Markdown("Many pictures, or a ZIP archive of them: a caption for each, to take along.")
    with gr.Row(equal_height=False):
        with gr.Column(scale=3, min_width=300):
            files = gr.File(
                label="Pictures or ZIP archives",
                file_count="multiple",
                elem_id="batch-files",
                height=200,
            )

            def as_uploaded(payload: Any) -> list[str] | None:
                return None if payload is None else [_uploaded(one.path) for one in payload.root]

            setattr(files, "preprocess", as_uploaded)  # noqa: B010 - as above
            _refuse_addresses(files)
            model = gr.Radio(
                names, value=names[0], label="Model", visible=len(names) > 1, elem_id="batch-model"
            )
            with gr.Row():
                start = gr.Button("Caption all", variant="primary", elem_id="batch-run")
                stop = gr.Button("Stop", elem_id="batch-stop")
        with gr.Column(scale=7, min_width=320):
            table = gr.HTML("", elem_id="batch-table", elem_classes=["batch"], padding=False)

    asked = gr.Number(precision=0, visible=False)

    def run(
        number: int | None, paths: list[str] | None, model: str, request: gr.Request
    ) -> Iterator[str]:
        with _told():
            if not paths:
                raise DemoError("Add pictures or a ZIP archive first.")
            session = request.session_hash
            site.uploads.keep(session, paths)
            model_captioner = find_captioner(site.captioners, model)
            total = count_items(paths)
            rows: list[Row] = []
            yield to_html(rows, f"Working: 0 of {total}", total)
            found = caption_items(model_captioner, read_items(paths), {"num_captions": 1})
            last = time.monotonic()
            end, problem = "Done", ""
            try:
                while True:
                    if site.stops.is_stopped(session, number or 0):
                        end = "Stopped"
                        break
                    row = site.limit.run(next, found, None)
                    if row is None:
                        break
                    rows.append(row)
                    if time.monotonic() - last > 0.7:
                        last = time.monotonic()
                        yield to_html(rows, f"Working: {len(rows)} of {total}", total)
            except DemoError as error:
                end, problem = "Given up", f". {error}"
            yield to_html(rows, f"{end}: {len(rows)} of {total}{problem}")

    def stop_all(number: int | None, request: gr.Request) -> None:
        site.stops.stop(request.session_hash, number or 0)

    start.click(None, files, table, js=_WAITING, api_visibility="private")
    start.click(
        run,
        [asked, files, model],
        table,
        js=_ASK,
        api_visibility="private",
        concurrency_id="batch",
        concurrency_limit=1,
        show_progress="hidden",
    )
    stop.click(
        stop_all, asked, js=_STOP, api_visibility="private", show_progress="hidden", queue=False
    )


# Programs


def _caption_api(site: _Site, picture: gr.Image) -> None:
    """The endpoint ``/caption``. Its parts are never shown; they say names, types and defaults."""
    model = gr.Textbox(next(iter(site.captioners)), label="model", visible=False)
    method = gr.Textbox(None, label="method", visible=False)
    numbers = {
        name: gr.Number(None, precision=precision, label=name, visible=False)
        for name, precision in (
            ("beam_size", 0),
            ("length_penalty", None),
            ("max_length", 0),
            ("temperature", None),
            ("top_k", 0),
            ("top_p", None),
            ("seed", 0),
            ("num_captions", 0),
        )
    }
    answer = gr.JSON(label="answer", visible=False)
    trigger = gr.Button(visible=False)

    def caption(
        picture: str,
        model: str,
        method: str | None = None,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        num_captions: int | None = None,
        request: gr.Request | None = None,
    ) -> dict[str, Any]:
        """Caption a picture; what is left out is what was chosen for the model."""
        with _told():
            if request is not None and picture:
                site.uploads.keep(request.session_hash, [picture])
            chosen = find_captioner(site.captioners, model)
            options = decoding_options(
                chosen,
                method,
                beam_size,
                length_penalty,
                max_length,
                temperature,
                top_k,
                top_p,
                num_captions,
            )
            results = site.limit.run(
                lambda: describe_picture(
                    chosen, read_upload(picture), options, seed=seed, layer_attention=False
                )
            )
            return api_answer(model, Path(picture).name, results)

    trigger.click(
        caption,
        [picture, model, method, *numbers.values()],
        answer,
        api_name="caption",
        concurrency_id="model",
    )


@contextmanager
def _told() -> Iterator[None]:
    """Have mistakes of visitors shown on the page as what they are."""
    try:
        yield
    except DemoError as error:
        raise gr.Error(str(error), title="That did not work", duration=None) from error


def _read_resource(name: str) -> str:
    return resources.files("captioner.demo").joinpath(name).read_text("utf-8")


def _head() -> str:
    """The page's style, and the viewer's script with its colour maps.

    Gradio's own argument for styles would drop container queries.
    """
    tables = json.dumps(colormap_tables())
    style, script = _read_resource("page.css"), _read_resource("viewer.js")
    return (
        f"<style>{style}</style>\n<script>window.captionerColormaps = {tables};\n{script}</script>"
    )


def _free_port(host: str) -> int:
    import socket

    with socket.socket() as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port


__all__ = ["Uploads", "build_demo", "find_examples", "launch", "read_attribution"]
