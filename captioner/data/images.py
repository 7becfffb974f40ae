"""Find picture files and read any of them as upright RGB."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 178_956_970
"""Pictures with more pixels than this are refused: Pillow's limit for decompression bombs."""

_WHITE = (255, 255, 255, 255)


class ImageReadError(ValueError):
    """A file that is no picture or cannot be read to its end; the message names it and why."""


def read_image(source: str | Path | IO[bytes]) -> Image.Image:
    """Read a picture as upright 8-bit RGB, whatever kind of file it is.

    The kind is told by the content, not by the name. The EXIF rotation is applied, transparency
    is laid over white, of an animation the first frame is taken, and grey pictures of more than
    8 bits keep a sensible brightness: 16-bit values are divided by 257 (by less when no value
    needs more than 8 or 12 bits), 32-bit integers and floats are read as 0..1, 0..255 or
    0..65535 where they fit, else stretched from their lowest to their highest value.

    Args:
        source: A path, or an open binary file.

    Returns:
        The picture in mode RGB.

    Raises:
        FileNotFoundError: There is no such file.
        ImageReadError: The file is no picture, is cut short, has more than ``MAX_PIXELS``
            pixels, or is of a kind that Pillow cannot read here.
    """
    name = getattr(source, "name", "the picture") if hasattr(source, "read") else str(source)
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file")
        if path.is_dir():
            raise ImageReadError(f"{path}: is a folder, not a picture")
    try:
        with warnings.catch_warnings():
            # The size is checked below; a broken EXIF block is no reason to refuse a picture.
            warnings.simplefilter("ignore")
            with Image.open(source) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise ImageReadError(
                        f"{name}: {width} x {height} pixels are more than the {MAX_PIXELS:,} "
                        "that are read; make a smaller copy"
                    )
                image.load()
                return to_upright_rgb(image)
    except ImageReadError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageReadError(
            f"{name}: has more than the {MAX_PIXELS:,} pixels that are read; make a smaller copy"
        ) from error
    except UnidentifiedImageError as error:
        empty = isinstance(source, str | Path) and Path(source).stat().st_size == 0
        reason = "the file is empty" if empty else "is no picture of a kind that Pillow reads"
        raise ImageReadError(f"{name}: {reason}") from error
    except MemoryError as error:
        raise ImageReadError(f"{name}: does not fit into memory") from error
    except Exception as error:  # decoders raise whatever a broken file makes them raise
        raise ImageReadError(f"{name}: cannot be read ({_reason(error)})") from error


def to_upright_rgb(image: Image.Image) -> Image.Image:
    """A picture that is open already as upright 8-bit RGB, as ``read_image`` does it."""
    return _to_rgb(_upright(image))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block says nothing about the rotation
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_to_8_bit(image)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, _WHITE), layer).convert("RGB")
    return image.convert("RGB")


def _to_8_bit(image: Image.Image) -> np.ndarray:
    values = np.asarray(image).astype(np.float64)
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    if image.mode == "F" and low >= 0 and high <= 1:
        scaled = values * 255
    elif low < 0 or high > 65535:
        scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    elif high <= 255:
        scaled = values
    elif high <= 4095 and image.mode.startswith("I;"):
        scaled = values / 16
    else:
        scaled = values / 257
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


@functools.cache
def image_extensions() -> frozenset[str]:
    """The file extensions, lower case with their dot, of every kind that Pillow reads."""
    extensions = Image.registered_extensions()
    return frozenset(end.lower() for end, kind in extensions.items() if kind in Image.OPEN)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """The picture files that the given files and folders stand for.

    A folder stands for every picture file below it (by its extension, in any case), in name
    order; links are followed and names that start with a dot are passed over. A file stands for
    itself whatever its name.

    Raises:
        FileNotFoundError: A path does not exist, or there is no picture at all.
    """
    given = [Path(path) for path in paths]
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            found.extend(_walk(path, set()))
        else:
            found.append(path)
    if not found:
        named = ", ".join(str(path) for path in given) or "no path was given"
        raise FileNotFoundError(
            f"no picture to caption in {named}; pictures end in one of "
            + " ".join(sorted(image_extensions()))
        )
    return found


def _walk(folder: Path, above: set[tuple[int, int]]) -> Iterator[Path]:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link to a folder that holds it
        return
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    for name in names:
        path = folder / name
        if path.is_dir():
            yield from _walk(path, above | {here})
        elif path.suffix.lower() in image_extensions() and path.exists():
            yield path
