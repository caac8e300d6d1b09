"""The drivers: the same coroutine in threads and in an event loop, its errors and its order."""

from __future__ import annotations

import subprocess
import sys


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
