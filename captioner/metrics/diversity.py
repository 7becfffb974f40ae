"""How varied a set of captions is, whatever its quality."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Diversity:
    """Figures on a set of captions as a whole; shares are in [0, 1].

    Args:
        captions: How many there are.
        distinct_captions: How many of them differ.
        distinct_1: Distinct words as a share of all words.
        distinct_2: Distinct pairs of neighbouring words as a share of all pairs.
        vocabulary: Distinct words.
        mean_length: Words of a caption on average.
        in_training: Share of captions that stand word for word in the training set; None where
            no training captions were given.
    """

    captions: int
    distinct_captions: int
    distinct_1: float
    distinct_2: float
    vocabulary: int
    mean_length: float
    in_training: float | None = None


def diversity(captions: Sequence[str], training: Collection[str] | None = None) -> Diversity:
    """Measure how varied captions are.

    Args:
        captions: Tokenised captions, words parted by white space.
        training: Captions that the model learned from, tokenised in the same way.

    Raises:
        ValueError: There are no captions.

    References:
        Li et al. 2016, A diversity-promoting objective function, section 5.2 (distinct-1 and -2,
        here over the whole set of captions).

    >>> diversity(["a dog runs", "a dog sits"]).distinct_2
    0.75
    """
    if not captions:
        raise ValueError("captions is empty; there is nothing to measure")
    words = [caption.split() for caption in captions]
    num_words = sum(map(len, words))
    vocabulary = {word for caption in words for word in caption}
    pairs = {pair for caption in words for pair in itertools.pairwise(caption)}
    num_pairs = sum(max(0, len(caption) - 1) for caption in words)
    share = None
    if training is not None:
        known = {" ".join(caption.split()) for caption in training}
        share = sum(" ".join(caption) in known for caption in words) / len(words)
    return Diversity(
        captions=len(words),
        distinct_captions=len({tuple(caption) for caption in words}),
        distinct_1=len(vocabulary) / num_words if num_words else 0.0,
        distinct_2=len(pairs) / num_pairs if num_pairs else 0.0,
        vocabulary=len(vocabulary),
        mean_length=num_words / len(words),
        in_training=share,
    )
