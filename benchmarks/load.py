"""Measure the time from process start to an artifact's first answer, as a ratio to the time that its models need.

Usage: python benchmarks/load.py [--runs 5] [--lm embedded] [--engine dense] [--json]

The denominator is the time that any program with these models needs: ``import dspy``, opening the embedder and
embedding one text, and opening the LM and answering the reader's request once. The numerator is the time for
``querywright.load`` and the artifact's first answer, which opens the same models and the collection, verifies every
byte, searches, and calls the reader. Each run is a separate process, the two kinds of run alternate, no answers or
vectors are cached, and the medians are compared. The technique is plain retrieval, so that both kinds send the LM
exactly the same single request. The output also has the ratio of CPU time, which depends less on how busy the machine
is.

The ``loopback`` LM is a server on this machine without latency (benchmarks/loopback.py). With the ``bm25`` engine,
there is no embedder. Aim: at most 1.3 with the embedded models. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LINE = "answered"
QUESTION = "Which home blood pressure reading should be written down?"

_FLOOR = """
import dspy
if {dense}:
    from querywright.models.embedder import resolve_embedder
    resolve_embedder("embedded").encode([{question!r}])
from querywright.models.lm import resolve_lm
import pickle
resolve_lm({lm!r}, **{options!r})(pickle.loads({request!r}))
"""
_LOAD = """
import querywright
lm = {lm!r}
if {options!r}:
    from querywright.models.lm import resolve_lm
    lm = resolve_lm(lm, **{options!r})
answer = querywright.load({artifact!r}, lm=lm, home={home!r})({question!r}).answer
assert isinstance(answer, str)
"""
_DSPY = "import dspy"
_IMPORT = "import querywright; querywright.load"


@dataclass(frozen=True)
class Result:
    """Medians, in seconds since the process started.

    Args:
        load: Time to the artifact's first answer.
        floor: Time to import ``dspy`` and get one answer from each model.
        dspy: Time to import ``dspy``.
        imported: Time to import ``querywright.load``, before anything is opened.
        load_work: CPU seconds of the process that loads the artifact.
        floor_work: CPU seconds of the process that uses only the models.
        runs: Number of runs of each kind.
    """

    load: float
    floor: float
    dspy: float
    imported: float
    load_work: float
    floor_work: float
    runs: int

    @property
    def ratio(self) -> float:
        """The ratio of the loading time to the time that the models alone need."""
        return self.load / self.floor

    @property
    def work(self) -> float:
        """The ratio of the CPU time for loading to the CPU time that the models alone need."""
        return self.load_work / self.floor_work


@dataclass(frozen=True)
class Bench:
    """The artifact to load, and the scripts to run.

    Args:
        home: The workspace.
        artifact: The artifact's folder.
        scripts: The script for each kind of process.
    """

    home: Path
    artifact: Path
    scripts: dict[str, str]


def build(home: Path, *, lm: str, engine: str, url: str | None) -> Bench:
    """Index the sample, and save a program that searches it: plain retrieval with a reader.

    Args:
        home: The workspace.
        lm: Name of the LM.
        engine: The search engine, ``dense`` or ``bm25``.
        url: URL of the LM's server; None for an LM in the process.
    """
    from typing import cast

    from querywright.data import load_sample
    from querywright.models.embedder import resolve_embedder
    from querywright.models.lm import resolve_lm
    from querywright.optimize.artifacts.files import write_artifact
    from querywright.programs import make_program
    from querywright.retrieval.engines import Engine, open_retriever
    from querywright.retrieval.index import build_collection

    embedder: Any = resolve_embedder("embedded") if engine == "dense" else _Unused()
    build_collection("sample", load_sample().passages, embedder=embedder, home=home)
    retriever = open_retriever("sample", engine=engine, embedder=embedder if engine == "dense" else None, home=home)
    program = make_program("plain", retriever, reader="short_answer")
    options = {"api_base": url, "api_key": "none"} if url else {}
    opened = resolve_lm(lm, **options)  # type: ignore[arg-type]
    write_artifact(
        home / "artifact", program, lm=opened.model, embedder=embedder.id if engine == "dense" else None,
        collection="sample", engine=cast(Engine, engine), reranker=None, fingerprint=retriever.fingerprint,
        created="2026-01-02", made={}, golden=[], card="# Benchmark\n",
    )  # fmt: skip
    if url is None:
        opened("Say a word.")  # re-encodes the packaged model before the measured runs
    asked = pickle.dumps(_first_request(program, opened))
    given = {
        "lm": lm, "options": options, "request": asked, "question": QUESTION, "dense": engine == "dense",
        "artifact": str(home / "artifact"), "home": str(home),
    }  # fmt: skip
    scripts = {"load": _LOAD.format(**given), "floor": _FLOOR.format(**given), "dspy": _DSPY, "imported": _IMPORT}
    return Bench(home, home / "artifact", scripts)


def _first_request(program: Any, lm: Any) -> Any:
    """Return the first LM request of a program, without sending it."""
    from querywright.optimize.contexts import asking

    class Asked(Exception):  # noqa: N818
        pass

    class Refusing:
        supports_response_schema = lm.engine.supports_response_schema
        supported_params = lm.engine.supported_params
        decides_by_likelihood = lm.engine.decides_by_likelihood

        def complete(self, request: Any) -> Any:
            raise Asked(request)

    try:
        with asking(lm.copy(engine=Refusing())):
            program(question=QUESTION)
    except Exception as error:  # noqa: BLE001 - DSPy wraps it
        cause = error
        while not isinstance(cause, Asked):
            assert cause.__cause__ is not None
            cause = cause.__cause__  # type: ignore[assignment]
        return cause.args[0]
    raise RuntimeError("the program made no LM call")


class _Unused:
    """An embedder for a collection whose vectors are never searched."""

    id, dimension = "unused", 2

    def encode(self, texts: Sequence[str], /) -> Any:
        """Return the same vector for each text."""
        import numpy as np

        return np.tile(np.array([1, 0], dtype=np.float32), (len(texts), 1))


def seconds(bench: Bench, kind: str) -> tuple[float, float]:
    """Run a script in a new process without cached results; return the elapsed seconds and the CPU seconds.

    Raises:
        RuntimeError: The script failed.
    """
    for path in bench.home.glob("store.sqlite*"):
        path.unlink()
    script = f"{bench.scripts[kind]}\nprint({LINE!r}, flush=True)"
    environment = {**os.environ, "QUERYWRIGHT_HOME": str(bench.home)}
    worked, began, ended = _work(), time.perf_counter(), 0.0
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == LINE:
                ended = time.perf_counter()
    if not ended or process.returncode:
        raise RuntimeError(f"the {kind!r} process failed with exit status {process.returncode}, or printed no answer")
    return ended - began, _work() - worked


def _work() -> float:
    """Return the CPU seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(bench: Bench, runs: int) -> Result:
    """Return the medians of alternating runs.

    Args:
        bench: The artifact and the scripts.
        runs: Number of runs of each kind.
    """
    for kind in ("floor", "load"):  # not measured: warms the file cache
        seconds(bench, kind)
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in bench.scripts}
    for _ in range(runs):
        for kind in bench.scripts:
            taken[kind].append(seconds(bench, kind))
    times = {kind: statistics.median(time for time, _ in pairs) for kind, pairs in taken.items()}
    work = {f"{kind}_work": statistics.median(work for _, work in taken[kind]) for kind in ("load", "floor")}
    return Result(**times, **work, runs=runs)


def main(arguments: Sequence[str] | None = None) -> Result:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each kind (default: 5)")
    parser.add_argument("--lm", default="embedded", help="embedded, loopback, or gguf:PATH (default: embedded)")
    parser.add_argument("--engine", choices=("dense", "bm25"), default="dense", help="engine (default: dense)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    server: AbstractContextManager[str | None] = nullcontext()
    if given.lm == "loopback":
        from loopback import Loopback

        server, given.lm = _Address(Loopback(0.0)), "openai/bench"
    with tempfile.TemporaryDirectory() as folder, _working_in(folder), server as url:
        result = measure(build(Path(folder), lm=given.lm, engine=given.engine, url=url), given.runs)
    if given.json:
        print(json.dumps({**asdict(result), "ratio": result.ratio, "work": result.work}))
    else:
        print(
            f"load to first answer: {result.load:.2f} s, {result.ratio:.2f} times as long as importing dspy and "
            f"loading the models ({result.floor:.2f} s); CPU time: {result.work:.2f} times as much; import dspy: "
            f"{result.dspy:.2f} s; import querywright.load: {result.imported:.2f} s; medians of {result.runs} "
            "alternating runs"
        )
    return result


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Re-encode the packaged model in this folder, not in a workspace in the current folder."""
    before = os.environ.get("QUERYWRIGHT_HOME")
    os.environ["QUERYWRIGHT_HOME"] = folder
    try:
        yield
    finally:
        os.environ.pop("QUERYWRIGHT_HOME")
        if before is not None:
            os.environ["QUERYWRIGHT_HOME"] = before


class _Address(AbstractContextManager[str | None]):
    """The loopback server, used through its URL."""

    def __init__(self, server: AbstractContextManager[object]) -> None:
        self._server = server

    def __enter__(self) -> str | None:
        return str(getattr(self._server.__enter__(), "url", ""))

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
