"""Pictures with their captions, one item per picture, whatever worker reads it.

Every random choice (which view, which captions) follows from seed, epoch and index, so that a
run is the same with any number of workers and after a resume, and so that training from a
feature store sees the very views that training from pictures sees.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset

from captioner.data.collate import CaptionItem
from captioner.data.images import read_image
from captioner.data.samplers import mix_seed
from captioner.data.transforms import (
    PLAIN,
    RANDOM,
    View,
    find_view,
    keeps_captions_true,
    random_view,
)
from captioner.text.tokenizer import tokenize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from captioner.data.feature_store import FeatureStore
    from captioner.data.samplers import ItemKey
    from captioner.data.transforms import Preprocessing
    from captioner.text.vocabulary import Vocabulary
    from captioner.types import CaptionRecord

LongCaptions: TypeAlias = Literal["cut", "skip"]


class ViewReader(Protocol):
    """Gives one view of a picture: as pixels or as features."""

    def __call__(
        self, record: CaptionRecord, name: str, view: View
    ) -> tuple[Tensor | None, Tensor | None]:
        """The view as (image, None) or as (None, grid), shaped as ``CaptionItem`` has them."""
        ...


@dataclass(frozen=True)
class PictureReader:
    """Reads views from picture files.

    Args:
        preprocessing: From a picture to the input of the encoder.
    """

    preprocessing: Preprocessing

    def __call__(
        self, record: CaptionRecord, name: str, view: View
    ) -> tuple[Tensor | None, Tensor | None]:
        """The normalised view, (3, height, width).

        Raises:
            FileNotFoundError: The picture is missing.
            ImageReadError: It cannot be read. Both name the file.
        """
        return self.preprocessing(read_image(record.path), view), None


@dataclass(frozen=True)
class FeatureReader:
    """Reads views from a feature store, where an encoder has been before.

    Args:
        store: Holds every picture that is asked for, in every view that is asked for.
    """

    store: FeatureStore

    def __call__(
        self, record: CaptionRecord, name: str, view: View
    ) -> tuple[Tensor | None, Tensor | None]:
        """The encoder's output for the view of that name, (R, D) float16."""
        return None, self.store.read(record.image_id, self.store.views.index(name))


@dataclass(frozen=True)
class EncodedCaptions:
    """The captions of many pictures as token ids in one array, small to keep and to hand on.

    Args:
        tokens: BOS w1 .. wn EOS of every caption, one after another, int32.
        starts: Where caption i begins in ``tokens``, and the end, (captions + 1,) int64.
        first: Which caption is the first of picture i, and the end, (pictures + 1,) int64.
        num_cut: Captions that were too long and lost their last words.
        num_skipped: Captions left out because they were too long.
        num_empty: Captions left out because they hold no word.
    """

    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    first: NDArray[np.int64]
    num_cut: int
    num_skipped: int
    num_empty: int

    @classmethod
    def encode(
        cls,
        records: Sequence[CaptionRecord],
        vocabulary: Vocabulary,
        max_length: int,
        long_captions: LongCaptions,
    ) -> EncodedCaptions:
        """Tokenise the captions of ``records``.

        Args:
            records: The pictures; those without captions are fine.
            vocabulary: Gives the ids.
            max_length: Longest caption in words.
            long_captions: What happens to longer ones.
        """
        ids = vocabulary.special_ids
        tokens: list[int] = []
        starts, first = [0], [0]
        num_cut = num_skipped = num_empty = 0
        for record in records:
            for caption in record.captions:
                words = tokenize(caption)
                if not words:
                    num_empty += 1
                    continue
                if len(words) > max_length:
                    if long_captions == "skip":
                        num_skipped += 1
                        continue
                    num_cut += 1
                    words = words[:max_length]
                tokens += [ids.bos_id, *vocabulary.encode(words), ids.eos_id]
                starts.append(len(tokens))
            first.append(len(starts) - 1)
        return cls(
            tokens=np.array(tokens, dtype=np.int32),
            starts=np.array(starts, dtype=np.int64),
            first=np.array(first, dtype=np.int64),
            num_cut=num_cut,
            num_skipped=num_skipped,
            num_empty=num_empty,
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def num_captions(self, picture: int) -> int:
        """How many usable captions a picture has."""
        return int(self.first[picture + 1] - self.first[picture])

    def caption(self, picture: int, number: int) -> Tensor:
        """A caption of a picture, BOS w1 .. wn EOS, (n + 2,) int64."""
        caption = self.first[picture] + number
        start, end = self.starts[caption], self.starts[caption + 1]
        return torch.from_numpy(self.tokens[start:end].astype(np.int64))


class CaptionDataset(Dataset[CaptionItem]):
    """One item per picture, with all or some of its captions.

    A mirrored view of a picture is not used when any of its captions names a side ("left",
    "right"): the plain view takes its place, or the random view as it is without the mirror.

    Args:
        records: The pictures, in the order that indices refer to.
        reader: Gives the views: a ``PictureReader`` or a ``FeatureReader``.
        vocabulary: Words to ids; None leaves captions out (pictures to be captioned).
        captions_per_image: How many captions an item has, drawn anew in every epoch without
            repetition; a picture that has fewer gives all. None gives all of every picture.
        max_caption_length: Longest caption in words.
        long_captions: "cut" keeps the first ``max_caption_length`` words of a longer caption
            and ends it there, so no picture is lost; "skip" leaves the caption out, so the
            model never sees a sentence that ends early.
        views: Names of views, one of which is drawn for each item.
        seed: Decides the draws, together with epoch and index.
        drop_uncaptioned: Leave out pictures without a usable caption (one that holds a word and
            is not skipped). Training wants that, evaluation does not.
    """

    def __init__(
        self,
        records: Sequence[CaptionRecord],
        reader: ViewReader,
        vocabulary: Vocabulary | None = None,
        *,
        captions_per_image: int | None = None,
        max_caption_length: int = 50,
        long_captions: LongCaptions = "cut",
        views: Sequence[str] = ("plain",),
        seed: int = 0,
        drop_uncaptioned: bool = False,
    ) -> None:
        check_choices(captions_per_image, max_caption_length, long_captions, views)
        self.records = tuple(records)
        self.reader = reader
        self.captions_per_image = captions_per_image
        self.views = tuple(views)
        self.seed = seed
        self.captions: EncodedCaptions | None = None
        self._rows: Sequence[int] = range(len(self.records))  # of each picture in self.captions
        if vocabulary is not None:
            self.captions = EncodedCaptions.encode(
                self.records, vocabulary, max_caption_length, long_captions
            )
            if drop_uncaptioned:
                self._rows = [row for row in self._rows if self.captions.num_captions(row)]
                self.records = tuple(self.records[row] for row in self._rows)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: ItemKey | int) -> CaptionItem:
        """The picture at an index as a certain epoch sees it.

        Args:
            key: Epoch and index, as our samplers give them. A bare index counts as epoch 0, for
                samplers that know no epoch (Lightning's ``overfit_batches`` puts one in).
        """
        epoch, index = (0, key) if isinstance(key, int) else key
        record = self.records[index]
        draw = random.Random(mix_seed(self.seed, epoch, index))
        # The view is drawn before the captions, so that both stay what they are when the other
        # setting changes from one choice to another.
        name, view = self._draw_view(draw, record)
        captions = self._draw_captions(draw, index)
        try:
            image, grid = self.reader(record, name, view)
        except Exception as error:
            # Notes survive the way from a worker to the main process.
            error.add_note(f"while reading picture {record.image_id} ({record.path})")
            raise
        return CaptionItem(record.image_id, captions, image=image, grid=grid)

    def _draw_view(self, draw: random.Random, record: CaptionRecord) -> tuple[str, View]:
        name = self.views[int(draw.random() * len(self.views))]
        if name == RANDOM:
            view = random_view(random.Random(draw.random()))  # one value of it, as for the others
            if not keeps_captions_true(view, record.captions):
                view = dataclasses.replace(view, mirrored=False)
            return name, view
        view = find_view(name)
        return (name, view) if keeps_captions_true(view, record.captions) else ("plain", PLAIN)

    def _draw_captions(self, draw: random.Random, index: int) -> tuple[Tensor, ...]:
        if self.captions is None:
            return ()
        row = self._rows[index]
        count = self.captions.num_captions(row)
        numbers: Sequence[int] = range(count)
        if self.captions_per_image is not None and self.captions_per_image < count:
            numbers = draw.sample(numbers, self.captions_per_image)
        return tuple(self.captions.caption(row, number) for number in numbers)


def check_choices(
    captions_per_image: int | None,
    max_caption_length: int,
    long_captions: str,
    views: Sequence[str],
) -> None:
    """Refuse choices that no data set can follow.

    Raises:
        ValueError: The message names the argument, its value and what is allowed.
    """
    if captions_per_image is not None and captions_per_image < 1:
        raise ValueError(
            "captions_per_image must be at least 1, or null for all captions of a picture, "
            f"got {captions_per_image}"
        )
    if max_caption_length < 1:
        raise ValueError(f"max_caption_length must be at least 1, got {max_caption_length}")
    if long_captions not in ("cut", "skip"):
        raise ValueError(f"long_captions must be cut or skip, got {long_captions!r}")
    if not views:
        raise ValueError("views must name at least one view, for instance plain; got none")
    for view in views:
        if view != RANDOM:
            find_view(view)
