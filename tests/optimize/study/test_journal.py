"""A journal that a dying process, a full disk or a loss of power left torn opens again, at once."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time

import optuna
import pytest

from querywright.errors import InputError, QuerywrightError
from querywright.optimize.study.journal import JournalLock, open_journal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.log"


def run_trials(path, n):
    study = optuna.create_study(storage=open_journal(path), study_name="s", direction="maximize", load_if_exists=True)
    for _ in range(n):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.set_user_attr("rows", [{"id": "é", "n": trial.number}])
        study.tell(trial, float(trial.number))
    return study


def finished(path):
    study = optuna.load_study(storage=open_journal(path), study_name="s")
    return [trial.number for trial in study.trials if trial.state.is_finished()]


def test_cut_at_every_byte_of_its_last_record_it_opens_with_all_finished_trials_but_one(path):
    run_trials(path, 3)
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        began = time.monotonic()
        assert finished(path) == [0, 1]
        assert time.monotonic() - began < 2
        if size % 9 == 0 or size == len(whole) - 1:
            study = run_trials(path, 1)  # and what is written next stands on a line of its own
            assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "RUNNING", "COMPLETE"]
            assert finished(path) == [0, 1, 3]
    kept = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert kept[: whole.count(b"\n") - 1] == [json.loads(line) for line in whole.splitlines()[:-1]]


def test_garbled_at_any_byte_of_its_last_record_it_opens_with_all_finished_trials_but_one(path):
    run_trials(path, 3)
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    others = [b"\x00", b"\xff", b"\n", b'"', b"}", b"9", b"["]
    for n, place in enumerate(range(last, len(whole))):
        path.write_bytes(whole[:place] + others[n % len(others)] + whole[place + 1 :])
        assert finished(path)[:2] == [0, 1]
        if n % 9 == 0:
            run_trials(path, 1)
            assert finished(path)[-1] == 3


def test_what_was_cut_is_kept_beside_it_and_logged_once(path, caplog):
    run_trials(path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":4,"wor')
    with caplog.at_level(logging.WARNING):
        assert finished(path) == [0, 1]
        assert finished(path) == [0, 1]
    assert path.read_bytes() == whole
    assert (path.parent / "journal.log.cut-1").read_bytes() == b'{"op_code":4,"wor'
    ours = [record for record in caplog.records if record.name.startswith("querywright")]
    assert [record.getMessage() for record in ours] == [
        "journal.log did not end in a whole record: 17 bytes were cut and are kept in journal.log.cut-1"
    ]


def test_a_record_glued_to_a_torn_one_is_cut_with_what_follows(path):
    """What Optuna itself leaves when it goes on after a torn line; it never opens that again."""
    run_trials(path, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_co' + whole.splitlines(keepends=True)[-1] * 2)
    assert finished(path) == [0, 1]
    assert path.read_bytes() == whole


def test_a_record_that_another_version_wrote_is_not_cut(path):
    run_trials(path, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    newer = b"".join([*lines[:4], b'{"op_code":99,"worker_id":"w"}\n', *lines[4:]])
    path.write_bytes(newer)
    with pytest.raises(InputError, match=r"record 5 of journal\.log cannot be read .*version of Optuna"):
        open_journal(path)
    assert path.read_bytes() == newer


def test_a_running_process_goes_on_after_another_died_in_the_midst_of_a_record(path):
    study = run_trials(path, 1)
    other = optuna.load_study(storage=open_journal(path), study_name="s")
    with path.open("ab") as file:
        file.write(b'{"op_code":4,"study_id":0,"datetime_st')
    assert len(other.trials) == 1  # a reader passes over it
    trial = study.ask()
    study.tell(trial, 0.5)
    assert [t.number for t in other.trials] == [0, 1]
    assert finished(path) == [0, 1]


WRITER = """
import sys
from pathlib import Path
import optuna
from querywright.optimize.study.journal import open_journal
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(storage=open_journal(Path(sys.argv[1])), study_name="s", load_if_exists=True)
print("began", flush=True)
while True:
    trial = study.ask()
    trial.set_user_attr("rows", ["x" * 200000])
    study.tell(trial, 1.0)
"""


def test_killed_writers_stop_neither_those_that_run_nor_those_that_come(path):
    started = []
    for kill_after in (0.1, 0.25, 0.4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "began\n"
        if not started:
            study = optuna.load_study(storage=open_journal(path), study_name="s")
        time.sleep(kill_after)
        process.kill()
        process.communicate()
        began = time.monotonic()
        trial = study.ask()
        study.tell(trial, 2.0)
        started.append(trial.number)
        assert finished(path)[-1] == trial.number
        assert time.monotonic() - began < 5  # Optuna's own lock is waited for half a minute
    numbers = [trial.number for trial in study.trials]
    assert numbers == list(range(len(numbers)))
    assert set(started) <= set(numbers)


def test_one_writes_at_a_time(path):
    run_trials(path, 0)
    inside, most = [], []

    def work():
        lock = JournalLock(path)
        for _ in range(20):
            lock.acquire()
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80


def test_a_writer_that_hangs_is_not_waited_for_without_end(path, monkeypatch):
    study = run_trials(path, 0)
    monkeypatch.setattr("querywright.optimize.study.journal.LOCK_SECONDS", 0.2)
    hung = JournalLock(path)
    hung.acquire()
    with pytest.raises(QuerywrightError, match=r"writing to journal\.log"):
        study.ask()
    hung.release()
    study.tell(study.ask(), 1.0)


def test_all_that_came_before_an_attribute_is_on_the_disk_with_it(path, monkeypatch):
    synced = []

    def sync(descriptor, real=os.fsync):
        real(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", sync)
    study = optuna.create_study(storage=open_journal(path), study_name="s", direction="maximize")
    assert synced[-1] == path.stat().st_size
    before = len(synced)
    for _ in range(2):
        trial = study.ask()
        for name in "abc":
            trial.suggest_float(name, 0, 1)
        for name in ("arm", "result"):
            trial.set_user_attr(name, {"of": trial.number})
            assert synced[-1] == path.stat().st_size
        study.tell(trial, 1.0)
    assert len(synced) - before == 4
    study.set_user_attr("test", {"met": True})
    assert synced[-1] == path.stat().st_size


def test_a_journal_that_was_removed_is_not_begun_again_in_the_midst(path):
    trial = run_trials(path, 1).ask()
    path.unlink()
    with pytest.raises(QuerywrightError, match=r"journal\.log of the study is gone"):
        trial.set_user_attr("rows", [])
    assert not path.exists()


def test_a_folder_that_cannot_be_locked_is_refused(path, monkeypatch):
    def refuse(descriptor, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(QuerywrightError, match="cannot be locked"):
        open_journal(path)


def test_a_read_error_cuts_nothing(path, monkeypatch):
    run_trials(path, 2)
    whole = path.read_bytes()

    def fail(line):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("querywright.optimize.study.journal.json.loads", fail)
        with pytest.raises(OSError, match="error"):
            open_journal(path)
    assert path.read_bytes() == whole
