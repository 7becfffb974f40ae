"""The mean weights of several checkpoints of one model, such as those of its training stages.

    python scripts/average_checkpoints.py runs/first/best.ckpt runs/second/best.ckpt \
        --shares 0.3 0.7 --output mixed.ckpt
    python scripts/average_checkpoints.py seed-0.safetensors seed-1.safetensors \
        --output both.safetensors    # encoders alone, as scripts/adapt_encoder.py writes them

Without --shares all count the same. The result is a checkpoint that captions, exports and starts a
run like any other, without the last one's optimizer. Between the weights of cross-entropy and those
of self-critical training lie models that score as high and write better sentences (Wortsman et al.
2022, Robust fine-tuning of zero-shot models, eq. 1), and the mean of several runs from the same
start is steadier than each (Wortsman et al. 2022, Model soups, sec. 2). Runs that share no start
have nothing between them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from captioner.files import write_whole

ENCODER = ".safetensors"
DROPPED = ("optimizer_states", "lr_schedulers", "current_model_state", "averaging_state")


def average(
    checkpoints: Sequence[Mapping[str, Any]], shares: Sequence[float], names: Sequence[str]
) -> dict[str, Any]:
    """A checkpoint between several.

    Args:
        checkpoints: Two or more; all that is not a weight is the last one's.
        shares: What each counts for; their sum is 1.
        names: What each is called, for errors and the record.

    Raises:
        ValueError: They are not of one model: vocabulary, names or shapes differ.
    """
    parts = [checkpoint.get("captioner") for checkpoint in checkpoints]
    for name, part in zip(names, parts, strict=True):
        if part is None:
            raise ValueError(f"{name} was not written by `captioner fit`")
    first, last = checkpoints[0], checkpoints[-1]
    for name, part, checkpoint in zip(names, parts, checkpoints, strict=True):
        if part["vocabulary"] != parts[0]["vocabulary"]:
            raise ValueError(f"{names[0]} and {name} have different vocabularies")
        _check_same(first["state_dict"], checkpoint["state_dict"], names[0], name)
    weights = {
        name: _mean([c["state_dict"][name] for c in checkpoints], shares)
        for name in last["state_dict"]
    }
    kept = {key: value for key, value in last.items() if key not in DROPPED}
    provenance = dict(parts[-1].get("provenance") or {})
    provenance["average"] = {
        "/".join(Path(name).parts[-2:]): round(share, 6)
        for name, share in zip(names, shares, strict=True)
    }
    return {**kept, "state_dict": weights, "captioner": {**parts[-1], "provenance": provenance}}


def average_encoders(paths: Sequence[Path], shares: Sequence[float]) -> bytes:
    """A file of encoder weights between several, for ``weights=file:PATH``.

    Args:
        paths: Two or more .safetensors files.
        shares: What each counts for; their sum is 1.

    Raises:
        OSError: A file cannot be read.
        ValueError: They are not of one encoder: names, shapes, or the mean and std that they
            expect differ.
    """
    encoders = [_read_encoder(path) for path in paths]
    (first, notes), *others = encoders
    for path, (weights, own) in zip(paths[1:], others, strict=True):
        _check_same(first, weights, str(paths[0]), str(path))
        if own != notes:
            raise ValueError(f"{paths[0]} and {path} say {notes} and {own} of their pictures")
    return save(
        {name: _mean([weights[name] for weights, _ in encoders], shares) for name in first}, notes
    )


def _read_encoder(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is no readable safetensors file ({error})") from error


def _check_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], *names: str) -> None:
    different = sorted(
        name
        for name in {*one, *other}
        if name not in one or name not in other or one[name].shape != other[name].shape
    )
    if different:
        raise ValueError(
            f"{names[0]} and {names[1]} are of different models: {len(different)} weights differ "
            f"in name or shape, the first is {different[0]}"
        )


def _mean(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The weighted mean; of tensors that are equal, or are counts, the last as it is."""
    last = tensors[-1]
    if not last.is_floating_point() or all(torch.equal(tensor, last) for tensor in tensors):
        return last
    total = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True))
    assert isinstance(total, Tensor)
    return total.to(last.dtype)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, average, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="two or more")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        metavar="X",
        help="what each file counts for, 0..1 and 1 together (default: all the same)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="a new .ckpt or .safetensors file"
    )
    options = parser.parse_args(arguments)
    paths, shares = options.files, options.shares
    if len(paths) < 2:
        parser.error(f"an average needs two files or more, got {paths[0]} alone")
    shares = shares or [1 / len(paths)] * len(paths)
    if len(shares) != len(paths):
        parser.error(f"one share for each of {len(paths)} files, got {len(shares)}")
    if min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        parser.error(f"shares must be 0..1 and 1 together, got {' '.join(map(str, shares))}")
    if options.output.exists():
        parser.error(f"{options.output} is there already; name another file")
    encoders = [path.suffix == ENCODER for path in (*paths, options.output)]
    if any(encoders) and not all(encoders):
        parser.error(f"either all files end in {ENCODER}, as encoders do, or none does")
    try:
        if all(encoders):
            write_whole(options.output, average_encoders(paths, shares))
            return 0
        checkpoints = [torch.load(path, map_location="cpu", weights_only=True) for path in paths]
        result = average(checkpoints, shares, [str(path) for path in paths])
    except (OSError, ValueError) as error:
        parser.error(str(error))
    torch.save(result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
