"""A study under way is steered by a file of its folder: trials are stopped, cloned and resumed, by whichever worker."""

from __future__ import annotations

import json
import re

import pytest

from querywright.optimize.study import trial as module
from querywright.optimize.study.engine import snapshot
from querywright.progress import CONTROL, LIVE


@pytest.fixture
def steered(study_file, server, tmp_path, monkeypatch):
    """A study's file and folder; ``at(n, asked)`` writes what is asked of it when the LM is asked for the n-th time."""
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    out, reply, wishes = tmp_path / "out", server.reply, {}

    def answer(body):
        if (asked := wishes.pop(len(server.requests), None)) is not None:
            (out / CONTROL).write_text(asked if isinstance(asked, str) else json.dumps(asked))
        return reply(body)

    server.reply = answer
    return study_file(threads=1), out, wishes.__setitem__


def test_a_trial_that_is_stopped_is_pruned_and_clones_come_on_top(ok, steered, studies, server):
    file, out, at = steered
    wrong = ["trial 1:n_queries=9", "trial 1:rrf_k=3", "trial 1:engine=bm25", "trial 77:", "hyde"]
    add = ["trial 1:", "trial 1:n_queries=1, top_k=4", *wrong]
    at(3, {"stop": ["trial 1", "trial 0"], "add": add})
    done = ok("study", "run", file, "--out", out, width=200)
    found, told = snapshot(out), " ".join(done.err.split())
    stopped, asked = found.trials[1], {one.asked: one for one in found.trials if one.asked}
    resumed, cloned = asked["trial 1:"], asked["trial 1:n_queries=1, top_k=4"]
    assert (stopped.state, stopped.stopped) == ("pruned", True)
    met = int(re.fullmatch(r"stopped by a person after ([23]) of 8 questions", stopped.message)[1])
    assert len(stopped.dev.rows) in (met, met + 1)  # what was under way by then is kept
    assert (resumed.arm, resumed.state, len(resumed.dev.rows)) == (stopped.arm, "complete", 8)
    assert (cloned.state, cloned.arm.knobs["n_queries"], cloned.arm.knobs["top_k"]) == ("complete", 1, 4)
    assert cloned.params == {**resumed.params, "rag_fusion.n_queries": 1, "rag_fusion.top_k": 4}
    assert {one.number for one in (resumed, cloned)} == {2, 3}
    assert studies.asked_twice(server.requests) == 0
    own = [one.arm.technique for one in found.trials if not one.asked]
    assert (own[:3], len(own), found.finished) == (["plain", "rag_fusion", "step_back"], 9, True)
    assert "11 of 11 trials ended" in ok("study", "status", out, width=200).out
    live = json.loads((out / LIVE).read_text())
    assert [one["state"] for one in live["arms"][:4]] == ["done", "stopped", "done", "done"]
    assert live["arms"][1]["clone"] == "trial 1:n_queries=3,top_k=4"
    for said in (
        "stops 'trial 0', which the others are held against; it goes on",
        "adds 'trial 1:n_queries=9': n_queries is 1 to 3 in this study, but got '9'",
        "adds 'trial 1:rrf_k=3': unknown value of rag_fusion 'rrf_k'",
        "adds 'trial 1:engine=bm25': engine is dense in this study, but got 'bm25'",
        "adds 'trial 77:': give the values in which it differs from a trial",
        "adds 'hyde': give the values",
    ):
        assert told.count(said) == 1, said
        assert sum(said in " ".join(note.split()) for note in live["notes"]) == 1
    assert not (out / CONTROL).exists()


def test_how_a_trial_stands_is_told_while_it_runs(ok, steered, monkeypatch):
    file, out, _ = steered
    seen = []
    real = module.Worker._met

    def met(worker, trial, record, rows, done):
        real(worker, trial, record, rows, done)
        seen.append(next(one for one in worker.records() if one.number == record.number).met)

    monkeypatch.setattr(module.Worker, "_met", met)
    ok("study", "run", file, "--out", out)
    first = seen[:8]
    assert [one["done"] for one in first] == [*range(1, 9)]
    assert {one["total"] for one in first} == {8}
    assert all(one["low"] <= one["mean"] <= one["high"] for one in first[1:])


def test_a_trial_is_added_at_the_very_end_and_after_an_interruption(ok, cli, steered, monkeypatch):
    file, out, _ = steered
    take, broken = module.Worker._take, []

    def taken(worker):
        if len(worker.finished()) == 9 and not broken:
            (out / CONTROL).write_text(json.dumps({"add": ["trial 1:top_k=1"]}))
            broken.append(take(worker))
            raise KeyboardInterrupt
        return take(worker)

    monkeypatch.setattr(module.Worker, "_take", taken)
    assert cli("study", "run", file, "--out", out).status == 130
    (waits,) = (one for one in snapshot(out).trials if one.asked)
    assert waits.state == "running"
    broken[0][1].close()
    ok("study", "resume", out)
    found = snapshot(out)
    assert [one.state for one in found.trials if one.asked] == ["complete"]
    assert (len(found.trials), found.planned, found.finished) == (10, 10, True)


@pytest.mark.slow
def test_whichever_worker_runs_a_trial_it_is_stopped_and_whoever_is_free_resumes_it(
    study_file, studies, server, tmp_path
):
    out, server.delay = tmp_path / "out", 1.5
    file = study_file(threads=1, trials=5, sizes=[4, 17, 6], pruner="none")
    command = studies.Command("run", file, "--out", out, "--workers", 2)

    def under_way():
        return [one.name for one in snapshot(out).trials if one.number and one.state == "running" and one.met]

    command.wait_for(lambda: (out / "study.yaml").exists() and len(under_way()) == 2)
    names = under_way()
    (out / CONTROL).write_text(json.dumps({"stop": names, "add": [f"{name}:" for name in names]}))
    command.wait_for(lambda: sum(one.stopped for one in snapshot(out).trials) >= 2)
    server.delay = 0.0
    done = command.end()
    assert done.status == 0, done.err
    found = snapshot(out).trials
    stopped = [one for one in found if one.stopped and one.same_as is None]  # the sampler may propose one of them again
    assert [one.name for one in stopped] == names
    assert len({one.worker for one in stopped}) == 2
    again = {one.asked: one for one in found if one.asked}
    assert {name: one.state for name, one in again.items()} == {f"{name}:": "complete" for name in names}
    assert [again[f"{one.name}:"].arm for one in stopped] == [one.arm for one in stopped]
    assert studies.asked_twice(server.requests) == 0
