"""Workers in processes of their own: each is told by its standard input what it works at."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from querywright.errors import BudgetError, InputError, OutageError, QuerywrightError

DONE, WRONG_INPUT, BUDGET, OUTAGE, FAILED = 0, 2, 3, 4, 5
GRACE_SECONDS = 10.0
"""How long workers have to end when the study is stopped."""

_ERRORS: dict[int, type[QuerywrightError]] = {
    WRONG_INPUT: InputError,
    BUDGET: BudgetError,
    OUTAGE: OutageError,
    FAILED: QuerywrightError,
}


def work_in_processes(folder: Path, storage: str, workers: int, home: Path | None) -> None:
    """Start workers and wait until all have ended.

    A worker that is killed costs nothing: the others take up its trial. The address of the storage, which may hold a
    password, goes over a pipe and not over the command line.

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
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(1, workers + 1):
            order = {
                "folder": str(folder.resolve()),
                "storage": storage,
                "home": None if home is None else str(home.resolve()),
                "name": str(number),
            }
            started.append(_start(order))
        said = [_Listener(one) for one in started]
        statuses = [one.wait() for one in started]
    except BaseException:
        _stop(started)
        raise
    for status, listener in zip(statuses, said, strict=True):
        if status in _ERRORS:
            raise _ERRORS[status](listener.last or "a worker stopped and said nothing")
    if not any(status == DONE for status in statuses):
        last = next((listener.last for listener in said if listener.last), "")
        raise QuerywrightError(
            f"all {workers} workers were killed or failed; run the study again to go on. {last}".strip()
        )


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "querywright.optimize.study.workers"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its workers in order
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(order).encode())
    return process


class _Listener:
    """Keeps the last line that a worker wrote to its standard error."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.last = ""
        self._process = process
        self._thread = threading.Thread(target=self._read, daemon=True, name="querywright-study")
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode("utf-8", "replace").strip()
                self.last = text or self.last


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> int:
    """Work at what standard input names; the status tells how it ended."""
    order = json.loads(sys.stdin.read())
    folder = Path(order["folder"])
    _end_with_parent()
    from querywright.optimize.study.engine import open_bench, spec_in, work
    from querywright.optimize.study.storage import open_storage

    try:
        spec = spec_in(folder)
        with open_storage(order["storage"], folder, spec.name) as store:
            home = None if order["home"] is None else Path(order["home"])
            work(open_bench(spec, home, store), store, order["name"])
    except BudgetError as error:
        return _failed(error, BUDGET)
    except OutageError as error:
        return _failed(error, OUTAGE)
    except InputError as error:
        return _failed(error, WRONG_INPUT)
    except QuerywrightError as error:
        return _failed(error, FAILED)
    return DONE


def _end_with_parent() -> None:
    """End when the process that started this one is gone, so that no worker is left behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(1.0)
        os._exit(FAILED)

    threading.Thread(target=watch, daemon=True, name="querywright-study").start()


def _failed(error: Exception, status: int) -> int:
    sys.stderr.write(" ".join(str(error).split()) + "\n")
    return status


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # threads may still be inside a model
