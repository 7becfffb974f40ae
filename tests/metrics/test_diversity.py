import pytest

from captioner.metrics.diversity import diversity


def test_counts_by_hand():
    found = diversity(["a dog runs", "a dog runs", "two cats"], ["a dog runs", "a cat"])
    assert found.captions == 3
    assert found.distinct_captions == 2
    assert found.vocabulary == 5
    assert found.distinct_1 == 5 / 8
    assert found.distinct_2 == 3 / 5
    assert found.mean_length == 8 / 3
    assert found.in_training == 2 / 3


def test_spaces_do_not_matter_and_a_caption_is_copied_as_a_whole():
    found = diversity(["a  dog ", "a dog"], ["a dog"])
    assert (found.distinct_captions, found.in_training) == (1, 1.0)
    assert diversity(["a dog"], ["a dog runs"]).in_training == 0.0


def test_without_training_captions_nothing_is_claimed():
    assert diversity(["a dog"]).in_training is None


def test_empty_captions_are_no_division_by_zero():
    found = diversity(["", ""])
    assert (found.distinct_captions, found.distinct_1, found.distinct_2) == (1, 0.0, 0.0)


def test_no_captions_are_refused():
    with pytest.raises(ValueError, match="captions is empty"):
        diversity([])
