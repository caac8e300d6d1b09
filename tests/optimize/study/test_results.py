from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from querywright.errors import InputError
from querywright.optimize.search.trials import ArmConfig
from querywright.optimize.study.results import export, status, study_html, write_report

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_snapshot, made_trial, made_spec = made["made_snapshot"], made["made_trial"], made["made_spec"]
made_outcome, EVIL, ARMS = made["made_outcome"], made["EVIL"], made["ARMS"]
TWO = ["decision_useful", "lm_calls"]
PARTS = [
    "Verdict", "Scores", "Quality against cost", "Best on dev", "The front", "Trials", "Cost",
    "Questions", "Rerun",
]  # fmt: skip


def test_the_status_of_a_running_study():
    found, snapshot = status(made_snapshot()), made_snapshot()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["trials"] == {"planned": 24, "complete": 17, "pruned": 1, "failed": 1, "running": 1}
    assert [(one["technique"], one["trials"]) for one in found["techniques"]] == [
        ("plain", 1), ("hyde", 9), ("multi_query", 10)
    ]  # fmt: skip
    best = found["best"]
    assert best["value"] == max(one.values["decision_useful"] for one in snapshot.trials if one.state == "complete")
    assert best["low"] < best["value"] < best["high"]
    assert found["spent"]["calls"] == {"made": 420, "limit": 1000}
    assert (found["front"], found["verdict"]) == (None, None)
    begun = (made_trial(0, "plain", state="running", dev=made["NOTHING"], values={}),)
    assert status(made_snapshot(trials=begun))["best"] is None


def test_the_status_of_a_finished_study():
    found = status(made_snapshot(finished=True, spec=made_spec(objectives=TWO)))
    assert found["verdict"] == "gain"
    assert found["front"][0] == 0  # the baseline makes no calls


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_an_export_has_a_row_for_each_trial(tmp_path):
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


@pytest.fixture(scope="module")
def finished(read_page):
    return read_page(study_html(made_snapshot(finished=True, spec=made_spec(objectives=TWO))))


def test_the_report_of_a_finished_study(finished):
    assert finished.json("report-summary")["metric"] == "decision_useful"
    assert list(finished.parts) == PARTS
    for part, said in (
        ("Verdict", "is better than the baseline"),
        ("Verdict", "recommended: trial 17"),
        ("Verdict", made_outcome()["comparisons"][0]["sentence"]),
        ("Scores", "closed book"),
        ("Best on dev", "On new questions, about 62.5% is expected"),
        ("Cost", "98000 tokens, about $0.0125"),
        ("Trials", "worse than trial 2 after 8 questions"),
        ("Trials", "same arm as trial 9"),
        ("Rerun", "querywright study run study.yaml --out made --workers 2"),
    ):
        assert said in finished.parts[part]


def test_the_figures_are_those_of_the_trials(finished):
    assert {"front", "cost", "mean", "difference"} == {name.split("-")[1] for name in finished.figures}
    spent = next(rows for rows in finished.tables if rows[0][0] == "stage")
    assert [row[:3] for row in spent[1:]] == [["search", "300", "150"], ["test", "120", "30"]]
    front = finished.drawn("figure-front-lm_calls")
    assert next(one for one in front if one.startswith("trial 0, ")).endswith("lm_calls 1")


def test_nothing_from_the_data_is_markup_and_nothing_is_fetched(finished, read_page):
    finished.check()
    assert EVIL in finished.parts["Trials"]
    assert finished.questions()[1]["q"] == EVIL
    arm, params = ArmConfig("hyde", EVIL, {EVIL: EVIL}, EVIL, EVIL), {"technique": "hyde", f"hyde.{EVIL}": EVIL}
    dev = [made["made_dev"](EVIL, "hyde", seed=n) for n in range(10)]
    trials = [made_trial(n, "hyde", arm=arm, params={**params, "x": n}, dev=dev[n]) for n in range(10)]
    page = read_page(study_html(made_snapshot(trials=tuple(trials), finished=True)))
    assert EVIL in page.parts["Best on dev"]
    page.check()


def test_test_questions_are_compared_with_the_baseline(finished):
    outcome, compared = made_outcome(), made_snapshot(finished=True).compared
    place = finished.json("report-data")["metrics"].index("decision_useful")
    for number, arm in enumerate(compared.arms):
        assert [one["rows"][number]["s"][place] for one in finished.questions()] == arm.values("decision_useful")
    assert [one["id"] for one in finished.questions()] == [f"q{n}" for n in range(24)]
    assert compared.baseline == "baseline"
    assert [one.to_json() for one in compared.comparisons] == outcome["comparisons"][:2]
    assert [one.name for one in compared.references] == ["oracle evidence", "closed book"]
    assert made_snapshot().compared is None


def test_a_study_that_an_earlier_version_finished_is_shown():
    earlier = {name: value for name, value in made_outcome().items() if name not in ("hints", "remarks")}
    snapshot = replace(made_snapshot(finished=True), outcome=earlier)
    assert snapshot.compared.hints == snapshot.compared.remarks == ()
    assert "closed book" in study_html(snapshot)


def test_an_unfinished_study_has_no_report(tmp_path):
    with pytest.raises(InputError, match=r"'made' is not finished, so it has no report .19 of 24 trials ended"):
        write_report(made_snapshot(), tmp_path / "report.html")
    assert not [*tmp_path.iterdir()]
