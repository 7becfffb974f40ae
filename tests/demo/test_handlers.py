from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner
from captioner.demo.handlers import (
    DemoError,
    caption_html,
    caption_picture,
    describe_model,
    load_captioners,
)
from captioner.inference import checkpoint
from captioner.inference.overlay import attention_overlay
from captioner.types import CaptionResult


@pytest.fixture(scope="module")
def captioners(tiny_models: dict[str, Path]) -> dict[str, Captioner]:
    return load_captioners([str(tiny_models["sat"]), str(tiny_models["transformer"])])


def make_result(words: list[str]) -> CaptionResult:
    return CaptionResult(
        text=" ".join(words),
        words=tuple(words),
        token_ids=tuple(range(len(words))),
        word_log_probs=np.log(np.linspace(0.5, 1, len(words), dtype=np.float32)),
        log_prob=-0.5,
        attention=np.ones((len(words), 2, 2), dtype=np.float32) / 4,
        crop_box=(0, 0, 4, 4),
        image_size=(4, 4),
        finished=True,
        score=0.0,
    )


def test_names_and_duplicates(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    twin = tmp_path / "tiny-sat"
    twin.symlink_to(tiny_models["sat"])
    models = [str(tiny_models["sat"]), str(twin), str(twin)]
    assert list(load_captioners(models)) == ["tiny-sat", str(twin)]


def test_no_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoint, "PRETRAINED", tmp_path)
    with pytest.raises(FileNotFoundError, match="captioner demo --model DIR"):
        load_captioners()
    with pytest.raises(FileNotFoundError, match="no model 'gone'"):
        load_captioners(["gone"])


def test_shows_what_the_captioner_says(
    captioners: dict[str, Captioner], drawn_pictures: Path
) -> None:
    path = next(drawn_pictures.glob("*.jpg"))
    for name, captioner in captioners.items():
        shown = caption_picture(captioners, name, str(path))
        result = captioner.caption(path)
        labels = [label.split(" · ")[0] for _, label in shown.overlays]
        assert labels == list(result.words)
        with Image.open(path) as image:
            for (overlay, _), attention in zip(shown.overlays, result.attention, strict=True):
                assert overlay.size == image.size
                wanted = attention_overlay(image, attention, result.crop_box)
                assert overlay.tobytes() == wanted.tobytes()
        for word in result.words:
            assert f">{word}</span>" in shown.caption


def test_overlays_have_the_shape_of_the_picture(
    captioners: dict[str, Captioner], tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[274] = 6  # lies on its side
    Image.new("RGB", (210, 30), "orange").save(tmp_path / "x.jpg", exif=exif)
    shown = caption_picture(captioners, "tiny-sat", str(tmp_path / "x.jpg"))
    assert {overlay.size for overlay, _ in shown.overlays} == {(30, 210)}


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n and no more"])
def test_what_is_no_picture_gets_a_message(
    captioners: dict[str, Captioner], tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "upload.png"
    path.write_bytes(content)
    with pytest.raises(DemoError, match="cannot be read as a picture") as caught:
        caption_picture(captioners, "tiny-sat", str(path))
    assert str(tmp_path) not in str(caught.value)  # the server's folders are nobody's business
    with pytest.raises(DemoError) as caught:
        caption_picture(captioners, "tiny-sat", str(tmp_path / "gone.png"))
    assert str(tmp_path) not in str(caught.value)


def test_other_mistakes_get_a_message(captioners: dict[str, Captioner]) -> None:
    with pytest.raises(DemoError, match="Add a picture first"):
        caption_picture(captioners, "tiny-sat", None)
    with pytest.raises(DemoError, match="choose tiny-sat or tiny-transformer"):
        caption_picture(captioners, "other", "x.png")


def test_words_are_no_markup() -> None:
    shown = caption_html(make_result(["<script>", 'say"so', "cat"]))
    assert "<script>" not in shown
    assert 'say"so' not in shown
    assert "&lt;script&gt;" in shown
    assert "no words" in caption_html(make_result([]))


def test_models_are_described(captioners: dict[str, Captioner]) -> None:
    text = describe_model(captioners["tiny-sat"])
    assert "ShowAttendTellDecoder on timm/test_efficientnet" in text
    assert "15 words" in text
