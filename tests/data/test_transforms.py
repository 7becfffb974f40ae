"""Preprocessing, views and the way back to the picture's own pixels."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from captioner.data.transforms import (
    VIEWS,
    Preprocessing,
    View,
    find_view,
    keeps_captions_true,
    random_view,
)


def _halves(width: int, height: int) -> Image.Image:
    """Black left half, white right half."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, width // 2 :] = 255
    return Image.fromarray(pixels)


def test_output_is_normalised():
    preprocessing = Preprocessing(4, 6, mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0))
    output = preprocessing(Image.new("RGB", (10, 10), (255, 0, 51)))
    assert output.shape == (3, 4, 6)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output[:, 2, 3], torch.tensor([2.0, -1.0, -0.3]))


def test_flip_mirrors_the_plain_view_exactly():
    generator = np.random.default_rng(0)
    image = Image.fromarray(generator.integers(0, 255, (37, 53, 3), np.uint8))
    preprocessing = Preprocessing(20, 24)
    plain, flip = (preprocessing(image, find_view(name)) for name in ("plain", "flip"))
    assert torch.equal(plain.flip(-1), flip)
    assert not torch.equal(plain, flip)


def test_crop_looks_at_the_middle():
    image = Image.new("RGB", (80, 80), "black")
    image.paste("white", (10, 10, 70, 70))
    plain = Preprocessing(16, 16)(image)
    crop = Preprocessing(16, 16)(image, find_view("crop"))
    assert crop.mean() > plain.mean()


def test_a_view_lies_where_it_says():
    image = Image.new("RGB", (80, 40), "black")
    image.paste("white", (60, 20, 80, 40))  # the lower half of the right quarter
    squeeze = Preprocessing(8, 8, interpolation="nearest")
    crop = Preprocessing(8, 8, interpolation="nearest", resize_mode="center_crop")
    white = squeeze(Image.new("RGB", (80, 40), "white"))
    corner = View(width=0.25, height=0.5, left=1.0, top=1.0)
    assert torch.equal(squeeze(image, corner), white)
    assert not torch.equal(squeeze(image, View(width=0.25, height=0.5)), white)
    # What center_crop shows of it are the columns 20 to 60: nothing of the white.
    assert torch.equal(crop(image, corner), squeeze(Image.new("RGB", (80, 40))))


def test_light_changes_pixels_within_their_range():
    image = Image.fromarray(np.array([[[50] * 3, [150] * 3]], np.uint8))
    show = Preprocessing(1, 2, mean=(0, 0, 0), std=(1, 1, 1), interpolation="nearest")
    low, high = 50 / 255, 150 / 255
    for view, expected in (
        (View(brightness=1.2), (1.2 * low, 1.2 * high)),
        (View(contrast=0.5), (75 / 255, 125 / 255)),
        (View(contrast=0.5, brightness=2.0), (150 / 255, 250 / 255)),
        (View(contrast=10.0), (0.0, 1.0)),
    ):
        torch.testing.assert_close(show(image, view)[0, 0], torch.tensor(expected))


def test_random_views_cover_at_least_half_and_differ():
    views = [random_view(random.Random(seed)) for seed in range(400)]
    assert views[:3] == [random_view(random.Random(seed)) for seed in range(3)]
    assert len(set(views)) == 400
    areas = [view.width * view.height for view in views]
    assert 0.5 - 1e-9 <= min(areas) < 0.55
    assert 0.95 < max(areas) <= 1.0
    assert 160 < sum(view.mirrored for view in views) < 240  # 200 expected, deviation 10
    for view in views:
        assert 0.8 <= view.brightness <= 1.2
        assert 0.8 <= view.contrast <= 1.2
        assert max(view.width, view.height) <= 1.0
        # Pillow refuses a box that reaches outside.
        Preprocessing(8, 8, resize_mode="center_crop")(Image.new("RGB", (31, 17)), view)


def test_squeeze_covers_the_whole_and_center_crop_the_middle():
    wide = _halves(400, 100)
    squeeze = Preprocessing(50, 50)
    assert squeeze.crop_box(400, 100) == (0, 0, 400, 100)
    crop = Preprocessing(50, 50, resize_mode="center_crop")
    assert crop.crop_box(400, 100) == (150, 0, 250, 100)
    for preprocessing in (squeeze, crop):
        output = preprocessing(wide)
        assert (output[:, :, :20] < 0).all()
        assert (output[:, :, 30:] > 0).all()


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 40), st.integers(1, 40))
def test_crop_boxes_lie_inside(width, height, input_width, input_height):
    preprocessing = Preprocessing(input_height, input_width, resize_mode="center_crop")
    left, top, right, bottom = preprocessing.crop_box(width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    shape = (right - left) / (bottom - top)
    assert shape == pytest.approx(input_width / input_height)
    preprocessing(Image.new("RGB", (width, height)), VIEWS["crop_flip"])  # Pillow takes the box


def test_dictionary_round_trip_and_errors():
    preprocessing = Preprocessing(10, 20, interpolation="lanczos", resize_mode="center_crop")
    assert Preprocessing.from_dict(preprocessing.to_dict()) == preprocessing
    with pytest.raises(ValueError, match="must have exactly"):
        Preprocessing.from_dict({"height": 3})
    with pytest.raises(ValueError, match="height must be at least 1 pixel, got 0"):
        Preprocessing(0, 10)
    with pytest.raises(ValueError, match=r"interpolation must be one of .*'magic'"):
        Preprocessing(interpolation="magic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="std must be above 0"):
        Preprocessing(std=(1, 0, 1))
    with pytest.raises(ValueError, match=r"view must be one of plain, flip.*'upside_down'"):
        find_view("upside_down")
    with pytest.raises(ValueError, match=r"random is another one each time.*features_path null"):
        find_view("random")


@pytest.mark.parametrize(
    ("view", "caption", "true"),
    [
        ("flip", "Two dogs on the LEFT.", False),
        ("flip", "a right-handed pitcher", False),
        ("flip", "A dog .", True),
        ("flip", "a bright kite left behind", False),  # cautious: the word is enough
        ("flip", "Ein Hund links im Bild", False),
        ("flip", "狗在左边", False),
        ("flip", "a bright light over a cleft rock", True),
        ("crop", "on the right", True),
        ("crop_flip", "on the right", False),
        ("plain", "on the right", True),
    ],
)
def test_mirrored_views_do_not_lie_about_sides(view, caption, true):
    assert keeps_captions_true(find_view(view), ["A cat .", caption]) is true
