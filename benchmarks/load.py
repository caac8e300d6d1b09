"""From a fresh process to an artifact's first answer, over what its models alone need: a ratio, measured in one run.

Usage: python benchmarks/load.py [--runs 5] [--lm embedded] [--engine dense] [--json]

Beneath the line are ``import dspy``, an embedder opened and one text embedded, an LM opened and the reader's request
answered once: what any program with these models waits for. Above it are ``querywright.load`` and the first answer of
the artifact, which opens the same models, and the collection, checks every byte, searches and reads. Each run is a
process of its own, the two kinds alternate, no answer or vector is stored, and the medians are compared. The
technique is plain retrieval, so that both ask the LM once, and the same. Beside the ratio of time stands that of the
processors' work, which a busy machine disturbs less.

The LM ``loopback`` is a server on this machine without latency (benchmarks/loopback.py); with the engine ``bm25`` there
is no embedder. Aim: 1.3 at most with the embedded models. Run it on a machine that has nothing else to do.
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
    """Medians, in seconds from the start of a process.

    Args:
        load: To the first answer of an artifact.
        floor: To ``import dspy``, and one answer of each model.
        dspy: To ``import dspy``.
        imported: To ``querywright.load``, which opens nothing yet.
        load_work: Seconds of processors from the start to the end of the process that loads.
        floor_work: Of the other.
        runs: Of each.
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
        """Loading over what its models alone need."""
        return self.load / self.floor

    @property
    def work(self) -> float:
        """The same of the processors' work."""
        return self.load_work / self.floor_work


@dataclass(frozen=True)
class Bench:
    """What is loaded.

    Args:
        home: The working folder.
        artifact: The artifact.
        scripts: What each kind of process runs.
    """

    home: Path
    artifact: Path
    scripts: dict[str, str]


def build(home: Path, *, lm: str, engine: str, url: str | None) -> Bench:
    """Index the sample, and save plain retrieval with a reader over it.

    Args:
        home: The working folder.
        lm: Name of the LM.
        engine: How the collection is searched, ``dense`` or ``bm25``.
        url: Address of the LM's server; None for an LM in the process.
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
        opened("Say a word.")  # the packaged model is re-encoded once
    asked = pickle.dumps(_first_request(program, opened))
    given = {
        "lm": lm, "options": options, "request": asked, "question": QUESTION, "dense": engine == "dense",
        "artifact": str(home / "artifact"), "home": str(home),
    }  # fmt: skip
    scripts = {"load": _LOAD.format(**given), "floor": _FLOOR.format(**given), "dspy": _DSPY, "imported": _IMPORT}
    return Bench(home, home / "artifact", scripts)


def _first_request(program: Any, lm: Any) -> Any:
    """What a program asks an LM first, which is not asked."""
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
    raise RuntimeError("the program asked nothing")


class _Unused:
    """An embedder for a collection whose vectors nobody searches."""

    id, dimension = "unused", 2

    def encode(self, texts: Sequence[str], /) -> Any:
        """The same vector for each text."""
        import numpy as np

        return np.tile(np.array([1, 0], dtype=np.float32), (len(texts), 1))


def seconds(bench: Bench, kind: str) -> tuple[float, float]:
    """From the start of a process to the end of its script, and processors' work; nothing was stored before.

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
        raise RuntimeError(f"the process {kind} ended with {process.returncode} and no answer")
    return ended - began, _work() - worked


def _work() -> float:
    """Seconds of processors that ended processes of this one used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(bench: Bench, runs: int) -> Result:
    """Medians of runs that alternate.

    Args:
        bench: What is loaded.
        runs: Of each kind.
    """
    for kind in ("floor", "load"):  # files that are read for the first time
        seconds(bench, kind)
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in bench.scripts}
    for _ in range(runs):
        for kind in bench.scripts:
            taken[kind].append(seconds(bench, kind))
    times = {kind: statistics.median(time for time, _ in pairs) for kind, pairs in taken.items()}
    work = {f"{kind}_work": statistics.median(work for _, work in taken[kind]) for kind in ("load", "floor")}
    return Result(**times, **work, runs=runs)


def main(arguments: Sequence[str] | None = None) -> Result:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of each kind (default: 5)")
    parser.add_argument("--lm", default="embedded", help="embedded, loopback or gguf:PATH (default: embedded)")
    parser.add_argument("--engine", choices=("dense", "bm25"), default="dense", help="default: dense")
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
            f"load to first answer: {result.ratio:.2f} times import dspy and its models alone "
            f"({result.load:.2f} s over {result.floor:.2f} s; processors' work "
            f"{result.work:.2f} times; import dspy {result.dspy:.2f} s, "
            f"querywright.load imported {result.imported:.2f} s; medians of {result.runs} alternating runs)"
        )
    return result


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """The packaged model is re-encoded there, and not in a working folder beside whoever measures."""
    before = os.environ.get("QUERYWRIGHT_HOME")
    os.environ["QUERYWRIGHT_HOME"] = folder
    try:
        yield
    finally:
        os.environ.pop("QUERYWRIGHT_HOME")
        if before is not None:
            os.environ["QUERYWRIGHT_HOME"] = before


class _Address(AbstractContextManager[str | None]):
    """The loopback server by its address."""

    def __init__(self, server: AbstractContextManager[object]) -> None:
        self._server = server

    def __enter__(self) -> str | None:
        return str(getattr(self._server.__enter__(), "url", ""))

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
