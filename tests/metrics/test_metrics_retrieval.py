from __future__ import annotations

import math
import random

import pytest

from querywright.metrics.retrieval import (
    all_found_at_k,
    exact_recovery_at_k,
    ndcg_at_k,
    precision_at_k,
    recall_at_k,
    reciprocal_rank,
)

AT_K = [all_found_at_k, exact_recovery_at_k, ndcg_at_k, precision_at_k, recall_at_k, reciprocal_rank]
every_measure = pytest.mark.parametrize("measure", AT_K)


def test_by_hand():
    ids, relevant = ["x", "a", "y", "b"], {"a", "b", "c"}
    assert recall_at_k(ids, relevant, 2) == pytest.approx(1 / 3)
    assert recall_at_k(ids, relevant, 4) == pytest.approx(2 / 3)
    assert precision_at_k(ids, relevant, 4) == 0.5
    assert precision_at_k(ids, relevant, 10) == 0.2  # a short list has empty places
    assert [exact_recovery_at_k(ids, relevant, k) for k in (1, 2)] == [0.0, 1.0]
    assert (reciprocal_rank(ids, relevant), reciprocal_rank(ids, relevant, 1)) == (0.5, 0.0)
    assert [all_found_at_k(ids, {"a", "b"}, k) for k in (3, 4)] == [0.0, 1.0]


@every_measure
def test_the_edges(measure):
    for nothing in ([], {"a": 0, "b": -1}):
        assert math.isnan(measure(["a"], nothing, 3))
    assert measure([], ["a"], 3) == measure(["x", "y"], ["a"], 3) == 0.0
    judged = {"a": 2, "b": 0}  # what was not judged is not relevant
    assert measure(["unjudged", "a"], judged, 2) == measure(["b", "a"], judged, 2)
    for relevant in (["a"], []):
        with pytest.raises(ValueError, match="k must be 1 or more, but got 0"):
            measure(["a"], relevant, 0)
    for grade in (math.nan, math.inf):
        with pytest.raises(ValueError, match="a grade must be a finite number, but 'b' has"):
            measure(["a"], {"a": 1, "b": grade}, 3)
    with pytest.raises(TypeError, match="ids must be a collection of ids, but got the text 'p1'; put it in a list"):
        measure("p1", ["p1"], 3)
    with pytest.raises(TypeError, match="relevant must be a collection of ids"):
        measure(["p1"], "p1", 3)


def test_agrees_with_ir_measures():
    import ir_measures
    from ir_measures import RR, P, R, Success, nDCG

    measures = {R: recall_at_k, P: precision_at_k, Success: exact_recovery_at_k, RR: reciprocal_rank, nDCG: ndcg_at_k}
    rng, cases = random.Random(7), {}
    for number in range(500):  # with repeated ids or nothing at all, and grades with ties and zeros
        ids = [str(one) for one in rng.choices(range(30), k=rng.choice([0, 1, 5, 20]))]
        grades = {str(one): rng.randint(0, 3) for one in rng.sample(range(30), rng.randint(1, 8))}
        grades[rng.choice(list(grades))] = rng.randint(1, 3)
        cases[str(number)] = (ids, grades)
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
