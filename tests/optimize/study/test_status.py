from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import pytest

from querywright.optimize.study import status as told
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.status import arm_name, changed_knobs, front, interval, minutes_busy, pace, status
from querywright.optimize.study.types import ArmConfig

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_snapshot, made_trial, made_spec = made["made_snapshot"], made["made_trial"], made["made_spec"]
BETTER, ALSO, COST = Objective("a", ("a",)), Objective("b", ("b",)), Objective("b")


def trial(number, a, b, **more):
    return made_trial(number, "hyde", values={"a": a, "b": b}, **more)


def test_the_front_is_what_nothing_beats_and_the_best_the_first_of_equals():
    trials = [
        trial(0, 0.2, 1.0),
        trial(1, 0.5, 2.0),
        trial(2, 0.5, 3.0),  # dearer than 1, and no better
        trial(3, 0.9, 9.0),
        trial(4, 0.9, 9.0),  # the same as 3
        trial(5, 1.0, math.nan),
        trial(6, 1.0, 0.0, state="pruned"),
    ]
    assert front(trials, [BETTER, COST]) == [0, 1, 3]
    assert front(trials, [BETTER, ALSO]) == [3]
    assert front([], [BETTER]) == []
    assert [told.best(trials[:5], aim).number for aim in (BETTER, COST)] == [3, 0]
    assert told.best(trials[6:], BETTER) is None


def test_an_interval_is_that_of_the_questions_and_a_cost_has_none():
    (both,), record = told.aims(made_spec(objectives=["both"])), made_trial(3, "hyde", values={"both": 0.5})
    rows = [(row.scores["decision_useful"] + row.scores["accuracy"]) / 2 for row in record.dev.rows]
    found = interval(record, both)
    assert (found.value, found.n) == (0.5, 24)
    assert found.low < sum(rows) / len(rows) < found.high
    (cost,) = told.aims(made_spec(objectives=["lm_calls"]))
    dear = interval(made_trial(3, "hyde"), cost)
    assert (dear.value, math.isnan(dear.low)) == (3.0, True)


def test_the_pace_leaves_out_the_time_in_which_nobody_worked():
    early = [made_trial(n, "hyde") for n in range(4)]
    until = early[-1].ended + 3600
    later = [made_trial(n, "hyde", began=until, ended=until + 60) for n in (4, 5)]
    assert minutes_busy([*early, *later]) == pytest.approx(5)
    assert pace([*early, *later]) == pytest.approx(6 / 5)
    assert pace(early[:2]) is None


def test_a_study_under_way():
    found, snapshot = status(made_snapshot()), made_snapshot()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["trials"] == {"planned": 24, "complete": 17, "pruned": 1, "failed": 1, "running": 1, "left": 5}
    assert [(one["technique"], one["trials"]) for one in found["techniques"]] == [
        ("plain", 1), ("hyde", 9), ("multi_query", 10)
    ]  # fmt: skip
    best = found["best"]
    assert best["value"] == max(one.values["decision_useful"] for one in snapshot.trials if one.state == "complete")
    assert best["low"] < best["value"] < best["high"]
    assert found["spent"]["calls"] == {"made": 420, "limit": 1000}
    assert (found["trials_per_minute"], found["minutes_left"], found["workers"]) == (1.0, 5.0, 1)
    assert (found["front"], found["verdict"]) == (None, None)


def test_a_finished_study_has_nothing_left_and_one_that_has_hardly_begun_no_best():
    found = status(made_snapshot(finished=True, spec=made_spec(objectives=["decision_useful", "lm_calls"])))
    assert (found["trials"]["left"], found["minutes_left"], found["verdict"]) == (0, 0, "gain")
    assert found["front"][0] == 0  # no rewriting makes no calls
    begun = (made_trial(0, "plain", state="running", dev=made["NOTHING"], values={}),)
    found = status(made_snapshot(trials=begun))
    assert (found["best"], found["trials_per_minute"], found["minutes_left"]) == (None, None, None)
    assert (found["trials"]["left"], found["workers"]) == (24, 1)


def test_how_an_arm_is_called():
    arm = ArmConfig("hyde", "dense", {"max_passages": 5, "n_documents": 3, "temperature": 0.7}, "boot", "short_answer")
    assert arm_name(arm) == "hyde@dense, prompts boot, reader short_answer"
    assert changed_knobs(arm) == "n_documents=3"
    assert changed_knobs(ArmConfig("plain", "dense", {})) == "-"
