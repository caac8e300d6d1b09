"""``--log mlflow``: what is logged, and that a server that is away costs nothing but itself."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

pytestmark = [  # MLflow's own
    pytest.mark.filterwarnings(r"ignore:(?s).*Any type hint is inferred as AnyType:UserWarning"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),
]


@pytest.fixture
def logged(tmp_path, monkeypatch):
    """MLflow with a store of the test's own; ``runs()`` gives the run of the command, and those in it by name."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")  # another test may have named its own
    mlflow.set_experiment(experiment_id="0")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")

    def runs():
        found = client.search_runs(["0"])
        whole = [one for one in found if "mlflow.parentRunId" not in one.data.tags]
        inside = {one.info.run_name: one for one in found if one not in whole}
        assert {one.data.tags["mlflow.parentRunId"] for one in inside.values()} == {whole[0].info.run_id}
        assert {one.info.status for one in found} == {"FINISHED"}
        files = sorted(one.path for one in client.list_artifacts(whole[0].info.run_id))
        return SimpleNamespace(whole=whole[0], inside=inside, files=files)

    return runs


def test_arms_are_runs_in_the_run_of_a_comparison(ok, questions, collection, server, logged, tmp_path):
    done = ok("compare", "plain", "plain@bm25", "--data", questions, "--collection", collection, "--metric",
              "recall@2", "--metric", "accuracy", *server.lm, "--out", "out", "--log", "mlflow")  # fmt: skip
    found = logged()
    assert f"run {found.whole.info.run_id}" in done.err
    assert found.files == ["comparison.json", "report.html", "results.parquet"]
    assert (found.whole.data.params["baseline"], found.whole.info.run_name) == ("plain", "out")
    assert "recall@2" in found.whole.data.tags["mlflow.note.content"]
    assert set(found.inside) == {"plain", "plain@bm25", "closed book", "oracle evidence"}
    arm = found.inside["plain@bm25"].data
    assert arm.metrics["recall_at_2.low"] <= arm.metrics["recall_at_2"] <= arm.metrics["recall_at_2.high"]
    assert arm.metrics["recall_at_2.lead"] == pytest.approx(
        arm.metrics["recall_at_2"] - found.inside["plain"].data.metrics["recall_at_2"]
    )
    assert "accuracy.lead.p" in arm.metrics
    assert b"sk-" not in (tmp_path / "mlflow.db").read_bytes()


def test_a_study_is_logged_with_its_trials_and_programs(ok, study_file, server, logged):
    ok("study", "run", study_file(trials=4), "--out", "study", "--log", "mlflow")
    found = logged()
    assert found.files == ["artifacts", "report.html", "trials.parquet"]
    trial, best = found.inside["trial 0"].data, found.inside["baseline"].data
    assert (trial.params["technique"], trial.params["state"]) == ("plain", "complete")
    assert any(name.startswith("objective/") for name in trial.metrics)
    assert "decision_useful.low" in best.metrics or "accuracy.low" in best.metrics
    assert found.whole.data.params["verdict"]


def test_a_tracking_server_that_is_away_costs_no_result(ok, questions, collection, server, logged, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        done = ok("evaluate", "plain", "--data", questions, "--collection", collection, "--reader", "none",
                  "--log", f"mlflow:http://user:hunter2@127.0.0.1:{port}", "--json")  # fmt: skip
    assert done.data["arms"][0]["arm"] == "plain"
    assert f"warning: could not log to MLflow at http://***@127.0.0.1:{port}: " in done.err
    assert "hunter2" not in done.err


def test_another_tracker_is_refused_before_anything_is_asked(cli, questions, server, monkeypatch):
    refused = cli("evaluate", "--data", questions, "--log", "wandb:x", *server.lm)
    assert (refused.status, server.requests) == (2, [])
    assert "--log must be mlflow or mlflow:URI, but got 'wandb:x'" in refused.err
