from __future__ import annotations

import json
import runpy
from pathlib import Path

from querywright.optimize.objectives import Objective
from querywright.optimize.study.status import status

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_snapshot, made_trial, made_spec = made["made_snapshot"], made["made_trial"], made["made_spec"]
BETTER, ALSO, COST = Objective("a", ("a",)), Objective("b", ("b",)), Objective("b")


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
    assert found["workers"] == 1
    assert (found["front"], found["verdict"]) == (None, None)


def test_a_finished_study_has_nothing_left_and_one_that_has_hardly_begun_no_best():
    found = status(made_snapshot(finished=True, spec=made_spec(objectives=["decision_useful", "lm_calls"])))
    assert (found["trials"]["left"], found["verdict"]) == (0, "gain")
    assert found["front"][0] == 0  # the baseline makes no calls
    begun = (made_trial(0, "plain", state="running", dev=made["NOTHING"], values={}),)
    found = status(made_snapshot(trials=begun))
    assert found["best"] is None
    assert (found["trials"]["left"], found["workers"]) == (24, 1)
