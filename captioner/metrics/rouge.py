"""ROUGE-L as coco-caption computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from captioner.metrics.score import ImageKey, KeyT, Score, check_ids

_BETA = 1.2


def rouge_l(hypotheses: Mapping[KeyT, str], references: Mapping[KeyT, Sequence[str]]) -> Score:
    """F-measure of the longest common subsequence of words.

    Args:
        hypotheses: Tokenised caption of each picture, words parted by single spaces.
        references: Tokenised captions that people wrote, at least one for each picture.

    Returns:
        The mean over pictures, in [0, 1].

    Raises:
        ValueError: The two sides are not for the same pictures, or a picture has no references.

    References:
        Lin 2004, ROUGE, section 3.1 (eq. 2-4). As in coco-caption, beta is 1.2, the best precision
        and the best recall may come from different references, and captions are split at every
        single space, so that two spaces in a row enclose an empty word.
    """
    per_image: dict[ImageKey, float] = {
        key: _rouge_of_one(hypotheses[key].split(" "), references[key])
        for key in check_ids(hypotheses, references)
    }
    return Score(sum(per_image.values()) / len(per_image), per_image)


def _rouge_of_one(words: list[str], references: Sequence[str]) -> float:
    # Longest common subsequence with one bit for each word of the caption (Hyyro 2004, "Bit-
    # parallel LCS-length computation revisited"): the zeros of `row` count matches.
    positions: dict[str, int] = {}
    bit = 1
    for word in words:
        positions[word] = positions.get(word, 0) | bit
        bit <<= 1
    ones = bit - 1
    size = len(words)
    look_up = positions.get
    precision = recall = 0.0
    for reference in references:
        row = ones
        other = reference.split(" ")
        for word in other:
            if found := look_up(word):
                matched = row & found
                row = ((row + matched) | (row - matched)) & ones
        common = size - row.bit_count()
        precision = max(precision, common / size)
        recall = max(recall, common / len(other))
    if precision == 0.0 or recall == 0.0:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)
