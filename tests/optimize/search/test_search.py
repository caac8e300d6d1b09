"""A search over open things, in memory."""

from __future__ import annotations

import pytest

from querywright.optimize.search.checks import read_search
from querywright.optimize.search.core import Search
from querywright.optimize.search.outcome import run_test
from querywright.optimize.search.spec import SearchSpec
from querywright.optimize.search.worker import run_search

TECHNIQUES = {"hcqr": {"search": "named", "knobs": {"top_k": [1, 3]}}, "rag_fusion": {"search": "named"}}


def run(retrievers, splits, lm, techniques, **given):
    """Run a search without a reader and return its results on test."""
    given = {"name": "mine", "techniques": techniques, "reader": "none", "threads": 2, **given}
    search = Search(read_search(SearchSpec, given, "the search"), splits, None, lm, retrievers.__getitem__)
    return run_test(search, run_search(search).finished())


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


NAMED = {"search": "named"}


@pytest.mark.parametrize(
    ("techniques", "note"),
    [
        (
            {"hcqr": NAMED | {"engines": ["hybrid"]}},
            "UNEQUAL ENGINES: baseline dense, hcqr@hybrid compiled; a gain may come from the engine; compare with "
            "plain@hybrid (querywright compare ARTIFACT --baseline plain@hybrid)",
        ),
        ({"plain": NAMED | {"engines": ["hybrid"]}}, ""),
        ({"hcqr": NAMED}, ""),
    ],
)
def test_a_technique_with_another_engine_than_the_baseline_is_noted(make_world, make_lm, techniques, note):
    world, other = make_world("rewriting"), make_world("both")
    outcome = run({"dense": world, "hybrid": other}, world.splits, make_lm(), techniques, trials=4)
    (name,) = techniques
    shown = f"{name}@hybrid" if "engines" in techniques[name] else name
    assert outcome.recommended == outcome.best == f"{shown} compiled"
    assert [line for line in outcome.notes if "UNEQUAL" in line] == [*filter(None, [note])]


@pytest.mark.parametrize("trials", [2, 12])
def test_engines_that_no_trial_used_are_noted(make_world, make_lm, trials):
    world, other = make_world("rewriting"), make_world("both")
    techniques = {"hcqr": {"engines": ["dense", "hybrid"], "search": "named"}}
    outcome = run({"dense": world, "hybrid": other}, world.splits, make_lm(), techniques, trials=trials)
    notes = [line for line in outcome.notes if line.startswith("not tried")]
    note = "not tried in 2 trials: hcqr@hybrid; to try more combinations, increase the number of trials"
    assert notes == ([note] if trials == 2 else [])
