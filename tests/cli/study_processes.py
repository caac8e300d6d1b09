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
from types import SimpleNamespace
from typing import Any, ClassVar

from querywright.optimize.study.engine import snapshot

PATIENCE = 300.0
"""Seconds that a test waits for a process at most."""


class Command:
    """``querywright study ...`` in a process, and in a process group, of its own."""

    started: ClassVar[list[Command]] = []

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "querywright", "study", *map(str, arguments)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, start_new_session=True, **pipes)
        self.started.append(self)

    @classmethod
    def end_all(cls) -> None:
        for one in cls.started:
            with one.process:
                one.process.kill()

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
        return alive([int(one) for one in text.split()])

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so; the command must not end before."""
        wait_for(lambda: condition() or not self.runs)
        assert self.runs, self.end().err

    def interrupt(self) -> None:
        """Ctrl-C: the terminal signals the process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()

    def end(self) -> Any:
        out, err = self.process.communicate(timeout=PATIENCE)
        return SimpleNamespace(status=self.process.returncode, out=out, err=err, text=out + err)


def alive(numbers: list[int]) -> list[int]:
    """Those of the worker processes that still run."""

    def command_line(number: int) -> bytes:
        try:
            return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            return b""

    return [one for one in numbers if b"study resume" in command_line(one)]


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} seconds"
        time.sleep(0.005)


def forget_answers(home: Path) -> None:
    """Leave vectors in the working folder, so that processes need no embedder, and forget LM answers and searches."""
    with sqlite3.connect(home / "store.sqlite", timeout=300) as store:
        store.execute("DELETE FROM querywright_entries WHERE kind = 'lm' OR kind LIKE 'ranking:%'")
    store.close()


def table(folder: Path, storage: str | None = None) -> list[dict[str, Any]]:
    """All that a study found, trial by trial, but for what a clock, the store and the names of workers say."""
    kept = ("number", "state", "arm", "params", "values", "same_as", "message")
    return [
        {name: getattr(one, name) for name in kept}
        | {"rows": [(row.id, row.scores, row.passages, row.cost.asked) for row in one.dev.rows]}
        for one in snapshot(folder, storage).trials
    ]


def arms(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What of a table does not rest on the order in which trials ended."""
    return [tuple(one[name] for name in ("number", "state", "arm", "values", "rows")) for one in rows]


def outcome(folder: Path, storage: str | None = None) -> dict[str, Any]:
    """What came of a study, but for what it cost and how it was called."""
    found = dict(snapshot(folder, storage).outcome or {})
    assert found, "the study has no outcome"
    tests = [
        (one["arm"], one["metrics"], [(row["id"], row["scores"], row["answer"]) for row in one["rows"]])
        for one in found["test"]
    ]
    kept = ("recommended", "verdict", "sentence", "arms", "corrected", "comparisons")
    return {**{name: found[name] for name in kept}, "test": tests}


def asked_twice(requests: list[dict[str, Any]]) -> int:
    """Requests that the server had answered, or was answering, before."""
    return sum(count - 1 for count in Counter(json.dumps(one, sort_keys=True) for one in requests).values())
