"""A study that was interrupted, killed or out of room finds what an undisturbed one finds, and asks nothing again."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from querywright.optimize.study import engine
from querywright.optimize.study.trial import Worker

DISK = "16m"
"""Size of a disk that is filled."""


@pytest.fixture
def dependent(study_file):
    """A study whose trials depend on all before them, and that reads."""

    def write(name="small", **changes):
        return study_file(name, **{"objectives": ["accuracy"], "trials": 16, **changes})

    return write


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own; its size can be changed."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs a small file system of its own")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path):
    """Write until the disk is full."""
    for block in (1_000_000, 4096, 1):
        with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(block))


@pytest.fixture
def same(studies):
    """Asserts that a study found what another found."""

    def check(out, whole, storage=None):
        assert studies.table(out, storage) == studies.table(whole)
        assert studies.outcome(out, storage) == studies.outcome(whole)

    return check


def test_a_study_that_is_killed_again_and_again_finds_the_same(
    cli, dependent, undisturbed, studies, server, same, tmp_path
):
    file, out = dependent(), tmp_path / "out"
    whole = undisturbed(file)

    def wait_for_more(path, command):
        before = path.stat().st_size if path.exists() else 0
        studies.wait_for(lambda: not command.runs or (path.exists() and path.stat().st_size > before))

    kills, moments = int(os.environ.get("QUERYWRIGHT_TEST_KILLS", "2")), random.Random(3)
    server.delay = 0.03
    for _ in range(kills):
        command = studies.Command("run", file, "--out", out)
        journal = out / "journal.log"
        wait_for_more(journal, command)
        time.sleep(moments.uniform(0, 1.5))
        command.kill()
        assert command.end().status in (-signal.SIGKILL, 0)
    server.delay = 0.0
    done = cli("study", "run", file, "--out", out)
    assert done.status == 0, done.err
    same(out, whole)
    assert studies.asked_twice(server.requests) <= 2 * kills  # under way when their process was killed: one a thread
    assert set(studies.told(out).values()) == {1}


def test_ctrl_c_ends_a_study_soon_and_the_command_that_it_names_goes_on(
    cli, dependent, undisturbed, studies, server, same, tmp_path
):
    file, out = dependent(), tmp_path / "out"
    whole = undisturbed(file)
    server.delay = 0.2
    command = studies.Command("run", file, "--out", out)
    command.wait_for(lambda: len(server.requests) >= 10)
    command.interrupt()
    began = time.monotonic()
    stopped = command.end()
    assert time.monotonic() - began < 5
    assert stopped.status == 130
    assert "Traceback" not in stopped.text
    named = next(line for line in stopped.err.splitlines() if "to go on: querywright " in line)
    server.delay = 0.0
    done = cli(*named.partition("to go on: querywright ")[2].split())
    assert done.status == 0, done.err
    same(out, whole)
    assert studies.asked_twice(server.requests) <= 2  # one a thread


def test_a_full_disk_is_said_and_with_room_the_study_goes_on(cli, dependent, undisturbed, studies, server, same, disk):
    file, out = dependent(), disk / "out"
    whole = undisturbed(file)
    filler = disk / "filler"
    server.delay = 0.02
    command = studies.Command("run", file, "--out", out)
    command.wait_for(lambda: len(server.requests) >= 30)
    fill(filler)
    stopped = command.end()
    assert stopped.status == 3
    assert "Traceback" not in stopped.text
    assert "room" in stopped.err or "space" in stopped.err
    again = cli("study", "resume", out)
    assert again.status in (2, 3)
    assert "Traceback" not in again.err
    filler.unlink()
    done = cli("study", "resume", out)
    assert done.status == 0, done.err
    same(out, whole)
    assert studies.asked_twice(server.requests) <= 1  # under way in the other thread


CUTS = (0, 1, 2, 9, 10, 11, 18, 25, 32, 38, 39)
PLACES = ("run", "_tried", "_evaluated", "_tell")
"""Before a trial, when its arm is known, when it was tried and that is not written down, before Optuna is told."""


def test_a_study_cut_at_many_trials_finds_the_same(
    cli, dependent, undisturbed, studies, server, same, tmp_path, monkeypatch
):
    file, out = dependent(trials=40, sizes=[4, 10, 6]), tmp_path / "out"
    whole = undisturbed(file)
    left = []

    def cut(owner, name, number_of, *, after=False):
        real = getattr(owner, name)

        def call(*arguments, **options):
            made = real(*arguments, **options) if after else None
            if left and name == left[0][1] and number_of(arguments, options) >= left[0][0]:
                left.clear()
                raise KeyboardInterrupt
            return made if after else real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    cut(Worker, "run", lambda arguments, _: arguments[1].number)
    cut(Worker, "_tried", lambda arguments, _: arguments[1].number)
    cut(Worker, "_evaluated", lambda _, options: options["turn"], after=True)
    cut(Worker, "_tell", lambda arguments, _: arguments[2].number)
    cut(engine, "finish", lambda *_: 40, after=True)
    numbers = range(40) if "QUERYWRIGHT_TEST_KILLS" in os.environ else CUTS
    for number, place in [*zip(numbers, itertools.cycle(PLACES), strict=False), (40, "finish")]:
        left[:] = [(number, place)]
        assert cli("study", "run", file, "--out", out).status == (0 if left else 130)
    assert cli("study", "run", file, "--out", out).status == 0
    same(out, whole)
    assert studies.asked_twice(server.requests) == 0


def test_a_study_that_goes_on_with_another_space_is_refused_with_the_difference(cli, dependent, server, tmp_path):
    out = tmp_path / "out"
    assert cli("study", "run", dependent(budget={"calls": 20}), "--out", out).status == 3
    asked = len(server.requests)
    knobs = {"rag_fusion": {"knobs": {"n_queries": {"low": 1, "high": 3}, "top_k": [1, 2, 8]}, "search": "named"}}
    changed = cli("study", "run", dependent(techniques=knobs), "--out", out, width=400)
    assert changed.status == 2
    assert "techniques.rag_fusion.knobs.top_k: [1, 2, 4] became [1, 2, 8]" in changed.err
    assert "techniques.step_back" in changed.err
    fewer = cli("study", "run", dependent(trials=4), "--out", out, width=400)
    assert fewer.status == 2
    assert "trials: 16 became 4" in fewer.err
    assert len(server.requests) == asked


@pytest.mark.parametrize("workers", [1, 2])
def test_a_database_that_stops_is_said_without_its_address_and_the_study_goes_on(
    workers, cli, dependent, undisturbed, studies, server, postgres, tmp_path
):
    file, out = dependent(sampler={"name": "random"}, pruner="none"), tmp_path / "out"
    whole = undisturbed(file)
    url = postgres.new_database().replace("postgres@", "postgres:hunter2-secret@")
    server.delay = 0.05
    command = studies.Command("run", file, "--out", out, "--workers", workers, "--storage", url)
    command.wait_for(lambda: len(server.requests) >= 40)
    postgres.stop()
    try:
        stopped = command.end()
        away = cli("study", "status", out, "--storage", url)
    finally:
        postgres.start()
    for ended in (stopped, away):
        assert ended.status == 3, ended.err
        assert "Traceback" not in ended.err
        assert "hunter2" not in ended.err
        assert "127.0.0.1" not in ended.err
    assert "querywright study resume" in stopped.err
    assert "--storage URL" in stopped.err
    server.delay = 0.0
    unnamed = cli("study", "resume", out, width=400)
    assert unnamed.status == 2
    assert "give it with --storage" in unnamed.err
    elsewhere = cli("study", "run", file, "--out", out, width=400)
    assert elsewhere.status == 2
    assert "kept in the storage postgresql, not in journal" in elsewhere.err
    assert cli("study", "resume", out, "--storage", url).status == 0
    assert studies.arms(studies.table(out, url)) == studies.arms(studies.table(whole))
    assert studies.asked_twice(server.requests) <= 2 * workers  # one a thread
    assert not any(b"hunter2" in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_connections_that_break_lose_nothing(cli, dependent, undisturbed, studies, server, postgres, tmp_path):
    file, out = dependent(sampler={"name": "random"}, pruner="none"), tmp_path / "out"
    whole = undisturbed(file)
    url = postgres.new_database()
    server.delay = 0.1
    command = studies.Command("run", file, "--out", out, "--workers", 2, "--storage", url)
    sql = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{url.rpartition('/')[2]}'"
    command.wait_for(lambda: len(server.requests) >= 20)
    assert int(postgres.psql(sql)) >= 2
    done = command.end()
    server.delay = 0.0
    if done.status:  # a connection that breaks within a transaction ends the run
        assert done.status == 3
        said = ("it is shutting down", "it ended the connection", "the study's account cannot be kept")
        assert any(text in done.err for text in said)
        assert cli("study", "resume", out, "--storage", url).status == 0
    assert "Traceback" not in done.err
    assert studies.arms(studies.table(out, url)) == studies.arms(studies.table(whole))
    assert studies.asked_twice(server.requests) <= 4  # one a thread
