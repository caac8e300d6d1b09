from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from querywright.data.types import Label
from querywright.errors import QuerywrightError
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.prune import worse_than
from querywright.optimize.study.select import choose, pareto, surviving, winners_curse
from querywright.optimize.study.types import ArmConfig, TrialRecord

USEFUL = objectives_of(["decision_useful"])
USEFUL_AND_CALLS = objectives_of(["decision_useful", "lm_calls"])


def met(name, values, calls=1):
    rows = [
        Row(f"q{place}", {"decision_useful": value}, label=Label.USEFUL, cost=Cost(calls=calls))
        for place, value in enumerate(values)
    ]
    return Evaluation(name, tuple(rows), 0.0)


def tried(number, values, technique="hcqr", calls=1, objectives=USEFUL, state="complete", same_as=None):
    dev = met(f"trial {number}", values, calls)
    arm = ArmConfig(technique, "dense", {"top_k": number})
    found = {one.name: one.value(dev) for one in objectives}
    return TrialRecord(number, state, arm, values=found, dev=dev, same_as=same_as)


def plain(values, **given):
    return tried(0, values, technique="plain", **given)


def test_an_arm_that_beats_no_rewriting_is_the_winner_and_one_that_does_not_is_only_the_best():
    ahead = choose([plain([0, 0, 1, 1] * 3), tried(1, [1, 0, 1, 1] * 3)], USEFUL, n_test=20)
    assert ahead.winner is ahead.best
    assert ahead.best.number == 1
    assert (ahead.test.wins, ahead.test.losses) == (3, 0)
    behind = choose([plain([1, 1, 1, 1] * 3), tried(1, [1, 0, 1, 1] * 3)], USEFUL, n_test=20)
    assert behind.best.number == 1
    assert behind.winner is behind.plain


def test_no_rewriting_is_the_first_plain_arm_though_it_comes_again_and_other_knobs_are_a_rival():
    first, again = plain([0, 0, 1, 1] * 3), plain([0, 0, 1, 1] * 3)
    other = tried(3, [1, 0, 1, 1] * 3, technique="plain")
    chosen = choose([first, other, replace(again, number=5, same_as=0)], USEFUL, n_test=20)
    assert (chosen.plain.number, chosen.best.number, chosen.winner.number) == (0, 3, 3)


def test_an_equal_arm_does_not_replace_no_rewriting():
    chosen = choose([plain([1, 0] * 5), tried(1, [0, 1] * 5)], USEFUL, n_test=20)
    assert chosen.winner is chosen.plain


@pytest.mark.parametrize(("dev", "test"), [(5, 40), (40, 5)])
def test_too_few_questions_crown_no_arm(dev, test):
    chosen = choose([plain([0] * dev), tried(1, [1] * dev)], USEFUL, n_test=test)
    assert chosen.winner is chosen.plain
    assert chosen.best.number == 1
    assert "too few" in chosen.too_few
    assert str(min(dev, test)) in chosen.too_few


def test_without_a_result_of_no_rewriting_nothing_is_chosen():
    with pytest.raises(QuerywrightError, match="trial 0"):
        choose([tried(1, [1] * 8)], USEFUL, n_test=9)


def test_the_front_holds_what_nothing_beats_in_every_objective():
    trials = [
        plain([1, 0, 0, 0], calls=1, objectives=USEFUL_AND_CALLS),
        tried(1, [1, 1, 1, 0], calls=3, objectives=USEFUL_AND_CALLS),
        tried(2, [1, 1, 0, 0], calls=3, objectives=USEFUL_AND_CALLS),
        tried(3, [1, 1, 0, 0], calls=2, objectives=USEFUL_AND_CALLS),
        tried(4, [1, 1, 0, 0], calls=2, objectives=USEFUL_AND_CALLS),
        tried(5, [1, 1, 1, 1], calls=1, objectives=USEFUL_AND_CALLS, state="pruned"),
    ]
    assert [one.number for one in pareto(trials, USEFUL_AND_CALLS)] == [1, 3, 0]


def test_the_lead_of_the_luckiest_of_many_equal_arms_is_taken_back():
    coins = np.random.default_rng(3).integers(0, 2, (40, 30)).astype(float)
    trials = [tried(arm, values) for arm, values in enumerate(coins.tolist())]
    found = winners_curse(trials, USEFUL[0])
    assert found.arms == 40
    assert found.n == 30
    assert found.dev > 0.6  # the best of 40 coins
    assert abs(found.corrected - 0.5) < 0.5 * (found.dev - 0.5)


def test_one_arm_that_is_really_better_keeps_its_lead():
    trials = [tried(0, [0.0, 1.0] * 20), tried(1, [1.0] * 40)]
    found = winners_curse(trials, USEFUL[0])
    assert found.dev == found.corrected == 1.0


def test_survivors_are_the_best_techniques_without_no_rewriting():
    trials = [
        plain([1] * 4),
        tried(1, [1, 0, 0, 0], technique="hyde"),
        tried(2, [1, 1, 1, 0], technique="hcqr"),
        tried(3, [1, 1, 0, 0], technique="hcqr"),
        tried(4, [1, 1, 0, 0], technique="rrr"),
        tried(5, [1, 1, 1, 1], technique="ircot", state="failed"),
    ]
    assert surviving(trials, USEFUL, 2) == ["hcqr", "rrr"]
    assert surviving(trials, USEFUL, 9) == ["hcqr", "rrr", "hyde"]


def test_a_trial_that_loses_every_question_is_stopped_and_one_that_wins_or_ties_is_not():
    best = [tried(1, [1.0] * 20)]
    assert worse_than(met("x", [0.0] * 8), best, USEFUL).number == 1
    assert worse_than(met("x", [0.0] * 5), best, USEFUL) is None  # five questions show nothing
    assert worse_than(met("x", [1.0] * 8), best, USEFUL) is None
    assert worse_than(met("x", [0.0, 1.0] + [1.0] * 6), best, USEFUL) is None
    assert worse_than(met("x", [math.nan] * 8), best, USEFUL) is None


def test_with_two_objectives_a_cheaper_trial_goes_on_though_it_is_worse():
    best = [tried(1, [1.0] * 20, calls=3, objectives=USEFUL_AND_CALLS)]
    assert worse_than(met("x", [0.0] * 8, calls=3), best, USEFUL_AND_CALLS).number == 1
    assert worse_than(met("x", [0.0] * 8, calls=4), best, USEFUL_AND_CALLS).number == 1
    assert worse_than(met("x", [0.0] * 8, calls=2), best, USEFUL_AND_CALLS) is None
