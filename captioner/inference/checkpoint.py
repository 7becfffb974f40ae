"""Models on disk: exported folders, Lightning checkpoints, and the names that ship.

An exported folder holds ``model.safetensors`` (keys ``encoder.*`` and ``decoder.*``),
``config.json``, ``vocabulary.json`` and a model card, and is all that captioning needs.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from captioner.data.transforms import Preprocessing
from captioner.decoding import DecodingOptions
from captioner.inference.options import override_options
from captioner.models.interfaces import CaptionDecoder
from captioner.text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the layout of ``config.json`` and of the checkpoint's ``captioner`` entry."""

CHECKPOINT_KEY = "captioner"
"""Where a Lightning checkpoint keeps what is needed to caption with it."""

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
VOCABULARY_FILE = "vocabulary.json"
CARD_FILE = "README.md"
EXPORTED_FILES = (WEIGHTS_FILE, CONFIG_FILE, VOCABULARY_FILE, CARD_FILE)

PRETRAINED = Path(__file__).resolve().parents[1] / "pretrained"

SIZE_LIMIT = 30_000_000
"""Bytes above which an exported model is larger than what ships with the package."""

_LARGE = 4096
# Of the row's own norm, and of the largest row's. float16's ordinary rounding is 3e-4 of a row;
# a BatchNorm with epsilon 1e-5 makes at most 300 times as much of the second as it was.
_LARGEST_ROW_ERROR, _LARGEST_SHARE = 1e-3, 1e-6


@dataclass
class LoadedModel:
    """A model in memory, ready to caption: float32, in evaluation mode, on the CPU.

    Args:
        encoder: Pictures (M, 3, H, W) to ``ImageFeatures``.
        decoder: A ``CaptionDecoder`` module.
        preprocessing: How a picture becomes the encoder's input.
        vocabulary: Ids and words.
        decoding: The options chosen for this model; callers override them.
        config: The whole of ``config.json`` (provenance included), without the vocabulary.
    """

    encoder: nn.Module
    decoder: CaptionDecoder
    preprocessing: Preprocessing
    vocabulary: Vocabulary
    decoding: DecodingOptions
    config: dict[str, Any]


def list_models() -> tuple[str, ...]:
    """Names of the models that ship with this installation, in alphabetical order."""
    if not PRETRAINED.is_dir():
        return ()
    return tuple(sorted(f.name for f in PRETRAINED.iterdir() if (f / CONFIG_FILE).is_file()))


def find_model(source: str | Path) -> Path:
    """The folder or checkpoint file that a name or a path stands for.

    A shipped name wins over a folder of the same name; write ``./NAME`` for the folder.

    Raises:
        FileNotFoundError: Neither a shipped model nor an existing path.
    """
    names = list_models()
    if isinstance(source, str) and source in names:
        return PRETRAINED / source
    path = Path(source).expanduser()
    if str(source) and path.exists():
        return path
    known = ", ".join(names) if names else "none in this installation"
    raise FileNotFoundError(
        f"no model {str(source)!r}: neither a folder or checkpoint at that path nor one of the "
        f"models that ship ({known})"
    )


def load_model(source: str | Path) -> LoadedModel:
    """Read a shipped name, an exported folder or a Lightning checkpoint.

    Args:
        source: A name from ``list_models()``, a folder written by ``export_model``, or the
            ``.ckpt`` file of a training run.

    Raises:
        FileNotFoundError: The model or one of its files is not there.
        ValueError: A file is damaged, or its parts do not belong together.
    """
    path = find_model(source)
    if path.is_dir():
        config, state = _read_folder(path)
        files = path / CONFIG_FILE, path / WEIGHTS_FILE
        vocabulary = Vocabulary.load(path / VOCABULARY_FILE)
    else:
        config, state = _read_checkpoint(path)
        vocabulary = _parse(path, "vocabulary", lambda: Vocabulary.from_dict(config["vocabulary"]))
        config = {key: value for key, value in config.items() if key != "vocabulary"}
        files = path, path
    return _assemble(config, state, vocabulary, *files)


def export_model(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    decoding: Mapping[str, Any] | None = None,
    average_flip: bool = False,
    force: bool = False,
) -> Path:
    """Write a Lightning checkpoint as a folder that captions by itself.

    Weights are stored in half precision, and computed with in float32 after loading. Kept in
    float32: everything that belongs to a BatchNorm, whatever overflows float16, and tensors of
    which float16 would flush values to zero. In weights of more than 4,096 values a stray tiny
    one does not count (one in a few million is always there, and is lost in the rounding of its
    neighbours). There a tensor stays float32 when the error of any of its rows exceeds a
    thousandth of that row's norm and a millionth of the largest row's: a filter that training
    has silenced, as EfficientNets have many, is not worth twice the size of all of its layer.

    The folder appears whole or not at all.

    Args:
        checkpoint: A ``.ckpt`` file of ``captioner fit``.
        folder: Where to write; its name is the model's name.
        decoding: Decoding options to store that differ from the checkpoint's, such as
            ``{"beam_size": 5}``.
        average_flip: Whether the model looks at every picture and its mirror image from now on
            (``CnnEncoder``'s option of that name).
        force: Whether a model that is already there is replaced.

    Returns:
        The folder.

    Raises:
        FileExistsError: The folder is not empty, and ``force`` is not set or it holds files
            that are no part of an exported model.
        ValueError: The checkpoint is damaged or holds weights that are not finite.
    """
    folder = Path(folder).expanduser().absolute()
    _check_target(folder, force)
    path = Path(checkpoint).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}; give the .ckpt file of a training run")
    config, state = _read_checkpoint(path)
    vocabulary = _parse(path, "vocabulary", lambda: Vocabulary.from_dict(config["vocabulary"]))
    config = {key: value for key, value in config.items() if key != "vocabulary"}
    if average_flip:
        config["encoder"] = _with_argument(config["encoder"], "average_flip", True)
    model = _assemble(config, state, vocabulary, path, path)  # also proves that it can be loaded
    chosen = override_options(model.decoding, **(decoding or {}))
    config = {**config, "encoder": _without_path(config["encoder"]), "decoding": chosen.to_dict()}
    provenance = dict(config.get("provenance") or {})
    if source := provenance.get("initial_weights"):
        # A path of this machine says nothing elsewhere: the run and the file do.
        provenance["initial_weights"] = "/".join(Path(source).parts[-2:])
        config["provenance"] = provenance
    tensors = {}
    for prefix, module in (("encoder", model.encoder), ("decoder", model.decoder)):
        for name, tensor in _to_half(cast("nn.Module", module), path).items():
            tensors[f"{prefix}.{name}"] = tensor

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        save_file(tensors, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
        size = (temporary / WEIGHTS_FILE).stat().st_size
        _write_text(temporary / CONFIG_FILE, _to_json(config))
        vocabulary.save(temporary / VOCABULARY_FILE)
        _write_text(temporary / CARD_FILE, model_card(folder.name, config, model, size))
        mask = _umask()
        temporary.chmod(0o777 & ~mask)
        for file in temporary.iterdir():
            file.chmod(0o666 & ~mask)
        _replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if size > SIZE_LIMIT:
        logger.warning(
            "%s is %.1f MB; models that ship with the package stay below %.0f MB",
            folder / WEIGHTS_FILE,
            size / 1e6,
            SIZE_LIMIT / 1e6,
        )
    return folder


def model_card(name: str, config: Mapping[str, Any], model: LoadedModel, size: int) -> str:
    """What a reader of the folder must know, as Markdown.

    Args:
        name: The model's name.
        config: The contents of ``config.json``.
        model: The model itself, for its counts.
        size: Bytes of the weights file.
    """
    counts = {
        part: sum(p.numel() for p in cast("nn.Module", module).parameters())
        for part, module in (("encoder", model.encoder), ("decoder", model.decoder))
    }
    picture = model.preprocessing
    lines = [
        f"# {name}",
        "",
        "An image captioning model: it writes a sentence about a picture, and for every word a map"
        " of where it looked.",
        "",
        "```",
        f"captioner caption PICTURE --model {name}",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| Encoder | {_describe(config['encoder'])}, {counts['encoder']:,} parameters |",
        f"| Decoder | {_describe(config['decoder'])}, {counts['decoder']:,} parameters |",
        f"| Vocabulary | {len(model.vocabulary):,} entries, from the training split only |",
        f"| Picture | {picture.width} x {picture.height} pixels, {picture.resize_mode} |",
        f"| Decoding | {_pairs(config['decoding'])} |",
        f"| Weights | {size / 1e6:.1f} MB, float16 where that loses nothing; computed in float32 |",
        "",
        "## Where it comes from",
        "",
    ]
    provenance = config.get("provenance") or {}
    lines += [f"- {key}: {_plain(value)}" for key, value in provenance.items()]
    if not provenance:
        lines.append("The checkpoint did not say.")
    lines += [
        "",
        "## Limits",
        "",
        "It describes what pictures like those it was trained on show, in the words of their"
        " captions, and is confidently wrong about others. It repeats what its data assume about"
        " people. Do not use it where a wrong description does harm.",
        "",
        "The weights are for research use: the pictures and captions that they were learned from"
        " have terms of their own.",
        "",
    ]
    return "\n".join(lines)


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights of an exported folder."""
    missing = [
        name
        for name in (WEIGHTS_FILE, CONFIG_FILE, VOCABULARY_FILE)
        if not (folder / name).is_file()
    ]
    if missing:
        raise FileNotFoundError(
            f"{folder} is no exported model: {', '.join(missing)} missing; "
            "write one with `captioner export CKPT DIR`"
        )
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no valid JSON ({error}); export the model again") from error
    weights = folder / WEIGHTS_FILE
    try:
        state = load_file(weights)
    except SafetensorError as error:
        raise ValueError(f"{weights} is damaged ({error}); export the model again") from error
    return _checked_config(config, path), state


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The ``captioner`` entry and the weights of a Lightning checkpoint."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is no readable checkpoint ({reason})") from error
    if not isinstance(checkpoint, dict) or CHECKPOINT_KEY not in checkpoint:
        raise ValueError(
            f"{path} has no {CHECKPOINT_KEY!r} entry: it was not written by `captioner fit`"
        )
    config = _checked_config(checkpoint[CHECKPOINT_KEY], path)
    if "vocabulary" not in config:
        raise ValueError(f"{path} has no vocabulary: it was not written by `captioner fit`")
    return config, dict(checkpoint.get("state_dict", {}))


def _checked_config(config: object, path: Path) -> dict[str, Any]:
    """The configuration, if it is one that this version reads."""
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no model configuration but a {type(config).__name__}")
    number = config.get("format")
    if not isinstance(number, int):
        raise ValueError(f"{path} has no format number: it is no captioner model")
    if number > FORMAT:
        raise ValueError(
            f"{path} has format {number}, this version reads up to {FORMAT}; upgrade captioner"
        )
    missing = [key for key in ("encoder", "decoder", "preprocessing") if key not in config]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; export the model again")
    return config


def _assemble(
    config: dict[str, Any],
    state: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    path: Path,
    weights: Path,
) -> LoadedModel:
    """Build the parts that the configuration at ``path`` names and give them their weights."""
    # Every weight is in the state: the sources that the encoder was once made from (a package,
    # a download) are not looked at.
    encoder_spec = config["encoder"]
    arguments = dict(encoder_spec.get("init_args", {}))
    if "weights" in arguments:
        arguments["weights"] = None
    encoder = _build({**encoder_spec, "init_args": arguments}, "encoder", path)
    decoder = _build(config["decoder"], "decoder", path)
    size = config["decoder"].get("init_args", {}).get("vocabulary_size")
    if size is not None and size != len(vocabulary):
        raise ValueError(
            f"the decoder of {path} knows {size} words and the vocabulary beside it has "
            f"{len(vocabulary)}; they are of different models"
        )
    for prefix, module in (("encoder.", encoder), ("decoder.", decoder)):
        part = {
            name.removeprefix(prefix): tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
        for name, twin in _tied(module).items():  # stored once, see _to_half
            if name not in part and twin in part:
                part[name] = part[twin]
        try:
            module.load_state_dict(part)
        except RuntimeError as error:
            reason = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
            raise ValueError(
                f"the {prefix[:-1]} weights of {weights} do not fit its configuration: {reason}"
            ) from error
        module.float().eval().requires_grad_(False)
    preprocessing = _parse(
        path, "preprocessing", lambda: Preprocessing.from_dict(config["preprocessing"])
    )
    decoding = _parse(path, "decoding", lambda: DecodingOptions.from_dict(config["decoding"]))
    return LoadedModel(
        encoder=encoder,
        decoder=cast("CaptionDecoder", decoder),
        preprocessing=preprocessing,
        vocabulary=vocabulary,
        decoding=decoding,
        config=config,
    )


def _build(spec: Mapping[str, Any], part: str, path: Path) -> nn.Module:
    """A module from its ``class_path`` and ``init_args``.

    A file must not choose code to run: only modules (``torch.nn.Module``) are built, and only
    from ``captioner.models`` or from what the program has imported already.
    """
    class_path = spec.get("class_path")
    if not isinstance(class_path, str) or "." not in class_path:
        raise ValueError(f"the {part} in {path} has no class_path")
    module_name, _, class_name = class_path.rpartition(".")
    if f"{module_name}.".startswith("captioner.models."):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"the {part} class {class_path!r} in {path} is not part of this version"
            ) from error
    elif module_name in sys.modules:
        module = sys.modules[module_name]
    else:
        raise ValueError(
            f"the {part} class {class_path!r} in {path} is not from captioner.models; "
            f"import {module_name} before loading if you trust it"
        )
    chosen = getattr(module, class_name, None)
    if not (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
        raise ValueError(f"the {part} class {class_path!r} in {path} is no torch module class")
    try:
        return chosen(**spec.get("init_args", {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the {part} in {path} cannot be built: {error}") from error


def _with_argument(spec: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    """A part's configuration with one argument set."""
    return {**spec, "init_args": {**spec.get("init_args", {}), name: value}}


def _without_path(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The encoder's configuration without the folder, on one machine, of its first weights."""
    weights = spec.get("init_args", {}).get("weights")
    if not isinstance(weights, str) or not weights.startswith("file:"):
        return dict(spec)
    return _with_argument(spec, "weights", "file:" + re.split(r"[/\\\\]", weights)[-1])


def _parse(path: Path, name: str, build: Any) -> Any:
    """What ``build`` makes of a part of the file, or an error that names both."""
    try:
        return build()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the {name} in {path} cannot be read: {error}") from error


def _to_half(module: nn.Module, path: Path) -> dict[str, Tensor]:
    """The module's state, in float16 where nothing is lost by it; see ``export_model``."""
    kept = {
        f"{name}.{key}" if name else key
        for name, child in module.named_modules()
        if isinstance(child, nn.modules.batchnorm._BatchNorm) or hasattr(child, "running_var")
        for key in child.state_dict()
    }
    result = {}
    tied = _tied(module)
    for name, tensor in module.state_dict().items():
        if name in tied:
            continue
        if tensor.is_floating_point():
            if not torch.isfinite(tensor).all():
                raise ValueError(
                    f"{name} in {path} has values that are not finite: the training diverged; "
                    "export an earlier checkpoint"
                )
            if name not in kept and _fits_half(tensor):
                tensor = tensor.half()
        result[name] = tensor.contiguous()
    return result


def _tied(module: nn.Module) -> dict[str, str]:
    """Entries of the state that are another entry under a second name, and that first name."""
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    tied = {}
    for name, tensor in module.state_dict().items():
        if tensor.numel() == 0:
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if place in first:
            tied[name] = first[place]
        else:
            first[place] = name
    return tied


def _fits_half(tensor: Tensor) -> bool:
    """Whether float16 holds the tensor with no more than its ordinary rounding."""
    half = tensor.half()
    if torch.isinf(half).any():
        return False
    flushed = (half == 0) & (tensor != 0)
    if not flushed.any():
        return True
    if tensor.numel() <= _LARGE or tensor.dim() < 2:
        return False
    rows = tensor.flatten(1)
    error = (rows - half.flatten(1).float()).norm(dim=1)
    norms = rows.norm(dim=1)
    allowed = torch.maximum(_LARGEST_ROW_ERROR * norms, _LARGEST_SHARE * norms.max())
    return bool((error <= allowed).all())


def _check_target(folder: Path, force: bool) -> None:
    """Refuse a folder that would lose something."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; choose a folder")
    present = sorted(entry.name for entry in folder.iterdir())
    if not present:
        return
    others = [name for name in present if name not in EXPORTED_FILES]
    if others:
        raise FileExistsError(
            f"{folder} holds {others[0]!r}, which is no part of an exported model; "
            "choose another folder"
        )
    if not force:
        raise FileExistsError(f"{folder} holds a model already; --force replaces it")


def _replace_folder(new: Path, target: Path) -> None:
    """Put a finished folder in its place, and keep the old one until that has worked."""
    if not target.exists():
        new.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    target.rename(old / "model")
    try:
        new.rename(target)
    except OSError:
        (old / "model").rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _describe(spec: Mapping[str, Any]) -> str:
    """A class and its arguments in one line."""
    name = str(spec.get("class_path", "")).rpartition(".")[2]
    return f"`{name}` ({_pairs(spec.get('init_args', {}))})"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in values.items())


def _plain(value: object) -> str:
    """A value in a Markdown table or list; nothing in it may end the line or the cell."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("|", "\\|").replace("\n", " ")
