"""The drivers: the same coroutine in threads and in an event loop, its errors, its order and its records."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import dspy
import pytest

from querywright.programs.steps import Call, Record, Step, Together, drive, drive_async

BOTH = pytest.mark.parametrize(
    "run", [drive, lambda work, log: asyncio.run(drive_async(work, log))], ids=["threads", "event loop"]
)


def noted(value, name="note"):
    return Call(lambda: value, lambda result, stage: Record("search", name, stage, {}, result))


def fails():
    raise LookupError("gone")


@BOTH
def test_a_coroutine_gets_what_its_steps_give(run):
    async def work():
        one = await noted(1)
        two, three = await Together([noted(one + 1), noted(one + 2)])
        return one, two, three

    log = []
    assert run(work(), log) == (1, 2, 3)
    assert [(record.stage, record.made) for record in log] == [(1, 1), (2, 2), (2, 3)]


@BOTH
def test_a_coroutine_without_a_step_gives_its_result(run):
    async def work():
        return "done"

    assert run(work(), []) == "done"


@BOTH
def test_an_error_reaches_the_coroutine_which_may_go_on(run):
    async def work():
        try:
            await Call(fails)
        except LookupError as error:
            return await noted(f"after {error}")

    log = []
    assert run(work(), log) == "after gone"
    assert [(record.stage, record.made) for record in log] == [(2, "after gone")]


@BOTH
def test_an_error_that_nobody_takes_goes_up(run):
    async def work():
        await noted(1)
        await Together([noted(2), Call(fails), noted(3)])

    log = []
    with pytest.raises(LookupError, match="gone"):
        run(work(), log)
    assert [record.made for record in log] == [1]


@BOTH
@pytest.mark.parametrize("count", [0, 1, 9])
def test_steps_side_by_side_wait_together_and_keep_their_order(run, count):
    barrier = threading.Barrier(max(count, 1))  # breaks unless all of them are under way at the same time
    if run is not drive:
        barrier = threading.Barrier(1)  # an event loop's own threads are few

    def work_of(number):
        def work():
            barrier.wait(timeout=30)
            time.sleep(0.002 * (count - number))
            return number

        return work

    async def work():
        return await Together([Call(work_of(number)) for number in range(count)])

    assert run(work(), []) == list(range(count))


@BOTH
def test_a_trace_is_in_the_order_of_the_steps(run):
    def entry(number):
        def work():
            time.sleep(0.002 * (5 - number))
            if dspy.settings.trace is not None:
                dspy.settings.trace.append(number)

        return work

    async def work():
        await Together([Call(entry(number)) for number in range(5)])
        await Call(entry(5))

    with dspy.context(trace=["before"]):
        run(work(), [])
        assert dspy.settings.trace == ["before", 0, 1, 2, 3, 4, 5]
    with dspy.context(trace=None):
        run(work(), [])
        assert dspy.settings.trace is None


@BOTH
def test_what_is_left_of_a_coroutine_is_closed(run):
    closed = []

    async def work():
        try:
            await Call(fails)
        finally:
            closed.append(True)

    with pytest.raises(LookupError):
        run(work(), [])
    assert closed == [True]


def test_a_step_that_hangs_holds_up_neither_the_error_of_another_nor_the_process(tmp_path):
    script = (
        "import time\n"
        "from querywright.programs.steps import Call, Together\n"
        "def fails():\n"
        "    raise LookupError('gone')\n"
        "try:\n"
        "    Together([Call(fails), Call(lambda: time.sleep(600)), Call(lambda: time.sleep(600))]).run()\n"
        "except LookupError:\n"
        "    print('seen')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "seen\n", done.stderr


def test_in_an_event_loop_the_others_end_when_one_fails():
    ended = []

    class Slow(Step):
        async def run_async(self):
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(True)

    async def work():
        try:
            await Together([Slow(), Call(fails), Slow()])
        except LookupError:
            return list(ended)

    assert asyncio.run(drive_async(work(), [])) == [True, True]


def test_of_two_errors_the_first_step_s_is_raised_and_no_further_step_begins():
    begun = []

    def fails_as(number):
        def work():
            begun.append(number)
            raise LookupError(str(number))

        return work

    with pytest.raises(LookupError):
        Together([Call(fails_as(number)) for number in range(200)]).run()
    assert len(begun) <= 33  # those that were under way in their threads
