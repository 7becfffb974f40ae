"""Draw where a model looked: one map over its picture, and the figure of a whole caption."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import io
import logging
import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from captioner.types import CaptionResult, CropBox

logger = logging.getLogger(__name__)

DEFAULT_COLORMAP = "inferno"
DEFAULT_OPACITY = 0.6

_TITLE_SIZE, _WORD_SIZE, _SMALL_SIZE = 20, 17, 13  # pixels

_SMOOTH_SIDE = 512  # pixels at which a smooth map is coloured before it is enlarged

_INK = (28, 28, 30)
_FAINT = (110, 110, 116)
_PAPER = (255, 255, 255)


def attention_overlay(
    image: Image.Image,
    attention: NDArray[np.floating],
    crop_box: CropBox | None = None,
    *,
    opacity: float = DEFAULT_OPACITY,
    smooth: bool = True,
    colormap: str = DEFAULT_COLORMAP,
) -> Image.Image:
    """A picture with an attention map over it, at the picture's own size and shape.

    The lowest and the highest value of the map take the ends of the colour map: colours tell
    where a map is high, not how sharp it is. A flat map is the middle colour everywhere. What
    the grid does not cover (outside of ``crop_box``) is shown dark and without colour.

    Args:
        image: The upright picture.
        attention: One map, (rows, cols), not negative.
        crop_box: The part of the picture that the grid covers, in its pixels; all by default.
        opacity: Share of the map in the mixture, 0 to 1.
        smooth: Whether values are interpolated between the centres of the regions; else each
            region is one even rectangle.
        colormap: Name of one of matplotlib's colour maps.

    Returns:
        A picture in mode RGB of the size of ``image``.

    Raises:
        ValueError: An argument is out of range, or the map is no finite matrix.

    References:
        Xu et al. 2015, Show, Attend and Tell, figure 3; there maps are enlarged and smoothed
        with a Gaussian, here they are interpolated, so that no value moves to another region.
    """
    values: NDArray[np.float64] = np.asarray(attention, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"attention must be one map (rows, cols), got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("attention must be finite, got a map with NaN or infinity")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must be between 0 and 1, got {opacity}")
    image = image.convert("RGB")
    width, height = image.size
    # Whole pixels; at least one of them, however thin the picture.
    left, top, right, bottom = crop_box or (0.0, 0.0, float(width), float(height))
    left, top = min(round(left), width - 1), min(round(top), height - 1)
    right, bottom = max(round(right), left + 1), max(round(bottom), top + 1)
    heat = _heat(values, (right - left, bottom - top), smooth, _colours(colormap))

    if (left, top, right, bottom) == (0, 0, width, height):
        return Image.blend(image, heat, opacity)
    grey = image.convert("L").convert("RGB")
    result = Image.blend(grey, Image.new("RGB", image.size), opacity)
    inside = image.crop((left, top, right, bottom))
    result.paste(Image.blend(inside, heat, opacity), (left, top))
    return result


def render_figure(
    image: Image.Image,
    result: CaptionResult,
    *,
    opacity: float = DEFAULT_OPACITY,
    smooth: bool = True,
    colormap: str = DEFAULT_COLORMAP,
    panel: int = 240,
) -> Image.Image:
    """The picture, and one panel per word with the word, its probability and its map.

    Args:
        image: The upright picture.
        result: Its caption.
        opacity: See ``attention_overlay``.
        smooth: See ``attention_overlay``.
        colormap: See ``attention_overlay``.
        panel: Side in pixels of the square that each panel fits into.

    Returns:
        The figure, in mode RGB.

    References:
        Xu et al. 2015, Show, Attend and Tell, figure 3.
    """
    layout = _layout(image, result, opacity, smooth, colormap, panel)
    figure = Image.new("RGB", layout.size, _PAPER)
    draw = ImageDraw.Draw(figure)
    for x, y, line in layout.title:
        draw.text((x, y), line, fill=_INK, font=_font(_TITLE_SIZE, bold=True, text=result.text))
    for item in layout.panels:
        figure.paste(item.picture, item.corner)
        if item.word:
            x, y = item.label
            font = _font(_WORD_SIZE, text=item.word)
            word = _shorten(item.word, font, layout.cell_width)
            draw.text((x, y), word, fill=_INK, font=font, anchor="ma")
            small = _font(_SMALL_SIZE)
            draw.text((x, y + 22), item.probability, fill=_FAINT, font=small, anchor="ma")
    return figure


def render_figure_svg(
    image: Image.Image,
    result: CaptionResult,
    *,
    opacity: float = DEFAULT_OPACITY,
    smooth: bool = True,
    colormap: str = DEFAULT_COLORMAP,
    panel: int = 240,
) -> str:
    """The figure of ``render_figure`` as SVG: words are text, panels are pictures inside of it.

    Args:
        image: The upright picture.
        result: Its caption.
        opacity: See ``attention_overlay``.
        smooth: See ``attention_overlay``.
        colormap: See ``attention_overlay``.
        panel: Side in pixels of the square that each panel fits into.

    Returns:
        A whole SVG file that refers to no other file.
    """
    layout = _layout(image, result, opacity, smooth, colormap, panel)
    width, height = layout.size
    ink, faint, paper = (f"rgb{colour}" for colour in (_INK, _FAINT, _PAPER))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, sans-serif">',
        f"<title>{html.escape(result.text)}</title>",
        f'<rect width="{width}" height="{height}" fill="{paper}"/>',
    ]
    for x, y, line in layout.title:
        parts.append(
            f'<text x="{x}" y="{y + _TITLE_SIZE}" font-size="{_TITLE_SIZE}" font-weight="bold" '
            f'fill="{ink}">{html.escape(line)}</text>'
        )
    for item in layout.panels:
        (x, y), size = item.corner, item.picture.size
        parts.append(
            f'<image x="{x}" y="{y}" width="{size[0]}" height="{size[1]}" '
            f'href="{picture_url(item.picture)}"/>'
        )
        if item.word:
            x, y = item.label
            parts.append(
                f'<text x="{x}" y="{y + _WORD_SIZE - 2}" font-size="{_WORD_SIZE}" '
                f'text-anchor="middle" fill="{ink}">{html.escape(item.word)}</text>'
                f'<text x="{x}" y="{y + 22 + _SMALL_SIZE - 2}" font-size="{_SMALL_SIZE}" '
                f'text-anchor="middle" fill="{faint}">{html.escape(item.probability)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def render_animation(
    image: Image.Image,
    result: CaptionResult,
    kind: Literal["gif", "webp"] = "gif",
    *,
    opacity: float = DEFAULT_OPACITY,
    smooth: bool = True,
    colormap: str = DEFAULT_COLORMAP,
    side: int = 480,
    seconds: float = 0.8,
) -> bytes:
    """The caption word by word: the map of each word over the picture, the word below it.

    Args:
        image: The upright picture.
        result: Its caption.
        kind: ``gif`` or ``webp``.
        opacity: See ``attention_overlay``.
        smooth: See ``attention_overlay``.
        colormap: See ``attention_overlay``.
        side: Longer side of the picture in pixels; smaller pictures are enlarged.
        seconds: How long each word stays.

    Returns:
        The file's content; it plays for ever and begins with the picture itself.
    """
    _check_size(image, result)
    if kind not in ("gif", "webp"):
        raise ValueError(f"kind must be gif or webp, got {kind!r}")
    size, thumb, crop_box = _thumbnail(image, result.crop_box, side)
    font, height = _font(_TITLE_SIZE, text=result.text), 46
    width = max(size[0], 240)
    frames = []
    for place in range(-1, len(result.words)):
        shown = thumb
        if place >= 0:
            shown = attention_overlay(
                thumb,
                result.attention[place],
                crop_box,
                opacity=opacity,
                smooth=smooth,
                colormap=colormap,
            )
        frame = Image.new("RGB", (width, size[1] + height), _PAPER)
        frame.paste(shown, ((width - size[0]) // 2, 0))
        if place >= 0:
            text = _shorten(result.words[place], font, width - 12)
            draw = ImageDraw.Draw(frame)
            draw.text((width // 2, size[1] + 11), text, fill=_INK, font=font, anchor="ma")
        frames.append(frame)
    file = io.BytesIO()
    options: dict[str, Any] = {"quality": 85} if kind == "webp" else {"optimize": False}
    frames[0].save(
        file,
        kind,
        save_all=True,
        append_images=frames[1:],
        duration=round(1000 * seconds),
        loop=0,
        **options,
    )
    return file.getvalue()


def select_maps(
    result: CaptionResult, layer: int | None = None, head: int | None = None
) -> CaptionResult:
    """A caption whose maps are those of one layer, and of one head or the mean of its heads.

    Args:
        result: A caption; with the maps of every layer if one is asked for.
        layer: Number of the layer from 0; None for the maps that it has.
        head: Number of the head from 0; None for their mean.

    Raises:
        ValueError: There is no such layer or head.
    """
    if layer is None:
        return result
    maps = result.layer_attention
    if maps is None:
        raise ValueError("this caption holds no maps of layers; ask for layer_attention")
    for name, value, count in (("layer", layer, maps.shape[1]), ("head", head, maps.shape[2])):
        if value is not None and not 0 <= value < count:
            raise ValueError(f"{name} must be from 0 to {count - 1}, got {value}")
    chosen = maps[:, layer].mean(axis=1) if head is None else maps[:, layer, head]
    return dataclasses.replace(result, attention=chosen)


def colormap_table(name: str) -> NDArray[np.uint8]:
    """The 256 colours of one of matplotlib's colour maps, (256, 3).

    Raises:
        ValueError: There is none of that name.
    """
    return _colours(name).copy()


def picture_url(image: Image.Image, quality: int = 90) -> str:
    """A picture as a ``data:`` address: JPEG, which a page or an SVG file holds inside."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def find_undrawable(text: str) -> str:
    """The characters of a text that no font of this machine has: figures show boxes for them.

    >>> find_undrawable("a cat, élan, собака")
    ''
    """
    path = Path(str(_font(_WORD_SIZE, text=text).path))
    return "".join(dict.fromkeys(c for c in text if not c.isspace() and c not in _glyphs(path)))


def format_probability(log_prob: float) -> str:
    """A word's probability as people read it.

    >>> format_probability(0.0), format_probability(-1.0), format_probability(-9.0)
    ('100 %', '37 %', '<0.1 %')
    """
    percent = 100 * math.exp(log_prob)
    if percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"


@dataclass(frozen=True)
class _Panel:
    """A picture of the figure with what stands below it."""

    picture: Image.Image
    corner: tuple[int, int]
    label: tuple[int, int]
    word: str
    probability: str


@dataclass(frozen=True)
class _Layout:
    """Where everything of a figure goes, in pixels."""

    size: tuple[int, int]
    cell_width: int
    title: list[tuple[int, int, str]]
    panels: list[_Panel]


def _layout(
    image: Image.Image,
    result: CaptionResult,
    opacity: float,
    smooth: bool,
    colormap: str,
    panel: int,
) -> _Layout:
    _check_size(image, result)
    thumb_size, thumb, crop_box = _thumbnail(image, result.crop_box, panel)
    gap, margin, label = 14, 20, 48
    contents: list[tuple[str, str, Image.Image]] = [("", "", thumb)]
    for word, log_prob, attention in zip(
        result.words, result.word_log_probs, result.attention, strict=True
    ):
        overlay = attention_overlay(
            thumb, attention, crop_box, opacity=opacity, smooth=smooth, colormap=colormap
        )
        contents.append((word, format_probability(float(log_prob)), overlay))

    cell_width = max(thumb_size[0], 96)
    cell_height = thumb_size[1] + label
    columns = _columns(len(contents), cell_width + gap, cell_height + gap)
    rows = math.ceil(len(contents) / columns)
    width = 2 * margin + columns * cell_width + (columns - 1) * gap
    width = max(width, 2 * margin + 320)
    title_font = _font(_TITLE_SIZE, bold=True, text=result.text)
    title = _wrap(result.text or "(no words)", title_font, width - 2 * margin)
    title_height = 27 * len(title) + 14
    height = 2 * margin + title_height + rows * cell_height + (rows - 1) * gap
    panels = []
    for i, (word, probability, picture) in enumerate(contents):
        row, column = divmod(i, columns)
        x = margin + column * (cell_width + gap)
        y = margin + title_height + row * (cell_height + gap)
        # Pictures stand on the line of words, whatever the shape of the cell.
        panels.append(
            _Panel(
                picture,
                corner=(x + (cell_width - picture.width) // 2, y),
                label=(x + cell_width // 2, y + thumb_size[1] + 6),
                word=word,
                probability=probability,
            )
        )
    lines = [(margin, margin + 27 * i, line) for i, line in enumerate(title)]
    return _Layout((width, height), cell_width, lines, panels)


def _check_size(image: Image.Image, result: CaptionResult) -> None:
    if image.size != result.image_size:
        raise ValueError(
            f"image must be the captioned one of {result.image_size} pixels, got {image.size}"
        )


def _heat(
    attention: NDArray[np.float64],
    size: tuple[int, int],
    smooth: bool,
    colours: NDArray[np.uint8],
) -> Image.Image:
    """The map in colours, of the given width and height."""
    low, high = attention.min(), attention.max()
    scaled = (attention - low) / (high - low) if high > low else np.full_like(attention, 0.5)
    if not smooth:
        cells = colours[np.rint(scaled * 255).astype(np.uint8)]
        return Image.fromarray(cells).resize(size, Image.Resampling.NEAREST)
    # Values are interpolated before they are coloured (between two colours lies no colour of
    # the map); that is done on a canvas of moderate size, since the rest is only enlargement.
    scale = min(1.0, _SMOOTH_SIDE / max(size))
    canvas = (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
    field = Image.fromarray(scaled.astype(np.float32)).resize(canvas, Image.Resampling.BICUBIC)
    values = np.clip(np.asarray(field), 0, 1)
    heat = Image.fromarray(colours[np.rint(values * 255).astype(np.uint8)])
    return heat if canvas == size else heat.resize(size, Image.Resampling.BILINEAR)


@functools.cache
def _colours(name: str) -> NDArray[np.uint8]:
    """The 256 colours of a colour map, (256, 3)."""
    try:
        chosen = mpl.colormaps[name]
    except KeyError as error:
        raise ValueError(
            f"colormap must be the name of one of matplotlib's, such as inferno, viridis or "
            f"cividis, got {name!r}"
        ) from error
    table: NDArray[np.uint8] = chosen(np.linspace(0, 1, 256), bytes=True)[:, :3]
    return np.ascontiguousarray(table)


def _thumbnail(
    image: Image.Image, crop_box: CropBox, side: int
) -> tuple[tuple[int, int], Image.Image, CropBox]:
    """A copy that fits into a square, in the picture's own shape, and its crop box."""
    width, height = image.size
    scale = side / max(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    # Tiny pictures are enlarged as they are: their pixels are what the model saw.
    how = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    x, y = size[0] / width, size[1] / height
    left, top, right, bottom = crop_box
    box = (left * x, top * y, right * x, bottom * y)
    return size, image.convert("RGB").resize(size, how), box


def _columns(panels: int, cell_width: int, cell_height: int) -> int:
    """How many panels stand in a row: the figure is a little wider than high, rows are even."""
    ideal = math.sqrt(1.9 * panels * cell_height / cell_width)
    columns = min(panels, max(3, min(8, round(ideal))))
    rows = math.ceil(panels / columns)
    return math.ceil(panels / rows)


def _font(size: int, bold: bool = False, text: str = "") -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib brings along; another font where it lacks what a text needs."""
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    path = folder / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
    if not path.is_file():
        path = Path(font_manager.findfont("sans-serif"))
    lacking = frozenset(c for c in text if not c.isspace() and c not in _glyphs(path))
    return _open_font(_covering_font(path, lacking), size)


@functools.lru_cache(maxsize=32)
def _open_font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), size)


@functools.lru_cache(maxsize=32)
def _covering_font(own: Path, lacking: frozenset[str]) -> Path:
    """The first font of this machine that has these characters (Chinese, say) and Latin letters.

    The one that lacks the fewest of them if none has all.
    """
    if not lacking:
        return own
    needed = lacking.union(string.ascii_letters, string.digits)
    best, fewest = own, len(lacking)
    for path in map(Path, sorted(font_manager.findSystemFonts())):
        count = len(needed - _glyphs(path))
        if count < fewest:
            best, fewest = path, count
        if count == 0:
            return best
    logger.warning(
        "no font of this machine has %s; figures show boxes for them: install one, such as "
        "Noto Sans CJK",
        "".join(sorted(lacking - _glyphs(best))),
    )
    return best


@functools.lru_cache(maxsize=32)
def _glyphs(path: Path) -> frozenset[str]:
    """The characters that a font can draw at any size."""
    try:
        font = FT2Font(str(path))
        return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """The text in lines that are no wider than ``width`` pixels."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return [part for line in lines for part in _break(line, font, width)]


def _break(line: str, font: ImageFont.FreeTypeFont, width: int) -> Sequence[str]:
    """A line cut where it is too wide: words without spaces (Chinese, say) have no other end."""
    parts, rest = [], line
    while font.getlength(rest) > width and len(rest) > 1:
        fits = max(
            1, next(i for i in range(1, len(rest) + 1) if font.getlength(rest[:i]) > width) - 1
        )
        parts.append(rest[:fits])
        rest = rest[fits:]
    return [*parts, rest]


def _shorten(word: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """A word that fits under its panel."""
    if font.getlength(word) <= width:
        return word
    while word and font.getlength(word + "…") > width:
        word = word[:-1]
    return word + "…"
