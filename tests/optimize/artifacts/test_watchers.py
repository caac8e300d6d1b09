"""The thread that tells watchers: bounded, and heard to its end."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

from querywright.optimize.artifacts.watchers import Teller

WATCHING = "querywright.watching"


def test_what_is_too_much_is_counted_and_told_once_until_it_has_caught_up(caplog):
    teller, done = Teller(most=2), []
    with caplog.at_level(logging.WARNING, WATCHING):
        for _ in range(2):
            begun, go = threading.Event(), threading.Event()
            teller.put(lambda begun=begun, go=go: (begun.set(), go.wait(10)))
            assert begun.wait(10)
            for number in range(6):
                teller.put(lambda number=number: done.append(number))
            go.set()
            assert teller.flush(10)
    assert done == [0, 1, 0, 1]
    assert teller.lost == 8
    assert [message.rpartition("; ")[2] for message in caplog.messages] == ["1 lost so far", "5 lost so far"]


AT_EXIT = """
import sys, time
from querywright.optimize.artifacts.watchers import tell_later

def slow(one):
    time.sleep(0.3)
    print(one, flush=True)

tell_later([slow], "the last question")
"""


def test_a_process_that_ends_has_told_everything():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "the last question\n"


FORKS = """
import os
from querywright.optimize.artifacts.watchers import flush, tell_later
tell_later([print], "parent")
assert flush()
if not os.fork():
    tell_later([lambda one: os.write(1, b"child")], None)
    os._exit(0 if flush() else 1)
assert os.wait()[1] == 0
"""


def test_a_forked_process_tells_by_a_thread_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.replace("child", "child\n").split()) == ["child", "parent"]
