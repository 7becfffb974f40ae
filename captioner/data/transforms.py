"""From a picture to the tensor that an encoder takes, and back to the picture's own pixels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from random import Random
from types import MappingProxyType
from typing import Literal, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioner.types import CropBox

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
ResizeMode = Literal["squeeze", "center_crop"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class View:
    """One way to look at a picture that leaves its captions true.

    Args:
        mirrored: Whether left and right are exchanged.
        width: Share of the width that is kept.
        height: Share of the height that is kept.
        left: Where the kept part lies, from 0 (at the left edge) to 1 (at the right edge).
        top: Where it lies, from 0 (at the top) to 1 (at the bottom).
        brightness: What all pixels are multiplied by.
        contrast: What the distance of all pixels from their mean is multiplied by.
    """

    mirrored: bool = False
    width: float = 1.0
    height: float = 1.0
    left: float = 0.5
    top: float = 0.5
    brightness: float = 1.0
    contrast: float = 1.0


PLAIN = View()
VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "plain": PLAIN,
        "flip": View(mirrored=True),
        "crop": View(width=0.875, height=0.875),
        "crop_flip": View(mirrored=True, width=0.875, height=0.875),
    }
)
"""The views that are always the same. "plain" is the one that is evaluated."""

RANDOM = "random"
"""Name of the view that is drawn anew each time, see ``random_view``."""

_LEAST_AREA, _LARGEST_RATIO, _LIGHT = 0.5, 4 / 3, 0.2


def find_view(name: str) -> View:
    """The view of that name.

    Raises:
        ValueError: There is none of that name, or it is drawn anew each time.
    """
    if name == RANDOM:
        raise ValueError(
            "the view random is another one each time, so that no feature store can hold it; "
            f"train from pictures (data.features_path null), or take of {', '.join(VIEWS)}"
        )
    if name not in VIEWS:
        raise ValueError(f"view must be one of {', '.join([*VIEWS, RANDOM])}, got {name!r}")
    return VIEWS[name]


def random_view(draw: Random) -> View:
    """Half to all of the picture, a little narrower or wider, at any place, in any light.

    Half of the views are mirrored, too.

    Args:
        draw: Where chance comes from; it is asked for the same number of values each time.

    References:
        Szegedy et al. 2015, Going Deeper with Convolutions, sec. 6 (area, ratio and light of
        training pictures; there from 8 % of the area, which would leave out what captions name).
    """
    mirrored = draw.random() < 0.5
    area = draw.uniform(_LEAST_AREA, 1.0)
    ratio = _LARGEST_RATIO ** draw.uniform(-1.0, 1.0)
    return View(
        mirrored=mirrored,
        width=min(1.0, (area * ratio) ** 0.5),
        height=min(1.0, (area / ratio) ** 0.5),
        left=draw.random(),
        top=draw.random(),
        brightness=draw.uniform(1.0 - _LIGHT, 1.0 + _LIGHT),
        contrast=draw.uniform(1.0 - _LIGHT, 1.0 + _LIGHT),
    )


# The sides in English, German, Dutch, French, Spanish, Italian and Portuguese, and in Chinese
# and Japanese. A false alarm ("a lamp left on") costs one mirrored view, a miss teaches a lie.
_SIDES = re.compile(
    r"\b(left|right|leftmost|rightmost|lefthand|righthand|links|rechts|linke[nrs]?|rechte[nrs]?"
    r"|gauche|droite|izquierd[ao]|derech[ao]|sinistr[ao]|destr[ao]|esquerd[ao]|direit[ao])\b"
    r"|[左右]"
)


def keeps_captions_true(view: View, captions: Iterable[str]) -> bool:
    """Whether a view leaves captions true: a mirrored one does not when they name a side.

    >>> keeps_captions_true(VIEWS["flip"], ["A dog runs to the left ."])
    False
    >>> keeps_captions_true(VIEWS["flip"], ["A dog runs ."])
    True
    """
    if not view.mirrored:
        return True
    return not any(_SIDES.search(caption.casefold()) for caption in captions)


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes the input of an encoder; it travels with the model.

    Args:
        height: Height of the input in pixels.
        width: Width of the input in pixels.
        mean: Subtracted from each channel after scaling to 0..1.
        std: What each channel is divided by then.
        interpolation: How pixels are resampled (always with anti-aliasing).
        resize_mode: "squeeze" takes the whole picture and gives up its shape; "center_crop"
            keeps its shape and gives up what stands out at two sides.
    """

    height: int = 224
    width: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: Interpolation = "bicubic"
    resize_mode: ResizeMode = "squeeze"

    def __post_init__(self) -> None:
        for name, size in (("height", self.height), ("width", self.width)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1 pixel, got {size}")
        if self.interpolation not in _RESAMPLING:
            raise ValueError(
                f"interpolation must be one of {', '.join(_RESAMPLING)}, got {self.interpolation!r}"
            )
        if self.resize_mode not in ("squeeze", "center_crop"):
            raise ValueError(
                f"resize_mode must be squeeze or center_crop, got {self.resize_mode!r}"
            )
        for name, triple in (("mean", self.mean), ("std", self.std)):
            if len(triple) != 3:
                raise ValueError(f"{name} must have three numbers, one a channel, got {triple}")
            object.__setattr__(self, name, tuple(float(value) for value in triple))
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0, got {self.std}")

    def __call__(self, image: Image.Image, view: View = PLAIN) -> Tensor:
        """The picture as an encoder takes it.

        Args:
            image: An upright RGB picture, as ``read_image`` gives it.
            view: The part and side of it to look at.

        Returns:
            The normalised picture, (3, height, width) float32.
        """
        box = self._source_box(*image.size, view)
        resized = image.resize(
            (self.width, self.height), _RESAMPLING[self.interpolation], box=box, reducing_gap=None
        )
        if view.mirrored:
            resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(resized, dtype=np.uint8)).permute(2, 0, 1)
        mean = torch.tensor(self.mean).view(3, 1, 1)
        std = torch.tensor(self.std).view(3, 1, 1)
        light = pixels.to(torch.float32).div_(255)
        if view.contrast != 1.0:
            average = light.mean()
            light = (light - average).mul_(view.contrast).add_(average)
        if view.brightness != 1.0:
            light.mul_(view.brightness)
        if view.contrast != 1.0 or view.brightness != 1.0:
            light.clamp_(0.0, 1.0)
        return light.sub_(mean).div_(std)

    def crop_box(self, width: int, height: int) -> CropBox:
        """The part of a picture of that size that its plain view, and so the grid, covers.

        >>> Preprocessing(100, 100, resize_mode="center_crop").crop_box(300, 200)
        (50.0, 0.0, 250.0, 200.0)
        """
        return self._source_box(width, height, PLAIN)

    def _source_box(self, width: int, height: int, view: View) -> CropBox:
        box_width, box_height = float(width), float(height)
        if self.resize_mode == "center_crop":
            scale = min(width / self.width, height / self.height)
            box_width, box_height = self.width * scale, self.height * scale
        # The view is of the part that the plain view shows.
        left = (width - box_width) / 2 + box_width * (1.0 - view.width) * view.left
        top = (height - box_height) / 2 + box_height * (1.0 - view.height) * view.top
        box_width, box_height = box_width * view.width, box_height * view.height
        # Rounding may not reach a hair's breadth outside of the picture: Pillow refuses that.
        return (
            max(left, 0.0),
            max(top, 0.0),
            min(left + box_width, width),
            min(top + box_height, height),
        )

    def to_dict(self) -> dict[str, object]:
        """JSON values that ``from_dict`` takes."""
        values = asdict(self)
        return {**values, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """The preprocessing that ``to_dict`` described.

        Raises:
            ValueError: A value is missing, unknown or not allowed.
        """
        expected = set(cls.__dataclass_fields__)
        if set(values) != expected:
            raise ValueError(
                f"preprocessing must have exactly {sorted(expected)}, got {sorted(values)}"
            )
        return cls(**values)  # type: ignore[arg-type]  # checked in __post_init__
