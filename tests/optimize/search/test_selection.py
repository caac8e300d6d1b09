from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from querywright.data.types import Label
from querywright.errors import QuerywrightError
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.objectives import objectives_of
from querywright.optimize.results import Candidate
from querywright.optimize.search.outcome import verdict_of
from querywright.optimize.search.selection import (
    beats,
    best_of,
    choose,
    winners_curse,
    worse_than,
)
from querywright.optimize.search.trials import ArmConfig, TrialRecord, cheapest, front, ranked

USEFUL = objectives_of(["decision_useful"])
USEFUL_AND_CALLS = objectives_of(["decision_useful", "lm_calls"])
ACCURACY, BOTH = objectives_of(["accuracy", "both"])
NAN = math.nan


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


def test_the_lead_of_the_luckiest_of_many_equal_arms_is_taken_back():
    coins = np.random.default_rng(3).integers(0, 2, (40, 30)).astype(float)
    trials = [tried(arm, values) for arm, values in enumerate(coins.tolist())]
    found = winners_curse(trials, USEFUL[0])
    assert (found["arms"], found["n"]) == (40, 30)
    assert found["dev"] > 0.6  # the best of 40 coins
    assert abs(found["corrected"] - 0.5) < 0.5 * (found["dev"] - 0.5)
    better = winners_curse([tried(0, [0.0, 1.0] * 20), tried(1, [1.0] * 40)], USEFUL[0])
    assert better["dev"] == better["corrected"] == 1.0  # really better, so it keeps its lead
    assert found == winners_curse(trials, USEFUL[0], 0) != winners_curse(trials, USEFUL[0], 1)
    few = [tried(arm, values[:5]) for arm, values in enumerate(coins.tolist())]
    assert winners_curse(few, USEFUL[0]) is winners_curse(trials[:1], USEFUL[0]) is None


def test_the_winner_beats_the_baseline():
    bare = plain([1, 1, 1, 0, 0, 0], objectives=USEFUL_AND_CALLS)
    led = tried(2, [1, 1, 0, 0, 0, 0], objectives=USEFUL_AND_CALLS)
    found = choose([bare, led], USEFUL, 6)
    assert (found.plain, found.best, found.winner, found.too_few) == (bare, led, bare, "")
    best = tried(3, [1] * 6, calls=2, objectives=USEFUL_AND_CALLS)
    found = choose([bare, led, best], USEFUL, 6)
    assert (found.plain, found.best, found.winner, found.corrected["n"]) == (bare, best, best, 6)
    assert [one.number for one in choose([bare, led, best], USEFUL_AND_CALLS, 6).front] == [3, 0]
    failed, through = tried(4, [1, 0, 1, NAN, NAN, NAN]), tried(5, [1, 1, 1, 0, 0, 0])  # higher, and better
    assert choose([bare, failed, through], USEFUL, 6).best == through
    few = choose([bare, best], USEFUL, 5)
    assert (few.best, few.winner) == (best, bare)
    assert few.too_few.startswith("6 dev and 5 test questions are too few")
    for bare_values, said in (
        ([1, 0, 1], "percent: best"),
        ([1, 0, NAN], "percent, on the 2 of 3 questions for which"),
    ):
        kept = choose([plain(bare_values), tried(1, [1, 0, 0])], USEFUL, 6)
        assert said in verdict_of(kept, USEFUL[0], [], "hcqr compiled", "dense")[1]
    alone = choose([bare], USEFUL, 6)
    assert (alone.plain, alone.best, alone.winner) == (bare, None, bare)
    assert "No other arm has a result on dev, so" in verdict_of(alone, USEFUL[0], [], "", "dense")[1]
    again = choose([bare, replace(bare, number=1, same_as=0)], USEFUL, 6)
    said = "because each other trial (1) had the knobs and prompts of the baseline"
    assert said in verdict_of(again, USEFUL[0], [], "", "dense")[1]
    with pytest.raises(QuerywrightError, match="the baseline has no result"):
        choose([best], USEFUL, 6)


def test_a_trial_that_loses_every_question_is_stopped_and_one_that_wins_or_ties_is_not():
    best = [tried(1, [1.0] * 20)]
    assert [worse_than(met("x", [0.0] * count), best, USEFUL).number for count in (6, 8)] == [1, 1]
    assert worse_than(met("x", [0.0] * 5), best, USEFUL) is None  # five questions show nothing
    assert worse_than(met("x", [1.0] * 8), best, USEFUL) is None
    assert worse_than(met("x", [0.0, 1.0] + [1.0] * 6), best, USEFUL) is None
    assert worse_than(met("x", [math.nan] * 8), best, USEFUL) is None
    ahead_in_all = [tried(1, [0.6] * 6 + [NAN] * 14)]  # behind where both were scored, and better over all that it met
    assert worse_than(met("x", [0.0] * 6 + [1.0] * 14), ahead_in_all, USEFUL) is None
    assert worse_than(met("x", [0.0] * 6 + [1.0] * 4), ahead_in_all, USEFUL).number == 1


def test_with_two_objectives_no_trial_is_stopped():
    best = [tried(1, [1.0] * 20, calls=1, objectives=USEFUL_AND_CALLS)]
    assert worse_than(met("x", [0.0] * 8, calls=3), best, USEFUL_AND_CALLS) is None


def test_the_cheapest_within_a_point_of_the_best():
    trials = [
        plain([1, 0, 0, 0], calls=0, objectives=USEFUL_AND_CALLS),
        tried(1, [1, 1, 1, 1], calls=9, objectives=USEFUL_AND_CALLS),
        tried(2, [1, 1, 1, 0.98], calls=2, objectives=USEFUL_AND_CALLS),
        tried(3, [1, 1, 1, 0], calls=1, objectives=USEFUL_AND_CALLS),
    ]
    assert cheapest(trials, USEFUL_AND_CALLS).number == 2
    assert cheapest(trials, USEFUL_AND_CALLS, within=0.0).number == 1
    assert cheapest(trials, USEFUL, within=0.3, cost=USEFUL_AND_CALLS[1]).number == 3
    assert cheapest([], USEFUL) is None


def test_questions_without_a_score_do_not_put_a_trial_in_front():
    both = USEFUL_AND_CALLS
    base = plain([1, 1, 0, 0], calls=0, objectives=both)
    lucky = tried(1, [1, NAN, NAN, NAN], calls=0, objectives=both)  # its only score is a question that all win
    better = tried(2, [1, 1, 1, NAN], calls=2, objectives=both)
    worse = tried(3, [NAN, 0, 0, NAN], calls=1, objectives=both)
    trials = [worse, lucky, base, better]
    assert [one.number for one in ranked(trials, both[0])] == [2, 0, 1, 3]
    assert front(trials, both) == [0, 2]
    assert cheapest(trials, both).number == 2
    assert cheapest(trials, both, within=0.6).number == 0
    assert [one.number for one in ranked(trials, both[1])] == [0, 1, 3, 2]
    values = [[NAN, 1, 0, NAN, NAN, 0.5], [1, 0, 1, NAN, 0.5, 1], [NAN, 1, NAN, 0, 0.5, 0.5], [0, 0.5, 1, 1, 0.5, 0.5],
              [NAN, 1, 1, 0, 0.5, NAN]]  # fmt: skip
    cycle = [tried(number, row, objectives=both) for number, row in enumerate(values)]  # each of three beats the next
    (first, *_) = ranked(cycle, both[0])
    assert first.number in front(cycle, both)
    assert cheapest(cycle, both).number == first.number


def arm(name, *values, label=None, calls=1):
    """An arm with these accuracies; a pair of numbers is usefulness and accuracy; NaN stands for a failure."""
    scores = [value if isinstance(value, tuple) else (NAN, value) for value in values]
    rows = tuple(
        Row(f"q{n}", {"decision_useful": useful, "accuracy": right}, label=label, cost=Cost(calls=calls))
        for n, (useful, right) in enumerate(scores)
    )
    return Candidate(name, {}, "untuned", Evaluation(name, rows, 0.0))


def best(arms, objective=ACCURACY):
    return best_of(arms, objective).name


def ahead(one, other, objective=ACCURACY):
    return beats(one.dev, other.dev, objective)


def test_an_arm_that_failed_on_hard_questions_does_not_win_by_that():
    failed = arm("failed", 1.0, 0.0, 1.0, NAN, NAN)
    through = arm("through", 1.0, 1.0, 1.0, 0.0, 0.0)
    assert ACCURACY.value(failed.dev) > ACCURACY.value(through.dev)
    assert best([failed, through]) == best([through, failed]) == "through"
    assert (ahead(failed, through), ahead(through, failed)) == (False, True)
    same = arm("same", 1.0, 1.0, 1.0, NAN, NAN)
    assert (ahead(same, through), ahead(through, same)) == (False, False)
    one, other = ACCURACY.paired(arm("one", NAN, 1.0, 0.0, NAN).dev, arm("other", 1.0, NAN, 1.0, NAN).dev)
    assert [row.id for row in one.rows] == [row.id for row in other.rows] == ["q2", "q3"]
    hard, easy = arm("hard", (1.0, 0.0), (1.0, 1.0), (NAN, NAN)), arm("easy", (1.0, 1.0), (1.0, 1.0), (0.0, 0.0))
    assert best([hard, easy], BOTH) == "easy"
    assert not ahead(hard, easy, BOTH)


def test_failures_of_one_arm_cost_the_comparison_of_others_nothing():
    # No question was scored by all of them.
    arms = [
        arm("best", NAN, 1.0, 1.0, 1.0),
        arm("middle", 1.0, NAN, 1.0, 0.0),
        arm("low", 1.0, 0.0, NAN, 0.0),
        arm("lowest", 0.0, 0.0, 0.0, NAN),
    ]
    assert {best(order) for order in permutations(arms)} == {"best"}


def test_a_tie_goes_to_what_decides_and_then_to_the_cheaper_and_then_to_the_first():
    useful = arm("useful", 1.0, label=Label.USEFUL, calls=1)
    dear, cheap = (arm(name, 1.0, label=Label.ENTAILED, calls=calls) for name, calls in (("dear", 3), ("cheap", 2)))
    assert {best(order) for order in permutations([useful, dear, cheap])} == {"cheap"}
    assert best([cheap, arm("other", 1.0, label=Label.ENTAILED, calls=2)]) == "cheap"
    assert not ahead(cheap, dear)


def test_an_arm_without_a_value_is_never_chosen_while_another_has_one():
    none, bad, good = arm("none", NAN, NAN), arm("bad", 0.0, 0.0), arm("good", 0.0, 1.0)
    assert {best(order) for order in permutations([none, bad, good])} == {"good"}
    assert best([none]) == "none"
    assert (ahead(none, bad), ahead(none, none), ahead(bad, none)) == (False, False, True)
