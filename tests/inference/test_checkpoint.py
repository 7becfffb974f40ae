import json
import logging
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from captioner import Captioner
from captioner.inference import checkpoint
from captioner.inference.checkpoint import (
    PRETRAINED,
    _fits_half,
    export_model,
    find_model,
    list_models,
    load_model,
)
from captioner.text.vocabulary import Vocabulary


def read(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def rewrite(source: Path, target: Path, change) -> Path:
    """A copy of a checkpoint after ``change`` was done to it."""
    data = read(source)
    change(data)
    torch.save(data, target)
    return target


@pytest.fixture
def exported(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return export_model(tiny_checkpoint, tmp_path / "exported")


def test_export_writes_a_folder_that_loads(exported: Path, tiny_checkpoint: Path) -> None:
    assert sorted(f.name for f in exported.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "vocabulary.json",
    ]
    assert all(f.stat().st_mode & 0o444 == 0o444 for f in exported.iterdir())
    model = load_model(exported)
    wanted = read(tiny_checkpoint)
    assert model.vocabulary == Vocabulary.from_dict(wanted["captioner"]["vocabulary"])
    assert model.preprocessing.to_dict() == wanted["captioner"]["preprocessing"]
    assert model.decoding.to_dict() == wanted["captioner"]["decoding"]
    assert model.config["provenance"] == wanted["captioner"]["provenance"]
    for prefix, module in (("encoder.", model.encoder), ("decoder.", model.decoder)):
        assert not any(m.training for m in module.modules())
        for name, tensor in module.state_dict().items():
            source = wanted["state_dict"][prefix + name]
            assert tensor.dtype == (torch.float32 if source.is_floating_point() else source.dtype)
            # Half precision keeps 11 bits.
            torch.testing.assert_close(tensor, source, rtol=2**-10, atol=1e-7)


def test_checkpoint_and_export_give_the_same_captions(
    exported: Path, tiny_checkpoint: Path, drawn_pictures: Path
) -> None:
    pictures = sorted(drawn_pictures.glob("*.png"))[:3]
    before = list(Captioner.load(tiny_checkpoint).captions(pictures))
    after = list(Captioner.load(exported).captions(pictures))
    assert [r.words for r in before] == [r.words for r in after]
    for one, other in zip(before, after, strict=True):
        # Rounded weights move probabilities in the third digit of these (steep) models.
        np.testing.assert_allclose(one.word_log_probs, other.word_log_probs, rtol=0.02, atol=0.02)


def test_only_what_survives_half_precision_is_stored_so(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    changed = "decoder." + next(
        n.removeprefix("decoder.")
        for n, t in read(tiny_checkpoint)["state_dict"].items()
        if n.startswith("decoder.") and t.dim() == 2
    )

    def flush(data: dict) -> None:
        data["state_dict"][changed][0, 0] = 1e-9

    def overflow(data: dict) -> None:
        data["state_dict"][changed][0, 0] = 1e5

    state = load_file(export_model(tiny_checkpoint, tmp_path / "a") / "model.safetensors")
    assert state[changed].dtype == torch.float16
    encoder = load_model(tmp_path / "a").encoder
    norms = [
        f"encoder.{name}.{key}"
        for name, module in encoder.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for key in module.state_dict()
    ]
    assert norms
    for name in norms:
        wanted = torch.int64 if name.endswith("num_batches_tracked") else torch.float32
        assert state[name].dtype == wanted, name
    for change in (flush, overflow):
        path = rewrite(tiny_checkpoint, tmp_path / "x.ckpt", change)
        folder = export_model(path, tmp_path / change.__name__)
        state = load_file(folder / "model.safetensors")
        assert state[changed].dtype == torch.float32
        assert torch.equal(state[changed], read(path)["state_dict"][changed])


def test_large_tensors_are_judged_by_their_rows() -> None:
    ordinary = torch.randn(300, 300)
    ordinary[4, 7] = 1e-9
    assert _fits_half(ordinary)
    assert not _fits_half(ordinary[:10])  # a small tensor costs nothing
    ordinary[5] = 1e-9  # a filter that training has silenced stays silent
    assert _fits_half(ordinary)
    faint = torch.randn(300, 300) * 1e-3
    faint[5] = 2e-8  # beside weak filters it is one more of them
    assert not _fits_half(faint)
    assert not _fits_half(torch.full((300, 300), 1e-9))


def save_with_decoder(checkpoint: Path, path: Path, **options: object) -> torch.nn.Module:
    """Save a checkpoint with another decoder, which differs in some options."""
    data = read(checkpoint)
    if not data["captioner"]["decoder"]["class_path"].endswith("ShowAttendTellDecoder"):
        pytest.skip("one decoder is enough")
    from captioner.models.lstm_decoder import ShowAttendTellDecoder

    decoder = ShowAttendTellDecoder(**{**data["captioner"]["decoder"]["init_args"], **options})
    data["captioner"]["decoder"]["init_args"] = dict(decoder.config)
    data["state_dict"] = {
        **{k: v for k, v in data["state_dict"].items() if k.startswith("encoder.")},
        **{f"decoder.{k}": v.clone() for k, v in decoder.state_dict().items()},
    }
    torch.save(data, path)
    return decoder


def test_tied_weights_are_stored_once(tmp_path: Path, tiny_checkpoint: Path) -> None:
    decoder = save_with_decoder(tiny_checkpoint, tmp_path / "tied.ckpt", tie_embeddings=True)
    folder = export_model(tmp_path / "tied.ckpt", tmp_path / "tied")
    stored = load_file(folder / "model.safetensors")
    loaded = load_model(folder).decoder.state_dict()
    shapes = [tuple(t.shape) for n, t in stored.items() if n.startswith("decoder.")]
    assert shapes.count((15, 16)) == 1
    for name, tensor in decoder.state_dict().items():
        torch.testing.assert_close(loaded[name], tensor, rtol=2**-10, atol=1e-7)


def test_a_decoder_without_attention_is_exported_and_loaded(
    tmp_path: Path, tiny_checkpoint: Path, drawn_pictures: Path
) -> None:
    decoder = save_with_decoder(tiny_checkpoint, tmp_path / "mean.ckpt", score="mean")
    folder = export_model(tmp_path / "mean.ckpt", tmp_path / "mean")
    loaded = load_model(folder).decoder
    assert loaded.config == decoder.config
    assert loaded.state_dict().keys() == decoder.state_dict().keys()
    result = Captioner.load(folder).caption(next(drawn_pictures.glob("*.png")), min_length=2)
    attention = result.attention
    np.testing.assert_allclose(attention, 1 / attention[0].size, rtol=1e-6)


def test_export_refuses_to_overwrite(tiny_checkpoint: Path, tmp_path: Path) -> None:
    folder = export_model(tiny_checkpoint, tmp_path / "model")
    before = (folder / "config.json").read_bytes()
    with pytest.raises(FileExistsError, match="--force"):
        export_model(tiny_checkpoint, folder, decoding={"beam_size": 2})
    assert (folder / "config.json").read_bytes() == before
    export_model(tiny_checkpoint, folder, decoding={"beam_size": 2}, force=True)
    assert load_model(folder).decoding.beam_size == 2
    (folder / "diary.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"diary\.txt"):
        export_model(tiny_checkpoint, folder, force=True)
    assert (folder / "diary.txt").read_text() == "mine"
    assert [f.name for f in tmp_path.iterdir()] == ["model"]


def test_a_failed_export_leaves_nothing(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "there"
    folder = export_model(tiny_checkpoint, target)

    def fail(*args: object, **kwargs: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "model_card", fail)
    with pytest.raises(OSError, match="disk full"):
        export_model(tiny_checkpoint, tmp_path / "new")
    with pytest.raises(OSError, match="disk full"):
        export_model(tiny_checkpoint, target, force=True)
    assert [f.name for f in tmp_path.iterdir()] == ["there"]
    load_model(folder)


def test_export_refuses_weights_that_are_not_finite(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def diverge(data: dict) -> None:
        for name, tensor in data["state_dict"].items():
            if name.startswith("decoder."):
                tensor.fill_(float("nan"))

    path = rewrite(tiny_checkpoint, tmp_path / "nan.ckpt", diverge)
    with pytest.raises(ValueError, match="not finite: the training diverged"):
        export_model(path, tmp_path / "model")


def test_export_warns_of_its_size(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        export_model(tiny_checkpoint, tmp_path / "a")
        assert not caplog.records
        monkeypatch.setattr(checkpoint, "SIZE_LIMIT", 1000)
        export_model(tiny_checkpoint, tmp_path / "b")
    assert "models that ship with the package stay below" in caplog.text


def test_the_card_says_what_the_model_is(exported: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# exported\n")
    for text in ("data: drawn by code", "timm/test_efficientnet", "beam_size 3", "15 entries"):
        assert text in card


def test_no_folder_of_this_machine_is_exported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    def from_file(data: dict) -> None:
        data["captioner"]["encoder"]["init_args"]["weights"] = "file:/home/me/secret/net.pth"
        data["captioner"]["provenance"] = {"initial_weights": "/home/me/secret/run-1/best.ckpt"}

    path = rewrite(tiny_checkpoint, tmp_path / "x.ckpt", from_file)
    folder = export_model(path, tmp_path / "model")  # the file is not there and not needed
    assert "secret" not in (folder / "config.json").read_text()
    assert "secret" not in (folder / "README.md").read_text()
    load_model(folder)


def test_unknown_name_lists_what_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoint, "PRETRAINED", tmp_path)
    assert list_models() == ()
    with pytest.raises(FileNotFoundError, match="none in this installation"):
        find_model("sat-flickr8k")
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "no-model").mkdir()
    assert list_models() == ("a", "b")
    assert find_model("a") == tmp_path / "a"
    with pytest.raises(FileNotFoundError, match=r"no model 'no-model'.*\(a, b\)"):
        find_model("no-model")


def test_missing_files_are_named(exported: Path) -> None:
    (exported / "vocabulary.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"vocabulary\.json missing"):
        load_model(exported)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocabulary.json"])
@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_damaged_files_are_named(exported: Path, name: str, damage: str) -> None:
    path = exported / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"\xff\x00noise" * 50)
    with pytest.raises(ValueError, match=name):
        load_model(exported)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=99), "format 99.*upgrade captioner"),
        (lambda c: c.pop("format"), "no format number"),
        (lambda c: c.pop("decoder"), "lacks decoder"),
        (lambda c: c["preprocessing"].pop("width"), r"preprocessing in .*config\.json"),
        (lambda c: c["decoding"].update(beams=3), r"decoding in .*config\.json.*beams"),
        (lambda c: c["encoder"].update(class_path="json.JSONDecoder"), "no torch module class"),
        (lambda c: c["encoder"].update(class_path="subprocess.Popen"), "no torch module class"),
        (
            lambda c: c["encoder"].update(class_path="never.imported.Thing"),
            "not from captioner.models",
        ),
        (lambda c: c["encoder"].update(class_path="captioner.models.gone.X"), "not part of this"),
        (lambda c: c["decoder"]["init_args"].update(gone=1), "cannot be built.*gone"),
        (lambda c: c["decoder"]["init_args"].update(vocabulary_size=9), "of different models"),
        (lambda c: c["encoder"]["init_args"].update(stage="blocks.1"), "encoder weights of"),
    ],
)
def test_wrong_configurations_are_explained(exported: Path, change, message: str) -> None:
    path = exported / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_model(exported)


def test_a_file_runs_no_code(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *a, **k: started.append(a))
    path = exported / "config.json"
    config = json.loads(path.read_text())
    config["decoder"] = {"class_path": "subprocess.Popen", "init_args": {"args": ["true"]}}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no torch module class"):
        load_model(exported)
    assert not started


def test_wrong_weights_are_named(exported: Path) -> None:
    path = exported / "model.safetensors"
    state = load_file(path)
    lost = next(n for n in state if n.startswith("decoder."))
    del state[lost]
    save_file(state, path)
    with pytest.raises(ValueError, match=f"decoder weights.*{lost.removeprefix('decoder.')}"):
        load_model(exported)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"x\.ckpt is no readable checkpoint"):
        load_model(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="not written by `captioner fit`"):
        load_model(path)
    Image.new("RGB", (4, 4)).save(tmp_path / "picture.png")
    with pytest.raises(ValueError, match="no readable checkpoint"):
        load_model(tmp_path / "picture.png")
    with pytest.raises(FileNotFoundError, match=r"give the \.ckpt file"):
        export_model(tmp_path / "absent.ckpt", tmp_path / "model")


SHIPPED = ("sat-flickr8k", "transformer-flickr8k")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_caption(name: str) -> None:
    if name not in list_models():
        pytest.skip(f"{name} does not ship with this version yet")
    folder = PRETRAINED / name
    assert (folder / "model.safetensors").stat().st_size <= checkpoint.SIZE_LIMIT
    assert set(checkpoint.EXPORTED_FILES) <= {f.name for f in folder.iterdir()}
    examples = Path(__file__).resolve().parents[2] / "demo" / "examples"
    result = Captioner.load(name).caption(examples / "chelsea.jpg")
    assert 4 <= len(result.words) <= 25
    assert "<unk>" not in result.words
    assert result.finished
