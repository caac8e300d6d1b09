"""The account of a study is exact over processes, threads, kills and resumed runs."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from querywright.errors import BudgetError
from querywright.models.engine import LMEngine
from querywright.models.engine_errors import LMStoreError
from querywright.models.response_parsing import text_response
from querywright.models.usage import Cost
from querywright.optimize.study.account import Account, spend_file
from querywright.optimize.study.spec import BudgetSpec

HAMMER = """
import sys, threading
from pathlib import Path
from querywright.errors import BudgetError
from querywright.models.usage import Cost
from querywright.optimize.study.spec import BudgetSpec
from querywright.optimize.study.storage import open_storage
with open_storage(sys.argv[1], Path(sys.argv[2]), "s") as storage:
    account = storage.account(BudgetSpec(calls=int(sys.argv[3])))
    print("ready", flush=True)
    sys.stdin.readline()
    sent = []
    def work():
        while True:
            try:
                account.reserve()
            except BudgetError:
                return
            sent.append(1)
            account.settle(Cost(calls=1, input_tokens=3, output_tokens=2, dollars=0.5, seconds=0.25))
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(sent))
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from querywright.optimize.study.spec import BudgetSpec
from querywright.optimize.study.storage import open_storage
with open_storage(sys.argv[1], Path(sys.argv[2]), "s") as storage:
    storage.account(BudgetSpec()).reserve()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_four_processes_of_four_threads_send_exactly_what_the_budget_allows(storage_text, tmp_path, open_study):
    limit = 121
    command = [sys.executable, "-c", HAMMER, storage_text, str(tmp_path / "study"), str(limit)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    sent = [int(process.communicate(timeout=60)[0]) for process in processes]

    spent = open_study().account(BudgetSpec()).spent
    assert sum(sent) == spent.calls == limit
    assert (spent.tokens, spent.dollars, spent.lm_seconds) == (5 * limit, limit / 2, limit / 4)


def test_a_killed_process_leaves_its_call_counted(storage_text, tmp_path, open_study):
    account = open_study().account(BudgetSpec(calls=2))
    process = subprocess.run([sys.executable, "-c", KILLED, storage_text, str(tmp_path / "study")], check=False)
    assert process.returncode == -9
    assert account.spent.calls == 1
    account.reserve()
    with pytest.raises(BudgetError, match="budget of 2 LM calls"):
        account.reserve()


def test_a_raised_budget_goes_on_where_the_last_run_stopped(open_study):
    first = open_study().account(BudgetSpec(calls=1))
    first.reserve()
    with pytest.raises(
        BudgetError, match=r"so far 1 calls, .*Raise budget\.calls in the study's file and run it again"
    ):
        first.reserve()
    again = open_study().account(BudgetSpec(calls=2))
    again.reserve()
    assert again.spent.calls == 2
    assert open_study("other").account(BudgetSpec(calls=1)).spent.calls == 0


@pytest.mark.parametrize(
    ("budget", "cost", "name"),
    [
        (BudgetSpec(tokens=10), Cost(input_tokens=6, output_tokens=4), "tokens"),
        (BudgetSpec(dollars=0.5), Cost(dollars=0.5), "dollars"),
        (BudgetSpec(calls=0), Cost(), "calls"),
    ],
)
def test_each_limit_stops_the_study(open_study, budget, cost, name):
    account = open_study().account(budget)
    if name != "calls":
        account.reserve()
        account.check()
    account.settle(cost)
    with pytest.raises(BudgetError, match=rf"Raise budget\.{name}"):
        account.reserve()
    with pytest.raises(BudgetError, match=rf"Raise budget\.{name}"):
        account.check()
    assert account.spent.calls == (name != "calls")


def test_saved_calls_are_entered_in_bulk_and_cost_nothing(open_study):
    account = open_study().account(BudgetSpec(calls=1, tokens=1))
    account.settle(Cost(saved=500, saved_tokens=6000))
    account.settle(Cost(saved=1, saved_tokens=5))
    account.reserve()
    assert (account.spent.saved, account.spent.saved_tokens, account.spent.tokens) == (501, 6005, 0)


def test_minutes_are_those_in_which_at_least_one_worker_ran(open_study):
    """Two workers side by side, a pause in which none runs, and one more."""
    storage = open_study()
    began = time.monotonic()
    one, two = (storage.account(BudgetSpec()) for _ in range(2))
    for _ in range(4):
        time.sleep(0.1)
        one.tick()
        two.tick()
    together = 60 * one.spent.minutes
    assert 0.4 <= together <= time.monotonic() - began

    time.sleep(0.5)
    began = time.monotonic()
    later = storage.account(BudgetSpec(minutes=(together + 0.2) / 60))
    later.tick()
    assert 60 * later.spent.minutes - together <= time.monotonic() - began
    time.sleep(0.2)
    later.tick()
    assert 0.2 <= 60 * later.spent.minutes - together <= time.monotonic() - began
    with pytest.raises(BudgetError, match=r"Raise budget\.minutes"):
        later.reserve()


def test_a_worker_that_slept_counts_no_more_than_two_intervals(tmp_path):
    engine = spend_file(tmp_path / "spend.sqlite")
    account = Account(engine, "s", BudgetSpec(), interval=0.05)
    account.create()
    time.sleep(0.4)
    account.tick()
    assert 60 * account.spent.minutes == pytest.approx(0.1)
    engine.dispose()


def test_what_cannot_be_entered_now_is_entered_later_and_nothing_is_sent_uncounted(postgres, open_study, storage_text):
    if storage_text == "journal":
        pytest.skip("a file has no server that stops")
    account = open_study().account(BudgetSpec())
    account.reserve()
    postgres.stop()
    try:
        account.settle(Cost(input_tokens=4))
        with pytest.raises(LMStoreError, match="account cannot be kept"):
            account.reserve()
        account.settle(Cost(output_tokens=1))
    finally:
        postgres.start()
    account.reserve()
    account.settle(Cost(output_tokens=2))
    assert (account.spent.calls, account.spent.tokens) == (2, 7)


def test_a_damaged_file_is_said(tmp_path):
    (tmp_path / "spend.sqlite").write_bytes(b"no database" * 100)
    engine = spend_file(tmp_path / "spend.sqlite")
    with pytest.raises(LMStoreError, match="account cannot be kept"):
        Account(engine, "s", BudgetSpec()).create()
    engine.dispose()


class Answers:
    def complete(self, request):
        return text_response("yes", "stop", request.model, 10, 2)


def test_an_engine_pays_from_it(open_study):
    from dspy import lm15

    account = open_study().account(BudgetSpec(calls=6))
    engine = LMEngine(Answers(), identity="m", budget=account)

    def ask(n):
        request = lm15.Request(model="m", messages=(lm15.Message.user(str(n)),), config=lm15.Config())
        try:
            return engine.complete(request).text
        except BudgetError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(10)))
    assert answers.count("yes") == 6
    assert sum("budget of 6 LM calls is spent" in answer for answer in answers) == 4
    assert (account.spent.calls, account.spent.tokens) == (6, 72)


LAST = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT calls FROM querywright_spend").fetchone()[0])
connection.close()
"""


def test_opening_an_account_again_takes_no_lock_from_the_one_that_is_open(tmp_path):
    """Else a process that closes the file takes itself for the last one, and removes what the others write to."""
    path = tmp_path / "spend.sqlite"
    first = Account(spend_file(path), "s", BudgetSpec())
    first.create()
    first.reserve()
    second = spend_file(path)
    counted = [subprocess.run([sys.executable, "-c", LAST, str(path)], capture_output=True, text=True, check=True)]
    assert path.with_name(f"{path.name}-wal").exists()
    first.reserve()
    counted.append(subprocess.run([sys.executable, "-c", LAST, str(path)], capture_output=True, text=True, check=True))
    assert [int(one.stdout) for one in counted] == [1, 2]
    second.dispose()
    first._engine.dispose()
