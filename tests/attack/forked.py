"""Run commands in forks of one process that has already imported everything, so that each kill needs no new start.

When started as a script, it reads one order per line from standard input, and reports each outcome on standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM = (
    "chromadb", "dspy", "optuna", "pandas", "pyarrow.parquet", "bm25s", "querywright.api",
    "querywright.optimize", "querywright.optimize.artifacts.save",
    "querywright.optimize.study.engine", "querywright.optimize.question_build", "querywright.optimize.report",
    "querywright.optimize.testsets", "querywright.retrieval.chroma_index", "querywright.models.recording",
    "querywright.models.lm", "querywright.models.remote",
)  # fmt: skip


class Forks:
    """The process, as used by a test.

    Args:
        environment: Variables to add to the test's environment.
    """

    def __init__(self, **environment: str) -> None:
        command = [sys.executable, str(Path(__file__))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)

    def start(
        self, folder: Path, *arguments: object, kill: float | None = None, said: Path | None = None, **environment: str
    ) -> None:
        """Start a command in a folder, with ``home`` in that folder as its workspace; kill it after ``kill`` seconds.

        While the command runs, its output is kept in the folder ``said``, by default next to the files that it writes.
        """
        given = {"QUERYWRIGHT_HOME": str(folder / "home"), **environment}
        order = {
            "argv": [*map(str, arguments)],
            "cwd": str(folder),
            "kill": kill,
            "env": given,
            "said": str(said or folder),
        }
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, float, str]:
        """Wait for the command; return its status (negative: the signal that ended it), its seconds, and its output."""
        return tuple(json.loads(self.process.stdout.readline()))

    def run(self, folder: Path, *arguments: object, **given: Any) -> tuple[int, float, str]:
        self.start(folder, *arguments, **given)
        return self.end()

    def close(self) -> None:
        with self.process:
            self.process.stdin.close()


def fork(order: dict[str, Any], words: Any) -> tuple[int, float, str]:
    said = Path(order["said"]) / f"said-{os.getpid()}.txt"
    began, child = time.monotonic(), os.fork()
    if not child:
        status = 70
        try:
            os.setsid()
            os.chdir(order["cwd"])
            os.environ.update(order["env"])
            for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
                os.dup2(os.open(said if number else os.devnull, flags), number)
            os.dup2(1, 2)
            if not order["env"].get("REAL_EMBEDDER"):
                importlib.import_module("querywright.models.embedder")._loader = lambda *_: words
            status = importlib.import_module("querywright.cli.main").run(order["argv"])
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if order["kill"] is not None and time.monotonic() - began >= order["kill"]:
            os.kill(child, signal.SIGKILL)  # it has its own process group only after it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.001)
    text = said.read_text(errors="replace") if said.exists() else ""
    said.unlink(missing_ok=True)
    return os.waitstatus_to_exitcode(ended[1]), time.monotonic() - began, text


def main() -> None:
    words = runpy.run_path(str(Path(__file__).parents[1] / "cli" / "conftest.py"))["WordModel"]
    for name in WARM:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line), words)), flush=True)


if __name__ == "__main__":
    main()
