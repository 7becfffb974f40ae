"""Every kind of picture comes out as upright RGB, and every bad file is named."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner.data.images import ImageReadError, find_images, image_extensions, read_image

RAMP = np.tile(np.linspace(0, 255, 64).round().astype(np.uint8), (16, 1))


def _rgb(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def _corners(width: int = 40, height: int = 20) -> Image.Image:
    """Red at the top left, white elsewhere."""
    image = Image.new("RGB", (width, height), "white")
    image.paste("red", (0, 0, width // 4, height // 4))
    return image


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int):
    upright = _corners()
    undo = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    stored = upright
    for step in undo.get(orientation, []):
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(_rgb(read_image(tmp_path / "turned.png")), _rgb(upright))


@pytest.mark.parametrize(
    ("mode", "ends", "tolerance"),
    [
        ("RGB", "png", 0),
        ("L", "png", 0),
        ("P", "gif", 0),
        ("1", "png", 255),
        ("CMYK", "jpg", 6),
        ("CMYK", "tif", 1),
        ("YCbCr", "jpg", 4),
        ("LAB", "tif", 3),
        ("LA", "png", 0),
        ("RGBA", "webp", 6),
    ],
)
def test_modes_keep_their_brightness(tmp_path: Path, mode: str, ends: str, tolerance: int):
    grey = Image.fromarray(RAMP)
    if mode == "LAB":
        from PIL import ImageCms

        lab = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        image = ImageCms.profileToProfile(grey.convert("RGB"), lab[1], lab[0], outputMode="LAB")
    else:
        image = grey.quantize(256) if mode == "P" else grey.convert("RGB").convert(mode)
    path = tmp_path / f"ramp.{ends}"
    image.save(path)
    pixels = _rgb(read_image(path))
    if mode == "1":
        assert set(np.unique(pixels)) == {0, 255}
    else:
        assert np.abs(pixels[..., 0] - RAMP).max() <= tolerance


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        (RAMP.astype(np.uint16) * 257, "png"),  # 16 bits
        (RAMP.astype(np.uint16) * 16, "tif"),  # 12 bits in 16
        (RAMP.astype(np.uint16), "tif"),  # 8 bits in 16
        (RAMP.astype(np.int32) * 257, "tif"),
        (RAMP.astype(np.int32), "tif"),
        (RAMP.astype(np.int32) * 1_000_003 - 2**27, "tif"),  # any range is stretched
        ((RAMP / 255).astype(np.float32), "tif"),
        (RAMP.astype(np.float32), "tif"),
        ((RAMP * 1000.0 - 3e4).astype(np.float32), "tif"),
    ],
)
def test_deep_grey_keeps_a_sensible_brightness(tmp_path: Path, values: np.ndarray, ends: str):
    path = tmp_path / f"deep.{ends}"
    Image.fromarray(values).save(path)
    assert np.abs(_rgb(read_image(path))[..., 1] - RAMP).max() <= 1


def test_float_picture_with_holes_is_read(tmp_path: Path):
    values = (RAMP / 255).astype(np.float32)
    values[0, 0], values[0, 1] = np.nan, np.inf
    Image.fromarray(values).save(tmp_path / "holes.tif")
    assert np.abs(_rgb(read_image(tmp_path / "holes.tif"))[1:, :, 0] - RAMP[1:]).max() <= 1


def test_transparency_is_laid_over_white(tmp_path: Path):
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    clear.putpixel((0, 0), (0, 0, 0, 255))
    clear.putpixel((1, 0), (0, 0, 0, 128))
    clear.save(tmp_path / "rgba.png")
    assert [_rgb(read_image(tmp_path / "rgba.png"))[0, x, 0] for x in range(3)] == [0, 127, 255]
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 200, 10, 10])
    palette.putpixel((0, 0), 0)
    palette.save(tmp_path / "palette.png", transparency=1)
    pixels = _rgb(read_image(tmp_path / "palette.png"))
    assert pixels[0, 0].tolist() == [0, 0, 0]
    assert pixels[2, 2].tolist() == [255, 255, 255]
    grey = Image.new("L", (4, 4), 7)
    grey.save(tmp_path / "grey.png", transparency=7)
    assert _rgb(read_image(tmp_path / "grey.png")).min() == 255


def test_first_frame_of_an_animation(tmp_path: Path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for ends in ("gif", "webp", "png", "tif"):
        path = tmp_path / f"film.{ends}"
        frames[0].save(path, save_all=True, append_images=frames[1:])
        red, _, blue = _rgb(read_image(path))[4, 4]
        assert red > 200, ends
        assert blue < 60, ends


def test_a_file_that_lies_about_its_kind_is_read(tmp_path: Path):
    _corners().save(tmp_path / "really.png")
    lie = tmp_path / "says.jpg"
    (tmp_path / "really.png").rename(lie)
    assert _rgb(read_image(lie))[0, 0].tolist() == [255, 0, 0]


def test_an_open_file_is_read():
    data = io.BytesIO()
    _corners().save(data, "PNG")
    data.seek(0)
    assert read_image(data).size == (40, 20)


def _bomb() -> bytes:
    """A PNG of a few bytes that says it has 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def test_bad_files_are_errors_that_name_them(tmp_path: Path):
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(
        data, "JPEG"
    )
    cases = {
        "text.jpg": (b"hello, this is no picture", "no picture of a kind"),
        "empty.png": (b"", "the file is empty"),
        "short.jpg": (data.getvalue()[: len(data.getvalue()) // 2], "cannot be read"),
        "bomb.png": (_bomb(), "178,956,970 pixels"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageReadError, match=f"{name}.*{reason}"):
            read_image(tmp_path / name)
    with pytest.raises(ImageReadError, match="is a folder"):
        read_image(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jpg: there is no such file"):
        read_image(tmp_path / "nowhere.jpg")


def test_short_files_of_every_kind_never_come_out_as_pictures(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)
    for ends in ("jpg", "png", "gif", "bmp", "tif", "webp", "ppm", "tga"):
        path = tmp_path / f"whole.{ends}"
        Image.fromarray(noise).save(path)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 2 // 3])
        with pytest.raises(ImageReadError, match=f"whole.{ends}"):
            read_image(path)


def test_find_images_walks_in_name_order(tmp_path: Path):
    for name in ("b.JPG", "a.png", ".hidden.png", "notes.txt", "sub/c.webp", ".git/d.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "e.gif").write_bytes(b"")
    (tmp_path / "z-link").symlink_to(outside)
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    found = [path.relative_to(tmp_path).as_posix() for path in find_images([tmp_path])]
    assert found == ["a.png", "b.JPG", "sub/c.webp", "z-link/e.gif"]
    assert find_images([tmp_path / "notes.txt"]) == [tmp_path / "notes.txt"]
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no picture to caption in .*bare"):
        find_images([tmp_path / "bare"])


def test_extensions_are_those_that_can_be_opened():
    assert {".jpg", ".jpeg", ".png", ".gif", ".webp", ".tif"} <= image_extensions()
    assert ".pdf" not in image_extensions()  # Pillow writes these only
