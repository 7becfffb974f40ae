"""The weights between two checkpoints of one model, such as those of its two training stages.

    python scripts/average_checkpoints.py runs/first/best.ckpt runs/second/best.ckpt \
        --share 0.7 --output mixed.ckpt

The result is (1 - share) * first + share * second: a checkpoint that captions, exports and starts
a run like any other, without the second's optimizer. Between the weights of cross-entropy and those
of self-critical training lie models that score as high and write better sentences (Wortsman et al.
2022, Robust fine-tuning of zero-shot models, eq. 1).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

DROPPED = ("optimizer_states", "lr_schedulers", "current_model_state", "averaging_state")


def average(
    first: Mapping[str, Any], second: Mapping[str, Any], share: float, names: Sequence[str]
) -> dict[str, Any]:
    """A checkpoint between two.

    Args:
        first: Checkpoint at share 0.
        second: Checkpoint at share 1; all that is not a weight is its.
        share: How far to go from the first to the second, 0..1.
        names: What both are called, for errors and the record.

    Raises:
        ValueError: The two are not of one model: vocabulary, names or shapes differ.
    """
    parts = [checkpoint.get("captioner") for checkpoint in (first, second)]
    for name, part in zip(names, parts, strict=True):
        if part is None:
            raise ValueError(f"{name} was not written by `captioner fit`")
    if parts[0]["vocabulary"] != parts[1]["vocabulary"]:
        raise ValueError(f"{names[0]} and {names[1]} have different vocabularies")
    one, other = first["state_dict"], second["state_dict"]
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
    weights = {
        name: one[name].lerp(tensor, share) if tensor.is_floating_point() else tensor
        for name, tensor in other.items()
    }
    kept = {key: value for key, value in second.items() if key not in DROPPED}
    provenance = dict(parts[1].get("provenance") or {})
    provenance["average"] = {
        "/".join(Path(name).parts[-2:]): weight
        for name, weight in zip(names, (round(1 - share, 6), share), strict=True)
    }
    return {**kept, "state_dict": weights, "captioner": {**parts[1], "provenance": provenance}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, average, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the second, 0..1")
    parser.add_argument("--output", type=Path, required=True, help="a new .ckpt file")
    options = parser.parse_args(arguments)
    if not 0.0 <= options.share <= 1.0:
        parser.error(f"share must be in [0, 1], got {options.share}")
    if options.output.exists():
        parser.error(f"{options.output} is there already; name another file")
    try:
        checkpoints = [
            torch.load(path, map_location="cpu", weights_only=True)
            for path in (options.first, options.second)
        ]
        names = [str(options.first), str(options.second)]
        result = average(checkpoints[0], checkpoints[1], options.share, names)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    torch.save(result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
