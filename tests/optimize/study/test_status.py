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


def trial(number, a, b, **more):
    return made_trial(number, "hyde", values={"a": a, "b": b}, **more)


def test_the_front_is_what_nothing_beats():
    trials = [
        trial(0, 0.2, 1.0),
        trial(1, 0.5, 2.0),
        trial(2, 0.5, 3.0),  # dearer than 1, and no better
        trial(3, 0.9, 9.0),
        trial(4, 0.9, 9.0),  # the same as 3
        trial(5, 1.0, math.nan),
        trial(6, 1.0, 0.0, state="pruned"),
    ]
    better, worse, cost = Objective("a", ("a",)), Objective("b", ("b",)), Objective("b")
    assert front(trials, [better, cost]) == [0, 1, 3]
    assert front(trials, [better, worse]) == [3]
    assert front(trials, [cost]) == [0]
    assert front([], [better]) == []


def test_the_best_is_the_first_of_equals_and_never_a_pruned_one():
    trials = [trial(0, 0.2, 4), trial(1, 0.6, 3), trial(2, 0.6, 2), trial(3, 0.9, 1, state="pruned")]

    assert told.best(trials, Objective("a", ("a",))).number == 1
    assert told.best(trials, Objective("a")).number == 0
    assert told.best(trials[3:], Objective("a")) is None


def test_an_interval_is_that_of_the_questions():
    (both,) = told.aims(made_spec(objectives=["both"]))
    record = made_trial(3, "hyde", values={"both": 0.5})
    rows = [(row.scores["decision_useful"] + row.scores["accuracy"]) / 2 for row in record.dev.rows]
    found = interval(record, both)
    assert found.value == 0.5
    assert found.low < sum(rows) / len(rows) < found.high
    assert found.n == 24
    (cost,) = told.aims(made_spec(objectives=["lm_calls"]))
    dear = interval(made_trial(3, "hyde"), cost)
    assert dear.value == 3.0
    assert math.isnan(dear.low)


def test_the_pace_leaves_out_the_time_in_which_nobody_worked():
    hour = 3600.0
    early = [made_trial(n, "hyde") for n in range(4)]
    later = [made_trial(n, "hyde", began=early[-1].ended + hour, ended=early[-1].ended + hour + 60) for n in (4, 5)]
    assert minutes_busy([*early, *later]) == pytest.approx(5)
    assert pace([*early, *later]) == pytest.approx(6 / 5)
    assert pace(early[:2]) is None
    assert pace([made_trial(n, "hyde", began=None) for n in range(9)]) is None


def test_a_study_under_way():
    found = status(made_snapshot())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["trials"] == {
        "planned": 24, "complete": 17, "pruned": 1, "failed": 1, "running": 1, "left": 5,
    }  # fmt: skip
    assert [one["technique"] for one in found["techniques"]] == ["plain", "hyde", "multi_query"]
    assert sum(one["trials"] for one in found["techniques"]) == 20
    best = found["best"]
    values = [one.values["decision_useful"] for one in made_snapshot().trials if one.state == "complete"]
    assert best["value"] == max(values)
    assert best["low"] < best["value"] < best["high"]
    assert best["n"] == 24
    assert found["front"] is None
    assert found["spent"]["calls"] == {"made": 420, "limit": 1000}
    assert found["trials_per_minute"] == 1.0
    assert found["minutes_left"] == 5.0
    assert found["workers"] == 1
    assert found["verdict"] is None


def test_a_finished_study_has_nothing_left():
    found = status(made_snapshot(finished=True, spec=made_spec(objectives=["decision_useful", "lm_calls"])))
    assert found["trials"]["left"] == 0
    assert found["minutes_left"] == 0
    assert found["verdict"] == "gain"
    assert found["front"][0] == 0  # no rewriting makes no calls
    assert set(found["front"]) < {one.number for one in made_snapshot().trials}


@pytest.mark.parametrize("trials", [(), (made_trial(0, "plain", state="running", arm=None, dev=None, values={}),)])
def test_a_study_that_has_hardly_begun(trials):
    found = status(made_snapshot(trials=trials))
    assert found["best"] is None
    assert found["trials_per_minute"] is None
    assert found["minutes_left"] is None
    assert found["trials"]["left"] == 24
    assert found["workers"] == len(trials)


def test_how_an_arm_is_called():
    arm = ArmConfig("hyde", "dense", {"max_passages": 5, "n_documents": 3, "temperature": 0.7}, "boot", "short_answer")
    assert arm_name(arm) == "hyde@dense, prompts boot, reader short_answer"
    assert "n_documents=3" in changed_knobs(arm)
    assert "temperature" not in changed_knobs(arm)
    assert arm_name(None) == "not settled"
    assert changed_knobs(ArmConfig("gone", "dense", {"x": 1})) == "x=1"
    assert changed_knobs(ArmConfig("plain", "dense", {})) == "-"
