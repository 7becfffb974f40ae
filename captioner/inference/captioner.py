"""The front door: a picture goes in, a caption and its maps come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from captioner.data.images import ImageReadError, read_image, to_upright_rgb
from captioner.decoding import DecodingOptions, find_alternatives, generate
from captioner.inference.checkpoint import LoadedModel, load_model
from captioner.inference.ensemble import LoadedEnsemble, load_ensemble
from captioner.inference.options import override_options
from captioner.text.tokenizer import detokenize
from captioner.types import Alternative, CaptionResult, Hypothesis, ImageFeatures

DEFAULT_MODEL = "sat-flickr8k"

Picture: TypeAlias = str | Path | Image.Image | IO[bytes]
"""A path, an open binary file, or a Pillow image."""


@dataclass(frozen=True)
class _Request:
    """What is wanted for every picture of a call."""

    options: DecodingOptions
    seed: int | None
    layer_attention: bool
    alternatives: int
    prefix: tuple[int, ...]


@dataclass(frozen=True)
class PictureCaptions:
    """All captions of one picture, or the reason why there is none.

    Args:
        picture: The picture as it was given.
        captions: Its captions, best first; empty when it could not be read.
        error: Why it could not be read.
    """

    picture: Picture
    captions: tuple[CaptionResult, ...]
    error: ImageReadError | FileNotFoundError | None = None


class Captioner:
    """Writes captions with one model, or with several as one.

    >>> from captioner import Captioner
    >>> captioner = Captioner.load("sat-flickr8k")  # doctest: +SKIP
    >>> captioner.caption("photo.jpg").text  # doctest: +SKIP
    'a dog runs through the grass'
    >>> ensemble = Captioner.load(["my-model", "my-other-model"])  # doctest: +SKIP

    Args:
        model: What ``load_model`` or ``load_ensemble`` read.
        device: "auto" (CUDA where there is one, else the CPU), or a torch device.

    Raises:
        ValueError: The device is not there.
    """

    def __init__(self, model: LoadedModel, device: str = "auto") -> None:
        self.device = _find_device(device)
        self.preprocessing = model.preprocessing
        single = (model.preprocessing,)
        self._views = model.views if isinstance(model, LoadedEnsemble) else single
        self.vocabulary = model.vocabulary
        self.options = model.decoding
        self.config = model.config
        self._encoder = model.encoder.to(self.device)
        self._decoder = model.decoder
        cast("nn.Module", self._decoder).to(self.device)

    @classmethod
    def load(
        cls, source: str | Path | Sequence[str | Path] = DEFAULT_MODEL, device: str = "auto"
    ) -> Captioner:
        """A captioner from the name of a shipped model, an exported folder or a checkpoint.

        Several of them make an ensemble: at every word the mean of their probabilities. They
        must have one vocabulary. The first gives the decoding options, and maps are averaged over
        those that see the picture in the same grid as it does.

        Args:
            source: See ``captioner.inference.checkpoint.load_model``; a list of such for an
                ensemble, see ``captioner.inference.ensemble.join_models``.
            device: "auto" (CUDA where there is one, else the CPU), or a torch device.

        Raises:
            FileNotFoundError: A model or one of its files is not there.
            ValueError: A file is damaged, the list is empty, or vocabularies differ.
        """
        if isinstance(source, str | Path):
            return cls(load_model(source), device)
        return cls(load_ensemble(source), device)

    def caption(
        self,
        picture: Picture,
        *,
        seed: int | None = None,
        layer_attention: bool = False,
        alternatives: int = 0,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> CaptionResult:
        """The caption of one picture; see ``captions`` for the arguments.

        Raises:
            ImageReadError: The file is no picture that can be read.
            FileNotFoundError: There is no such file.
        """
        (result,) = self.captions(
            [picture],
            seed=seed,
            layer_attention=layer_attention,
            alternatives=alternatives,
            prefix=prefix,
            **options,
        )
        return result

    def captions(
        self,
        pictures: Iterable[Picture],
        batch_size: int = 16,
        *,
        on_error: Callable[[Picture, Exception], object] | None = None,
        seed: int | None = None,
        layer_attention: bool = False,
        alternatives: int = 0,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> Iterator[CaptionResult]:
        """The best caption of each picture, in order.

        Args:
            pictures: Paths, open binary files or Pillow images; taken as they are needed.
            batch_size: Pictures that are computed together; no caption depends on it.
            on_error: Called with a picture that cannot be read and the reason; that picture has
                no result then. Without it the first such picture ends the iteration.
            seed: Makes sampling repeatable; a picture's samples depend on no other picture.
            layer_attention: Whether results carry the maps of every layer and head.
            alternatives: How many of the likeliest other words results carry for every place.
            prefix: Words that every caption begins with, as the vocabulary has them; the end
                token's name as the last one ends the caption there.
            **options: Fields of ``DecodingOptions`` that differ from the model's own.

        Raises:
            ImageReadError: A file is no picture that can be read, and ``on_error`` is not given.
            FileNotFoundError: Likewise, there is no such file.
            ValueError: An option is unknown or out of range, or a word of the prefix is not in
                the vocabulary.
        """
        request = self._request(options, seed, layer_attention, alternatives, prefix)
        return self._best_captions(self._describe(pictures, batch_size, request), on_error)

    def describe(
        self,
        pictures: Iterable[Picture],
        batch_size: int = 16,
        *,
        seed: int | None = None,
        layer_attention: bool = False,
        alternatives: int = 0,
        prefix: Sequence[str] = (),
        **options: Any,
    ) -> Iterator[PictureCaptions]:
        """All captions of each picture (``num_captions`` of them), in order.

        A picture that cannot be read gives an item with its error and the others go on. The
        arguments are those of ``captions``.

        Raises:
            ValueError: An option is unknown or out of range, or a word of the prefix is not in
                the vocabulary.
        """
        request = self._request(options, seed, layer_attention, alternatives, prefix)
        return self._describe(pictures, batch_size, request)

    def resolve_options(self, **options: Any) -> DecodingOptions:
        """The model's decoding options with some of them replaced.

        ``beam_size`` asks for beam search where no ``method`` is named.

        Raises:
            ValueError: An option is unknown or out of range.
        """
        return override_options(self.options, **options)

    def _request(
        self,
        options: dict[str, Any],
        seed: int | None,
        layer_attention: bool,
        alternatives: int,
        prefix: Sequence[str],
    ) -> _Request:
        if isinstance(prefix, str):
            raise TypeError(f"prefix must be a list of words, got {prefix!r}; split it")
        if alternatives < 0:
            raise ValueError(f"alternatives must be at least 0, got {alternatives}")
        ids = {word: i for i, word in enumerate(self.vocabulary.words)}
        for word in prefix:
            if word not in ids:
                raise ValueError(
                    f"prefix must hold words that the model knows, got {word!r}; it knows "
                    f"{len(self.vocabulary):,}, all in lower case"
                )
        chosen = self.resolve_options(**options)
        forced = tuple(ids[word] for word in prefix)
        return _Request(chosen, seed, layer_attention, alternatives, forced)

    @staticmethod
    def _best_captions(
        described: Iterator[PictureCaptions],
        on_error: Callable[[Picture, Exception], object] | None,
    ) -> Iterator[CaptionResult]:
        for item in described:
            if item.error is None:
                yield item.captions[0]
            elif on_error is None:
                raise item.error
            else:
                on_error(item.picture, item.error)

    def _describe(
        self,
        pictures: Iterable[Picture],
        batch_size: int,
        request: _Request,
    ) -> Iterator[PictureCaptions]:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if isinstance(pictures, str | Path | Image.Image):
            raise TypeError(
                "pictures must be several pictures, got one; use caption() or put it in a list"
            )
        return self._describe_batches(iter(pictures), batch_size, request)

    def _describe_batches(
        self,
        pictures: Iterator[Picture],
        batch_size: int,
        request: _Request,
    ) -> Iterator[PictureCaptions]:
        while batch := list(islice(pictures, batch_size)):
            read = [self._read(picture) for picture in batch]
            good = [item for item in read if not isinstance(item, Exception)]
            captions = iter(self._caption_batch(good, request))
            for picture, item in zip(batch, read, strict=True):
                if isinstance(item, Exception):
                    yield PictureCaptions(picture, (), item)
                else:
                    yield PictureCaptions(picture, next(captions))

    def _read(
        self, picture: Picture
    ) -> tuple[tuple[Tensor, ...], tuple[int, int]] | ImageReadError | FileNotFoundError:
        """The encoder's inputs and the picture's size, or why it cannot be read."""
        try:
            if isinstance(picture, Image.Image):
                image = to_upright_rgb(picture)
            else:
                image = read_image(picture)
        except (ImageReadError, FileNotFoundError) as error:
            return error
        return tuple(view(image) for view in self._views), image.size

    def _caption_batch(
        self, pictures: list[tuple[tuple[Tensor, ...], tuple[int, int]]], request: _Request
    ) -> list[tuple[CaptionResult, ...]]:
        if not pictures:
            return []
        with torch.inference_mode():
            views = zip(*(inputs for inputs, _ in pictures), strict=True)
            features = self._encoder(*(torch.stack(view).to(self.device) for view in views))
            if request.options.method == "sample":
                # One by one, each from the same seed: what is drawn for a picture depends
                # neither on its place nor on the pictures around it.
                found = []
                for i in range(len(pictures)):
                    one = features.select(slice(i, i + 1))
                    found += self._generate(one, request, self._generator(request.seed))
            else:
                found = self._generate(features, request, None)
        others = self._find_alternatives(features, found, request)
        grid = (features.rows, features.cols)
        return [
            tuple(
                self._to_result(hypothesis, grid, size, other)
                for hypothesis, other in zip(hypotheses, beside, strict=True)
            )
            for hypotheses, beside, (_, size) in zip(found, others, pictures, strict=True)
        ]

    def _generate(
        self, features: ImageFeatures, request: _Request, generator: torch.Generator | None
    ) -> list[list[Hypothesis]]:
        return generate(
            self._decoder,
            features,
            request.options,
            self.vocabulary.special_ids,
            generator=generator,
            layer_attention=request.layer_attention,
            prefix=request.prefix,
        )

    def _find_alternatives(
        self, features: ImageFeatures, found: list[list[Hypothesis]], request: _Request
    ) -> list[list[tuple[tuple[Alternative, ...], ...] | None]]:
        if request.alternatives == 0:
            return [[None] * len(captions) for captions in found]
        words = self.vocabulary.words
        return [
            [
                tuple(tuple(Alternative(words[i], i, value) for i, value in at) for at in places)
                for places in captions
            ]
            for captions in find_alternatives(
                self._decoder,
                features,
                found,
                self.vocabulary.special_ids,
                request.alternatives,
                ban_unk=request.options.ban_unk,
            )
        ]

    def _generator(self, seed: int | None) -> torch.Generator:
        generator = torch.Generator(device=self.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return generator

    def _to_result(
        self,
        hypothesis: Hypothesis,
        grid: tuple[int, int],
        size: tuple[int, int],
        alternatives: tuple[tuple[Alternative, ...], ...] | None,
    ) -> CaptionResult:
        words = tuple(self.vocabulary.words[i] for i in hypothesis.token_ids)
        layers = hypothesis.layer_attention
        return CaptionResult(
            text=detokenize(words),
            words=words,
            token_ids=hypothesis.token_ids,
            word_log_probs=_to_numpy(hypothesis.token_log_probs),
            log_prob=hypothesis.log_prob,
            attention=_to_numpy(hypothesis.attention).reshape(len(words), *grid),
            crop_box=self.preprocessing.crop_box(*size),
            image_size=size,
            finished=hypothesis.finished,
            score=hypothesis.score,
            layer_attention=None
            if layers is None
            else _to_numpy(layers).reshape(*layers.shape[:3], *grid),
            alternatives=alternatives,
        )


def _find_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be auto, cpu or cuda, got {device!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda and there is none that torch can use; use auto or cpu")
    return found


def _to_numpy(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return tensor.detach().to("cpu", torch.float32).numpy()
