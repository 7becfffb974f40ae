"""Start from the weights of another model, whose vocabulary may be another one."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from captioner.inference.checkpoint import CHECKPOINT_KEY, CONFIG_FILE, find_model, load_model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from captioner.models.interfaces import CaptionDecoder
    from captioner.text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def read_model_config(source: str | Path) -> dict[str, Any]:
    """The configuration of a model, without its weights.

    Args:
        source: Lightning checkpoint, exported folder, or the name of a shipped model.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If the file is damaged or none of ours.
    """
    path = find_model(source)
    if path.is_dir():
        file = path / CONFIG_FILE
        if not file.is_file():
            raise FileNotFoundError(
                f"{path} is no exported model: it has no {CONFIG_FILE}; write one with "
                "`captioner export CKPT DIR`"
            )
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file} is no valid JSON ({error}); export it again") from error
    else:
        try:
            # Memory-mapped, so that the weights are never read.
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{path} is no readable checkpoint ({reason})") from error
        config = checkpoint.get(CHECKPOINT_KEY) if isinstance(checkpoint, dict) else None
    parts = ("encoder", "decoder", "preprocessing")
    if not isinstance(config, dict) or any(part not in config for part in parts):
        raise ValueError(
            f"{path} does not describe a model ({', '.join(parts)}): it was not written by "
            "`captioner fit` or `captioner export`"
        )
    return config


def load_initial_weights(
    source: str, encoder: nn.Module, decoder: CaptionDecoder, vocabulary: Vocabulary
) -> None:
    """Give encoder and decoder the weights of another model.

    Rows that belong to words (``decoder.vocabulary_parameters``) go to the same words, whatever
    their ids are; words that the other model did not know keep the weights they have.

    Args:
        source: Lightning checkpoint, exported folder, or the name of a shipped model.
        encoder: Module to fill.
        decoder: Decoder to fill.
        vocabulary: The decoder's words.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If weights are missing, left over or of another shape; names them.
    """
    loaded = load_model(source)
    _fill("encoder", source, encoder, loaded.encoder.state_dict())
    module = cast("nn.Module", decoder)
    state = dict(cast("nn.Module", loaded.decoder).state_dict())
    own = module.state_dict()
    old_ids = {word: i for i, word in enumerate(loaded.vocabulary.words)}  # <eos> and such too
    rows = [i for i, word in enumerate(vocabulary.words) if word in old_ids]
    old_rows = [old_ids[vocabulary.words[i]] for i in rows]
    for name in decoder.vocabulary_parameters:
        if name not in state or state[name].shape[1:] != own[name].shape[1:]:
            continue  # reported by _fill
        filled = own[name].clone()
        filled[rows] = state[name][old_rows].to(filled)
        state[name] = filled
    _fill("decoder", source, module, state)
    logger.info(
        "initial weights of %s: %d of %d words known to it, %d of its words not used",
        source,
        len(rows),
        len(vocabulary),
        len(loaded.vocabulary) - len(rows),
    )


def _fill(part: str, source: str, module: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = module.state_dict()
    problems = [f"{name} is missing" for name in own if name not in state]
    problems += [f"{name} has no place" for name in state if name not in own]
    problems += [
        f"{name} is {tuple(state[name].shape)}, needed {tuple(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    if problems:
        shown = "; ".join(problems[:5]) + ("; ..." if len(problems) > 5 else "")
        raise ValueError(
            f"the {part} of initial_weights {source} does not fit model.{part}: {shown}; leave "
            f"model.{part} out to take that model's own"
        )
    module.load_state_dict(dict(state))
