"""Choosing pairs against brute force; completion against matrices whose rank is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import root_mean_squared_error

from querywright.optimize import answer_matrix
from querywright.optimize.answer_matrix import KnownCells, LowRank, complete, completed, far_pairs, near_pairs

ROWS, COLUMNS, RANK = 200, 80, 3


def directions(n, seed, size=8):
    rows = np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


QUESTIONS, PASSAGES = directions(37, 1), directions(11, 2)
OWN = np.arange(37) % 12 - 1  # some of none of these passages
WITHOUT = np.arange(37)[OWN >= 0] * 11 + OWN[OWN >= 0]
ALL = sorted(
    (-round(float(QUESTIONS[q] @ PASSAGES[p]), 6), q * 11 + p) for q in range(37) for p in range(11) if OWN[q] != p
)
"""All pairs, most similar first, one at a time."""


@pytest.fixture(params=[25, 2_000_000], ids=["small blocks", "one block"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(answer_matrix, "BLOCK_CELLS", request.param)


@pytest.mark.usefixtures("blocks")
def test_the_most_similar_pairs_are_those_of_brute_force():
    for most in (1, 7, 10_000):
        near = near_pairs(QUESTIONS, PASSAGES, WITHOUT, most)
        assert near.cells.tolist() == [cell for _, cell in ALL[:most]]
        assert near.values.tolist() == pytest.approx([-minus for minus, _ in ALL[:most]], abs=2e-6)
    equal = np.repeat(directions(1, 3), 6, axis=0)
    assert near_pairs(equal, equal, np.arange(6) * 7, 7).cells.tolist() == [1, 2, 3, 4, 5, 6, 8]


def test_far_pairs_are_distinct_untaken_evenly_spread_and_few_where_few_are_left():
    taken = np.arange(0, 100_000, 2)
    drawn = far_pairs((1_000, 100), taken, 5_000, seed=1)
    assert len(np.unique(drawn)) == 5_000
    assert not np.isin(drawn, taken).any()
    assert abs(np.bincount(drawn // 10_000, minlength=10) - 500).max() < 100
    assert not np.array_equal(drawn, far_pairs((1_000, 100), taken, 5_000, seed=2))
    assert sorted(far_pairs((2, 3), np.array([0, 4, 4]), 10, seed=0).tolist()) == [1, 2, 3, 5]
    assert far_pairs((2, 2), np.arange(4), 10, seed=0).tolist() == []


def matrix(seed, *, binary=False):
    """Of rank three but for a constant, within 0 and 1."""
    random = np.random.default_rng(seed)
    product = random.normal(size=(ROWS, RANK)) @ random.normal(size=(RANK, COLUMNS))
    return (product > 0).astype(float) if binary else 0.5 + product / (2 * np.abs(product).max())


def seen(whole, share, seed):
    """A share of the cells drawn at random, and the numbers of all others."""
    cells, hidden = np.split(np.random.default_rng(seed).permutation(whole.size), [round(share * whole.size)])
    return KnownCells(cells, whole.ravel()[cells]), hidden


NOTHING = KnownCells(np.empty(0, dtype=np.int64), np.empty(0))


def tried(known, seed=0, far=None):
    return completed(NOTHING, known, (ROWS, COLUMNS), far=np.zeros(len(known), bool) if far is None else far, seed=seed)


@pytest.mark.parametrize(("share", "worst"), [(0.1, 0.15), (0.2, 0.03)])
def test_a_real_matrix_of_rank_three_is_recovered_from_a_tenth_and_a_fifth(share, worst):
    whole = matrix(1)
    known, hidden = seen(whole, share, 1)
    made, found = tried(known, 1)
    assert (found.used, found.reason, found.rank >= RANK) == (True, "", True)
    assert root_mean_squared_error(whole.ravel()[hidden], made.at(hidden)) < worst * whole.std()


def test_the_figures_are_those_of_the_held_out_pairs():
    """The split, done again by hand: with all else fixed the figures are scikit-learn's."""
    known, _ = seen(matrix(4, binary=True), 0.2, 4)
    _, found = tried(known, 9)
    order = np.random.default_rng(9).permutation(len(known))
    test, rest = known[order[:640]], known[order[640:]]
    made = complete(rest, (ROWS, COLUMNS), rank=found.rank, ridge=found.ridge, seed=9)
    predicted, base = made.at(test.cells), np.full(640, rest.values.mean())
    assert (found.judged, found.held) == (3_200, 640)
    assert found.rmse == pytest.approx(root_mean_squared_error(test.values, predicted))
    assert found.base_rmse == pytest.approx(root_mean_squared_error(test.values, base))


def test_what_does_not_predict_is_refused():
    noise = (np.random.default_rng(0).random((ROWS, COLUMNS)) < 0.3).astype(float)
    made, found = tried(seen(noise, 0.1, 0)[0])
    assert (made, found.used) == (None, False)
    assert (
        found.reason == "the completed matrix is not clearly more accurate than the base rate on held-out judged pairs"
    )
    made, found = tried(seen(matrix(0), 49 / 16_000, 0)[0])
    assert (made, found.judged, found.held, math.isnan(found.rmse)) == (None, 49, 0, True)
    assert "at least 50 judged pairs, but got 49" in found.reason


def test_a_completion_that_errs_among_pairs_drawn_at_random_is_refused():
    """Where similar pairs follow a pattern and the others are all no answers, the pattern must not be carried over."""
    known, _ = seen(matrix(5, binary=True), 0.3, 5)
    far = np.arange(len(known)) % 3 == 0
    made, found = tried(KnownCells(known.cells, np.where(far, 0.0, known.values)), far=far)
    assert (made, found.used) == (None, False)
    assert "randomly drawn" in found.reason


@pytest.mark.usefixtures("blocks")
def test_high_values_are_found_without_the_known_cells():
    made = LowRank(np.array([[1.0], [0.5], [0.5]]), np.array([[0.8], [1.0], [0.2]]), 0.1)
    # .9 1 .3 / .5 .6 .2 / .5 .6 .2, cut at 1
    high = made.above(0.5, 4, np.array([4, 0]))
    assert (high.cells.tolist(), high.values.tolist()) == ([1, 7, 3, 6], [1.0, 0.6, 0.5, 0.5])
    assert len(made.above(0.95, 9, np.array([1]))) == 0
