"""Equal work of several threads and processes is done once, and a killed process holds nobody up."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import querywright.models.single_flight as single_flight
from querywright.models.store import Store

WORKER = r"""
import sys, time
from concurrent.futures import ThreadPoolExecutor
from querywright.models.store import Store

store, seconds = Store(sys.argv[1]), float(sys.argv[2])
def compute(n):
    def make():
        sys.stdout.write("made\n")
        sys.stdout.flush()
        time.sleep(seconds)
        return f"answer {n}".encode()
    return store.get_or_compute("lm", str(n), make)
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(compute, [n % 25 for n in range(50)] if seconds < 1 else [0]))
assert answers == [f"answer {n % 25}".encode() for n in range(len(answers))]
"""


@pytest.fixture
def worker(place):
    started = []

    def start(seconds):
        command = [sys.executable, "-c", WORKER, place, str(seconds)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(*processes):
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def test_processes_make_each_value_once(worker):
    processes = [worker(0.02) for _ in range(2)]
    go(*processes)
    assert sum(process.communicate(timeout=60)[0].count("made") for process in processes) == 25
    assert [process.returncode for process in processes] == [0, 0]


def test_what_a_killed_process_had_under_way_is_made_by_who_waits(worker, place):
    doomed = worker(600)
    go(doomed)
    assert doomed.stdout.readline() == "made\n"
    store = Store(place)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get_or_compute, "lm", "0", lambda: b"answer 0")
        time.sleep(0.2)
        assert not waiting.done()
        doomed.send_signal(signal.SIGKILL)
        assert waiting.result(timeout=60) == b"answer 0"
    store.close()


def test_threads_make_each_value_once_and_all_have_an_error_of_it(tmp_path):
    store, made = Store(tmp_path / "store.sqlite"), []

    def make():
        made.append(1)
        time.sleep(0.2)
        if len(made) == 1:
            raise LookupError("down")
        return b"yes"

    def outcome(_):
        try:
            return store.get_or_compute("lm", "key", make)
        except LookupError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        assert (set(pool.map(outcome, range(8))), len(made)) == ({"down"}, 1)
        assert (set(pool.map(outcome, range(8))), len(made)) == ({b"yes"}, 2)
    store.close()


def test_what_is_not_to_be_kept_is_given_and_forgotten(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    assert store.get_or_compute("lm", "key", lambda: b"cut off", keep=lambda value: False) == b"cut off"
    assert store.get_or_compute("lm", "key", lambda: b"whole") == b"whole"
    assert store.get_or_compute("lm", "key", lambda: b"never made") == b"whole"
    store.close()


def test_threads_with_other_keys_do_not_wait(tmp_path):
    store, both = Store(tmp_path / "store.sqlite"), threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(store.get_or_compute, "lm", key, lambda: str(both.wait(30)).encode()) for key in "ab"]
        assert sorted(future.result() for future in futures) == [b"0", b"1"]
    store.close()


def test_a_file_system_without_locks_is_gone_without(tmp_path: Path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(single_flight.fcntl, "lockf", refuse)
    store = Store(tmp_path / "store.sqlite")
    assert [store.get_or_compute("lm", key, key.encode) for key in "ab"] == [b"a", b"b"]
    assert len(caplog.records) == 1
    store.close()
