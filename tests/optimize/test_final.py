from __future__ import annotations

from dataclasses import replace

import pytest

from querywright.metrics.statistics import paired_exact_test
from querywright.optimize.final import conclude
from querywright.optimize.report import card, compiled_json
from querywright.optimize.results import Comparison, CompileSettings
from querywright.optimize.search import compile_program

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
    verdict, sentence = conclude(compiled)
    assert f"\n**{sentence}.**\n" in card("x", compiled, "lm", "2026-01-02", {})
    data = compiled_json(compiled)
    assert (data["verdict"], data["verdict_sentence"]) == (verdict, sentence)
    return verdict, sentence


def test_a_gain_on_test_is_said_with_its_figures(gained):
    verdict, sentence = said(gained)
    assert verdict == "gain"
    assert sentence == (
        "Chosen on dev; test shows a gain over no rewriting (decision_useful: 10 won, 0 lost of 10, p = .008)"
    )


def test_an_arm_that_won_on_dev_by_too_few_questions_of_test_is_no_gain(make_world, compiled_in):
    # All 6 questions are won, but over four comparisons that is p = .125.
    verdict, sentence = said(compiled_in(make_world(size=18)))
    assert verdict == "no gain shown"
    assert sentence == (
        "Chosen on dev; test does not show a gain over no rewriting (decision_useful: 6 won, 0 lost of 6, p = .125)"
    )


def test_a_loss_on_test_is_said(make_world, compiled_in):
    world = make_world(size=30)
    turned = make_world("plain", size=30)
    find = world.find
    world.find = lambda query: turned.find(query) if int(query.split()[-1].rstrip("?")) >= 20 else find(query)
    verdict, sentence = said(compiled_in(world))
    assert verdict == "loss"
    assert sentence == (
        "Chosen on dev, but test shows a loss against no rewriting (decision_useful: 0 won, 10 lost of 10, p = .008)"
    )


def test_no_rewriting_is_said_with_what_dev_showed(make_world, compiled_in):
    assert said(compiled_in(make_world("plain"))) == (
        "no rewriting",
        "hcqr was not better than no rewriting on dev (decision_useful: 0.0 against 100.0 per cent), "
        "so no rewriting is what was saved",
    )


def comparison(metric, wins, losses, ties=0, other="no rewriting"):
    a = [1.0] * wins + [0.0] * losses + [1.0] * ties
    b = [0.0] * wins + [1.0] * losses + [1.0] * ties
    return Comparison("technique", metric, "hcqr compiled", other, paired_exact_test(a, b), "")


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
def test_only_the_metrics_of_the_objective_against_no_rewriting_decide(objective, useful, right, verdict, gained):
    comparisons = (
        comparison("decision_useful", *useful),
        comparison("decision_useful", 0, 12, other="hcqr as written"),
        comparison("accuracy", *right),
        comparison("accuracy", 12, 0, other="hcqr as written"),
    )
    settings = replace(gained.settings, objective=objective)
    word, sentence = said(replace(gained, comparisons=comparisons, settings=settings))
    assert word == verdict
    assert ("decision_useful:" in sentence) == (objective != "accuracy")
    assert ("accuracy:" in sentence) == (objective != "decision_useful")


def test_figures_of_a_small_p_and_of_nothing_scored(gained):
    many = replace(gained, comparisons=(comparison("decision_useful", 30, 1, 9),))
    assert conclude(many)[1].endswith("(decision_useful: 30 won, 1 lost of 40, p < .001)")
    even = replace(gained, comparisons=(comparison("decision_useful", 3, 2, 35),))
    assert conclude(even)[1].endswith("(decision_useful: 3 won, 2 lost of 40, p = 1.0)")
    nothing = replace(gained, comparisons=())
    assert conclude(nothing) == (
        "no gain shown",
        "Chosen on dev; test does not show a gain over no rewriting (no question could be scored)",
    )
