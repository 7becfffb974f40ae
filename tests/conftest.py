"""Fixtures for all tests: pictures drawn by code, and the development data where it is."""

import csv
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tiny models gain nothing from more threads, which wait for each other on a busy machine. The
# processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "green", "blue", "yellow")
SPLITS = ("train",) * 8 + ("val",) * 2 + ("test",) * 2


def draw_picture(shape: str, colour: str, width: int = 96, height: int = 64) -> Image.Image:
    """A coloured shape on a grey ground."""
    image = Image.new("RGB", (width, height), (150, 150, 150))
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = width // 4, height // 5, 3 * width // 4, 4 * height // 5
    if shape == "circle":
        draw.ellipse((left, top, right, bottom), fill=colour)
    elif shape == "square":
        draw.rectangle((left, top, right, bottom), fill=colour)
    else:
        draw.polygon([(left, bottom), (right, bottom), (width // 2, top)], fill=colour)
    return image


@pytest.fixture(scope="session")
def drawn_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with twelve drawn pictures and ``captions.csv`` (image, caption, split)."""
    folder = tmp_path_factory.mktemp("drawn")
    rows = []
    pairs = [(shape, colour) for shape in SHAPES for colour in COLOURS]
    for i, (shape, colour) in enumerate(pairs):
        name = f"{colour}_{shape}.{'jpg' if i % 3 == 0 else 'png'}"
        draw_picture(shape, colour, 96 if i % 2 else 64, 64).save(folder / name)
        rows.append((name, f"A {colour} {shape} .", SPLITS[i]))
        rows.append((name, f"There is a {shape} that is {colour}.", SPLITS[i]))
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "caption", "split"))
        writer.writerows(rows)
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of development data beside the checkout; skips where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the development data (../shared/data) is not on this machine")
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


CAPTIONS = [f"a {colour} {shape} on a grey ground" for shape in SHAPES for colour in COLOURS]


def write_tiny_checkpoint(path: Path, decoder: str, height: int = 64, width: int = 64) -> Path:
    """A Lightning checkpoint of a tiny model with random weights, as ``captioner fit`` writes it.

    Args:
        path: The ``.ckpt`` file to write.
        decoder: "sat" or "transformer".
        height: Height of the encoder's input.
        width: Width of the encoder's input.
    """
    from captioner.data.transforms import Preprocessing
    from captioner.decoding import DecodingOptions
    from captioner.models.encoder import CnnEncoder
    from captioner.text.vocabulary import Vocabulary

    torch.manual_seed(1)
    vocabulary = Vocabulary.build(CAPTIONS, min_count=1)
    encoder = CnnEncoder("timm/test_efficientnet", "blocks.2")
    sizes = {"feature_dim": encoder.feature_dim, "vocabulary_size": len(vocabulary)}
    if decoder == "sat":
        from captioner.models.lstm_decoder import ShowAttendTellDecoder

        module = ShowAttendTellDecoder(
            **sizes, hidden_dim=16, embedding_dim=16, attention_dim=16, value_dim=16
        )
    else:
        from captioner.models.transformer_decoder import TransformerDecoder

        module = TransformerDecoder(**sizes, model_dim=16, num_layers=2, num_heads=2)
    for part in (encoder, module):
        for name, tensor in part.state_dict().items():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif tensor.dim() > 1:
                tensor.mul_(3)  # far enough from even that captions and maps differ
    spec = {
        part: {
            "class_path": f"{type(m).__module__}.{type(m).__qualname__}",
            "init_args": dict(m.config),
        }
        for part, m in (("encoder", encoder), ("decoder", module))
    }
    state = {
        f"{part}.{name}": tensor
        for part, m in (("encoder", encoder), ("decoder", module))
        for name, tensor in m.state_dict().items()
    }
    captioner = {
        "format": 1,
        **spec,
        "preprocessing": Preprocessing(height=height, width=width).to_dict(),
        "vocabulary": vocabulary.to_dict(),
        "decoding": DecodingOptions(beam_size=3, max_length=8).to_dict(),
        "provenance": {"data": "drawn by code", "seed": 1, "epoch": 0},
    }
    torch.save({"captioner": captioner, "state_dict": state}, path)
    return path


@pytest.fixture(scope="session")
def write_checkpoint() -> Callable[..., Path]:
    """``write_tiny_checkpoint``, for tests that need more than the two models."""
    return write_tiny_checkpoint


@pytest.fixture(scope="session", params=["sat", "transformer"])
def tiny_checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The checkpoint of a tiny model of each decoder."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("run") / "best.ckpt", request.param)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exported folders of tiny models: "sat" and "transformer"."""
    from captioner.inference.checkpoint import export_model

    folder = tmp_path_factory.mktemp("models")
    return {
        name: export_model(
            write_tiny_checkpoint(folder / f"{name}.ckpt", name, width=96), folder / f"tiny-{name}"
        )
        for name in ("sat", "transformer")
    }
