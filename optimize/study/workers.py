"""More workers of a study on this machine: the same run, started again in processes of their own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from querywright.errors import BudgetError

ANSWERS_SECONDS = 60.0
"""How long a worker that met the end of the budget waits for answers that are paid for."""

STOPPED_SECONDS = 1.0
"""The same for a worker that is stopped; Ctrl-C is to end everything within two seconds."""

GRACE_SECONDS = 10.0
"""How long workers may take to see that a study has ended, or to stop."""

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def workers_beside(count: int, folder: Path, storage: str, home: Path | None) -> Iterator[None]:
    """Further workers for the time of the ``with`` block, which take part in the study as it does.

    A worker that is killed costs nothing: the others take up its trial. All of them end with this process. The address
    of the storage, which may hold a password, goes over a pipe and not over the command line.

    Args:
        count: How many; 0 for none.
        folder: The study's.
        storage: Where trials are kept.
        home: The working folder.
    """
    order: dict[str, Any] = {"folder": str(folder.resolve()), "storage": storage}
    order["home"] = None if home is None else str(home.resolve())
    started: list[subprocess.Popen[bytes]] = []
    patience = 0.0
    try:
        for number in range(2, 2 + count):
            started.append(_start({**order, "name": str(number)}))
        yield
        patience = GRACE_SECONDS
    except BudgetError:
        patience = ANSWERS_SECONDS
        raise
    finally:
        said = [_ended(one, patience) for one in started]
        for text in filter(None, said if patience == GRACE_SECONDS else ()):
            logger.warning("a worker ended early: %s", text)


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "querywright.optimize.study.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its workers
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # one that was killed is seen later
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process


def _ended(process: subprocess.Popen[bytes], patience: float) -> str:
    """Stop a worker by the end of its standard input; gives the last line that it said if it failed by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    ended = process.poll()
    try:
        _, said = process.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
    return said.decode("utf-8", "replace").strip().rpartition("\n")[2] if ended else ""


def main() -> int:
    """Take part in the study that standard input names, until that ends."""
    from querywright.optimize.pool import let_work_end
    from querywright.optimize.study.engine import resume_study

    order = json.loads(sys.stdin.readline())

    def stop() -> None:
        sys.stdin.read()  # nothing more comes; it ends when the parent stops this worker, or is gone
        let_work_end(STOPPED_SECONDS)
        os._exit(1)

    threading.Thread(target=stop, daemon=True, name="querywright-study").start()
    home = None if order["home"] is None else Path(order["home"])
    try:
        resume_study(Path(order["folder"]), storage=order["storage"], home=home, name=order["name"])
    except BudgetError:
        let_work_end(ANSWERS_SECONDS)  # the parent says that it is spent
    return 0


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # threads may still be inside a model
