"""METEOR 1.5 for English, with the parameters of the ranking task, as coco-caption runs it.

References:
    Banerjee & Lavie 2005, METEOR; Denkowski & Lavie 2011, Meteor 1.3 (matchers, alignment);
    Denkowski & Lavie 2014, Meteor Universal (eq. 1-4: weighted precision and recall, penalty).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from captioner.metrics.meteor.aligner import Alignment, Match, align
from captioner.metrics.meteor.resources import Resources, load_resources
from captioner.metrics.meteor.words import find_partners
from captioner.metrics.score import Floats, KeyT, Score, Statistics, check_ids

ALPHA = 0.85
"""Weight of recall against precision."""
BETA = 0.20
"""Power of the fragmentation."""
GAMMA = 0.60
"""Largest penalty."""
DELTA = 0.75
"""Weight of content words against function words."""
MATCHER_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""Exact, stem, synonym, paraphrase."""

_PARAPHRASE = 3
# A row of statistics: words and function words of caption and reference (4); for each matcher the
# content words matched on both sides, then the function words (16); chunks; words matched (2).
_COLUMNS = 23
_CHUNKS, _MATCHED, _OTHER_MATCHED = 20, 21, 22


def meteor(
    hypotheses: Mapping[KeyT, str],
    references: Mapping[KeyT, Sequence[str]],
    resources: Resources | None = None,
) -> Score:
    """METEOR 1.5 of tokenised captions.

    Args:
        hypotheses: Caption of each picture, PTB tokens parted by single spaces.
        references: Captions that people wrote, tokenised in the same way.
        resources: METEOR's data; that of the installed pycocoevalcap when not given. The first
            use on a machine builds an index in the user's cache folder, which takes some seconds.

    Returns:
        The score of each picture (its best reference counts, an empty caption has 0), and the
        score of the whole set, which is computed from the statistics summed over pictures and is
        not the mean.

    Raises:
        MetricUnavailable: METEOR's data or nltk is not installed, or the index cannot be made.
        ValueError: The ids of the sides differ, or a picture has no reference.
    """
    keys = check_ids(hypotheses, references)
    resources = resources or load_resources()
    rows = _best_statistics(
        [hypotheses[key] for key in keys], [references[key] for key in keys], resources
    )
    per_image = combine(rows)
    return Score(
        corpus=float(combine(rows.sum(axis=0, keepdims=True))[0]),
        per_image=dict(zip(keys, per_image.tolist(), strict=True)),
        statistics=Statistics(values=rows, combine=combine),
    )


def combine(statistics: Floats) -> Floats:
    """Scores from statistics of pictures, or from their sums.

    Args:
        statistics: Rows of 23 numbers, (N, 23).

    Returns:
        A score for each row, (N,), 0 where nothing is matched.

    References:
        Denkowski & Lavie 2014, eq. 1-4.
    """
    columns = statistics.T
    words, other_words, function, other_function = columns[:4]
    stages = columns[4:20].reshape(4, 4, -1)  # (matcher, side and kind, N)
    weights = np.array(MATCHER_WEIGHTS)[:, None]
    found = ((DELTA * stages[:, 0] + (1 - DELTA) * stages[:, 2]) * weights).sum(axis=0)
    other_found = ((DELTA * stages[:, 1] + (1 - DELTA) * stages[:, 3]) * weights).sum(axis=0)
    chunks, matched, other_matched = columns[_CHUNKS], columns[_MATCHED], columns[_OTHER_MATCHED]
    scores = np.zeros(statistics.shape[0])
    some = (found > 0) & (other_found > 0)
    length = DELTA * (words - function) + (1 - DELTA) * function
    other_length = DELTA * (other_words - other_function) + (1 - DELTA) * other_function
    precision = found[some] / length[some]
    recall = other_found[some] / other_length[some]
    mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
    fragmentation = chunks[some] / ((matched[some] + other_matched[some]) / 2)
    scores[some] = mean * (1 - GAMMA * fragmentation**BETA)
    return scores


class _Sentence:
    """A caption or reference, prepared for many alignments.

    Args:
        words: Its words.
        function_words: Words that count less.
    """

    __slots__ = ("function", "function_before", "phrases", "positions", "present", "words")

    def __init__(self, words: tuple[str, ...], function_words: frozenset[str]) -> None:
        self.words = words
        flags = [word in function_words for word in words]
        self.function = sum(flags)
        self.function_before = [0, *accumulate(flags)]
        self.positions: dict[str, list[int]] = {}
        for i, word in enumerate(words):
            self.positions.setdefault(word, []).append(i)
        self.present = frozenset(self.positions)
        # Row of the paraphrase table -> first word and number of words of each place.
        self.phrases: dict[int, list[tuple[int, int]]] = {}


class _Caption:
    """A caption with what each of its words and phrases can match in any reference."""

    __slots__ = ("paraphrases", "partners", "sentence")

    def __init__(
        self, sentence: _Sentence, partners: list[tuple[int, Mapping[str, tuple[int, ...]]]]
    ) -> None:
        self.sentence = sentence
        self.partners = partners
        self.paraphrases: list[tuple[int, int, Mapping[int, int]]] = []


def _best_statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], resources: Resources
) -> Floats:
    """Statistics of each caption against its best reference, (N, 23)."""
    texts = [resources.normalize(text) for text in hypotheses]
    other_texts = {text: resources.normalize(text) for texts in references for text in texts}
    distinct = list(dict.fromkeys(other_texts.values()))
    partners = find_partners(
        {word for text in texts for word in text},
        {word for text in distinct for word in text},
        resources.stem,
        resources.synonyms,
    )
    sentences = {text: _Sentence(text, resources.function_words) for text in distinct}
    captions: dict[tuple[str, ...], _Caption] = {}
    for text in texts:
        if text not in captions:
            captions[text] = _Caption(
                _Sentence(text, resources.function_words),
                [(i, partners[word]) for i, word in enumerate(text) if partners[word]],
            )
    _find_paraphrases(captions, sentences, resources)

    rows = np.zeros((len(texts), _COLUMNS))
    for i, (text, others) in enumerate(zip(texts, references, strict=True)):
        caption = captions[text]
        candidates = np.array(
            [_statistics(caption, sentences[other_texts[other]]) for other in others]
        )
        rows[i] = candidates[int(np.argmax(combine(candidates)))]
    return rows


def _find_paraphrases(
    captions: Mapping[tuple[str, ...], _Caption],
    sentences: Mapping[tuple[str, ...], _Sentence],
    resources: Resources,
) -> None:
    """Note the phrases of the references, and for those of the captions what matches them."""
    table = resources.paraphrases
    in_captions = table.find(list(captions))
    in_sentences = table.find(list(sentences))
    neighbours = table.neighbours(
        (row for found in in_captions for _, _, row in found),
        (row for found in in_sentences for _, _, row in found),
    )
    wanted = {row for found in neighbours.values() for row in found}
    for sentence, found in zip(sentences.values(), in_sentences, strict=True):
        for start, length, row in found:
            if row in wanted:
                sentence.phrases.setdefault(row, []).append((start, length))
    for caption, found in zip(captions.values(), in_captions, strict=True):
        for start, length, row in found:
            if row in neighbours:
                caption.paraphrases.append((start, length, neighbours[row]))


def _statistics(caption: _Caption, other: _Sentence) -> list[float]:
    sentence = caption.sentence
    row = [0.0] * _COLUMNS
    row[0], row[1] = len(sentence.words), len(other.words)
    row[2], row[3] = sentence.function, other.function
    alignment = align(_matches(caption, other))
    _count(alignment, sentence, other, row)
    return row


def _matches(caption: _Caption, other: _Sentence) -> list[Match]:
    """All matches of a caption with a reference, single words first."""
    matches = []
    positions, present = other.positions, other.present
    for start, partners in caption.partners:
        for word in partners.keys() & present:
            matchers = partners[word]
            for position in positions[word]:
                for matcher in matchers:
                    matches.append(Match(start, 1, position, 1, matcher))
    phrases = other.phrases
    if phrases:
        keys = phrases.keys()
        for start, length, neighbours in caption.paraphrases:
            for row in neighbours.keys() & keys:
                for position, other_length in phrases[row]:
                    match = Match(start, length, position, other_length, _PARAPHRASE)
                    matches.extend([match] * neighbours[row])
    # The order of a set is no order: matches at one word of the reference are sorted.
    matches.sort(key=_order)
    return matches


def _order(match: Match) -> tuple[bool, int, int, int, int]:
    return (match[4] == _PARAPHRASE, match[0], match[1], match[3], match[4])


def _count(alignment: Alignment, sentence: _Sentence, other: _Sentence, row: list[float]) -> None:
    before, other_before = sentence.function_before, other.function_before
    for start, length, other_start, other_length, matcher in alignment.matches:
        function = before[start + length] - before[start]
        other_function = other_before[other_start + other_length] - other_before[other_start]
        column = 4 + 4 * matcher
        row[column] += length - function
        row[column + 1] += other_length - other_function
        row[column + 2] += function
        row[column + 3] += other_function
        row[_MATCHED] += length
        row[_OTHER_MATCHED] += other_length
    # A caption that is matched as a whole in one chunk is not fragmented, also in sums.
    whole = row[_MATCHED] == row[0] and row[_OTHER_MATCHED] == row[1] and alignment.chunks == 1
    row[_CHUNKS] = 0 if whole else alignment.chunks
