from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from querywright.errors import InputError
from querywright.optimize.study.export import export
from querywright.optimize.study.types import ArmConfig

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_snapshot, made_trial = made["made_snapshot"], made["made_trial"]


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_row_a_trial(tmp_path, suffix):
    path = tmp_path / f"trials.{suffix}"
    snapshot = made_snapshot()
    assert export(snapshot, path) == 20
    rows = read(path)
    assert [int(row["number"]) for row in rows] == list(range(20))
    assert [rows[n]["state"] for n in (0, 8, 11, 19)] == ["complete", "pruned", "failed", "running"]
    third = next(row for row in rows if int(row["number"]) == 3)
    assert float(third["value.decision_useful"]) == snapshot.trials[3].values["decision_useful"]
    assert float(third["low.decision_useful"]) < float(third["high.decision_useful"])
    assert int(third["knob.n_queries"] or 0) == snapshot.trials[3].arm.knobs.get("n_queries", 0)
    assert int(third["spent.calls"]) == snapshot.trials[3].spent.calls
    assert third["param.technique"] == "multi_query"
    assert rows[11]["value.decision_useful"] in (None, "")
    assert rows[11]["message"].startswith("3 questions failed </script>")
    assert int(float(rows[13]["same_as"])) == 9
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_row_a_question(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    assert export(made_snapshot(), path, questions=True) == 17 * 24 + 8
    rows = [row for row in read(path) if int(row["number"]) == 8]
    assert [row["id"] for row in rows] == [f"q{n}" for n in range(8)]
    passages = rows[0]["passages"]
    assert (json.loads(passages) if suffix == "csv" else passages) == ["p0"]


def test_knobs_of_one_name_and_several_types_share_a_column(tmp_path):
    arms = [ArmConfig("hyde", "dense", {"x": value, "y": n}) for n, value in enumerate([1, "a", True])]
    arms[0] = ArmConfig("hyde", "dense", {"x": 1, "y": 0.5})
    trials = [made_trial(n, "hyde", arm=arm, message="half \ud800") for n, arm in enumerate(arms)]
    path = tmp_path / "trials.parquet"
    export(made_snapshot(trials=tuple(trials)), path)
    rows = read(path)
    assert [row["knob.x"] for row in rows] == ["1", "a", "true"]
    assert [row["knob.y"] for row in rows] == [0.5, 1.0, 2.0]
    assert rows[0]["message"] == "half ?"


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_a_study_without_trials_is_an_empty_table(tmp_path, suffix):
    path = tmp_path / f"none.{suffix}"
    assert export(made_snapshot(trials=()), path) == 0
    assert read(path) == []


def test_another_suffix_or_folder_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match=r"'trials.xlsx' says no form of table; end it in \.parquet, \.csv"):
        export(made_snapshot(), tmp_path / "trials.xlsx")
    with pytest.raises(InputError, match=r"there is no folder .*gone"):
        export(made_snapshot(), tmp_path / "gone" / "trials.csv")
    assert list(tmp_path.iterdir()) == []
