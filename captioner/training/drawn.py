"""Eight pictures drawn by code, to see in a minute whether a model can learn at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from PIL import Image, ImageDraw

from captioner.types import CaptionRecord, Split

_PICTURES = (
    ("circle", "red", "white", "a red circle on a white ground"),
    ("circle", "blue", "black", "one blue ball floats in the dark"),
    ("square", "green", "white", "a green square stands still"),
    ("square", "yellow", "blue", "there is a yellow box under the blue sky"),
    ("triangle", "red", "green", "a red roof in green fields"),
    ("triangle", "white", "black", "a white tent at night"),
    ("stripe", "blue", "white", "a blue stripe crosses the white paper"),
    ("stripe", "yellow", "red", "yellow line over a red wall"),
)


@dataclass(frozen=True)
class DrawnPictures:
    """Eight simple pictures with one caption each; train, val and test are the same eight.

    A model that can learn writes these captions back word for word; one that cannot has a fault
    in the data, the loss, the attention or the decoding, not a lack of training.

    Args:
        folder: Where the pictures are drawn.
        size: Width in pixels; the height is three quarters of it.
    """

    folder: str | Path
    size: int = 160

    def records(self) -> list[CaptionRecord]:
        """Draw the pictures where they are not there yet."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for shape, colour, ground, _ in _PICTURES:
            path = folder / f"{colour}_{shape}_{self.size}.png"
            if not path.is_file():
                # Several processes may draw at once; each file appears whole.
                temporary = path.with_name(f".{path.name}.{id(path)}.tmp")
                _draw(shape, colour, ground, self.size).save(temporary, format="PNG")
                temporary.replace(path)
            paths.append(path)
        splits: tuple[Split, ...] = get_args(Split)
        return [
            CaptionRecord(path.name, path, (caption,), split)
            for split in splits
            for path, (*_, caption) in zip(paths, _PICTURES, strict=True)
        ]


def _draw(shape: str, colour: str, ground: str, size: int) -> Image.Image:
    width, height = size, size * 3 // 4
    image = Image.new("RGB", (width, height), ground)
    draw = ImageDraw.Draw(image)
    box = (width // 4, height // 6, 3 * width // 4, 5 * height // 6)
    left, top, right, bottom = box
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    elif shape == "triangle":
        draw.polygon([(left, bottom), (right, bottom), (width // 2, top)], fill=colour)
    else:
        draw.rectangle((0, 2 * height // 5, width, 3 * height // 5), fill=colour)
    return image
