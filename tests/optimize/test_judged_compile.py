"""Compiling without labels, against what a judge says: what is found, who is asked what, and who is named."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from querywright.data.splits import Splits
from querywright.metrics.feedback import feedback_metric
from querywright.metrics.judge import JudgedMetric
from querywright.metrics.judges import make_judge
from querywright.models.lm import engine_of
from querywright.models.store import Store
from querywright.models.usage import Ledger
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.results import CompileSettings
from querywright.optimize.study.compile import compile_program

JUDGED = CompileSettings("judged_useful", trials=4, demo_sizes=(1,), reader_demo_sizes=(), threads=2)


def verdict_of(asked):
    decides = "Decides" in asked.prompt.rpartition("passage:")[2].partition("question:")[0]
    return json.dumps({"reason": f"it says {decides}", "label": "ENTAILED" if decides else "NOT_USEFUL"})


@pytest.fixture
def bare(make_world):
    """A world in which nobody labelled anything."""

    def make(winner="rewriting"):
        world = make_world(winner)
        world.splits = Splits(*([replace(one, evidence={}) for one in part] for part in world.splits))
        return world

    return make


@pytest.fixture
def judged_in(make_lm, make_engine):
    """Compiles HCQR with one LM that writes and another that judges; both have one ledger and one store."""

    def run(world, *, settings=JUDGED, write=verdict_of, before=lambda n, asked: None, **given):
        ledger, store = Ledger(), Store()
        lm = make_lm(make_engine(), ledger=ledger, store=store)
        judge = make_lm(make_engine(write=write, before=before), ledger=ledger, store=store, identity="judge")
        knobs = {"max_passages": 3}
        given = {"retriever": world, "reader": None, "knobs": knobs, "judge_lm": judge, "settings": settings, **given}
        return compile_program("hcqr", world.splits, lm=lm, **given), lm, judge

    return run


@pytest.mark.parametrize(("winner", "recommended"), [("rewriting", "as written"), ("plain", "no rewriting")])
def test_what_a_judge_says_decides_and_it_is_named_wherever_figures_stand(winner, recommended, bare, judged_in):
    made, lm, judge = judged_in(bare(winner))
    assert (made.recommended == "no rewriting") == (recommended == "no rewriting"), made.sentence
    asked = [one.prompt for one in engine_of(judge).inner.asked]
    assert len(asked) == len(set(asked)), "no judgement is asked twice, whatever arm or trial"
    assert made.costs["judges"].calls == len(asked)
    assert sum(one.calls for one in made.costs.values()) == engine_of(lm).ledger.total.calls
    assert sum(one.calls for one in made.costs.values()) == len(asked) + len(engine_of(lm).inner.asked)
    assert all("label" not in one.properties for one in engine_of(lm).inner.asked)
    assert made.sentence.endswith(f", by judge usefulness ({judge.model})")
    (fact,) = made.judges
    assert (fact["judge"], fact["digest"]) == ("usefulness", make_judge("usefulness").digest())
    assert "not calibrated" in fact["standing"]
    assert made.to_json()["judges"] == [fact]


def test_several_objectives_with_cost_and_any_teleprompter(bare, judged_in):
    settings = replace(JUDGED, objective=("judged_entailed", "lm_calls"), teleprompter="labelled_few_shot")
    made, *_ = judged_in(bare(), settings=settings, reader="multiple_choice")
    assert made.to_json()["further_objectives"] == ("lm_calls",)
    assert any(one.metric == "judged_entailed" for one in made.comparisons)
    settings = replace(JUDGED, teleprompter="random_search", arguments={"num_candidate_programs": 1})
    made, *_ = judged_in(bare(), settings=settings)
    assert made.n_demo_sets == 1, made.nothing
    assert any(one.prompt == "random_search" for one in made.arms)


def test_gepa_hears_the_reasons_of_the_judge_as_quoted_data(bare, make_lm, make_engine):
    world = bare()
    judge = make_lm(make_engine(write=lambda asked: json.dumps({"reason": 'say "[[ ## x', "label": "USEFUL"})))
    metric = JudgedMetric(make_judge("usefulness"), lm=judge)
    example = world.splits.dev[0].to_example()
    found = make_lm(make_engine())
    from querywright.optimize.dspy_context import asking

    with asking(found):
        prediction = world.program(reader=None)(question=example.question, options=example.options)
    said = feedback_metric(metric)(example, prediction, None, "technique.write_queries", None)
    assert said.score == 1.0
    assert "The judge usefulness calls the passage" in said.feedback
    assert 'USEFUL: "say \'[ [ ## x"' in said.feedback
    assert "judge" not in feedback_metric(metric)(example, prediction, None, "reader.answer", None).feedback


def test_a_judge_that_answers_nonsense_ends_a_compilation(bare, judged_in):
    with pytest.raises(TooManyFailuresError, match=r"'bananas', where a JSON object with .* was wanted of judge.model"):
        judged_in(bare(), write=lambda asked: "bananas")


@pytest.mark.slow
def test_the_arm_that_is_truly_best_is_found_by_a_judge_that_is_right():
    searched = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "judged_search.py"))["searched"]
    found = searched(0, lead=30, dev=60, test=40)
    assert (found["found"], found["once"]) == (found["best"], True), found
