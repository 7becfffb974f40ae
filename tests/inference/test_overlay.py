import dataclasses
import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from captioner.inference import overlay
from captioner.inference.overlay import (
    _columns,
    _font,
    _shorten,
    _wrap,
    attention_overlay,
    find_undrawable,
    format_probability,
    render_animation,
    render_figure,
    render_figure_svg,
    select_maps,
)
from captioner.types import CaptionResult


def one_hot(rows: int, cols: int, row: int, col: int) -> np.ndarray:
    attention = np.zeros((rows, cols), dtype=np.float32)
    attention[row, col] = 1
    return attention


def brightest(picture: Image.Image) -> tuple[float, float]:
    """Centre (x, y) of the brightest pixels."""
    values = np.asarray(picture.convert("RGB")).astype(int).sum(2)
    y, x = np.nonzero(values == values.max())
    return x.mean() + 0.5, y.mean() + 0.5


def make_result(words: list[str], size: tuple[int, int], rows: int = 3, cols: int = 5):
    attention = np.full((len(words), rows, cols), 1 / (rows * cols), dtype=np.float32)
    return CaptionResult(
        text=" ".join(words),
        words=tuple(words),
        token_ids=tuple(range(len(words))),
        word_log_probs=np.full(len(words), -1.0, dtype=np.float32),
        log_prob=-1.0 * len(words),
        attention=attention,
        crop_box=(0.0, 0.0, float(size[0]), float(size[1])),
        image_size=size,
        finished=True,
        score=0.0,
    )


@settings(max_examples=40, deadline=None)
@given(data=st.data(), smooth=st.booleans())
def test_a_region_lands_where_it_was_seen(data: st.DataObject, smooth: bool) -> None:
    rows, cols = data.draw(st.integers(2, 7)), data.draw(st.integers(2, 7))
    row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    width, height = data.draw(st.integers(60, 900)), data.draw(st.integers(60, 900))
    overlay = attention_overlay(
        Image.new("RGB", (width, height), "black"), one_hot(rows, cols, row, col), smooth=smooth
    )
    assert overlay.size == (width, height)
    assert overlay.mode == "RGB"
    x, y = brightest(overlay)
    # Inside of the region, whichever of its pixels are the brightest.
    assert col * width / cols - 1 <= x <= (col + 1) * width / cols + 1
    assert row * height / rows - 1 <= y <= (row + 1) * height / rows + 1


def test_the_map_stays_inside_of_the_crop_box() -> None:
    picture = Image.new("RGB", (300, 100), (200, 40, 40))
    overlay = attention_overlay(picture, one_hot(2, 2, 1, 1), (100, 0, 200, 100), smooth=False)
    assert overlay.size == (300, 100)
    x, y = brightest(overlay)
    assert (x, y) == (175, 75)
    outside = np.asarray(overlay)[:, :100]
    assert (outside.max(2) == outside.min(2)).all()  # no colour where the model did not look
    assert len(np.unique(outside)) == 1


def test_grid_exact_is_exact() -> None:
    picture = Image.new("RGB", (40, 20), "black")
    overlay = attention_overlay(
        picture, np.array([[0.0, 0.5], [1.0, 0.25]]), smooth=False, opacity=1, colormap="viridis"
    )
    colours = np.asarray(overlay)
    viridis = mpl.colormaps["viridis"]
    for y, x, value in ((0, 0, 0.0), (0, 39, 0.5), (19, 0, 1.0), (19, 39, 0.25)):
        wanted = np.array(viridis(round(value * 255), bytes=True)[:3])
        np.testing.assert_array_equal(colours[y, x], wanted)


def test_opacity() -> None:
    picture = Image.effect_noise((30, 30), 80).convert("RGB")
    attention = one_hot(3, 3, 0, 2)
    assert attention_overlay(picture, attention, opacity=0).tobytes() == picture.tobytes()
    other = attention_overlay(Image.new("RGB", (30, 30)), attention, opacity=1)
    assert attention_overlay(picture, attention, opacity=1).tobytes() == other.tobytes()


def test_a_flat_map_shows_no_structure() -> None:
    overlay = attention_overlay(Image.new("RGB", (50, 40), "grey"), np.full((4, 5), 1 / 20))
    assert len(overlay.getcolors()) == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (3000, 2), (7, 3)])
@pytest.mark.parametrize("smooth", [True, False])
def test_every_size_is_kept(size: tuple[int, int], smooth: bool) -> None:
    box = (0.2, 0.2, size[0] - 0.2, size[1] - 0.2)
    overlay = attention_overlay(
        Image.new("RGB", size, "white"), one_hot(9, 9, 3, 4), box, smooth=smooth
    )
    assert overlay.size == size


def test_wrong_arguments() -> None:
    picture, attention = Image.new("RGB", (9, 9)), np.ones((2, 2))
    with pytest.raises(ValueError, match=r"one map \(rows, cols\), got shape \(4,\)"):
        attention_overlay(picture, attention.ravel())
    with pytest.raises(ValueError, match="opacity must be between 0 and 1, got 2"):
        attention_overlay(picture, attention, opacity=2)
    with pytest.raises(ValueError, match=r"colormap .* got 'nope'"):
        attention_overlay(picture, attention, colormap="nope")
    with pytest.raises(ValueError, match="finite"):
        attention_overlay(picture, attention * np.nan)
    with pytest.raises(ValueError, match="must be the captioned one"):
        render_figure(picture, make_result(["cat"], (10, 10)))


@pytest.mark.parametrize("size", [(640, 400), (2000, 120), (90, 1500), (3, 4)])
@pytest.mark.parametrize("count", [0, 1, 7, 50])
def test_figures_have_one_panel_per_word(size: tuple[int, int], count: int) -> None:
    figure = render_figure(Image.new("RGB", size, "red"), make_result(["cat"] * count, size))
    # Panels are the only saturated parts of the figure: count their pixels.
    pixels = np.asarray(figure).astype(int)
    coloured = (pixels.max(2) - pixels.min(2) > 30).sum()
    scale = 240 / max(size)
    area = max(1, round(size[0] * scale)) * max(1, round(size[1] * scale))
    assert coloured == pytest.approx((count + 1) * area, rel=0.02)
    assert figure.width <= 2300
    assert figure.width / figure.height < 8


def test_rows_are_even_and_none_is_empty() -> None:
    for panels in range(1, 60):
        columns = _columns(panels, 254, 240)
        rows = -(-panels // columns)
        assert 1 <= columns <= 8
        assert (rows - 1) * columns < panels <= rows * columns


def test_text_fits() -> None:
    font = _font(20)
    lines = _wrap("a dog runs through the long grass of a park " * 3 + "x" * 200, font, 300)
    assert all(font.getlength(line) <= 300 for line in lines)
    assert "".join(lines).replace(" ", "") == ("adogrunsthroughthelonggrassofapark" * 3 + "x" * 200)
    assert font.getlength(_shorten("supercalifragilistic", font, 100)) <= 100
    assert _shorten("cat", font, 100) == "cat"


def test_words_that_the_font_lacks_take_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for Chinese words, with a font that every matplotlib has."""
    stix = Path(mpl.get_data_path()) / "fonts" / "ttf" / "STIXGeneral.ttf"
    text = "a \u20dd"  # an enclosing circle, which DejaVu Sans lacks and STIX has
    monkeypatch.setattr(overlay.font_manager, "findSystemFonts", lambda: ["gone.ttf", str(stix)])
    overlay._covering_font.cache_clear()
    assert Path(_font(20, text=text).path) == stix
    assert Path(_font(20, text="a dog").path).stem == "DejaVuSans"
    assert find_undrawable(text) == ""
    monkeypatch.setattr(overlay.font_manager, "findSystemFonts", list)
    overlay._covering_font.cache_clear()
    assert Path(_font(20, bold=True, text=text).path).stem == "DejaVuSans-Bold"
    assert find_undrawable(f"{text} \u732b\u732b") == "\u20dd\u732b"
    overlay._covering_font.cache_clear()


def test_probabilities_are_readable() -> None:
    shown = [format_probability(float(np.log(p))) for p in (1.0, 0.5, 0.0994, 0.0996, 0.01, 1e-6)]
    assert shown == ["100 %", "50 %", "9.9 %", "10 %", "1.0 %", "<0.1 %"]


def make_caption(size: tuple[int, int] = (60, 40)) -> CaptionResult:
    maps = np.random.default_rng(0).dirichlet(np.ones(6), 3).reshape(3, 2, 3).astype(np.float32)
    layers = np.random.default_rng(1).dirichlet(np.ones(6), (3, 2, 4)).reshape(3, 2, 4, 2, 3)
    return CaptionResult(
        text="a <dog> & cat",
        words=("a", "<dog>", "cat"),
        token_ids=(4, 5, 6),
        word_log_probs=np.array([-0.1, -1.0, -2.0], dtype=np.float32),
        log_prob=-3.5,
        attention=maps,
        crop_box=(0, 0, *size),
        image_size=size,
        finished=True,
        score=-1.0,
        layer_attention=layers.astype(np.float32),
    )


def test_svg_holds_words_and_pictures() -> None:
    from xml.etree import ElementTree

    text = render_figure_svg(Image.new("RGB", (60, 40), "teal"), make_caption())
    root = ElementTree.fromstring(text)  # well-formed, whatever the words
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text == "a <dog> & cat"
    images = root.findall(f"{space}image")
    assert len(images) == 4
    assert all(one.get("href").startswith("data:image/jpeg;base64,") for one in images)
    words = [one.text for one in root.findall(f"{space}text")]
    for word in ("a", "<dog>", "cat", "90 %", "37 %", "14 %"):
        assert word in words
    figure = render_figure(Image.new("RGB", (60, 40), "teal"), make_caption())
    assert (int(root.get("width")), int(root.get("height"))) == figure.size


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_animation_has_a_frame_for_every_word(kind) -> None:
    content = render_animation(Image.new("RGB", (60, 40), "teal"), make_caption(), kind, side=120)
    with Image.open(io.BytesIO(content)) as animation:
        assert animation.format == kind.upper()
        assert animation.n_frames == 4
        assert animation.info["loop"] == 0
        frames = []
        for i in range(4):
            animation.seek(i)
            frames.append(animation.convert("RGB").tobytes())
    assert len(set(frames)) == 4
    with pytest.raises(ValueError, match="kind must be gif or webp, got 'mp4'"):
        render_animation(Image.new("RGB", (60, 40)), make_caption(), "mp4")
    with pytest.raises(ValueError, match="must be the captioned one"):
        render_animation(Image.new("RGB", (61, 40)), make_caption())


def test_maps_of_layers_and_heads() -> None:
    result = make_caption()
    layers = result.layer_attention
    assert select_maps(result) is result
    np.testing.assert_array_equal(select_maps(result, 1, 3).attention, layers[:, 1, 3])
    np.testing.assert_allclose(select_maps(result, 0).attention, layers[:, 0].mean(1))
    for layer, head, message in ((2, None, "layer must be from 0 to 1, got 2"), (0, 4, "head")):
        with pytest.raises(ValueError, match=message):
            select_maps(result, layer, head)
    with pytest.raises(ValueError, match="no maps of layers"):
        select_maps(dataclasses.replace(result, layer_attention=None), 0)
