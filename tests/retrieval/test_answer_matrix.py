"""Choosing pairs against brute force; completion against matrices whose rank is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error

from querywright.errors import InputError
from querywright.retrieval import answer_matrix
from querywright.retrieval.answer_matrix import Known, LowRank, complete, completed, far_pairs, near_pairs

ROWS, COLUMNS, RANK = 200, 80, 3
FREE = RANK * (ROWS + COLUMNS - RANK)  # numbers that fix such a matrix: 831, a twentieth of its 16,000 cells


def directions(n, seed, size=8):
    rows = np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_hand(questions, passages, own):
    """All pairs, most similar first, one at a time."""
    found = [
        (-round(float(questions[q] @ passages[p]), 6), q, p)
        for q in range(len(questions))
        for p in range(len(passages))
        if own[q] != p
    ]
    return [(q, p, -minus) for minus, q, p in sorted(found)]


def assert_same(near, pairs, width):
    cells = [row * width + column for row, column, _ in pairs]
    assert near.cells.tolist() == cells
    assert near.values.tolist() == pytest.approx([similarity for *_, similarity in pairs], abs=2e-6)


QUESTIONS, PASSAGES = directions(37, 1), directions(11, 2)
OWN = np.arange(37) % 12 - 1  # some of none of these passages
WITHOUT = np.arange(37)[OWN >= 0] * 11 + OWN[OWN >= 0]
ALL = by_hand(QUESTIONS, PASSAGES, OWN)


@pytest.fixture(params=[25, 2_000_000], ids=["small blocks", "one block"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(answer_matrix, "BLOCK_CELLS", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("most", [1, 7, 10_000])
def test_the_pairs_above_a_threshold_are_those_of_brute_force(most):
    near, eligible = near_pairs(QUESTIONS, PASSAGES, WITHOUT, threshold=0.3, most=most)
    above = [pair for pair in ALL if pair[2] >= 0.3]
    assert 7 < len(above) == eligible
    assert_same(near, above[:most], 11)


@pytest.mark.usefixtures("blocks")
def test_the_pairs_above_a_percentile_are_the_highest_of_all():
    similarities = [similarity for *_, similarity in ALL]
    for percentile in (0, 50, 99, 99.9):
        near, eligible = near_pairs(QUESTIONS, PASSAGES, WITHOUT, percentile=percentile, most=10_000)
        assert_same(near, ALL[:eligible], 11)
        assert abs(eligible - sum(one > np.percentile(similarities, percentile) for one in similarities)) <= 1
    assert_same(near_pairs(QUESTIONS, PASSAGES, WITHOUT, percentile=0, most=5)[0], ALL[:5], 11)


@pytest.mark.usefixtures("blocks")
def test_equal_similarities_are_in_order_of_question_and_passage():
    equal = np.repeat(directions(1, 3), 6, axis=0)
    near, eligible = near_pairs(equal, equal, np.arange(6) * 7, threshold=0.9, most=7)
    assert (eligible, near.cells.tolist()) == (30, [1, 2, 3, 4, 5, 6, 8])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"most": 1}, "either a threshold or a percentile"),
        ({"most": 1, "threshold": 0.5, "percentile": 9}, "either a threshold or a percentile"),
        ({"most": 0, "threshold": 0.5}, "most must be 1 or more"),
        ({"most": 1, "threshold": 1.5}, "from -1 to 1"),
        ({"most": 1, "threshold": math.nan}, "from -1 to 1"),
        ({"most": 1, "percentile": 100}, "from 0 to below 100"),
    ],
)
def test_numbers_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        near_pairs(QUESTIONS, PASSAGES, WITHOUT, **settings)


def test_far_pairs_are_distinct_untaken_and_evenly_spread():
    taken = np.arange(0, 100_000, 2)
    drawn = far_pairs((1_000, 100), taken, 5_000, seed=1)
    assert len(np.unique(drawn)) == 5_000
    assert not np.isin(drawn, taken).any()
    spread = np.bincount(drawn // 10_000, minlength=10)
    assert abs(spread - 500).max() < 100
    assert np.array_equal(drawn, far_pairs((1_000, 100), taken, 5_000, seed=1))
    assert not np.array_equal(drawn, far_pairs((1_000, 100), taken, 5_000, seed=2))


@pytest.mark.usefixtures("blocks")
def test_more_far_pairs_begin_with_the_fewer_and_stay_when_others_are_taken():
    drawn = far_pairs((300, 100), np.arange(10), 40, seed=1)
    assert np.array_equal(drawn[:20], far_pairs((300, 100), np.arange(10), 20, seed=1))
    others = far_pairs((300, 100), np.concatenate([np.arange(10), drawn[:5]]), 35, seed=1)
    assert np.array_equal(others, drawn[5:])


def test_far_pairs_are_few_where_few_are_left():
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
    return Known(cells, whole.ravel()[cells]), hidden


NOTHING = Known(np.empty(0, dtype=np.int64), np.empty(0))


def tried(known, whole, seed=0, given=NOTHING, far=None):
    nowhere = np.zeros(len(known), dtype=bool)
    return completed(given, known, whole.shape, far=nowhere if far is None else far, seed=seed)


def everything(made):
    return made.at(np.arange(ROWS * COLUMNS))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("share", "worst"), [(0.1, 0.15), (0.2, 0.03)])
def test_a_real_matrix_of_rank_three_is_recovered_from_a_tenth_and_a_fifth(share, worst, seed):
    whole = matrix(seed)
    known, hidden = seen(whole, share, seed)
    made, found = tried(known, whole, seed)
    assert len(known) > FREE
    assert (found.used, found.reason) == (True, "")
    assert found.rank >= RANK
    error = root_mean_squared_error(whole.ravel()[hidden], everything(made)[hidden])
    assert error < worst * whole.std()


@pytest.mark.parametrize(("share", "least"), [(0.1, 0.78), (0.2, 0.87)])
def test_a_binary_matrix_is_mostly_right_where_enough_is_known(share, least):
    whole = matrix(3, binary=True)
    known, hidden = seen(whole, share, 3)
    made, found = tried(known, whole, 3)
    truth, predicted = whole.ravel()[hidden], everything(made)[hidden]
    assert accuracy_score(truth, predicted >= 0.5) > least
    assert found.base_accuracy < 0.65
    assert predicted.min() >= 0
    assert predicted.max() <= 1


def test_the_figures_are_those_of_the_held_out_pairs():
    """The split, done again by hand: with all else fixed the figures are scikit-learn's."""
    whole = matrix(4, binary=True)
    known, _ = seen(whole, 0.2, 4)
    _, found = tried(known, whole, 9)
    order = np.random.default_rng(9).permutation(len(known))
    test, rest = known[order[:640]], known[order[640:]]
    made = complete(rest, whole.shape, rank=found.rank, ridge=found.ridge, seed=9)
    predicted, base = made.at(test.cells), np.full(640, rest.values.mean())
    assert (found.judged, found.held) == (3_200, 640)
    assert found.rmse == pytest.approx(root_mean_squared_error(test.values, predicted))
    assert found.base_rmse == pytest.approx(root_mean_squared_error(test.values, base))
    assert found.accuracy == pytest.approx(accuracy_score(test.values, predicted >= 0.5))
    assert found.base_accuracy == pytest.approx(accuracy_score(test.values, base >= 0.5))
    assert found.auc == pytest.approx(roc_auc_score(test.values, predicted))


@pytest.mark.parametrize("seed", range(2))
def test_noise_is_refused(seed):
    noise = (np.random.default_rng(seed).random((ROWS, COLUMNS)) < 0.3).astype(float)
    known, _ = seen(noise, 0.1, seed)
    made, found = tried(known, noise, seed)
    assert (made, found.used) == (None, False)
    assert found.reason == "it does not clearly beat the base rate on held-out judged pairs"
    assert found.rank > 0


def test_few_judgements_are_refused_without_a_figure():
    made, found = tried(seen(matrix(0), 49 / 16_000, 0)[0], matrix(0))
    assert (made, found.judged, found.held, found.used) == (None, 49, 0, False)
    assert "49 judged pairs are too few" in found.reason
    assert math.isnan(found.rmse)


def test_a_completion_that_errs_among_pairs_drawn_at_random_is_refused():
    """Where similar pairs follow a pattern and the others are all no answers, the pattern must not be carried over."""
    whole = matrix(5, binary=True)
    known, _ = seen(whole, 0.3, 5)
    far = np.arange(len(known)) % 3 == 0
    values = np.where(far, 0.0, known.values)
    made, found = tried(Known(known.cells, values), whole, far=far)
    assert (made, found.used) == (None, False)
    assert "drawn at random" in found.reason
    assert found.gain_low > 0


def test_a_ridge_shrinks_singular_values_as_theory_says():
    """With every cell known, the least squares with a ridge has a closed form: each singular value less the ridge."""
    random = np.random.default_rng(0)
    whole = random.normal(size=(12, 3)) @ random.normal(size=(3, 9))
    whole = (whole - whole.mean()) / (whole - whole.mean()).std()
    left, values, right = np.linalg.svd(whole, full_matrices=False)
    expected = (left * np.maximum(values - 2.0, 0)) @ right
    made = complete(Known(np.arange(108), whole.ravel()), (12, 9), rank=8, ridge=2.0)
    assert np.abs(made.mean + made.rows @ made.columns.T - expected).max() < 0.05


@pytest.mark.usefixtures("blocks")
def test_high_values_are_found_without_the_known_cells():
    made = LowRank(np.array([[1.0], [0.5], [0.5]]), np.array([[0.8], [1.0], [0.2]]), 0.1)
    # .9 1 .3 / .5 .6 .2 / .5 .6 .2, cut at 1
    high = made.above(0.5, 4, np.array([4, 0]))
    assert (high.cells.tolist(), high.values.tolist()) == ([1, 7, 3, 6], [1.0, 0.6, 0.5, 0.5])
    assert len(made.above(0.5, 2, np.array([4, 0]))) == 2
    assert len(made.above(0.95, 9, np.array([1]))) == 0


def test_a_completion_of_nothing_and_a_wrong_rank_are_refused():
    known, _ = seen(matrix(0), 0.1, 0)
    for cells, rank, ridge in ((NOTHING, 1, 1.0), (known, 0, 1.0), (known, 1, 0.0)):
        with pytest.raises(InputError, match="completion needs"):
            complete(cells, (ROWS, COLUMNS), rank=rank, ridge=ridge)
