from __future__ import annotations

from dataclasses import replace

import pytest

from querywright.metrics.statistics import paired_exact_test
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.optimize.artifacts.save import card
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import Comparison, CompileSettings
from querywright.optimize.study.compile import compile_program
from querywright.optimize.study.holdout import verdict_of
from querywright.optimize.study.objectives import objective_named, objectives_of
from querywright.optimize.study.select import choose
from querywright.optimize.study.types import ArmConfig, TrialRecord

SETTINGS = CompileSettings(n_trials=3, demo_sizes=(), reader_demo_sizes=(), threads=2)


@pytest.fixture(scope="module")
def compiled_in(make_lm):
    def compile_in(world, **changes):
        return compile_program(
            "hcqr",
            world.splits,
            retriever=world,
            lm=make_lm(),
            knobs={"max_passages": 3, "search_question": False},
            settings=replace(SETTINGS, **changes),
        )

    return compile_in


@pytest.fixture(scope="module")
def gained(make_world, compiled_in):
    return compiled_in(make_world(size=30))


def said(compiled):
    """The verdict, and that card and JSON say the same."""
    verdict, sentence = compiled.verdict, compiled.sentence
    assert f"\n**{sentence}.**\n" in card("x", compiled, "lm", "2026-01-02", {})
    data = compiled.to_json()
    assert (data["verdict"], data["verdict_sentence"]) == (verdict, sentence)
    return verdict, sentence


def test_a_gain_on_test_is_said_with_its_figures(gained):
    verdict, sentence = said(gained)
    assert verdict == "gain"
    assert sentence == (
        "Chosen on dev; test shows a gain over no rewriting (decision_useful: 10 won, 0 lost of 10, p = .004)"
    )


def test_an_arm_that_won_on_dev_by_too_few_questions_of_test_is_no_gain(make_world, compiled_in):
    # All 6 questions are won, but over two comparisons that is p = .062.
    verdict, sentence = said(compiled_in(make_world(size=18)))
    assert verdict == "no gain shown"
    assert sentence == (
        "Chosen on dev; test does not show a gain over no rewriting (decision_useful: 6 won, 0 lost of 6, p = .062)"
    )


def test_a_loss_on_test_is_said(make_world, compiled_in):
    world = make_world(size=30)
    turned = make_world("plain", size=30)
    find = world.find
    world.find = lambda query: turned.find(query) if int(query.split()[-1].rstrip("?")) >= 20 else find(query)
    verdict, sentence = said(compiled_in(world))
    assert verdict == "loss"
    assert sentence == (
        "Chosen on dev, but test shows a loss against no rewriting (decision_useful: 0 won, 10 lost of 10, p = .004)"
    )


def test_no_rewriting_is_said_with_what_dev_showed(make_world, compiled_in):
    assert said(compiled_in(make_world("plain"))) == (
        "no rewriting",
        "Nothing was better than no rewriting on dev (decision_useful: best 0.0 against 100.0 per cent; "
        "0 won, 6 lost of 6, p = .031), so no rewriting is what was saved",
    )


def test_no_rewriting_is_said_with_the_values_of_the_questions_that_both_scored(make_world, make_lm, make_engine):
    # Nothing finds what decides number 8, and the technique fails on it: without it both are equal.
    world = make_world("both")
    find = world.find
    world.find = lambda query: [p for p in find(query) if p.id != "decides-8"]

    def before(n, asked):
        if asked.number == 8 and asked.step != "reader":
            raise LMPromptTooLongError(5000, 4096, 100)

    compiled = compile_program(
        "hcqr",
        world.splits,
        retriever=world,
        lm=make_lm(make_engine(before)),
        knobs={"max_passages": 3},
        settings=SETTINGS,
    )
    assert said(compiled) == (
        "no rewriting",
        "Nothing was better than no rewriting on dev (decision_useful: best 100.0 against 100.0 per cent; "
        "0 won, 0 lost of 5, p = 1.0), so no rewriting is what was saved",
    )


def comparison(metric, wins, losses, ties=0, other="no rewriting"):
    a = [1.0] * wins + [0.0] * losses + [1.0] * ties
    b = [0.0] * wins + [1.0] * losses + [1.0] * ties
    return Comparison("technique", metric, "hcqr compiled", other, paired_exact_test(a, b), "")


@pytest.fixture(scope="module")
def chosen():
    """The choice of an arm over no rewriting."""

    def record(number, technique, values):
        rows = tuple(Row(f"q{place}", {"decision_useful": value}) for place, value in enumerate(values))
        dev = Evaluation("x", rows, 0.0)
        arm = ArmConfig(technique, "dense", {})
        return TrialRecord(number, "complete", arm, values={"decision_useful": sum(values) / len(values)}, dev=dev)

    return choose([record(0, "plain", [0.0] * 8), record(1, "hcqr", [1.0] * 8)], objectives_of(["decision_useful"]), 8)


@pytest.mark.parametrize(
    ("objective", "useful", "right", "verdict"),
    [
        ("accuracy", (10, 0), (3, 2), "no gain shown"),
        ("accuracy", (0, 10), (10, 0), "gain"),
        ("decision_useful", (3, 2), (10, 0), "no gain shown"),
        ("both", (10, 0), (3, 2), "gain"),
        ("both", (3, 2), (0, 10), "loss"),
        ("both", (10, 0), (0, 10), "loss"),
        ("both", (3, 2), (3, 2), "no gain shown"),
    ],
)
def test_only_the_metrics_of_the_objective_against_no_rewriting_decide(objective, useful, right, verdict, chosen):
    comparisons = (
        comparison("decision_useful", *useful),
        comparison("decision_useful", 0, 12, other="hcqr as written"),
        comparison("accuracy", *right),
        comparison("accuracy", 12, 0, other="hcqr as written"),
    )
    word, sentence = verdict_of(chosen, objective_named(objective), comparisons, "hcqr compiled")
    assert word == verdict
    assert ("decision_useful:" in sentence) == (objective != "accuracy")
    assert ("accuracy:" in sentence) == (objective != "decision_useful")


def test_figures_of_a_small_p_and_of_nothing_scored(chosen):
    def figures(*comparisons):
        return verdict_of(chosen, objective_named("decision_useful"), comparisons, "hcqr compiled")

    assert figures(comparison("decision_useful", 30, 1, 9))[1].endswith(
        "(decision_useful: 30 won, 1 lost of 40, p < .001)"
    )
    assert figures(comparison("decision_useful", 3, 2, 35))[1].endswith(
        "(decision_useful: 3 won, 2 lost of 40, p = 1.0)"
    )
    assert figures() == (
        "no gain shown",
        "Chosen on dev; test does not show a gain over no rewriting (no question could be scored)",
    )


def test_too_few_questions_crown_nothing(make_world, compiled_in):
    verdict, sentence = said(compiled_in(make_world(size=15)))
    assert verdict == "too few questions"
    assert sentence.startswith("5 dev and 5 test questions are too few to crown an arm")
