"""Row groups and scores, against the same thing written out row by row."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner.models import attention
from captioner.models.attention import (
    RowGroups,
    build_score,
    region_scores,
    region_scores_gradient,
    weighted_regions,
)

PICTURES = [
    [0, 1, 2, 3],  # one row each
    [0, 0, 1, 1, 2, 2, 3, 3],  # equal groups
    [0, 0, 0, 2, 3, 3],  # ragged, one picture without rows
    [3, 0, 2, 0, 3, 0],  # in no order
    [2],
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12))
def test_rows_come_back_from_the_grid(picture):
    groups = RowGroups.build(torch.tensor(picture, dtype=torch.int64), 5)
    rows = torch.randn(len(picture), 3)
    grid = groups.spread(rows)
    assert grid.shape == (5, groups.size, 3)
    assert torch.equal(groups.collect(grid), rows)
    assert groups.counts == tuple(picture.count(m) for m in range(5))
    for m in range(5):
        mine = rows[[i for i, p in enumerate(picture) if p == m]]
        assert torch.equal(grid[m, : groups.counts[m]], mine)


def test_equal_contiguous_groups_are_a_view():
    rows = torch.randn(6, 3)
    groups = RowGroups.build(torch.tensor([0, 0, 1, 1, 2, 2]), 3)
    assert groups.index is None
    assert groups.spread(rows).data_ptr() == rows.data_ptr()


def test_a_picture_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match=r"0\.\.2 of the features, got 0\.\.3"):
        RowGroups.build(torch.tensor([0, 3]), 3)


def scores_row_by_row(score, query, keys, picture):
    name, weight = score
    rows = []
    for q, m in zip(query, picture, strict=True):
        if name == "additive":
            rows.append(torch.stack([weight @ torch.tanh(k + q) for k in keys[m]]))
        else:
            scale = math.sqrt(len(q)) if name == "scaled_dot" else 1
            rows.append(torch.stack([k @ q / scale for k in keys[m]]))
    return torch.stack(rows)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("name", ["additive", "dot", "scaled_dot"])
@pytest.mark.parametrize("chunk", [1, 1 << 18, None])
def test_scores_and_gradients_are_those_of_the_equations(monkeypatch, picture, name, chunk):
    if chunk is None:  # as on other devices: one run over the whole grid, empty cells included
        chunks = RowGroups.chunks
        other = torch.device("meta")
        monkeypatch.setattr(RowGroups, "chunks", lambda self, n, _: chunks(self, n, other))
    else:
        monkeypatch.setattr(attention, "_CPU_CHUNK", chunk)
    score = build_score(name, 5).double()
    weight = next(score.parameters(), None)
    keys = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    query = torch.randn(len(picture), 5, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(len(picture), 6, dtype=torch.float64)
    groups = RowGroups.build(torch.tensor(picture), 4)

    expected = scores_row_by_row((name, weight), query, keys, picture)
    inputs = [query, keys, *score.weights()]
    gradients = torch.autograd.grad(expected, inputs, upstream)

    # With autograd (in a step that is differentiated), and without (in decoding).
    recorded = region_scores(score, query, keys, groups)
    torch.testing.assert_close(recorded, expected)
    by_autograd = torch.autograd.grad(recorded, inputs, upstream)
    with torch.no_grad():
        torch.testing.assert_close(region_scores(score, query, keys, groups), expected)
        grad_keys = torch.zeros_like(keys)
        grad_weights = tuple(torch.zeros_like(w) for w in score.weights())
        grad_query = region_scores_gradient(
            score, query, keys, groups, upstream, grad_keys, grad_weights
        )
    for found in (by_autograd, (grad_query, grad_keys, *grad_weights)):
        for mine, reference in zip(found, gradients, strict=True):
            torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("picture", PICTURES)
def test_context_is_the_weighted_sum_of_the_rows_own_picture(picture):
    values = torch.randn(4, 6, 5, dtype=torch.float64)
    weights = torch.rand(len(picture), 6, dtype=torch.float64).softmax(1)
    groups = RowGroups.build(torch.tensor(picture), 4)
    expected = torch.stack([w @ values[m] for w, m in zip(weights, picture, strict=True)])
    torch.testing.assert_close(weighted_regions(weights, values, groups), expected)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("attention_dim", [0, 5])
def test_equal_scores_ask_neither_queries_nor_keys(picture, attention_dim):
    score = build_score("mean", attention_dim)
    keys = torch.randn(4, 6, attention_dim, dtype=torch.float64)
    query = torch.randn(len(picture), attention_dim, dtype=torch.float64)
    groups = RowGroups.build(torch.tensor(picture), 4)
    scores = torch.zeros(len(picture), 6, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(region_scores(score, query, keys, groups), scores)
    assert torch.equal(region_scores(score, query, keys, groups), scores)
    grad_keys = torch.zeros_like(keys)
    upstream = torch.randn_like(scores)
    into_query = region_scores_gradient(score, query, keys, groups, upstream, grad_keys, ())
    assert into_query.shape == query.shape
    assert not into_query.any()
    assert not grad_keys.any()


def test_an_unknown_score_names_the_known_ones():
    with pytest.raises(ValueError, match='"scaled_dot" or "mean", got \'cosine\''):
        build_score("cosine", 4)
