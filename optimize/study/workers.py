"""Workers in processes of their own: each is told by its standard input what it works at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from querywright.errors import BudgetError, InputError, OutageError, QuerywrightError

DONE, WRONG_INPUT, BUDGET, OUTAGE, FAILED = 0, 2, 3, 4, 5
GRACE_SECONDS = 10.0
"""How long workers have to end when the study is stopped."""

ANSWERS_SECONDS = 60.0
"""How long a worker that met the end of the budget waits for answers that are paid for."""

STOPPED_SECONDS = 1.0
"""The same for a worker that is stopped; Ctrl-C is to end everything within two seconds."""

LOOK_SECONDS = 0.05
"""Between two looks at whether a worker has ended."""

_ERRORS: dict[int, type[QuerywrightError]] = {
    WRONG_INPUT: InputError,
    BUDGET: BudgetError,
    OUTAGE: OutageError,
    FAILED: QuerywrightError,
}


def work_in_processes(folder: Path, storage: str, workers: int, home: Path | None) -> None:
    """Start workers and wait until all have ended.

    A worker that is killed costs nothing: the others take up its trial. One that fails stops them; one that meets the
    end of the budget does not, for so do they. The address of the storage, which may hold a password, goes over a
    pipe and not over the command line.

    Args:
        folder: The study's.
        storage: Where trials are kept.
        workers: How many.
        home: The working folder.

    Raises:
        BudgetError: A worker met the end of the budget.
        OutageError: The LM is out of reach.
        QuerywrightError: A worker failed, or all of them were killed.
    """
    started: list[_Worker] = []
    try:
        for number in range(1, workers + 1):
            order = {
                "folder": str(folder.resolve()),
                "storage": storage,
                "home": None if home is None else str(home.resolve()),
                "name": str(number),
                "parent": os.getpid(),
            }
            started.append(_Worker(order))
        running = started
        while running:
            time.sleep(LOOK_SECONDS)
            for one in running:
                if one.status is not None and one.status not in (DONE, BUDGET):
                    one.raise_failure()
            running = [one for one in running if one.status is None]
    except BaseException:
        _stop(started)
        raise
    for one in started:
        one.raise_failure()
    if all(one.was_killed for one in started):
        raise QuerywrightError(f"all {workers} workers were killed; run the study again to go on")


class _Worker:
    """A worker's process, and the last line that it wrote to its standard error."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.last = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "querywright.optimize.study.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its workers in order
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:  # one that was killed is seen later
            pipe.write(json.dumps(order).encode())
        self._listener = threading.Thread(target=self._listen, daemon=True, name="querywright-study")
        self._listener.start()

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll()

    @property
    def was_killed(self) -> bool:
        status = self.status
        return status is not None and status < 0

    def raise_failure(self) -> None:
        """Raise what the worker ended with, if it failed.

        Raises:
            QuerywrightError: It did.
        """
        status = self.status
        if status is None or status == DONE or self.was_killed:
            return
        self._listener.join(GRACE_SECONDS)
        raise _ERRORS.get(status, QuerywrightError)(self.last or f"a worker ended with {status} and said nothing")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.last = line.decode("utf-8", "replace").strip() or self.last


def _stop(started: list[_Worker]) -> None:
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for one in started:
        try:
            one.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


class _StoppedError(BaseException):
    """The parent stops this worker."""


def main() -> int:
    """Work at what standard input names; the status tells how it ended."""
    order = json.loads(sys.stdin.read())
    _end_with(order["parent"])
    from querywright.optimize.pool import let_work_end

    try:
        signal.signal(signal.SIGTERM, _stopped)
        status = _work(order)
        if status == BUDGET:
            let_work_end(ANSWERS_SECONDS)
    except _StoppedError:
        let_work_end(STOPPED_SECONDS)
        status = FAILED
    return status


def _work(order: dict[str, Any]) -> int:
    from dspy.utils.exceptions import LMError

    from querywright.optimize.study.engine import work_alone

    home = None if order["home"] is None else Path(order["home"])
    try:
        work_alone(Path(order["folder"]), order["storage"], home, order["name"])
    except BudgetError as error:
        return _failed(error, BUDGET)
    except OutageError as error:
        return _failed(error, OUTAGE)
    except InputError as error:
        return _failed(error, WRONG_INPUT)
    except QuerywrightError as error:
        return _failed(error, FAILED)
    except LMError as error:
        return _failed(f"the LM did not answer: {error}; answers received so far are kept", OUTAGE)
    except OSError as error:
        place = error.filename or "a file of the working folder"
        return _failed(f"{error.strerror}: {place}; make room or make it writable", FAILED)
    return DONE


def _stopped(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _StoppedError


def _end_with(parent: int) -> None:
    """End when the process that started this one is gone, so that no worker is left behind."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(FAILED)

    threading.Thread(target=watch, daemon=True, name="querywright-study").start()


def _failed(error: object, status: int) -> int:
    sys.stderr.write(" ".join(str(error).split()) + "\n")
    return status


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # threads may still be inside a model
