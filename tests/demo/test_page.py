"""The page over HTTP, and in a real browser."""

import hashlib
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from captioner import Captioner

gr = pytest.importorskip("gradio", reason="needs captioner[demo]")

from captioner.demo import app, handlers  # noqa: E402 - after the check for Gradio

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def address(tiny_models: dict[str, Path]) -> Iterator[str]:
    """The page, served on a free port of this machine."""
    addresses: list[str] = []
    page = app.launch(
        [str(tiny_models["sat"]), str(tiny_models["transformer"])],
        port=0,
        announce=addresses.append,
        block=False,
    )
    yield addresses[0]
    page.close()


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


def test_uploads_reach_our_loader_byte_for_byte(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_module = pytest.importorskip("gradio_client")
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
    client = client_module.Client(address, verbose=False)
    caption, overlays = client.predict(
        client_module.handle_file(path), "tiny-sat", api_name="/caption"
    )
    assert seen == [(".png", hashlib.sha256(path.read_bytes()).hexdigest())]
    assert "word" in caption
    overlays = overlays["value"] if isinstance(overlays, dict) else overlays
    with Image.open(overlays[0]["image"]) as overlay:
        assert overlay.size == (20, 50)


def test_a_bare_path_is_refused(
    address: str, drawn_pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name only what was uploaded, not files of the server, pictures included."""
    read = []
    monkeypatch.setattr(handlers, "read_image", read.append)
    for path in (next(drawn_pictures.glob("*.png")), Path("/etc/hostname")):
        data = [{"path": str(path), "meta": {"_type": "gradio.FileData"}}, "tiny-sat"]
        request = urllib.request.Request(
            address + "gradio_api/call/caption",
            data=json.dumps({"data": data}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            event = json.load(response)["event_id"]
        with urllib.request.urlopen(f"{address}gradio_api/call/caption/{event}") as response:
            assert b"event: error" in response.read()
    assert read == []


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_upload_shows_words_and_overlays(
    address: str, browser, tiny_models: dict[str, Path], tmp_path: Path, width: int, height: int
) -> None:
    path = tmp_path / "wide.png"
    Image.effect_noise((300, 100), 60).convert("RGB").save(path)
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(120_000)
    requests: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    upload = page.locator("#picture input[type=file]")
    upload.wait_for(state="attached")

    for model in ("sat", "transformer"):
        if model == "sat":
            upload.set_input_files(path)
        else:
            page.get_by_label("tiny-transformer").check()
        result = Captioner.load(tiny_models[model]).caption(path)
        # Words and maps arrive one after the other; wait for the last of both.
        page.wait_for_function(
            "words => JSON.stringify([...document.querySelectorAll('#caption .word')]"
            ".map(e => e.textContent)) === JSON.stringify(words)",
            arg=list(result.words),
        )
        page.wait_for_function(
            "n => { const all = [...document.querySelectorAll('#overlays img')];"
            " all.forEach(i => i.loading = 'eager');"
            " return all.length === n && all.every(i => i.naturalWidth === 300"
            " && i.naturalHeight === 100) }",
            arg=len(result.words),
        )
        labels = page.locator("#overlays .caption-label").all_inner_texts()
        assert [label.split(" · ")[0] for label in labels] == list(result.words)

    broken = tmp_path / "broken.png"
    broken.write_bytes(path.read_bytes()[:60])
    page.reload()
    upload.wait_for(state="attached")
    assert page.locator("#caption .word").count() == 0
    upload.set_input_files(broken)
    page.get_by_text("cannot be read as a picture").wait_for()

    # A page that fits: nothing to scroll sideways.
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not problems
    foreign = [url for url in requests if not url.startswith((address, "data:", "blob:"))]
    assert not foreign
    page.close()


@pytest.mark.browser
def test_an_example_is_one_click(address: str, browser) -> None:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.locator("#examples button img").first.click()
    page.locator("#caption .word").first.wait_for()
    page.locator("#overlays img").first.wait_for()
    assert page.locator("#attribution").inner_text().count("CC0") >= 3
    page.close()
