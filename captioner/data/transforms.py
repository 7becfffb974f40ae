"""From a picture to the tensor that an encoder takes, and back to the picture's own pixels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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
        share: Share of the width and of the height that is kept, around the centre.
    """

    mirrored: bool = False
    share: float = 1.0


PLAIN = View()
VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "plain": PLAIN,
        "flip": View(mirrored=True),
        "crop": View(share=0.875),
        "crop_flip": View(mirrored=True, share=0.875),
    }
)
"""The views that have a name. "plain" is the one that is evaluated."""


def find_view(name: str) -> View:
    """The view of that name.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in VIEWS:
        raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {name!r}")
    return VIEWS[name]


# The sides in English, German, Dutch, French, Spanish, Italian and Portuguese, and in Chinese
# and Japanese. A false alarm ("a lamp left on") costs one mirrored view, a miss teaches a lie.
_SIDES = re.compile(
    r"\b(left|right|leftmost|rightmost|lefthand|righthand|links|rechts|linke[nrs]?|rechte[nrs]?"
    r"|gauche|droite|izquierd[ao]|derech[ao]|sinistr[ao]|destr[ao]|esquerd[ao]|direit[ao])\b"
    r"|[左右]"
)


def keeps_captions_true(view: str, captions: Iterable[str]) -> bool:
    """Whether a view leaves captions true: a mirrored one does not when they name a side.

    >>> keeps_captions_true("flip", ["A dog runs to the left ."])
    False
    >>> keeps_captions_true("flip", ["A dog runs ."])
    True
    """
    if not find_view(view).mirrored:
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
        box = self._source_box(*image.size, share=view.share)
        resized = image.resize(
            (self.width, self.height), _RESAMPLING[self.interpolation], box=box, reducing_gap=None
        )
        if view.mirrored:
            resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(resized, dtype=np.uint8)).permute(2, 0, 1)
        mean = torch.tensor(self.mean).view(3, 1, 1)
        std = torch.tensor(self.std).view(3, 1, 1)
        return pixels.to(torch.float32).div_(255).sub_(mean).div_(std)

    def crop_box(self, width: int, height: int) -> CropBox:
        """The part of a picture of that size that its plain view, and so the grid, covers.

        >>> Preprocessing(100, 100, resize_mode="center_crop").crop_box(300, 200)
        (50.0, 0.0, 250.0, 200.0)
        """
        return self._source_box(width, height, share=1.0)

    def _source_box(self, width: int, height: int, share: float) -> CropBox:
        box_width, box_height = float(width), float(height)
        if self.resize_mode == "center_crop":
            scale = min(width / self.width, height / self.height)
            box_width, box_height = self.width * scale, self.height * scale
        box_width, box_height = box_width * share, box_height * share
        left, top = (width - box_width) / 2, (height - box_height) / 2
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
