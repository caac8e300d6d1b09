"""Equal requests of several processes make one call, and a killed process holds nobody up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dspy import lm15
from dspy.utils.exceptions import LMAuthError

from querywright.errors import OutageError
from querywright.models.guard import GuardedEngine, Limits, text_response
from querywright.models.single_flight import Leases
from querywright.models.store import Store

ASKER = """
import json, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import dspy
from querywright.models.lm import engine_of, resolve_lm
from querywright.models.store import Store

url, home, n_requests, n_prompts, threads, start = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:7])
lm = resolve_lm("openai/x", api_base=url, api_key="k", store=Store(home / "store.sqlite"), timeout=10.0)
def ask(n):
    return lm(f"prompt {n % n_prompts}")[0]
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(threads) as pool:
    answers = list(pool.map(ask, range(start, start + n_requests)))
total = engine_of(lm).ledger.total
print(json.dumps({"calls": total.calls, "saved": total.saved, "answers": answers}))
"""


@pytest.fixture
def asker(tmp_path: Path):
    started = []

    def start(url: str, n_requests: int, n_prompts: int, threads: int = 4, first: int = 0):
        command = [sys.executable, "-c", ASKER, url, str(tmp_path / "home")]
        command += [str(n) for n in (n_requests, n_prompts, threads, first)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def slowly(body):
    time.sleep(0.03)
    return f"answer to {body['messages'][-1]['content']}"


def test_four_processes_with_the_same_fifty_prompts_make_fifty_calls(chat_server, asker):
    server = chat_server(slowly)
    processes = [asker(server.url, 50, 50) for _ in range(4)]
    go(*processes)
    results = [json.loads(process.communicate(timeout=60)[0]) for process in processes]

    assert server.count == 50
    assert sum(r["calls"] for r in results) == 50
    assert sum(r["saved"] for r in results) == 150
    assert [r["answers"] for r in results] == [[f"answer to prompt {n}" for n in range(50)]] * 4


def test_what_a_killed_process_had_under_way_is_asked_again_and_nothing_else(chat_server, asker):
    reached = threading.Event()
    first = {"n": 0}

    def answer(body):
        first["n"] += 1
        if first["n"] == 20:
            reached.set()
        return slowly(body)

    server = chat_server(answer)
    doomed, other = asker(server.url, 50, 50), asker(server.url, 50, 50, first=10)
    go(doomed, other)
    assert reached.wait(30)
    doomed.send_signal(signal.SIGKILL)
    began = time.monotonic()
    answers = json.loads(other.communicate(timeout=60)[0])["answers"]

    assert sorted(answers) == sorted(f"answer to prompt {n}" for n in range(50))
    assert 50 <= server.count <= 50 + 4  # the doomed one had four threads
    assert time.monotonic() - began < 20


def test_a_lease_is_free_for_other_keys_and_gone_at_the_end(tmp_path):
    leases = Leases(tmp_path / "inflight")
    with leases.lease("a"), Leases(tmp_path / "inflight").lease("b"):
        assert sorted(path.name for path in (tmp_path / "inflight").iterdir()) == ["a", "b"]
    assert list((tmp_path / "inflight").iterdir()) == []


def test_only_one_of_many_is_inside_at_a_time(tmp_path):
    inside, most = [], []

    def work(n):
        with Leases(tmp_path / "inflight").lease("key"):
            inside.append(n)
            most.append(len(inside))
            time.sleep(0.001)
            inside.remove(n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(100)))
    assert most == [1] * 100


def test_a_lock_on_a_file_that_was_replaced_meanwhile_is_no_lease(tmp_path, monkeypatch):
    """One opens the file, its holder removes it, another begins a new one: the first may not go on with the old."""
    folder = tmp_path / "inflight"
    flock, other = fcntl.flock, Leases(folder).lease("key")
    tried = []

    def replaced_meanwhile(descriptor, kind):
        if not tried:
            tried.append(descriptor)
            (folder / "key").unlink()
            other.__enter__()
        flock(descriptor, kind)

    def give_up():
        raise TimeoutError

    leases = Leases(folder)
    with leases.lease("first"):
        monkeypatch.setattr(fcntl, "flock", replaced_meanwhile)
        with pytest.raises(TimeoutError), leases.lease("key", give_up):
            pass
    assert len(tried) == 1
    other.__exit__(None, None, None)


def test_files_that_killed_processes_left_are_removed_and_those_in_use_are_not(tmp_path):
    folder = tmp_path / "inflight"
    code = "import sys,time,pathlib;from querywright.models.single_flight import Leases\n"
    code += "with Leases(pathlib.Path(sys.argv[1])).lease('left'): print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    process.stdout.readline()
    with Leases(folder).lease("mine"):
        assert {path.name for path in folder.iterdir()} == {"left", "mine"}
    process.kill()
    process.communicate()
    with Leases(folder).lease("mine"):
        assert {path.name for path in folder.iterdir()} == {"mine"}


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_gone_without(tmp_path, monkeypatch, caplog, code):
    def refuse(descriptor, kind):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    leases = Leases(tmp_path / "inflight")
    with leases.lease("a"), leases.lease("a"):
        pass
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_folder_that_cannot_be_made_is_gone_without(tmp_path):
    (tmp_path / "inflight").write_text("a file")
    with Leases(tmp_path / "inflight").lease("a"):
        pass


class Down:
    def complete(self, request):
        raise LMAuthError("no such key")


def request(text):
    return lm15.Request(model="m", messages=(lm15.Message.user(text),), config=lm15.Config())


def test_who_waits_for_another_process_notices_that_the_model_is_down(tmp_path):
    store = Store(tmp_path / "store.sqlite")
    engine = GuardedEngine(Down(), identity="m", store=store, limits=Limits(cooldown=60))
    held = Leases(tmp_path / "inflight").lease(engine.key(request("slow")))
    with held, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.complete, request("slow"))
        time.sleep(0.1)
        assert not waiting.done()
        with pytest.raises(Exception, match="no such key"):
            engine.complete(request("other"))
        with pytest.raises(OutageError, match="no such key"):
            waiting.result(timeout=5)
    store.close()


def test_ctrl_c_gets_through_to_a_waiting_process(tmp_path):
    code = "import sys,pathlib;from querywright.models.single_flight import Leases\nprint(flush=True)\n"
    code += "with Leases(pathlib.Path(sys.argv[1])).lease('key'): pass"
    with Leases(tmp_path / "inflight").lease("key"):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "inflight")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=5)[1]


class Purse:
    def __init__(self, left=1):
        self.left, self.costs = left, []

    def reserve(self):
        if not self.left:
            raise BudgetReachedError
        self.left -= 1

    def settle(self, cost):
        self.costs.append(cost)


class BudgetReachedError(Exception):
    pass


class Once:
    def complete(self, request):
        return text_response("yes", "stop", request.model, 10, 2)


def test_each_attempt_is_paid_from_the_purse_and_its_cost_told(tmp_path):
    purse = Purse(left=2)
    engine = GuardedEngine(Once(), identity="m", limits=Limits(purse=purse))
    engine.complete(request("a"))
    engine.complete(request("b"))
    with pytest.raises(BudgetReachedError):
        engine.complete(request("c"))

    assert [(cost.calls, cost.tokens) for cost in purse.costs] == [(1, 12)] * 2
    assert engine.ledger.total.calls == 2


def test_a_failed_attempt_is_told_as_well():
    purse = Purse(left=5)
    engine = GuardedEngine(Down(), identity="m", limits=Limits(purse=purse))
    with pytest.raises(Exception, match="no such key"):
        engine.complete(request("a"))
    with pytest.raises(OutageError):
        engine.complete(request("b"))

    assert purse.left == 4  # nothing is counted that the open breaker kept back
    assert [(cost.calls, cost.failures) for cost in purse.costs] == [(0, 1)]
