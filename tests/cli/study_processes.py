"""Studies in processes of their own, as users run them: started, killed, and held against one that nobody disturbed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from querywright.optimize.study.engine import snapshot

PATIENCE = 120.0
"""Seconds that a test waits for a process at most."""


class Ended:
    """What a process left behind."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def text(self) -> str:
        return self.out + self.err


class Command:
    """``querywright study ...`` in a process, and in a process group, of its own."""

    started: ClassVar[list[Command]] = []

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "querywright", "study", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self.started.append(self)

    @classmethod
    def end_all(cls) -> None:
        for one in cls.started:
            with one.process:
                one.kill()

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def workers(self) -> list[int]:
        """Ids of the worker processes that run now."""
        number = self.process.pid
        try:
            text = Path(f"/proc/{number}/task/{number}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(one) for one in text.split() if "study.workers" in command_line(int(one))]

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so; the command must not end before."""
        wait_for(lambda: condition() or not self.runs)
        assert self.runs, self.end().err

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals the process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=PATIENCE)
        return Ended(self.process.returncode, out, err)


def command_line(number: int) -> str:
    """What a process was started with; "" where it has ended."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def alive(numbers: list[int]) -> list[int]:
    """Those of the worker processes that still run."""
    return [one for one in numbers if "study.workers" in command_line(one)]


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} seconds"
        time.sleep(0.005)


def forget_answers(home: Path) -> None:
    """Leave vectors in the working folder, so that processes need no embedder, and forget LM answers and searches."""
    with sqlite3.connect(home / "store.sqlite", timeout=30) as store:
        store.execute("DELETE FROM querywright_entries WHERE kind = 'lm' OR kind LIKE 'ranking:%'")
    store.close()


def table(folder: Path, storage: str | None = None) -> list[dict[str, Any]]:
    """All that a study found, trial by trial, but for what a clock, the store and the names of workers say."""
    return [
        {
            "number": one.number,
            "state": one.state,
            "arm": None if one.arm is None else one.arm.to_json(),
            "params": dict(one.params),
            "late": one.late,
            "values": dict(one.values),
            "same_as": one.same_as,
            "message": one.message,
            "rows": None
            if one.dev is None
            else [(row.id, dict(row.scores), row.passages, row.cost.asked) for row in one.dev.rows],
        }
        for one in snapshot(folder, storage).trials
    ]


def arms(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What of a table does not rest on the order in which trials ended."""
    return [(one["number"], one["state"], one["arm"], one["values"], one["rows"]) for one in rows]


def outcome(folder: Path, storage: str | None = None) -> dict[str, Any]:
    """What came of a study, but for what it cost and how it was called."""
    found = dict(snapshot(folder, storage).outcome or {})
    assert found, "the study has no outcome"
    tests = [
        (one["arm"], one["metrics"], [(row["id"], row["scores"], row["answer"]) for row in one["rows"]])
        for one in found["test"]
    ]
    kept = ("recommended", "verdict", "sentence", "arms", "corrected", "comparisons", "dead_knobs")
    return {**{name: found[name] for name in kept}, "test": tests}


def asked_twice(requests: list[dict[str, Any]]) -> int:
    """Requests that the server had answered, or was answering, before."""
    return sum(count - 1 for count in Counter(json.dumps(one, sort_keys=True) for one in requests).values())


def calls_of_trials(folder: Path) -> int:
    """LM calls that the trials of a study made, its test left out."""
    return sum(one.spent.calls for one in snapshot(folder).trials)


def outcomes(folder: Path) -> int:
    """How often an outcome was written, in a journal."""
    return sum('"outcome":' in line for line in (folder / "journal.log").read_text().splitlines())
