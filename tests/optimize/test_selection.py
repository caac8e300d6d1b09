from __future__ import annotations

import math
from itertools import permutations

import pytest

from querywright.data.types import Label
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import Arm, objective_value
from querywright.optimize.selection import beats, best_of, paired

NAN = math.nan


def arm(name, *values, label=None, calls=1):
    """An arm with these accuracies; a pair of numbers is usefulness and accuracy; NaN stands for a failure."""
    scores = [value if isinstance(value, tuple) else (NAN, value) for value in values]
    rows = tuple(
        Row(f"q{n}", {"decision_useful": useful, "accuracy": right}, label=label, cost=Cost(calls=calls))
        for n, (useful, right) in enumerate(scores)
    )
    return Arm(name, {}, None, Evaluation(name, rows, 0.0))


def best(arms, objective="accuracy"):
    return best_of(arms, objective).name


FAILED = arm("failed on the hard two", 1.0, 0.0, 1.0, NAN, NAN)
THROUGH = arm("went through", 1.0, 1.0, 1.0, 0.0, 0.0)


def test_an_arm_that_failed_on_hard_questions_does_not_win_by_that():
    assert objective_value(FAILED.dev, "accuracy") > objective_value(THROUGH.dev, "accuracy")
    assert best([FAILED, THROUGH]) == best([THROUGH, FAILED]) == "went through"
    assert not beats(FAILED, THROUGH, "accuracy")
    assert beats(THROUGH, FAILED, "accuracy")


def test_arms_that_are_equal_where_both_scored_are_equal():
    same = arm("same", 1.0, 1.0, 1.0, NAN, NAN)
    assert objective_value(same.dev, "accuracy") == 1.0
    assert not beats(same, THROUGH, "accuracy")
    assert not beats(THROUGH, same, "accuracy")


def test_a_pair_is_compared_on_what_both_scored_and_on_nothing_else():
    one, other = paired(arm("one", NAN, 1.0, 0.0, NAN), arm("other", 1.0, NAN, 1.0, NAN), "accuracy")
    assert [row.id for row in one.rows] == [row.id for row in other.rows] == ["q2", "q3"]
    assert (one.values("accuracy")[0], other.values("accuracy")[0]) == (0.0, 1.0)


def test_failures_of_one_arm_cost_the_comparison_of_others_nothing():
    # No question was scored by all of them.
    arms = [
        arm("best", NAN, 1.0, 1.0, 1.0),
        arm("middle", 1.0, NAN, 1.0, 0.0),
        arm("low", 1.0, 0.0, NAN, 0.0),
        arm("lowest", 0.0, 0.0, 0.0, NAN),
    ]
    assert {best(order) for order in permutations(arms)} == {"best"}


@pytest.mark.parametrize("failed", [(), (0,), (2, 3)])
def test_where_the_same_questions_failed_the_objective_orders_the_arms(failed):
    def scored(name, *values):
        return arm(name, *(NAN if n in failed else value for n, value in enumerate(values)))

    arms = [scored("low", 0.0, 0.0, 1.0, 0.0), scored("high", 1.0, 1.0, 0.0, 1.0), scored("middle", 1.0, 0.0, 0.0, 1.0)]
    assert {best(order) for order in permutations(arms)} == {"high"}


def test_a_question_without_labelled_evidence_still_counts_for_accuracy_when_both_are_the_objective():
    right = arm("right", (1.0, 1.0), (NAN, 1.0))
    wrong = arm("wrong", (1.0, 1.0), (NAN, 0.0))
    assert best([wrong, right], "both") == "right"
    assert beats(right, wrong, "both")


def test_with_both_as_the_objective_failures_win_nothing_either():
    failed = arm("failed", (1.0, 0.0), (1.0, 1.0), (NAN, NAN))
    through = arm("through", (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
    assert objective_value(failed.dev, "both") > objective_value(through.dev, "both")
    assert best([failed, through], "both") == "through"
    assert not beats(failed, through, "both")


def test_a_tie_goes_to_what_decides_and_then_to_the_cheaper_and_then_to_the_first():
    useful = arm("useful", 1.0, label=Label.USEFUL, calls=1)
    dear, cheap = (arm(name, 1.0, label=Label.ENTAILED, calls=calls) for name, calls in (("dear", 3), ("cheap", 2)))
    assert {best(order) for order in permutations([useful, dear, cheap])} == {"cheap"}
    assert best([cheap, arm("other", 1.0, label=Label.ENTAILED, calls=2)]) == "cheap"
    assert not beats(cheap, dear, "accuracy")


def test_calls_of_questions_that_only_one_arm_scored_do_not_count():
    def arm_of(name, *rows):
        scored = (Row(f"q{n}", {"accuracy": value}, cost=Cost(calls=calls)) for n, (value, calls) in enumerate(rows))
        return Arm(name, {}, None, Evaluation(name, tuple(scored), 0.0))

    failed, through = arm_of("failed", (1.0, 2), (NAN, 0)), arm_of("through", (1.0, 1), (1.0, 5))
    assert best([failed, through]) == "through"


def test_an_arm_without_a_value_is_never_chosen_while_another_has_one():
    none, bad, good = arm("none", NAN, NAN), arm("bad", 0.0, 0.0), arm("good", 0.0, 1.0)
    assert {best(order) for order in permutations([none, bad, good])} == {"good"}
    assert best([none, bad]) == "bad"
    assert best([none]) == "none"
    assert not beats(none, bad, "accuracy")
    assert not beats(none, none, "accuracy")
    assert beats(bad, none, "accuracy")
