"""A study that was interrupted, killed or out of budget finds what an undisturbed one finds, whatever its workers."""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from querywright.optimize.search.worker import Worker
from querywright.optimize.study import engine

N = 14
CUTS = (0, 1, 2, 5, 9, 10, 11)
PLACES = ("run", "_tried", "after")
"""Before a trial, when its arm is known, and when it was tried and that is not written down."""


@pytest.fixture
def dependent(study_file):
    """A study whose trials depend on all before them, and that reads."""
    return lambda name="small", **changes: study_file(name, **{"objectives": ["accuracy"], "trials": 16, **changes})


@pytest.fixture
def independent(study_file):
    """A study whose trials do not depend on each other, and that reads."""
    given = {"trials": N, "sizes": [4, 12, 6], "sampler": {"name": "random"}, "pruner": "none"}
    return lambda name="small", **changes: study_file(name, **{**given, "objectives": ["accuracy"], **changes})


@pytest.fixture
def same(studies):
    """Asserts that a study found what another found, but for the order in which its trials ended."""

    def check(out, whole, storage=None):
        assert studies.arms(studies.table(out, storage)) == studies.arms(studies.table(whole))

    return check


@pytest.fixture
def the_very_same(studies):
    """Asserts that a study found what another found, in the same order."""

    def check(out, whole):
        assert studies.table(out) == studies.table(whole)
        assert studies.outcome(out) == studies.outcome(whole)

    return check


def test_a_study_cut_at_many_trials_finds_the_same(
    cli, dependent, undisturbed, studies, server, the_very_same, tmp_path, monkeypatch
):
    file, out = dependent(trials=12, sizes=[4, 10, 6]), tmp_path / "out"
    whole = undisturbed(file)
    left = []

    def cut(owner, name, number_of, after):
        real = getattr(owner, name)

        def look(place, arguments):
            if left and place == left[0][1] and number_of(arguments) >= left[0][0]:
                left.clear()
                raise KeyboardInterrupt

        def call(*arguments, **options):
            look(name, arguments)
            made = real(*arguments, **options)
            look(after, arguments)
            return made

        monkeypatch.setattr(owner, name, call)

    cut(Worker, "run", lambda arguments: arguments[1].number, "none")
    cut(Worker, "_tried", lambda arguments: arguments[1].number, "after")
    cut(engine, "finish", lambda _: 12, "tested")
    for number, place in [*zip(CUTS, itertools.cycle(PLACES), strict=False), (12, "tested")]:
        left[:] = [(number, place)]
        assert cli("study", "run", file, "--out", out).status == (0 if left else 130)
    assert cli("study", "run", file, "--out", out).status == 0
    the_very_same(out, whole)
    assert studies.asked_twice(server.requests) == 0


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing_of_what_is_found(
    independent, undisturbed, studies, server, same, tmp_path
):
    file, out = independent(), tmp_path / "out"
    whole = undisturbed(file)
    server.delay = 0.05
    command = studies.Command("run", file, "--out", out, "--workers", 2)
    command.wait_for(lambda: command.workers and len(server.requests) >= 10)
    os.kill(command.workers[0], signal.SIGKILL)
    done = command.end()
    assert done.status == 0, done.err
    same(out, whole)
    assert studies.outcome(out)["arms"] == studies.outcome(whole)["arms"]
    assert studies.asked_twice(server.requests) <= 2  # under way when the worker was killed: one a thread


@pytest.mark.slow
def test_ctrl_c_ends_all_workers_and_the_command_that_it_names_goes_on(
    ok, independent, undisturbed, studies, server, same, tmp_path
):
    whole = undisturbed(independent("whole"))
    file, out, workers = independent(), tmp_path / "out", 3
    server.delay = 0.2
    command = studies.Command("run", file, "--out", out, "--workers", workers)
    command.wait_for(lambda: len(command.workers) == workers - 1 and len(server.requests) >= 10)
    processes = command.workers
    command.interrupt()
    stopped = command.end()
    assert stopped.status == 130
    assert "Traceback" not in stopped.text
    assert studies.alive(processes) == []
    named = next(line for line in stopped.err.splitlines() if "to resume, run: querywright " in line)
    server.delay = 0.0
    ok(*named.partition("to resume, run: querywright ")[2].split())
    assert studies.asked_twice(server.requests) <= 2 * workers
    same(out, whole)


@pytest.mark.slow
def test_no_number_of_workers_and_threads_exceeds_a_budget_and_what_it_paid_for_is_kept(
    ok, independent, undisturbed, studies, server, same, tmp_path
):
    file, out = independent(budget={"calls": 31}, threads=4), tmp_path / "out"
    whole = undisturbed(independent("whole"))
    server.delay = 0.1
    stopped = studies.Command("run", file, "--out", out, "--workers", 3).end()
    assert stopped.status == 3
    assert stopped.err.count("reached the limit of 31 LM calls") == 1
    assert "Traceback" not in stopped.text
    assert len(server.requests) == 31
    server.delay = 0.0
    ok("study", "run", independent(budget={"calls": 10_000}, threads=4), "--out", out)
    assert studies.asked_twice(server.requests) == 0
    assert studies.snapshot(out).spent.calls == len(server.requests)
    same(out, whole)


@pytest.mark.slow
def test_hosts_share_trials_answers_and_budget_in_a_database_that_may_stop(
    cli, independent, undisturbed, studies, server, same, postgres, tmp_path
):
    file, out = independent(), tmp_path / "out"
    whole = undisturbed(file)
    url = postgres.new_database().replace("postgres@", "postgres:hunter2-secret@")
    server.delay = 0.05
    command = studies.Command("run", file, "--out", out, "--workers", 2, "--storage", url)
    command.wait_for(lambda: command.workers and len(server.requests) >= 30)
    postgres.stop()
    try:
        stopped = command.end()
        away = cli("study", "status", out, "--storage", url)
    finally:
        postgres.start()
    for ended in (stopped, away):
        assert ended.status == 3, ended.err
        assert not any(one in ended.err for one in ("Traceback", "hunter2", "127.0.0.1"))
    assert "--storage URL" in stopped.err
    server.delay = 0.0
    for call, said in (
        (("resume", out), "pass the address with --storage"),
        (("run", file, "--out", out), "stored in postgresql, not in journal"),
    ):
        refused = cli("study", *call, width=400)
        assert refused.status == 2
        assert said in refused.err
    both = [studies.Command("resume", out, "--storage", url) for _ in range(2)]
    assert [one.end().status for one in both] == [0, 0]
    same(out, whole, url)
    assert studies.asked_twice(server.requests) <= 4  # under way when the database stopped
    assert not any(b"hunter2" in path.read_bytes() for path in out.rglob("*") if path.is_file())
