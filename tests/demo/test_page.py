"""The page over HTTP, and in a real browser."""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner
from captioner.inference.overlay import attention_overlay, select_maps

gr = pytest.importorskip("gradio", reason="needs captioner[demo]")

from captioner.demo import app, handlers  # noqa: E402 - after the check for Gradio

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def captioners(tiny_models: dict[str, Path]) -> dict[str, Captioner]:
    """The models that the page offers, loaded once more to say what it has to show."""
    return {name: Captioner.load(path) for name, path in tiny_models.items()}


@pytest.fixture(scope="module")
def address(tiny_models: dict[str, Path], captioners: dict[str, Captioner]) -> Iterator[str]:
    """The page, served on a free port of this machine.

    All that tests load is loaded by now: building an encoder traces it, and tracing changes
    ``torch.nn.Module`` for as long as it takes, under the hands of the threads that caption.
    """
    assert captioners
    addresses: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "REQUEST_SECONDS", 600.0)  # a busy machine is no failure
        patch.setattr(os, "cpu_count", lambda: 4)  # requests run side by side on any machine
        page = app.launch(
            [str(tiny_models["sat"]), str(tiny_models["transformer"])],
            port=0,
            announce=addresses.append,
            block=False,
        )
    yield addresses[0]
    page.close()


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A wide picture."""
    path = tmp_path / "wide.png"
    noise = np.random.default_rng(0).integers(0, 256, (10, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((300, 100), Image.Resampling.BICUBIC).save(path)
    return path


def test_examples_have_an_attribution() -> None:
    folder = app.find_examples()
    assert folder == ROOT / "demo" / "examples"
    entries = app.read_attribution(folder)
    pictures = {f.name for f in folder.iterdir() if f.suffix == ".jpg"}
    assert {entry["file"] for entry in entries} == pictures
    assert len(pictures) >= 4
    for entry in entries:
        assert entry["licence"] in {"CC0 1.0", "Public domain"}
        assert entry["source"].startswith("https://")
        assert entry["author"]
        with Image.open(folder / entry["file"]) as image:
            assert image.format == "JPEG"
        assert (folder / entry["file"]).stat().st_size < 200_000


def test_the_page_listens_here_alone_and_names_no_other_host(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address) as response:
        text = response.read().decode()
    for host in ("googleapis", "gstatic", "cdnjs", "jsdelivr", "unpkg", "analytics.gradio"):
        assert host not in text
    with urllib.request.urlopen(address + "config") as response:
        assert json.load(response)["analytics_enabled"] is False
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


def test_models_are_loaded_before_the_page_answers(
    tiny_models: dict[str, Path],
    captioners: dict[str, Captioner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def load_captioners(models: object) -> dict[str, Captioner]:
        done.append("loaded")
        return {"tiny-sat": captioners["sat"]}

    def answer(*args, **options) -> tuple[None, str, None]:
        done.append("answers")
        return None, "http://here/", None

    monkeypatch.setattr(app, "load_captioners", load_captioners)
    monkeypatch.setattr(gr.Blocks, "launch", answer)
    app.launch([str(tiny_models["sat"])], block=False, announce=done.append)
    assert done == ["loaded", "answers", "http://here/"]


# Programs


@pytest.fixture(scope="module")
def client(address: str):
    module = pytest.importorskip("gradio_client")
    return module.Client(address, verbose=False)


def upload(path: Path):
    return pytest.importorskip("gradio_client").handle_file(path)


def test_a_picture_alone_gets_what_the_command_line_gives(
    client, picture: Path, tiny_models: dict[str, Path]
) -> None:
    answer = client.predict(upload(picture), api_name="/caption")
    command = [sys.executable, "-m", "captioner.cli", "caption", str(picture)]
    command += ["--model", str(tiny_models["sat"]), "--format", "jsonl"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert printed.pop("image") == str(picture)
    assert answer["image"] == picture.name
    for key in ("caption", "words"):
        assert answer[key] == printed[key]
    assert answer["word_log_probs"] == pytest.approx(printed["word_log_probs"], abs=1e-4)
    assert answer["log_prob"] == pytest.approx(printed["log_prob"], abs=1e-4)
    assert answer["model"] == "tiny-sat"
    maps = np.array(answer["attention"])
    assert maps.shape == (len(answer["words"]), answer["rows"], answer["cols"])
    np.testing.assert_allclose(maps.sum((1, 2)), 1, atol=1e-5)
    assert [len(place) for place in answer["alternatives"]] == [5] * len(answer["words"])
    assert set(answer["alternatives"][0][0]) == {"word", "log_prob"}


def test_options_reach_the_search(client, picture: Path, captioners: dict[str, Captioner]) -> None:
    captioner = captioners["transformer"]
    for options in (
        {"beam_size": 5, "num_captions": 4, "length_penalty": 0.0, "max_length": 6},
        {"method": "greedy"},
        {"method": "sample", "temperature": 1.5, "top_p": 0.9, "top_k": 8, "seed": 7},
    ):
        answer = client.predict(
            upload(picture), model="tiny-transformer", api_name="/caption", **options
        )
        [item] = captioner.describe([picture], **options)
        assert [one["caption"] for one in answer["captions"]] == [c.text for c in item.captions]
        assert answer["caption"] == item.captions[0].text
    with pytest.raises(Exception, match="beam_size must be at most 10 here, got 11"):
        client.predict(upload(picture), beam_size=11, api_name="/caption")
    with pytest.raises(Exception, match="There is no model 'other' here"):
        client.predict(upload(picture), model="other", api_name="/caption")


def test_programs_are_told_of_every_default(client) -> None:
    parameters = client.view_api(return_format="dict")["named_endpoints"]["/caption"]["parameters"]
    assert [p["parameter_name"] for p in parameters] == [
        "picture",
        "model",
        "method",
        "beam_size",
        "length_penalty",
        "max_length",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "num_captions",
    ]
    assert not parameters[0]["parameter_has_default"]
    assert all(p["parameter_has_default"] for p in parameters[1:])


def test_uploads_reach_our_loader_byte_for_byte(
    client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Grey with alpha and with a rotation: Gradio's own loader would turn it into RGB WebP.
    exif = Image.Exif()
    exif[274] = 6
    path = tmp_path / "odd name ä.png"
    Image.new("LA", (50, 20), (90, 120)).save(path, exif=exif)
    seen: list[tuple[str, str]] = []
    read = handlers.read_image

    def spy(source: str) -> Image.Image:
        seen.append((Path(source).suffix, hashlib.sha256(Path(source).read_bytes()).hexdigest()))
        return read(source)

    monkeypatch.setattr(handlers, "read_image", spy)
    client.predict(upload(path), api_name="/caption")
    assert seen == [(".png", hashlib.sha256(path.read_bytes()).hexdigest())]


def post_json(address: str, data: object) -> urllib.request.Request:
    return urllib.request.Request(
        address,
        data=json.dumps(data).encode(),
        headers={"Content-Type": "application/json"},
    )


def post(address: str, name: str, data: list[object]) -> bytes:
    """What the server answers to a request that no well-meaning client makes."""
    request = post_json(f"{address}gradio_api/call/{name}", {"data": data})
    with urllib.request.urlopen(request) as response:
        event = json.load(response)["event_id"]
    with urllib.request.urlopen(f"{address}gradio_api/call/{name}/{event}") as response:
        return response.read()


def test_bare_paths_and_addresses_are_refused(
    address: str, drawn_pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name only what was uploaded, not files of the server, pictures included."""
    read: list[object] = []
    monkeypatch.setattr(handlers, "read_image", read.append)
    local = next(drawn_pictures.glob("*.png"))
    rest = ["tiny-sat", None, *[None] * 8]
    meta = {"_type": "gradio.FileData"}
    for picture in (
        {"path": str(local), "meta": meta},
        {"path": "/etc/hostname", "meta": meta},
        {"path": "/etc/hostname"},
        {"path": f"{address}config", "meta": meta},
        {"path": "", "url": f"{address}config", "meta": meta},
        {"path": f"file://{local}", "meta": meta},
    ):
        answer = post(address, "caption", [picture, *rest])
        assert b"event: error" in answer
        assert b"event: complete" not in answer
    assert read == []


def test_the_other_doors_refuse_bare_paths_too(
    address: str, drawn_pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every function of the page that takes a file, asked as the page's own script asks."""
    read: list[object] = []
    monkeypatch.setattr(handlers, "read_image", read.append)
    with urllib.request.urlopen(address + "config") as response:
        config = json.load(response)
    kinds = {component["id"]: component["type"] for component in config["components"]}
    local = str(next(drawn_pictures.glob("*.png")))
    asked = 0
    for dependency in config["dependencies"]:
        inputs = dependency["inputs"]
        if not inputs or kinds[inputs[0]] not in ("image", "file") or not dependency["backend_fn"]:
            continue
        for meta in ({}, {"meta": {"_type": "gradio.FileData"}}):
            one = {"path": local, **meta}
            data = [one if kinds[inputs[0]] == "image" else [one], *[None] * (len(inputs) - 1)]
            body = {
                "data": data,
                "fn_index": dependency["id"],
                "session_hash": f"s{asked}",
                "event_data": {"model": "tiny-sat", "words": ["a"], "kind": "png"},
            }
            with urllib.request.urlopen(
                post_json(f"{address}gradio_api/queue/join", body)
            ) as response:
                assert response.status == 200
            stream = f"{address}gradio_api/queue/data?session_hash=s{asked}"
            with urllib.request.urlopen(stream) as response:
                answer = response.read()
            assert b'"success":false' in answer
            asked += 1
    assert asked >= 12
    assert read == []


def test_an_upload_that_is_too_large_is_refused(
    address: str, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert handlers.MAX_UPLOAD_BYTES <= 100 * 1024**2
    boundary = "x" * 20
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = head.encode() + bytes(handlers.MAX_UPLOAD_BYTES + 1) + f"\r\n--{boundary}--".encode()
    request = urllib.request.Request(
        f"{address}gradio_api/upload",
        data=body,
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 413


def test_uploads_go_when_their_visitors_go(tmp_path: Path) -> None:
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "cat.jpg").write_bytes(b"cat")
    files = {name: tmp_path / name for name in ("mine.png", "ours.png", "cat.jpg")}
    for path in files.values():
        path.write_bytes(b"cat" if path.name == "cat.jpg" else b"picture")
    uploads = app.Uploads(examples)
    uploads.keep("a", [str(path) for path in files.values()])
    uploads.keep("b", [str(files["ours.png"])])
    uploads.forget("a")
    uploads.forget(None)
    uploads.forget("a")
    assert [path.exists() for path in files.values()] == [False, True, True]
    uploads.forget("b")
    assert not files["ours.png"].exists()


# People


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        flags = ["--no-sandbox"]
        flags += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield browser
        browser.close()


class Visit:
    """A visit to the page in a browser, which must be without errors and foreign requests."""

    def __init__(
        self, browser, address: str, width: int = 1280, height: int = 900, **context
    ) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.under_way: set = set()
        self.page.on("request", lambda request: self.under_way.add(request))
        for end in ("requestfinished", "requestfailed"):
            self.page.on(end, lambda request: self.under_way.discard(request))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.address = address
        self.page.goto(address)
        self.page.locator("#picture input[type=file]").wait_for(state="attached")

    def words(self, words: tuple[str, ...] | list[str], side: str = "first") -> None:
        """Wait until the caption is this one."""
        self.page.wait_for_function(
            "([side, words]) => JSON.stringify([...document.querySelectorAll("
            "`#${side}-viewer .word:not(.end) .text`)].map(e => e.textContent))"
            " === JSON.stringify(words)",
            arg=[side, list(words)],
        )

    def settle(self) -> None:
        """Wait until the page has had every answer and asked nothing more for half a second."""
        quiet = 0
        while quiet < 5:
            self.page.wait_for_timeout(100)
            waiting = any("/queue/" in request.url for request in self.under_way)
            quiet = 0 if waiting else quiet + 1

    def said(self, model: str, search: str) -> None:
        """Wait for the caption that this model found by this search."""
        note = self.page.locator("#first-viewer .note", has_text=f"{model} · {search}")
        note.wait_for()

    def shows(self, width: int, height: int) -> None:
        """Wait for the caption of a picture of this size."""
        self.page.wait_for_function(
            """([width, height]) => {
            const canvas = document.querySelector("#first-viewer .stage canvas");
            return canvas?.width === width && canvas.height === height; }""",
            arg=[width, height],
        )

    def upload(self, path: Path) -> None:
        self.page.locator("#picture input[type=file]").set_input_files(path)

    def canvas(self, side: str = "first") -> np.ndarray:
        """The pixels that are shown."""
        size, data = self.page.evaluate(
            """side => { const c = document.querySelector(`#${side}-viewer .stage canvas`);
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            return [[c.height, c.width], Array.from(d)] }""",
            side,
        )
        return np.array(data, dtype=np.int16).reshape(*size, 4)[:, :, :3]

    def end(self) -> None:
        # A page that fits: nothing to scroll sideways.
        assert self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert not self.problems
        foreign = [u for u in self.requests if not u.startswith((self.address, "data:", "blob:"))]
        assert not foreign
        self.context.close()


def close_to(shown: np.ndarray, wanted: Image.Image, share: float = 99) -> None:
    """The browser draws what our own overlay draws, but for JPEG and rounding.

    Where regions end between two pixels, the pixels there may fall to either side: then a few
    per cent of them are left out (``share``).
    """
    difference = np.abs(shown - np.asarray(wanted, dtype=np.int16))
    assert shown.shape == difference.shape
    assert np.percentile(difference, share) < 16
    assert np.median(difference) <= 3


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_every_word_shows_its_own_map(
    address: str,
    browser,
    captioners: dict[str, Captioner],
    picture: Path,
    width: int,
    height: int,
) -> None:
    result = captioners["sat"].caption(picture)
    visit = Visit(browser, address, width, height)
    visit.upload(picture)
    visit.words(result.words)
    chips = visit.page.locator("#first-viewer .word")
    assert chips.count() == len(result.words) + 1
    with Image.open(picture) as image:
        image = image.convert("RGB")
    box = visit.page.locator("#first-viewer .stage canvas").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(3, rel=0.02)
    chips.first.click()
    for place in range(len(result.words)):
        if place:
            visit.page.keyboard.press("ArrowRight")
        assert chips.nth(place).get_attribute("aria-pressed") == "true"
        close_to(visit.canvas(), attention_overlay(image, result.attention[place]))
    visit.page.keyboard.press("End")  # what comes after the last word has no map
    close_to(visit.canvas(), image)
    visit.page.keyboard.press("Home")
    visit.end()


@pytest.mark.browser
def test_maps_are_drawn_as_one_likes(
    address: str, browser, captioners: dict[str, Captioner], picture: Path
) -> None:
    result = captioners["sat"].caption(picture)
    visit = Visit(browser, address)
    visit.upload(picture)
    visit.words(result.words)
    visit.page.locator("#first-viewer .word").first.click()
    with Image.open(picture) as image:
        image = image.convert("RGB")
    attention = result.attention[0]
    visit.page.locator("#first-viewer .style summary").click()
    slider = visit.page.get_by_label("Opacity")
    assert slider.input_value() == "0.6"
    for opacity in (0.0, 0.35, 1.0):
        slider.fill(str(opacity))
        close_to(visit.canvas(), attention_overlay(image, attention, opacity=opacity))
    slider.fill("0.5")
    colours = visit.page.get_by_label("Colours")
    assert colours.locator("option").all_inner_texts() == list(handlers.COLORMAPS)
    for name in handlers.COLORMAPS:
        colours.select_option(name)
        wanted = attention_overlay(image, attention, opacity=0.5, colormap=name)
        close_to(visit.canvas(), wanted)
    visit.page.get_by_label("Smooth").uncheck()
    wanted = attention_overlay(image, attention, opacity=0.5, smooth=False, colormap=name)
    close_to(visit.canvas(), wanted, share=93)

    before = visit.canvas()
    visit.page.get_by_label("Outline").check()
    changed = (visit.canvas() != before).any(axis=2)
    # The fewest regions that hold half of the attention, and a line wherever they end.
    order = np.argsort(-attention, axis=None)
    count = 1 + int(np.searchsorted(attention.ravel()[order].cumsum(), attention.sum() / 2))
    inside = np.zeros(attention.size, dtype=bool)
    inside[order[:count]] = True
    rows, cols = attention.shape
    framed = np.pad(inside.reshape(rows, cols), 1)
    y_of, x_of = image.height / rows, image.width / cols
    for row in range(rows):
        for col in range(cols):
            middle = round((row + 0.5) * y_of), round((col + 0.5) * x_of)
            assert not changed[middle]
            left = framed[row + 1, col + 1] != framed[row + 1, col]
            above = framed[row + 1, col + 1] != framed[row, col + 1]
            assert changed[middle[0], round(col * x_of)] == left
            assert changed[round(row * y_of), middle[1]] == above
    visit.end()


@pytest.mark.browser
def test_a_touch_picks_a_word_and_play_walks(address: str, browser, picture: Path) -> None:
    visit = Visit(browser, address, 390, 844, has_touch=True)
    visit.upload(picture)
    chips = visit.page.locator("#first-viewer .word")
    chips.nth(2).tap()
    assert chips.nth(2).get_attribute("aria-pressed") == "true"
    chips.nth(0).tap()
    visit.page.locator("#first-viewer .play").tap()
    visit.page.wait_for_function(
        "document.querySelectorAll('#first-viewer .word')[1].ariaPressed === 'true'"
    )
    assert "Pause" in visit.page.locator("#first-viewer .play").inner_text()
    visit.page.locator("#first-viewer .play").tap()
    assert "Play" in visit.page.locator("#first-viewer .play").inner_text()
    visit.end()


@pytest.mark.browser
def test_a_word_is_forced_and_taken_back(
    address: str, browser, captioners: dict[str, Captioner], picture: Path
) -> None:
    captioner = captioners["sat"]
    result = captioner.caption(picture, alternatives=5, num_captions=3)
    visit = Visit(browser, address)
    visit.upload(picture)
    visit.words(result.words)
    visit.page.locator("#first-viewer .word").nth(1).click()
    others = visit.page.locator("#first-viewer .other .text").all_inner_texts()
    assert result.alternatives is not None
    assert others == [
        "(end here)" if other.word == "<eos>" else other.word for other in result.alternatives[1]
    ]
    place = next(i for i, other in enumerate(result.alternatives[1]) if other.word != "<eos>")
    prefix = [result.words[0], others[place]]
    visit.page.locator("#first-viewer .other").nth(place).click()
    visit.words(captioner.caption(picture, prefix=prefix, num_captions=3).words)
    assert visit.page.locator("#first-viewer .word.forced").count() == 2
    visit.page.locator("#first-viewer .back").click()
    visit.words(result.words)
    assert visit.page.locator("#first-viewer .back").is_hidden()
    visit.end()


@pytest.mark.browser
def test_two_models_side_by_side_and_single_heads(
    address: str, browser, captioners: dict[str, Captioner], picture: Path
) -> None:
    results = {
        name: captioner.caption(picture, layer_attention=True)
        for name, captioner in captioners.items()
    }
    greedy = captioners["sat"].caption(picture, method="greedy")
    visit = Visit(browser, address)
    visit.upload(picture)
    visit.page.locator("#compare input").check()
    visit.words(results["sat"].words)
    visit.words(results["transformer"].words, "second")
    visit.settle()  # the upload may have brought both captions before the choice was sent
    asked = sum("queue/join" in url for url in visit.requests)
    visit.page.locator("#second-viewer .word").first.click()
    with Image.open(picture) as image:
        image = image.convert("RGB")
    for layer, head in ((0, 0), (0, None), (1, 1)):
        visit.page.locator("#second-viewer select.layer").select_option(str(layer))
        visit.page.locator("#second-viewer select.head").select_option(
            "" if head is None else str(head)
        )
        chosen = select_maps(results["transformer"], layer, head)
        close_to(visit.canvas("second"), attention_overlay(image, chosen.attention[0]))
    # Nothing was asked of the server.
    assert sum("queue/join" in url for url in visit.requests) == asked
    # One model with two ways to search.
    visit.page.locator("#second-model").get_by_label("tiny-sat").check()
    visit.page.locator("#second-decoding button").first.click()
    visit.page.locator("#second-method").get_by_label("Greedy").check()
    visit.words(greedy.words, "second")
    visit.words(results["sat"].words)
    visit.end()


@pytest.mark.browser
def test_what_is_chosen_right_after_a_model_stands(address: str, browser, picture: Path) -> None:
    visit = Visit(browser, address)
    visit.upload(picture)
    visit.said("tiny-sat", "beam search of 3")
    visit.page.locator("#first-decoding button").first.click()
    beam_size = visit.page.get_by_label("number input for Beam size").first
    assert beam_size.input_value() == "3"
    # A slow line: whatever the page asks for is answered only after the visitor's next choice.
    held: list = []
    visit.page.route(
        "**/gradio_api/**",
        lambda route: held.append(route) if route.request.method == "POST" else route.continue_(),
    )
    visit.page.locator("#first-model").get_by_label("tiny-transformer").check()
    visit.page.wait_for_timeout(300)
    beam_size.fill("1")
    beam_size.blur()
    visit.page.wait_for_timeout(300)
    assert held
    for route in held:
        route.continue_()
    visit.page.unroute("**/gradio_api/**")
    visit.said("tiny-transformer", "beam search of 1")
    visit.page.wait_for_timeout(300)
    assert beam_size.input_value() == "1"
    visit.end()


@pytest.mark.browser
def test_an_answer_that_another_has_overtaken_is_not_shown(
    address: str, browser, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, answered = threading.Event(), threading.Event(), threading.Event()
    view = app.view_picture

    def late(model: str, captioner: Captioner, *rest, **options) -> str:
        answer = view(model, captioner, *rest, **options)
        if '"search": "beam' in answer and model == "tiny-transformer":
            begun.set()
            assert go_on.wait(60)
            answered.set()
        return answer

    visit = Visit(browser, address)
    visit.upload(picture)
    visit.said("tiny-sat", "beam search of 3")
    visit.page.locator("#first-decoding button").first.click()
    monkeypatch.setattr(app, "view_picture", late)
    visit.page.locator("#first-model").get_by_label("tiny-transformer").check()
    assert begun.wait(60)
    visit.page.locator("#first-method").get_by_label("Greedy").check()
    visit.said("tiny-transformer", "greedy search")
    go_on.set()
    assert answered.wait(60)
    visit.page.wait_for_timeout(1000)
    assert "greedy search" in visit.page.locator("#first-viewer .note").inner_text()
    visit.end()


@pytest.mark.browser
def test_files_are_taken_along(address: str, browser, picture: Path) -> None:
    visit = Visit(browser, address)
    visit.upload(picture)
    visit.page.locator("#first-viewer .out summary").click()
    for label, end in (("PNG", "png"), ("SVG", "svg"), ("GIF", "gif"), ("WebP", "webp")):
        with visit.page.expect_download() as caught:
            visit.page.locator("#first-viewer .out button", has_text=label).click()
        assert caught.value.suggested_filename == f"caption.{end}"
        content = Path(caught.value.path()).read_bytes()
        if end == "svg":
            assert content.startswith(b"<svg")
        else:
            assert Image.open(io.BytesIO(content)).format == end.upper()
    with visit.page.expect_download() as caught:
        visit.page.locator("#first-viewer .json").click()
    data = json.loads(Path(caught.value.path()).read_text("utf-8"))
    words = visit.page.locator("#first-viewer .word:not(.end) .text").all_inner_texts()
    assert data["captions"][0]["words"] == words
    assert np.array(data["captions"][0]["attention"]).shape == (
        len(words),
        data["rows"],
        data["cols"],
    )
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.page.locator("#first-viewer .copy").click()
    visit.page.get_by_text("Copied.").wait_for()
    assert visit.page.evaluate("navigator.clipboard.readText()") == " ".join(words)
    visit.end()


@pytest.mark.browser
def test_what_cannot_be_read_is_said(address: str, browser, picture: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(picture.read_bytes()[:20])
    visit = Visit(browser, address)
    visit.page.locator("#run").click()
    visit.page.get_by_text("Add a picture first").wait_for()
    visit.upload(broken)
    visit.page.locator("#first-viewer").get_by_text("cannot be read as a picture").wait_for()
    assert visit.page.locator("#first-viewer .word").count() == 0
    assert "Traceback" not in visit.page.content()
    visit.page.locator("#picture img.unseen").wait_for(state="attached")
    # The message goes when there is a caption.
    visit.page.get_by_label("Remove Image").click()
    visit.upload(picture)
    visit.page.locator("#first-viewer .word").first.wait_for()
    assert visit.page.locator("#first-viewer .problem").count() == 0
    visit.context.close()


OTHER_PICTURE = """\
([data, name]) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
  return transfer;
}
"""


@pytest.mark.browser
def test_pictures_are_dropped_and_pasted(address: str, browser, tmp_path: Path) -> None:
    sizes = [(300, 100), (400, 300), (100, 200)]
    pictures = [tmp_path / f"{i}.png" for i in range(3)]
    for path, size in zip(pictures, sizes, strict=True):
        Image.new("RGB", size, "teal").save(path)
    data = [base64.b64encode(path.read_bytes()).decode("ascii") for path in pictures]
    visit = Visit(browser, address)

    transfer = visit.page.evaluate_handle(OTHER_PICTURE, [data[0], "a.png"])
    for event in ("dragenter", "dragover", "drop"):
        target = visit.page.locator("#picture [aria-dropeffect]").first
        target.dispatch_event(event, {"dataTransfer": transfer})
    visit.shows(*sizes[0])
    # Onto the picture that is there.
    transfer = visit.page.evaluate_handle(OTHER_PICTURE, [data[1], "b.png"])
    for event in ("dragenter", "dragover", "drop"):
        target = visit.page.locator("#picture img")
        target.dispatch_event(event, {"dataTransfer": transfer})
    visit.shows(*sizes[1])

    # Anywhere on the page, as a file manager or a screenshot gives it.
    transfer = visit.page.evaluate_handle(OTHER_PICTURE, [data[0], "c.png"])
    visit.page.evaluate(
        """transfer => document.body.dispatchEvent(
        new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true }))""",
        transfer,
    )
    visit.shows(*sizes[0])
    # The real clipboard.
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.page.evaluate(
        """data => navigator.clipboard.write([new ClipboardItem({ "image/png": new Blob(
        [Uint8Array.from(atob(data), c => c.charCodeAt(0))], { type: "image/png" }) })])""",
        data[2],
    )
    visit.page.locator("#title").click()
    visit.page.keyboard.press("Control+v")
    visit.shows(*sizes[2])
    visit.page.get_by_label("Remove Image").click()
    visit.page.locator("#first-viewer .word").first.wait_for(state="detached")
    visit.page.get_by_label("Paste from clipboard").click()
    visit.shows(*sizes[2])
    visit.end()


@pytest.mark.browser
def test_the_camera_takes_a_picture(address: str, browser) -> None:
    visit = Visit(browser, address, permissions=["camera"])
    visit.page.get_by_label("Capture from camera").click()
    visit.page.get_by_text("Click to Access Webcam").click()
    size = visit.page.wait_for_function(
        """() => { const video = document.querySelector("#picture video");
        return video?.readyState >= 2 && video.videoWidth > 0
          && [video.videoHeight, video.videoWidth] }"""
    ).json_value()
    visit.page.get_by_label("capture photo").click()
    visit.page.locator("#first-viewer .word").first.wait_for()
    canvas = "document.querySelector('#first-viewer .stage canvas')"
    visit.page.wait_for_function(f"{canvas}.width > 1")  # larger ones are shown smaller
    shown = visit.page.evaluate(f"{canvas}.height / {canvas}.width")
    assert shown == pytest.approx(size[0] / size[1], rel=0.01)
    visit.end()


@pytest.mark.browser
def test_many_pictures_at_once(address: str, browser, picture: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.write(picture, "inside.png")
        archive.writestr("broken.png", b"no picture")
    visit = Visit(browser, address)
    visit.page.get_by_role("tab", name="Several").click()
    visit.page.locator("#batch-files input[type=file]").set_input_files(
        [picture, tmp_path / "some.zip"]
    )
    visit.page.locator('#batch-files [aria-label="some.zip"]').wait_for()
    visit.page.locator("#batch-run").click()
    visit.page.get_by_text("Done: 3 of 3, 1 could not be read").wait_for()
    assert visit.page.locator("#batch-table tbody tr").count() == 3
    with visit.page.expect_download() as caught:
        visit.page.locator("#batch-table a", has_text="JSONL").click()
    lines = Path(caught.value.path()).read_text("utf-8").splitlines()
    names = [json.loads(line)["image"] for line in lines]
    assert names == ["wide.png", "some.zip/inside.png", "some.zip/broken.png"]
    visit.end()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_programs_are_told_this_address(address: str, browser, width: int, height: int) -> None:
    visit = Visit(browser, address, width, height)
    visit.page.get_by_role("tab", name="API").click()
    visit.page.locator("#api", has_text=f'Client("{address.rstrip("/")}")').wait_for()
    visit.end()  # and nothing is wider than the page


def pack(picture: Path, path: Path, copies: int) -> Path:
    """An archive of one picture many times."""
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(copies):
            archive.write(picture, f"{i}.png")
    return path


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """Have the server take its time over each picture of a batch; the names it has done."""
    computed: list[str] = []
    caption_items = app.caption_items

    def slow(*args) -> Iterator[object]:
        for row in caption_items(*args):
            time.sleep(seconds)
            computed.append(row.name)
            yield row

    monkeypatch.setattr(app, "caption_items", slow)
    return computed


def begin_batch(browser, address: str, archive: Path) -> Visit:
    """A visitor who has an archive captioned."""
    visit = Visit(browser, address)
    visit.page.get_by_role("tab", name="Several").click()
    visit.page.locator("#batch-files input[type=file]").set_input_files(archive)
    visit.page.locator(f'#batch-files [aria-label="{archive.name}"]').wait_for()
    visit.page.locator("#batch-run").click()
    return visit


@pytest.mark.browser
def test_a_batch_is_stopped(
    address: str, browser, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(picture, tmp_path / "many.zip", 40)
    caption_items = app.caption_items
    computed = slow_down(monkeypatch, 0.25)

    visit = begin_batch(browser, address, archive)
    visit.page.wait_for_function("document.querySelectorAll('#batch-table tbody tr').length > 2")
    # Another visitor's batch waits for its turn, and can be stopped before it comes.
    other = begin_batch(browser, address, archive)
    other.page.get_by_text("Waiting for its turn").wait_for()
    other.page.locator("#batch-stop").click()
    visit.page.locator("#batch-stop").click()
    visit.page.get_by_text("Stopped: ").wait_for()
    done = len(computed)
    assert 2 < done < 40
    state = visit.page.locator("#batch-table .state > span").first.inner_text()
    assert state == f"Stopped: {done} of 40"
    assert visit.page.locator("#batch-table tbody tr").count() == done
    assert visit.page.locator("#batch-table progress").count() == 0
    with visit.page.expect_download() as caught:
        visit.page.locator("#batch-table a", has_text="JSONL").click()
    lines = Path(caught.value.path()).read_text("utf-8").splitlines()
    assert [json.loads(line)["image"] for line in lines] == computed
    other.page.get_by_text("Stopped: 0 of 40").wait_for()
    other.end()
    time.sleep(1)
    assert len(computed) == done  # nobody goes on with it
    # The next one runs to its end.
    monkeypatch.setattr(app, "caption_items", caption_items)
    visit.page.locator("#batch-run").click()
    visit.page.get_by_text("Done: 40 of 40").wait_for()
    visit.end()


@pytest.mark.browser
def test_a_batch_ends_when_its_visitor_leaves(
    address: str, browser, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(picture, tmp_path / "many.zip", 100)
    computed = slow_down(monkeypatch, 0.2)
    visit = begin_batch(browser, address, archive)
    visit.page.wait_for_function("document.querySelectorAll('#batch-table tbody tr').length > 2")
    visit.end()
    for _ in range(40):
        before = len(computed)
        time.sleep(1)
        if len(computed) == before:
            break
    assert len(computed) < 80


@pytest.mark.browser
def test_an_example_is_one_click(address: str, browser) -> None:
    visit = Visit(browser, address)
    visit.page.locator("#examples button img").first.click()
    visit.page.locator("#first-viewer .word").first.wait_for()
    assert visit.page.locator("#attribution").inner_text().count("CC0") >= 3
    visit.end()
