"""Studies in several processes: every trial ends once, every question is asked once, and nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

N = 14


@pytest.fixture(params=["journal", "postgresql"])
def storage(request):
    """Gives what follows --storage, each kind in turn."""
    return (lambda: "journal") if request.param == "journal" else request.getfixturevalue("postgres").new_database


@pytest.fixture
def independent(study_file):
    """A study whose trials do not depend on each other, and that reads."""

    def write(name="small", **changes):
        given = {"trials": N, "sizes": [4, 12, 6], "sampler": {"name": "random"}, "pruner": "none"}
        return study_file(name, **{**given, "objectives": ["accuracy"], **changes})

    return write


def test_workers_that_are_killed_change_nothing_of_what_is_found(
    storage, independent, undisturbed, studies, server, home, tmp_path
):
    file = independent()
    whole = undisturbed(file)
    calls, moments = studies.calls_of_trials(whole), random.Random(5)
    server.delay = 0.05
    for run in range(max(1, int(os.environ.get("QUERYWRIGHT_TEST_KILLS", "2")) // 2)):
        out, where = tmp_path / f"out-{run}", storage()
        server.requests.clear()
        studies.forget_answers(home)
        command = studies.Command("run", file, "--out", out, "--workers", 4, "--storage", where)
        for wanted in sorted(moments.sample(range(1, calls * 2 // 3), 2)):
            command.wait_for(lambda wanted=wanted: len(server.requests) >= wanted)
            os.kill(moments.choice(command.workers), signal.SIGKILL)
        done = command.end()
        assert done.status == 0, done.err
        found, reference = studies.table(out, where), studies.table(whole)
        assert [one["number"] for one in found] == list(range(N))
        assert studies.arms(found) == studies.arms(reference)
        assert studies.outcome(out, where)["arms"] == studies.outcome(whole)["arms"]
        assert studies.asked_twice(server.requests) <= 2 * 2  # under way when their workers were killed: one a thread
        if where == "journal":
            assert set(studies.told(out).values()) == {1}


def test_no_number_of_workers_and_threads_exceeds_a_budget_and_what_it_paid_for_is_kept(
    cli, independent, undisturbed, studies, server, tmp_path
):
    file, out = independent(budget={"calls": 31}, threads=4), tmp_path / "out"
    whole = undisturbed(independent("whole"))
    server.delay = 0.1
    stopped = studies.Command("run", file, "--out", out, "--workers", 3).end()
    assert stopped.status == 3
    assert stopped.err.count("the study's budget of 31 LM calls is spent") == 1
    assert "Traceback" not in stopped.text
    assert len(server.requests) == 31
    server.delay = 0.0
    gone_on = cli("study", "resume", out, "--budget-calls", 10_000)
    assert gone_on.status == 0, gone_on.err
    assert studies.asked_twice(server.requests) == 0
    assert studies.snapshot(out).spent.calls == len(server.requests)
    assert studies.arms(studies.table(out)) == studies.arms(studies.table(whole))


def test_a_worker_that_is_refused_stops_all_of_them_at_once(independent, undisturbed, studies, server, tmp_path):
    undisturbed(independent("whole"))
    file, out = independent(threads=1), tmp_path / "out"
    command = studies.Command("run", file, "--out", out, "--workers", 3)
    server.delay = 1.0  # the others have work for a minute
    command.wait_for(lambda: len(server.requests) >= 4)
    workers = command.workers
    refused = json.dumps(server.requests[-1], sort_keys=True)
    server.refuses = lambda body: json.dumps(body, sort_keys=True) == refused
    began = time.monotonic()
    done = command.end()
    assert time.monotonic() - began < 8
    assert done.status == 3
    failed = [line for line in done.err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 1
    assert "nothing more is asked" in done.err
    assert "querywright study resume" in done.err
    assert "Traceback" not in done.text
    assert "sk-never" not in done.text
    assert len(workers) == 3
    assert studies.alive(workers) == []


def test_workers_end_soon_after_their_parent_was_killed(cli, independent, undisturbed, studies, server, tmp_path):
    whole = undisturbed(independent("whole"))
    file, out = independent(), tmp_path / "out"
    server.delay = 0.3
    command = studies.Command("run", file, "--out", out, "--workers", 3)
    command.wait_for(lambda: len(server.requests) >= 5)
    workers = command.workers
    command.kill()
    command.end()
    assert len(workers) == 3
    server.delay = 0.0
    assert cli("study", "resume", out).status == 0  # with orphans about or without
    studies.wait_for(lambda: not studies.alive(workers), 4)
    assert studies.arms(studies.table(out)) == studies.arms(studies.table(whole))
    assert set(studies.told(out).values()) == {1}


def test_ctrl_c_ends_the_workers_and_what_was_answered_is_kept(
    cli, independent, undisturbed, studies, server, tmp_path
):
    whole = undisturbed(independent("whole"))
    file, out = independent(), tmp_path / "out"
    server.delay = 0.2
    command = studies.Command("run", file, "--out", out, "--workers", 3)
    command.wait_for(lambda: len(server.requests) >= 8)
    workers = command.workers
    command.interrupt()
    began = time.monotonic()
    done = command.end()
    assert time.monotonic() - began < 5
    assert done.status == 130
    assert "Traceback" not in done.text
    assert "querywright study resume" in done.err
    assert len(workers) == 3
    assert studies.alive(workers) == []
    server.delay = 0.0
    assert cli("study", "resume", out).status == 0
    assert studies.asked_twice(server.requests) == 0
    assert studies.arms(studies.table(out)) == studies.arms(studies.table(whole))


def test_a_study_can_be_looked_at_while_it_runs(cli, independent, undisturbed, studies, server, tmp_path):
    undisturbed(independent("whole"))
    file, out = independent(), tmp_path / "out"
    server.delay = 0.1
    command = studies.Command("run", file, "--out", out, "--workers", 2)
    command.wait_for(lambda: len(server.requests) >= 5)
    seen = [cli("study", "status", out, "--json").data]
    command.wait_for(lambda: seen.append(cli("study", "status", out, "--json").data) or seen[-1]["trials"]["complete"])
    done = command.end()
    assert done.status == 0, done.err
    assert max(one["trials"]["running"] for one in seen) == 2
    assert not any(one["finished"] for one in seen)
    assert seen[0]["spent"]["calls"]["made"] >= 5
    assert cli("study", "status", out, "--json").data["finished"]


def test_sqlite_is_for_one_process(cli, study_file, studies, server, tmp_path):
    out = tmp_path / "out"
    refused = cli("study", "run", study_file(storage="sqlite"), "--out", out, "--workers", "2")
    assert refused.status == 2
    assert "SQLite storage is for one process" in refused.err
    assert not out.exists()
    assert server.requests == []
    assert cli("study", "run", study_file(storage="sqlite"), "--out", out).status == 0
    assert len(studies.table(out)) == 9


def test_two_runs_of_one_folder_work_at_one_study_and_meet_test_once(
    independent, undisturbed, studies, server, tmp_path
):
    whole = undisturbed(independent("whole"))
    file, out = independent(), tmp_path / "out"
    server.delay = 0.03
    both = [studies.Command("run", file, "--out", out) for _ in range(2)]
    for command in both:
        done = command.end()
        assert done.status == 0, done.err
    assert studies.asked_twice(server.requests) == 0
    assert studies.arms(studies.table(out)) == studies.arms(studies.table(whole))
    assert set(studies.told(out).values()) == {1}
    assert {one.worker for one in studies.snapshot(out).trials} == {"1"}
    assert studies.outcomes(out) == 1
    assert studies.outcome(out)["arms"] == studies.outcome(whole)["arms"]


def test_a_run_with_more_trials_goes_on_and_the_one_with_fewer_ends(
    independent, undisturbed, studies, server, tmp_path
):
    undisturbed(independent("whole", trials=18))
    file, out = independent(), tmp_path / "out"
    server.delay = 0.2
    fewer = studies.Command("run", file, "--out", out)
    fewer.wait_for(lambda: len(server.requests) >= 5)
    more = studies.Command("resume", out, "--trials", 18)
    studies.wait_for(lambda: "trials: 18" in (out / "study.yaml").read_text())
    server.delay = 0.0
    ended = fewer.end()
    assert ended.status == 3
    assert "another run gave this study 18 trials" in ended.err
    done = more.end()
    assert done.status == 0, done.err
    assert [one["state"] for one in studies.table(out)] == ["complete"] * 18
    assert studies.outcomes(out) == 1
