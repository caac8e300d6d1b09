"""A search over open things, in memory."""

from __future__ import annotations

from querywright.optimize.search.checks import read_search
from querywright.optimize.search.core import Search
from querywright.optimize.search.outcome import run_test
from querywright.optimize.search.spec import SearchSpec
from querywright.optimize.search.worker import run_search

TECHNIQUES = {"hcqr": {"search": "named", "knobs": {"top_k": [1, 3]}}, "rag_fusion": {"search": "named"}}


def test_techniques_are_searched_in_memory_and_the_front_is_evaluated_on_test(world, make_lm):
    given = {"objectives": ["decision_useful", "lm_calls"], "reader": "none", "trials": 4, "threads": 2}
    spec = read_search(SearchSpec, {"name": "mine", "techniques": TECHNIQUES, **given}, "the search")
    search = Search(spec, world.splits, None, make_lm(), {"dense": world}.__getitem__)
    worker = run_search(search)
    trials = worker.finished()
    assert [one.arm.technique for one in trials[:3]] == ["plain", "hcqr", "rag_fusion"]
    assert [one.values for one in worker.study.best_trials] == [
        [*trials[one.number].values.values()] for one in worker.study.best_trials
    ]
    outcome = run_test(search, trials)
    assert outcome.recommended == "hcqr compiled"
    assert {one.arm.technique for one in outcome.chosen.front} == {"plain", "hcqr"}  # the cheapest and the best
    assert [one.name for one in outcome.rows] == ["baseline", "hcqr compiled"]
