"""``querywright study``: the commands, what they print, and what they refuse."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from querywright.cli.study import _resumable, show_status, study_json
from querywright.errors import BudgetError
from querywright.optimize.search.trials import standing

HERE = Path(__file__)
made = runpy.run_path(str(HERE.parents[1] / "optimize" / "study" / "made_study.py"))
made_snapshot, made_trials, made_spec = made["made_snapshot"], made["made_trials"], made["made_spec"]


@pytest.fixture
def study(study_file):
    """Writes a study of one technique, and gives its path."""
    given = {
        "sizes": [4, 6, 4], "trials": 4,
        "techniques": {"multi_query": {"search": "named", "knobs": {"top_k": [1, 2], "n_queries": 2}}},
    }  # fmt: skip
    return lambda **changes: study_file("tiny", **{**given, **changes})


def test_check_says_what_a_study_takes(ok, cli, study, server):
    file = study()
    told = ok("study", "check", file, width=160)
    assert "tiny: 4 trials; questions: train 4, dev 6, test 4" in told.out
    assert "at most 24 LM calls in trials and 48 on test" in told.out
    assert f"{file.name} is valid" in told.out
    data = cli("study", "check", file, "--json").data
    assert data["calls"]["calls_per_question"] == {"plain": 0, "multi_query": 1}
    assert data["questions"] == {"train": 4, "dev": 6, "test": 4}
    assert server.requests == []


def test_a_folder_without_a_study_is_refused_and_one_with_other_files_left_alone(cli, study, tmp_path):
    out = tmp_path / "other"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for command in ("status", "report", "resume"):
        missing, other = cli("study", command, tmp_path / "gone", width=400), cli("study", command, out)
        assert (missing.status, other.status) == (2, 2)
        assert "gone' is not a folder; pass a folder that querywright study run created with --out" in missing.err
        assert "does not contain a study" in other.err
    done = cli("study", "run", study(), "--out", out)
    assert done.status == 2
    assert "does not contain a study" in done.err
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "gone.yaml", "--out", "out"), "gone.yaml"),
        (("check", "gone.yaml"), "gone.yaml"),
        (("export", "gone", "--out", "trials.xlsx"), "must end in .parquet, .csv, .jsonl, but got 'trials.xlsx'"),
        (("resume", "gone", "--workers", "0"), "--workers"),
    ],
)
def test_mistakes_are_one_message(cli, arguments, message):
    done = cli("study", *arguments)
    assert done.status == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_the_json_of_a_study_has_no_single_questions():
    written = json.dumps(study_json(made_snapshot(finished=True)))
    assert '"verdict": "gain"' in written
    assert "Question 3?" not in written


def test_status_on_the_terminal(capsys):
    show_status(made_snapshot(spec=made_spec(objectives=["decision_useful", "lm_calls"])))
    printed = " ".join(capsys.readouterr().out.split())
    for said in (
        "made: not finished; 19 of 24 trials ended (1 pruned, 1 failed), 1 running",
        "Pareto front on dev: decision_useful, lm_calls",
        "3 multi_query@hybrid 87.5 [69, 96]",
        "budget: 420 of 1000 calls",
    ):
        assert said in printed, said


def test_trials_of_all_workers_stand_as_arms():
    snapshot = made_snapshot(trials=made_trials(24))
    metric, arms = standing(snapshot.trials, snapshot.spec.aims[0], 18)
    assert metric == "decision_useful"
    assert {arm["state"] for arm in arms} == {"done", "pruned", "failed", "running"}
    assert arms[3] == {
        "name": "trial 3, multi_query@hybrid",
        "state": "done",
        "done": 24,
        "unscored": 0,
        "total": 18,
    } | {name: pytest.approx(value, abs=0.01) for name, value in (("mean", 0.875), ("low", 0.69), ("high", 0.96))}


@pytest.mark.parametrize("error", [BudgetError("the budget is spent"), KeyboardInterrupt()])
def test_a_study_that_stops_says_how_it_goes_on(tmp_path, capsys, error):
    folder = tmp_path / "my study"
    with pytest.raises(type(error)), _resumable(folder, None):
        raise error
    assert capsys.readouterr().err == ""
    folder.mkdir()
    (folder / "study.yaml").write_text("name: x")
    with pytest.raises(type(error)), _resumable(folder, None):
        raise error
    assert f"to resume, run: querywright study resume '{folder}'" in capsys.readouterr().err.replace("\n", "")
