"""CIDEr-D of many captions at once, for self-critical training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from captioner.metrics.cider import CiderWeights
from captioner.metrics.ngrams import ReferenceNgrams
from captioner.metrics.score import ImageKey, KeyT


class CiderReward:
    """References prepared once, so that scoring a batch of captions takes milliseconds.

    The scores are those of ``cider`` with the same references; document frequencies come from all
    of them, whatever is in a batch. It can be pickled and copied to other processes.

    Args:
        references: Tokenised captions that people wrote, of every picture that may be asked for,
            words parted by white space.
        end_token: A word that ends every reference and every caption that ended itself, such as
            ``<eos>``. Without it a reward is blind to captions that break off, and training with it
            learns captions that end in "with a".

    Raises:
        ValueError: No references, a picture without any, or references with which CIDEr is
            undefined.

    References:
        Rennie et al. 2017, Self-critical Sequence Training, section 3 (the reward).

    >>> reward = CiderReward({1: ["a dog runs"], 2: ["two cats sleep"]}, end_token="<eos>")
    >>> reward([1, 1], ["a dog runs", "a dog runs"], finished=[True, False]).round(2).tolist()
    [10.0, 6.22]
    """

    def __init__(
        self, references: Mapping[KeyT, Sequence[str]], end_token: str | None = None
    ) -> None:
        if not references:
            raise ValueError("references are empty; give those of the training pictures")
        if end_token is not None and end_token.split() != [end_token]:
            raise ValueError(f"end_token must be one word without white space, got {end_token!r}")
        empty = [key for key, captions in references.items() if len(captions) == 0]
        if empty:
            raise ValueError(
                f"{len(empty):,} pictures have no reference caption (the first is {empty[0]!r}); "
                "leave them out"
            )
        self.end_token = end_token
        self._ending = "" if end_token is None else f" {end_token}"
        self._pictures: dict[ImageKey, int] = {key: i for i, key in enumerate(references)}
        self._index = ReferenceNgrams(
            [
                [f"{caption}{self._ending}" for caption in captions]
                for captions in references.values()
            ]
        )
        self._weights = CiderWeights(self._index)
        if (reason := self._weights.undefined) is not None:
            raise ValueError(reason)

    def __call__(
        self,
        image_ids: Sequence[KeyT],
        captions: Sequence[str],
        finished: Sequence[bool] | None = None,
    ) -> NDArray[np.float64]:
        """CIDEr-D of each caption, 0 .. 10.

        Args:
            image_ids: Picture that each caption describes; a picture may occur any number of times.
            captions: N tokenised captions without end token, words parted by white space.
            finished: Whether each caption ended itself; all did when not given. It needs
                ``end_token``.

        Returns:
            Scores in the order of the captions, (N,).

        Raises:
            ValueError: Lengths differ, an id has no references, or ``finished`` without end token.
        """
        if len(image_ids) != len(captions):
            raise ValueError(
                f"image_ids and captions must be equally long, got {len(image_ids)} and "
                f"{len(captions)}"
            )
        unknown = [key for key in image_ids if key not in self._pictures]
        if unknown:
            raise ValueError(
                f"{len(unknown):,} captions are for pictures without references (the first is "
                f"{unknown[0]!r}); prepare the reward with the references of all training pictures"
            )
        if finished is not None:
            if self.end_token is None:
                raise ValueError("finished needs a reward with an end_token")
            if len(finished) != len(captions):
                raise ValueError(
                    f"finished and captions must be equally long, got {len(finished)} and "
                    f"{len(captions)}"
                )
            captions = [
                f"{caption}{self._ending}" if ended else caption
                for caption, ended in zip(captions, finished, strict=True)
            ]
        elif self._ending:
            captions = [f"{caption}{self._ending}" for caption in captions]
        pictures = np.fromiter((self._pictures[key] for key in image_ids), np.int64, len(captions))
        lengths, matches = self._index.match(captions, pictures)
        return self._weights.score(lengths, matches, pictures)
