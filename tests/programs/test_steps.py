"""The drivers: the same coroutine in threads and in an event loop, its errors and its order."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from querywright.programs.steps import Call, Step, Together, drive_async


def fails():
    raise LookupError("gone")


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
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
