"""Several models that were trained on their own, joined into one that captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from captioner.data.transforms import Preprocessing
from captioner.inference.checkpoint import LoadedModel, load_model
from captioner.models.ensemble import EnsembleDecoder, EnsembleEncoder
from captioner.text.vocabulary import Vocabulary


@dataclass
class LoadedEnsemble(LoadedModel):
    """An ensemble in memory, ready to caption.

    ``encoder`` is an ``EnsembleEncoder``, ``decoder`` an ``EnsembleDecoder``; preprocessing and
    decoding options are those of the first model; ``config`` holds the models' names and
    configurations under ``members``.

    Args:
        views: How a picture is prepared, once for each input of the encoder.
    """

    views: tuple[Preprocessing, ...]


def load_ensemble(sources: Sequence[str | Path]) -> LoadedEnsemble:
    """Read several models and join them; see ``join_models``.

    Args:
        sources: Names of shipped models, exported folders or checkpoints, one or more.

    Raises:
        FileNotFoundError: A model or one of its files is not there.
        ValueError: There is no model, a file is damaged, or the models do not fit each other.
    """
    return join_models([load_model(source) for source in sources], [str(s) for s in sources])


def join_models(models: Sequence[LoadedModel], names: Sequence[str]) -> LoadedEnsemble:
    """An ensemble of models: the mean of their probabilities at every word.

    The models may differ in everything but the vocabulary: in decoder, encoder, size of the
    picture and grid. A picture is prepared once for models that prepare it alike, and encoded
    once for models whose encoder is the same to the last weight. Maps are averaged over the
    models that see the same part of the picture in the same grid as the first one.

    Args:
        models: One or more. The first gives the decoding options.
        names: What each is called, for errors and the record.

    Raises:
        ValueError: There is no model, or their vocabularies differ.
    """
    if not models:
        raise ValueError("no model to load; name one, or several for an ensemble")
    first = models[0]
    views: list[Preprocessing] = []
    encoders: list[LoadedModel] = []  # the first model of each distinct encoder
    encoder_views: list[int] = []
    member_encoders: list[int] = []
    for model, name in zip(models, names, strict=True):
        _check_vocabulary(first.vocabulary, names[0], model.vocabulary, name)
        if model.preprocessing not in views:
            views.append(model.preprocessing)
        known = (i for i, other in enumerate(encoders) if _see_alike(other, model))
        index = next(known, len(encoders))
        if index == len(encoders):
            encoders.append(model)
            encoder_views.append(views.index(model.preprocessing))
        member_encoders.append(index)
    shown = [
        i
        for i, model in enumerate(models)
        if _cover_alike(first.preprocessing, model.preprocessing)
    ]
    members = [{"name": name, **m.config} for name, m in zip(names, models, strict=True)]
    return LoadedEnsemble(
        encoder=EnsembleEncoder([model.encoder for model in encoders], encoder_views).eval(),
        decoder=EnsembleDecoder([model.decoder for model in models], member_encoders, shown).eval(),
        preprocessing=first.preprocessing,
        vocabulary=first.vocabulary,
        decoding=first.decoding,
        config={"members": members},
        views=tuple(views),
    )


def _check_vocabulary(own: Vocabulary, own_name: str, other: Vocabulary, name: str) -> None:
    """Refuse models that mean different words by the same id."""
    if own.words == other.words:
        return
    pairs = enumerate(zip(own.words, other.words, strict=False))
    different = next(((i, mine, theirs) for i, (mine, theirs) in pairs if mine != theirs), None)
    if different is None:
        reason = f"they have {len(own):,} and {len(other):,} entries"
    else:
        reason = "entry {} is {!r} in the one and {!r} in the other".format(*different)
    raise ValueError(
        f"the models of an ensemble must have one vocabulary, and those of {own_name} and {name} "
        f"differ: {reason}; take models that were trained with the same vocabulary file"
    )


def _see_alike(one: LoadedModel, other: LoadedModel) -> bool:
    """Whether two models make the same features of a picture."""
    if one.preprocessing != other.preprocessing or type(one.encoder) is not type(other.encoder):
        return False
    if _settings(one) != _settings(other):
        return False
    mine, theirs = one.encoder.state_dict(), other.encoder.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


def _settings(model: LoadedModel) -> dict[str, object]:
    """What an encoder was built with, besides the origin of weights that are compared anyway."""
    built = getattr(model.encoder, "config", None)  # with what older files leave to defaults
    arguments = cast("dict[str, object]", built or model.config["encoder"].get("init_args", {}))
    return {name: value for name, value in arguments.items() if name != "weights"}


def _cover_alike(one: Preprocessing, other: Preprocessing) -> bool:
    """Whether two preparations take the same part of every picture."""
    if one.resize_mode != other.resize_mode:
        return False
    # A crop has the shape of the input.
    return one.resize_mode == "squeeze" or one.width * other.height == other.width * one.height
