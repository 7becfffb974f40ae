"""Captions and scores of a split as files, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.evaluation.evaluate import evaluate
from captioner.evaluation.inputs import Inputs
from captioner.files import write_whole
from captioner.metrics.suite import Suite
from captioner.types import ImageId


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON so that a reader finds the old file or the whole new one, never a part.

    Args:
        path: File to write; its folder is made where absent.
        value: JSON values.
    """
    write_whole(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def merge_captions(
    parts: Iterable[Iterable[tuple[ImageId, str]]],
) -> dict[ImageId, str]:
    """Join the captions of several processes, one per picture.

    A distributed sampler repeats pictures to even out the shares; each of them counts once.

    Args:
        parts: Picture ids and captions, as each process made them.

    Returns:
        The first caption of each picture, ordered by id as text, whatever the number of
        processes was.
    """
    captions: dict[ImageId, str] = {}
    for part in parts:
        for image_id, caption in part:
            captions.setdefault(image_id, caption)
    return {image_id: captions[image_id] for image_id in sorted(captions, key=str)}


def check_complete(captions: Collection[ImageId], expected: Collection[ImageId]) -> None:
    """Make sure that every picture has its caption.

    Args:
        captions: Ids of the captioned pictures.
        expected: Ids of the pictures of the split.

    Raises:
        ValueError: If pictures are missing or strange; names the first of them.
    """
    missing = sorted(set(expected) - set(captions), key=str)
    strange = sorted(set(captions) - set(expected), key=str)
    if missing or strange:
        raise ValueError(
            f"captions of {len(set(captions))} pictures do not cover the split of "
            f"{len(set(expected))}: {_name('missing', missing)}; {_name('not in it', strange)}"
        )


def _name(what: str, ids: Sequence[ImageId]) -> str:
    shown = ", ".join(str(i) for i in ids[:5])
    return f"{len(ids)} {what}" + (f" ({shown}{', ...' if len(ids) > 5 else ''})" if ids else "")


def evaluate_split(
    captions: Mapping[ImageId, str],
    references: Mapping[ImageId, Sequence[str]],
    training: Mapping[ImageId, Sequence[str]] | None = None,
    *,
    split: str,
    **more: object,
) -> dict[str, Any]:
    """Score the captions of a split once, over the corpus, as ``captioner evaluate`` does.

    Metrics that cannot be computed on this machine are left out with the reason.

    Args:
        captions: One caption per picture.
        references: The captions that people gave, for these pictures and maybe others, which
            then count for CIDEr's document frequencies.
        training: What the model learned from, to tell which captions are copies.
        split: Part of the data set.
        **more: Further JSON values to keep beside the scores.

    Returns:
        The content of ``metrics.json``; scores are unscaled.
    """
    inputs = Inputs(
        hypotheses={str(key): caption for key, caption in captions.items()},
        references={str(key): list(texts) for key, texts in references.items()},
        problems=(),
        annotations="the data set of the run",
        split=split,
    )
    learned = None if training is None else {str(k): list(v) for k, v in training.items()}
    evaluation = evaluate(inputs, Suite.probe(), training=learned)
    return {**evaluation.to_dict(), **more}


def write_captions(path: str | Path, captions: Mapping[ImageId, str]) -> None:
    """Write a COCO results file, ``[{"image_id": ..., "caption": ...}]``.

    Args:
        path: File to write, atomically.
        captions: One caption per picture, in the order to write.
    """
    write_json(path, [{"image_id": key, "caption": text} for key, text in captions.items()])
