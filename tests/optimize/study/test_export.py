from __future__ import annotations

import json
import runpy
from pathlib import Path

from querywright.optimize.study.export import export

made_snapshot = runpy.run_path(str(Path(__file__).with_name("made_study.py")))["made_snapshot"]


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_row_a_trial_and_a_row_a_question(tmp_path):
    path, snapshot = tmp_path / "trials.jsonl", made_snapshot()
    assert export(snapshot, path) == 20
    rows = read(path)
    assert [row["number"] for row in rows] == list(range(20))
    assert [rows[n]["state"] for n in (0, 8, 11, 19)] == ["complete", "pruned", "failed", "running"]
    third, trial = rows[3], snapshot.trials[3]
    assert third["value.decision_useful"] == trial.values["decision_useful"]
    assert third["low.decision_useful"] < third["high.decision_useful"]
    assert (third["knob.n_queries"], third["spent.calls"]) == (trial.arm.knobs["n_queries"], trial.spent.calls)
    assert (third["param.technique"], rows[13]["same_as"]) == ("multi_query", 9)
    assert rows[11]["value.decision_useful"] is None
    assert rows[11]["message"].startswith("3 questions failed </script>")
    assert export(made_snapshot(trials=()), path) == 0

    assert export(made_snapshot(), path, questions=True) == 17 * 24 + 8
    rows = [row for row in read(path) if row["number"] == 8]
    assert [row["id"] for row in rows] == [f"q{n}" for n in range(8)]
    assert (rows[0]["passages"], rows[0]["technique"]) == (["p0"], "hyde")
