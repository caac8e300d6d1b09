from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
from collections import Counter

import pytest

from querywright import pool
from querywright.errors import InputError
from querywright.pool import bounded_map


def test_results_stand_in_the_order_of_the_items_and_an_exception_is_a_result():
    ended = threading.Event()

    def work(n):
        if n == 0:
            ended.wait(60)  # the first to begin is the last to end
        elif n == 3:
            ended.set()
        elif n == 1:
            raise ValueError("no one")
        return n * n

    first, second, *others = bounded_map(work, range(10), threads=4)
    assert (first, others) == (0, [n * n for n in range(2, 10)])
    assert isinstance(second, ValueError)
    assert bounded_map(work, [], threads=3) == []


def test_at_most_so_many_threads_work_at_a_time():
    threads = 3
    lock, now, most, all_in = threading.Lock(), Counter(), 0, threading.Event()

    def work(n):
        nonlocal most
        with lock:
            now["working"] += 1
            most = max(most, now["working"])
            if now["working"] == threads:
                all_in.set()
        all_in.wait(60)
        with lock:
            now["working"] -= 1

    bounded_map(work, range(24), threads=threads)
    assert most == threads


def test_another_thread_is_started_only_when_nothing_has_ended_for_a_moment(monkeypatch):
    monkeypatch.setattr(pool, "_SOON", 60.0)  # longer than all the work takes
    assert len(set(bounded_map(lambda _: threading.get_ident(), range(200), threads=8))) == 1
    monkeypatch.undo()
    met = threading.Barrier(8)  # nothing ends before all eight are there
    assert len(set(bounded_map(lambda _: (met.wait(60) and 0) or threading.get_ident(), range(8), threads=8))) == 8


def test_every_item_is_worked_on_once_also_when_each_takes_no_time():
    # A thread that ends an item must go on to the next one, however fast the caller takes the result.
    seen = Counter()

    def work(n):
        seen.update([n])
        return n

    for _ in range(30):
        assert bounded_map(work, range(200), threads=2) == list(range(200))
    assert seen == dict.fromkeys(range(200), 30)


def test_work_under_way_is_waited_for_when_the_process_ends_and_hung_work_is_not():
    code = (
        "import atexit, contextlib, time\n"
        "from querywright import pool\n"
        "atexit.unregister(pool.let_work_end)\n"
        "atexit.register(pool.let_work_end, 2.5)  # in place of 5 seconds\n"
        "work = lambda n: (time.sleep(n), print('ended', n, flush=True))\n"
        "with contextlib.closing(pool.bounded_each(work, [600, 0.5, 0], threads=3)) as results:\n"
        "    next(results)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert "ended 0.5" in done.stdout
    assert "600" not in done.stdout


@pytest.mark.parametrize("error", [RuntimeError("enough"), KeyboardInterrupt()])
def test_what_is_done_with_a_result_runs_in_the_calling_thread_and_its_error_stops_everything(error):
    started, caller, stopped = [], threading.get_ident(), threading.Event()

    def work(n):
        started.append(n)
        if n > 10:
            stopped.wait(60)
        return n

    def on_done(position, result):
        assert threading.get_ident() == caller
        if position == 3:
            raise error

    with pytest.raises(type(error)):
        bounded_map(work, range(500), threads=2, on_done=on_done)
    stopped.set()
    assert len(started) < 20


def test_an_interrupt_inside_the_work_goes_up_and_nothing_more_is_started():
    started = []

    def work(n):
        started.append(n)
        if n == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bounded_map(work, range(50), threads=1)
    assert started == [0, 1, 2]


def test_threads_see_the_callers_context_and_keep_their_changes_to_themselves():
    setting = contextvars.ContextVar("setting", default="none")

    def work(n):
        seen = setting.get()
        setting.set(f"changed by {n}")
        return seen

    token = setting.set("the caller's")
    assert bounded_map(work, [0, 1], threads=2)[0] == "the caller's"
    assert setting.get() == "the caller's"
    setting.reset(token)


def test_fewer_than_one_thread_is_refused():
    with pytest.raises(InputError, match="threads"):
        bounded_map(lambda n: n, [1], threads=0)
