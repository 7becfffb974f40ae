"""Weights between two checkpoints, and checkpoints that do not belong together."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from captioner.inference.checkpoint import load_model
from captioner.models.encoder import CnnEncoder, read_normalization, write_weights


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("average_checkpoints")


def moved(checkpoint: Path, path: Path, by: float = 1) -> Path:
    data = torch.load(checkpoint, weights_only=True)
    data["state_dict"] = {
        name: tensor + by if tensor.is_floating_point() else tensor
        for name, tensor in data["state_dict"].items()
    }
    torch.save(data, path)
    return path


def test_weights_lie_between(script: ModuleType, tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = moved(tiny_checkpoint, tmp_path / "other.ckpt")
    output = tmp_path / "mixed.ckpt"
    script.main(
        [str(tiny_checkpoint), str(other), "--shares", "0.75", "0.25", "--output", str(output)]
    )
    first = torch.load(tiny_checkpoint, weights_only=True)["state_dict"]
    mixed = torch.load(output, weights_only=True)
    for name, tensor in mixed["state_dict"].items():
        if tensor.is_floating_point():  # float32
            torch.testing.assert_close(tensor, first[name] + 0.25, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(tensor, first[name])
    assert list(mixed["captioner"]["provenance"]["average"].values()) == [0.75, 0.25]
    assert "optimizer_states" not in mixed
    load_model(output)


def test_several_count_the_same(script: ModuleType, tiny_checkpoint: Path, tmp_path: Path) -> None:
    others = [moved(tiny_checkpoint, tmp_path / f"{by}.ckpt", by) for by in (1, 5)]
    output = tmp_path / "mixed.ckpt"
    script.main([*map(str, (tiny_checkpoint, *others)), "--output", str(output)])
    first = torch.load(tiny_checkpoint, weights_only=True)["state_dict"]
    mixed = torch.load(output, weights_only=True)
    for name, tensor in mixed["state_dict"].items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, first[name] + 2, rtol=1e-6, atol=1e-6)
    assert list(mixed["captioner"]["provenance"]["average"].values()) == [0.333333] * 3


def test_equal_weights_stay_as_they_are_to_the_last_bit(
    script: ModuleType, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "mixed.ckpt"
    script.main([str(tiny_checkpoint)] * 3 + ["--output", str(output)])
    first = torch.load(tiny_checkpoint, weights_only=True)["state_dict"]
    mixed = torch.load(output, weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, first[name]) for name, tensor in mixed.items())


def test_mistakes_are_one_message(
    script: ModuleType, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = torch.load(tiny_checkpoint, weights_only=True)
    shorter = dict(data, state_dict=dict(list(data["state_dict"].items())[1:]))
    words = dict(data, captioner=dict(data["captioner"], vocabulary={}))
    for name, content in (("shorter", shorter), ("words", words), ("empty", {})):
        torch.save(content, tmp_path / f"{name}.ckpt")
    new = ["--output", str(tmp_path / "new.ckpt")]
    one = str(tiny_checkpoint)
    for arguments, message in (
        ([one, str(tmp_path / "shorter.ckpt"), *new], "1 weights differ in name or shape"),
        ([one, str(tmp_path / "words.ckpt"), *new], "different vocabularies"),
        ([one, str(tmp_path / "empty.ckpt"), *new], "not written by `captioner fit`"),
        ([one, str(tmp_path / "nothing.ckpt"), *new], "nothing.ckpt"),
        ([one, one, *new, "--shares", "2", "-1"], "must be 0..1 and 1 together, got 2.0 -1.0"),
        ([one, one, *new, "--shares", "1"], "one share for each of 2 files, got 1"),
        ([one, *new], "needs two files or more"),
        ([one, one, "--output", one], "is there already"),
        ([one, one, "--output", str(tmp_path / "new.safetensors")], "either all files end in"),
    ):
        with pytest.raises(SystemExit):
            script.main(arguments)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new.ckpt").exists()


def encoder_file(path: Path, seed: int, **arguments: object) -> Path:
    torch.manual_seed(seed)
    write_weights(CnnEncoder("torchvision/resnet18", "layer1", **arguments), path)
    return path


def test_encoders_lie_between(script: ModuleType, tmp_path: Path) -> None:
    mean = (0.1, 0.2, 0.3)
    files = [encoder_file(tmp_path / f"{i}.safetensors", i, mean=mean) for i in range(2)]
    output = tmp_path / "both.safetensors"
    script.main([*map(str, files), "--shares", "0.25", "0.75", "--output", str(output)])
    one, other, both = (
        CnnEncoder("torchvision/resnet18", "layer1", weights=f"file:{path}")
        for path in (*files, output)
    )
    assert both.mean == mean
    for name, tensor in both.trunk.state_dict().items():
        a, b = one.trunk.state_dict()[name], other.trunk.state_dict()[name]
        torch.testing.assert_close(tensor, a + 0.75 * (b - a) if a.is_floating_point() else b)
    assert not torch.equal(*(e.trunk.state_dict()["conv1.weight"] for e in (one, other)))
    assert read_normalization(output) == read_normalization(files[0])


def test_encoders_that_differ_are_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = encoder_file(tmp_path / "one.safetensors", 0)
    deep = tmp_path / "deep.safetensors"
    write_weights(CnnEncoder("torchvision/resnet18", "layer2"), deep)
    other = encoder_file(tmp_path / "other.safetensors", 0, std=(0.5, 0.5, 0.5))
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    for second, message in (
        (deep, "weights differ in name or shape, the first is layer2"),
        (other, "say {"),
        (broken, "broken.safetensors is no readable safetensors file"),
        (tmp_path / "none.safetensors", "none.safetensors"),
    ):
        with pytest.raises(SystemExit):
            script.main([str(one), str(second), "--output", str(tmp_path / "new.safetensors")])
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new.safetensors").exists()
