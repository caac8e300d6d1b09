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


@pytest.fixture
def bare(make_world):
    """A world in which nobody labelled anything."""

    def make(winner="rewriting"):
        world = make_world(winner)
        world.splits = Splits(*([replace(one, evidence={}) for one in part] for part in world.splits))
        return world

    return make


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


@pytest.mark.slow
def test_the_arm_that_is_truly_best_is_found_by_a_judge_that_is_right():
    searched = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "judged_search.py"))["searched"]
    found = searched(0, lead=30, dev=60, test=40)
    assert (found["found"], found["once"]) == (found["best"], True), found
