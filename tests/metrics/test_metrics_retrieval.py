from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.metrics.retrieval import (
    all_found_at_k,
    exact_recovery_at_k,
    ndcg_at_k,
    precision_at_k,
    recall_at_k,
    reciprocal_rank,
)

AT_K = [all_found_at_k, exact_recovery_at_k, ndcg_at_k, precision_at_k, recall_at_k, reciprocal_rank]
IDS = st.lists(st.sampled_from("abcdefgh"), max_size=10)


def test_by_hand():
    ids, relevant = ["x", "a", "y", "b"], {"a", "b", "c"}
    assert recall_at_k(ids, relevant, 2) == pytest.approx(1 / 3)
    assert recall_at_k(ids, relevant, 4) == pytest.approx(2 / 3)
    assert precision_at_k(ids, relevant, 4) == 0.5
    assert precision_at_k(ids, relevant, 10) == 0.2  # a short list has empty places
    assert exact_recovery_at_k(ids, relevant, 1) == 0.0
    assert exact_recovery_at_k(ids, relevant, 2) == 1.0
    assert reciprocal_rank(ids, relevant) == 0.5
    assert reciprocal_rank(ids, relevant, 1) == 0.0
    assert all_found_at_k(ids, {"a", "b"}, 3) == 0.0
    assert all_found_at_k(ids, {"a", "b"}, 4) == 1.0


def test_ndcg_by_hand():
    grades = {"a": 3, "b": 1, "c": 2}
    found = 1 / math.log2(2) + 3 / math.log2(4)  # b, x, a
    best = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)  # c counts though it was not found
    assert ndcg_at_k(["b", "x", "a"], grades, 3) == pytest.approx(found / best)
    found = 1 / math.log2(2) + 7 / math.log2(4)
    best = 7 / math.log2(2) + 3 / math.log2(3) + 1 / math.log2(4)
    assert ndcg_at_k(["b", "x", "a"], grades, 3, gain="exponential") == pytest.approx(found / best)
    assert ndcg_at_k(["a"], {"a": 1, "b": 1}, 1) == 1.0  # the ideal is cut at k as well


def test_a_repeated_id_counts_once_and_leaves_its_place():
    assert recall_at_k(["a", "a", "b"], {"a", "b"}, 2) == 1.0
    assert precision_at_k(["a", "a", "a"], {"a"}, 3) == pytest.approx(1 / 3)
    assert reciprocal_rank(["x", "x", "a"], {"a"}) == 0.5
    assert ndcg_at_k(["a", "a"], {"a": 1, "b": 1}, 2) < 1.0


@pytest.mark.parametrize("measure", AT_K)
def test_nothing_relevant_cannot_be_scored(measure):
    assert math.isnan(measure(["a"], [], 3))
    assert math.isnan(measure(["a"], {"a": 0, "b": -1}, 3))


@pytest.mark.parametrize("measure", AT_K)
def test_nothing_found_is_zero(measure):
    assert measure([], ["a"], 3) == 0.0
    assert measure(["x", "y"], ["a"], 3) == 0.0


@pytest.mark.parametrize("measure", AT_K)
@pytest.mark.parametrize("relevant", [["a"], []])
def test_depth_starts_at_one(measure, relevant):
    with pytest.raises(ValueError, match="k must be 1 or more, but got 0"):
        measure(["a"], relevant, 0)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="put it in a list"):
        recall_at_k(["p"], "p1", 3)
    with pytest.raises(ValueError, match="gain must be"):
        ndcg_at_k(["a"], ["a"], 3, gain="log")  # type: ignore[arg-type]


@given(IDS, st.sets(st.sampled_from("abcdefgh"), min_size=1), st.integers(1, 10))
def test_bounds_and_growth_with_depth(ids, relevant, k):
    for measure in AT_K:
        assert 0.0 <= measure(ids, relevant, k) <= 1.0
        if measure not in (precision_at_k, ndcg_at_k):
            assert measure(ids, relevant, k) <= measure(ids, relevant, k + 1)
    assert all_found_at_k(ids, relevant, k) == float(recall_at_k(ids, relevant, k) == 1.0)
    assert exact_recovery_at_k(ids, relevant, k) == float(recall_at_k(ids, relevant, k) > 0.0)
    assert ndcg_at_k(ids, relevant, k) == pytest.approx(ndcg_at_k(ids, relevant, k, gain="exponential"))
    assert recall_at_k(ids, dict.fromkeys(relevant, 2), k) == recall_at_k(ids, relevant, k)


def random_rankings(count):
    """Rankings with repeated ids or nothing at all, and grades with ties and zeros."""
    rng = random.Random(7)
    for _ in range(count):
        ids = [str(number) for number in rng.choices(range(30), k=rng.choice([0, 1, 5, 20]))]
        grades = {str(number): rng.randint(0, 3) for number in rng.sample(range(30), rng.randint(1, 8))}
        grades[rng.choice(list(grades))] = rng.randint(1, 3)
        yield ids, grades


def test_agrees_with_ir_measures():
    import ir_measures
    from ir_measures import RR, P, R, Success, nDCG

    measures = {
        R: recall_at_k,
        P: precision_at_k,
        Success: exact_recovery_at_k,
        RR: reciprocal_rank,
        nDCG: ndcg_at_k,
    }
    cases = {str(number): case for number, case in enumerate(random_rankings(1000))}
    assert sum(not ids for ids, _ in cases.values()) > 200
    assert sum(len(set(ids)) < len(ids) for ids, _ in cases.values()) > 300
    judged = {name: grades for name, (_, grades) in cases.items()}
    # They want each id once; a repeated one counts at its first place.
    once = {name: list(dict.fromkeys(ids)) for name, (ids, _) in cases.items()}
    found = {name: {key: 1 / rank for rank, key in enumerate(ids, 1)} for name, ids in once.items()}
    asked = {measure @ k: (ours, k) for measure, ours in measures.items() for k in (1, 3, 10, 40)}
    theirs = list(ir_measures.iter_calc(list(asked), judged, found))
    assert len(theirs) == len(asked) * len(cases)
    for one in theirs:
        ours, k = asked[one.measure]
        assert ours(*cases[one.query_id], k) == pytest.approx(one.value, rel=0, abs=1e-9), (one, cases[one.query_id])
    full = {one.query_id: one.value == 1.0 for one in ir_measures.iter_calc([R @ 10], judged, found)}
    assert {name: all_found_at_k(*case, 10) == 1.0 for name, case in cases.items()} == full


@pytest.mark.parametrize("gain", ["linear", "exponential"])
def test_ndcg_agrees_with_scikit_learn(gain):
    from sklearn.metrics import ndcg_score

    for ids, grades in random_rankings(100):
        ranks = {key: rank for rank, key in enumerate(dict.fromkeys(ids), 1)}
        names = sorted(ranks.keys() | grades.keys())
        if len(names) < 2:
            continue
        worth = [grades.get(name, 0) for name in names]
        truth = [[2**grade - 1 if gain == "exponential" else grade for grade in worth]]
        # What was not found comes last, in an order that does not matter within what was found.
        order = [[-ranks.get(name, 1000 + place) for place, name in enumerate(names)]]
        depth = max(len(ranks), 1)
        if ranks:
            theirs = ndcg_score(truth, order, k=depth)
            assert ndcg_at_k(ids, grades, depth, gain=gain) == pytest.approx(theirs, rel=0, abs=1e-9)


@pytest.mark.parametrize("measure", AT_K)
def test_what_is_no_grade_and_no_list_is_refused(measure):
    for grade in (math.nan, math.inf):
        with pytest.raises(ValueError, match="a grade must be a finite number, but 'b' has"):
            measure(["a"], {"a": 1, "b": grade}, 3)
    with pytest.raises(TypeError, match="ids must be a collection of ids, but got the text 'p1'"):
        measure("p1", ["p1"], 3)


@pytest.mark.parametrize("measure", AT_K)
def test_a_passage_that_was_not_judged_is_not_relevant(measure):
    assert measure(["unjudged", "a"], {"a": 2, "b": 0}, 2) == measure(["b", "a"], {"a": 2, "b": 0}, 2)
