"""The drivers: the same coroutine in threads and in an event loop, its errors and its order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest
from dspy.lm15 import Message, Request

from querywright.models.response_parsing import text_response
from querywright.models.transcript import Transcript, transcribed
from querywright.programs.steps import Call, Record, Step, Together, drive, drive_async

BOTH = pytest.mark.parametrize(
    "run", [drive, lambda work, log: asyncio.run(drive_async(work, log))], ids=["threads", "event loop"]
)


def noted(value, name="note"):
    return Call(lambda: value, lambda result, stage: Record("search", name, stage, {}, result))


def fails():
    raise LookupError("gone")


@BOTH
def test_an_error_reaches_the_coroutine_which_may_go_on_or_be_closed(run):
    closed = []

    async def goes_on():
        try:
            await Call(fails)
        except LookupError as error:
            return await noted(f"after {error}")

    async def ends():
        try:
            await noted(1)
            await Together([noted(2), Call(fails), noted(3)])
        finally:
            closed.append(True)

    log = []
    assert run(goes_on(), log) == "after gone"
    assert [(record.stage, record.made) for record in log] == [(2, "after gone")]
    with pytest.raises(LookupError, match="gone"):
        run(ends(), log := [])
    assert ([record.made for record in log], closed) == ([1], [True])


@BOTH
@pytest.mark.parametrize("count", [0, 9])
def test_steps_side_by_side_wait_together_and_keep_their_order(run, count):
    # In threads it breaks unless all are under way at the same time; an event loop's own threads are few.
    barrier = threading.Barrier(max(count, 1) if run is drive else 1)

    def work_of(number):
        def work():
            barrier.wait(timeout=60)
            time.sleep(0.002 * (count - number))
            return number

        return work

    async def work():
        return await Together([Call(work_of(number)) for number in range(count)])

    assert run(work(), []) == list(range(count))


@BOTH
def test_a_transcript_has_calls_side_by_side_in_the_order_of_their_steps(run):
    def asks(name, seconds=0.0):
        def answer(request):
            time.sleep(seconds)
            return text_response(name, "stop", "m", 1, 1)

        return Call(lambda: transcribed(answer, Request(model="m", messages=(Message.user(f"{name}?"),))))

    async def work():
        await asks("first")
        await Together([asks("slow", 0.1), asks("quick"), asks("between", 0.05)])
        await asks("last")

    with Transcript() as transcript:
        run(work(), [])
    run(work(), [])  # nobody listens
    told = transcript.exchanges
    assert [one.answer for one in told] == ["first", "slow", "quick", "between", "last"]
    assert [one.messages for one in told] == [(("user", f"{one.answer}?"),) for one in told]
    assert {one.predictor for one in told} == {""}


def test_a_step_that_hangs_holds_up_neither_the_error_of_another_nor_the_process():
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "seen\n", done.stderr


def test_when_one_fails_the_others_end_in_an_event_loop_and_none_begins_in_threads():
    ended, begun = [], []

    class Slow(Step):
        async def run_async(self):
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(True)

    async def work():
        with pytest.raises(LookupError):
            await Together([Slow(), Call(fails), Slow()])
        return list(ended)

    def fails_and_tells():
        begun.append(True)
        raise LookupError

    assert asyncio.run(drive_async(work(), [])) == [True, True]
    with pytest.raises(LookupError):
        Together([Call(fails_and_tells) for _ in range(200)]).run()
    assert len(begun) <= 33  # those that were under way in their threads
