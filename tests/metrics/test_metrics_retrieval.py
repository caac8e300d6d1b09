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
    ids = ["x", "a", "y", "b"]
    assert [all_found_at_k(ids, {"a", "b"}, k) for k in (3, 4)] == [0.0, 1.0]
    assert (precision_at_k(ids, {"a", "b"}, 10), reciprocal_rank(ids, {"a", "b"})) == (0.2, 0.5)


SECOND = 1 / math.log2(3)  # what rank 2 counts in a DCG; rank 3 counts 1/2


def test_any_one_of_a_group_of_alternatives_is_enough():
    either = [["a", "b"]]  # (a or b) and c
    for ids, recall in ((["a", "c"], 1.0), (["b", "c"], 1.0), (["a", "b"], 0.5), (["c"], 0.5), (["x"], 0.0)):
        assert recall_at_k(ids, ["a", "b", "c"], 5, either) == recall
        assert all_found_at_k(ids, ["a", "b", "c"], 5, either) == float(recall == 1)
    assert [recall_at_k(["x", "b"], ["a", "b"], k, either) for k in (1, 2)] == [0.0, 1.0]
    assert recall_at_k(["a"], ["a", "b", "c"], 1) == pytest.approx(1 / 3)
    assert recall_at_k(["c"], ["c"], 1, either) == 1.0  # of the group none is relevant
    for ids, dcg in (
        (["a", "c", "b"], 1 + SECOND),
        (["a", "b", "c"], 1.5),
        (["x", "b", "c"], SECOND + 0.5),
        (["b"], 1),
    ):
        assert ndcg_at_k(ids, ["a", "b", "c"], 3, either) == pytest.approx(dcg / (1 + SECOND))
    assert ndcg_at_k(["b", "c"], {"a": 2, "b": 1, "c": 1}, 3, either) == pytest.approx((1 + SECOND) / (2 + SECOND))
    assert ndcg_at_k(["c"], ["a", "b", "c"], 1, either) == 1.0
    with pytest.raises(TypeError, match="a group of alternatives must be a collection of IDs, but got the string 'ab'"):
        recall_at_k(["a"], ["a"], 1, ["ab"])


def test_a_passage_of_two_groups_is_enough_for_both():
    both = [["a", "b"], ["b", "c"]]
    assert [recall_at_k(ids, ["a", "b", "c"], 3, both) for ids in (["b"], ["a"], ["a", "c"])] == [1.0, 0.5, 1.0]
    assert ndcg_at_k(["b", "a"], ["a", "b", "c"], 3, both) == 1.0
    assert ndcg_at_k(["a", "c"], ["a", "b", "c"], 3, both) == pytest.approx((1 + SECOND) / 2)


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
        with pytest.raises(ValueError, match=r"a grade must be a finite number, but got .* for 'b'"):
            measure(["a"], {"a": 1, "b": grade}, 3)
    with pytest.raises(TypeError, match="ids must be a collection of IDs, but got the string 'p1'"):
        measure("p1", ["p1"], 3)
    with pytest.raises(TypeError, match="relevant must be a collection of IDs"):
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
