"""Time every technique with a fixed-latency LM, and the same work in other libraries, as ratios within one run.

Usage: python benchmarks/techniques.py [--latency 0.2] [--questions 100] [--concurrency 32] [--json]
       python benchmarks/techniques.py --part libraries --rounds 5     (make bench-peers)

The time of a run is compared with its critical path: sequential LM stages x latency x questions / concurrency, where
stages are the stages that actually ran. A ratio of 1 would mean that only the LM takes time and no thread is ever idle.
Two bounds limit the speed of a run: ``floor`` is the ratio if only the LM took time (100 questions take four rounds of
32, not 3.125), and ``busy`` is the ratio if only CPU work took time (the CPU time of a cold run divided by the number
of processors). A ``cold`` run embeds every query; a ``cached`` run is a second run with known vectors. The time of a
cold run beyond its floor is split into wall-clock seconds for embedding, searching, and the rest. Embedding and
searching include waits for the processor and for other threads; they are summed over the threads and divided by the
number of threads. The rest is the work of querywright, DSPy, and the client. It can be below 0, because a thread that
has no question in the last round may have waited longer in earlier rounds.

The part ``comparison`` compares four arms with a reader, in addition to closed book and oracle evidence,
``--concurrency`` questions at a time. Its critical path is calls x latency / concurrency (aim: 1.3 at 2 s, 20
questions, 64 at a time).

With ``--judged``, the same LM labels each passage that a technique found, in parallel. The critical path then counts
all calls, of which ``--concurrency`` run in parallel.

Aims at 0.2 s: 1.8 cold, 1.35 cached, 1.4 judged; at 1 s: 1.25 cold. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dspy
from loopback import Counts, Loopback, sentence
from measured import Material, OneByOne, TimedEmbedder, TimedRetriever, material
from peers import MAX_PASSAGES, PEERS, WORDINGS, Setting

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import metric_named
from querywright.models.circuit_breaker import Limits
from querywright.models.embedder import EMBEDDED_PACKAGE, Embedder, TextEmbedder, resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.optimize.comparison import compare
from querywright.optimize.evaluate import evaluate
from querywright.pool import bounded_map
from querywright.programs import RAG, TECHNIQUES, make_program
from querywright.retrieval.index import build_collection

HOTPOTQA = Path(__file__).resolve().parents[2] / "shared" / "data" / "hotpotqa"
PARTS = ("techniques", "comparison", "libraries", "embedding")
ARMS = ("plain", "hyde", "multi_query", "hcqr")
NAMES = [name for name, kind in TECHNIQUES.items() if kind.ENGINE is None]
"""Techniques that search passages; techniques that search a question index are left out."""


@dataclass(frozen=True)
class Bench:
    """The setup that all runs share.

    Args:
        server: The LM server.
        lm: The LM object through which querywright calls the server.
        material: Passages and questions; the first question is only a warm-up.
        retriever: The retriever for the passages.
        embedder: The retriever's embedder.
        concurrency: Number of questions that run at a time.
    """

    server: Loopback
    lm: dspy.LM
    material: Material
    retriever: TimedRetriever
    embedder: TimedEmbedder
    concurrency: int

    @property
    def questions(self) -> tuple[Question, ...]:
        """All questions except the first."""
        return self.material.questions[1:]


@dataclass(frozen=True)
class Run:
    """The time and work of one run over the questions.

    Args:
        wall: Wall-clock seconds.
        calls: LM calls per question.
        embedded: Texts embedded per question.
        searched: Queries searched per question.
        embedding: Wall-clock seconds that a thread embeds or waits for embedding, averaged over the threads.
        searching: Wall-clock seconds that a thread searches the index or waits for a search, averaged over the threads.
        cpu: CPU seconds of this process.
        failures: Number of questions that failed.
    """

    wall: float
    calls: float
    embedded: float
    searched: float
    embedding: float
    searching: float
    cpu: float
    failures: int = 0


@dataclass(frozen=True)
class Result:
    """The result for a technique or a library: a cold run, and a run with cached embeddings.

    Args:
        name: Name of the technique or library.
        stages: LM stages per question that actually ran.
        path: Length of the critical path, in seconds.
        floor: The ratio of a run in which only the LM takes time.
        cold: The first run.
        cached: The second run, with the vectors from the first.
    """

    name: str
    stages: float
    path: float
    floor: float
    cold: Run
    cached: Run

    def ratio(self, run: Run) -> float | None:
        """Return wall time divided by the critical path; None if no LM is called."""
        return run.wall / self.path if self.path else None

    def busy(self, run: Run) -> float | None:
        """Return the ratio if all processors did only this process's work and the LM took no time."""
        return run.cpu / (os.cpu_count() or 1) / self.path if self.path else None

    def rest(self, run: Run) -> float:
        """Return the wall-clock seconds beyond the LM's floor, embedding, and searching."""
        return run.wall - self.path * self.floor - run.embedding - run.searching

    def to_json(self) -> dict[str, Any]:
        """Return the result, including the ratios, as a JSON object."""
        runs = {
            name: {**asdict(run), "ratio": self.ratio(run), "busy": self.busy(run), "rest": self.rest(run)}
            for name, run in (("cold", self.cold), ("cached", self.cached))
        }
        return {"name": self.name, "stages": self.stages, "path": self.path, "floor": self.floor, **runs}


@contextmanager
def bench(
    *, latency: float, questions: int, concurrency: int, passages: int, data: Path | None, embedder: TextEmbedder,
    home: Path | None = None, model: str = "openai/bench",
) -> Iterator[Bench]:  # fmt: skip
    """Run the server with a collection during the ``with`` block, in a temporary folder unless ``home`` is given."""
    made = material(data, passages, questions + 1)
    with tempfile.TemporaryDirectory() as folder, Loopback(latency) as server:
        home = Path(folder) if home is None else home
        say(f"embedding {made.source}")
        build_collection("bench", made.passages, embedder=embedder, home=home, prune=True)
        timed = TimedEmbedder(embedder)
        retriever = TimedRetriever("bench", embedder=timed, home=home)
        lm = resolve_lm(model, api_base=server.url, api_key="x", limits=Limits(at_once=concurrency))
        yield Bench(server, lm, made, retriever, timed, concurrency)
        lm.engine.close()


class Watched:
    """A program that records the number of LM stages for each question."""

    def __init__(self, program: RAG) -> None:
        self.reader = program.reader
        self.stages: dict[str, int] = {}
        self._program = program

    def __call__(self, question: str, options: Sequence[str]) -> dspy.Prediction:
        """Run the program, and return its prediction; it gets the options if it needs them."""
        needed = options if self._program.technique.NEEDS_OPTIONS else None
        prediction: dspy.Prediction = self._program(question=question, options=needed)
        taken = {step.stage for step in prediction.steps if step.kind == "lm"}
        self.stages[question] = len(taken) + (self.reader is not None)
        return prediction


def run_technique(bench: Bench, name: str, *, reader: str | None = None, judged: bool = False, **knobs: Any) -> Result:
    """Run a technique over all questions twice; with ``judged``, an LM labels its passages, without people's labels."""
    watched = Watched(make_program(name, bench.retriever, reader=reader, **knobs))
    program: Any = watched
    judge = {"metrics": {"judged_useful": metric_named("judged_useful")}} if judged else {}

    def run(questions: Sequence[Question]) -> int:
        asked = [replace(one, evidence={}) for one in questions] if judged else questions
        threads = bench.concurrency
        return sum(evaluate(program, asked, lm=bench.lm, name=name, threads=threads, **judge).failures.values())

    run(bench.material.questions[:1])
    watched.stages.clear()
    cold = _timed(bench, bench.embedder, lambda: run(bench.questions))
    stages = [watched.stages.get(question.question, 0) for question in bench.questions]
    if judged:  # each question has many calls, which fill each other's gaps
        stages = [1] * bench.server.counts().calls or [0]
    cached = _timed(bench, bench.embedder, lambda: run(bench.questions), cached=True)
    return _result(bench, name, stages, cold, cached)


def run_library(bench: Bench, name: str, embedder: TimedEmbedder) -> Result:
    """Run the same work (four queries and a short answer) in another library, twice.

    Raises:
        ImportError: The library is not installed.
    """

    def search(queries: list[str]) -> list[list[str]]:
        lists = bench.retriever.search_vectors(embedder.encode(queries), MAX_PASSAGES)
        return [[hit.passage.content for hit in hits] for hits in lists]

    answers = PEERS[name](Setting(bench.server.url, search, bench.concurrency))

    def run(questions: Sequence[Question]) -> int:
        return sum(not answer for answer in answers([question.question for question in questions]))

    run(bench.material.questions[:1])
    cold = _timed(bench, embedder, lambda: run(bench.questions))
    cached = _timed(bench, embedder, lambda: run(bench.questions), cached=True)
    return _result(bench, name, [2] * len(bench.questions), cold, cached)


def run_comparison(bench: Bench, *, judged: bool = False) -> str:
    """Run a comparison of arms with the vectors from a first run; return a one-line summary."""
    programs = {name: make_program(name, bench.retriever, reader="short_answer") for name in ARMS}
    metrics = {name: metric_named(name) for name in ("exact_match", *(["judged_useful"] if judged else []))}
    asked = [replace(one, evidence={}) for one in bench.questions] if judged else bench.questions

    def run() -> int:
        compare(programs, asked, lm=bench.lm, metrics=metrics, threads=bench.concurrency)
        return 0

    run()
    found = _timed(bench, bench.embedder, run, cached=True)
    calls = bench.server.counts().calls
    path = calls * bench.server.latency / bench.concurrency
    return (
        f"{len(ARMS)} arms x {len(asked)} questions, {bench.concurrency} threads: {calls} LM calls of "
        f"{bench.server.latency:g} s; {found.wall:.2f} s, {found.wall / path:.2f} times the critical path of "
        f"{path:.2f} s (at most {bench.server.counts().most} calls in parallel; {found.cpu:.1f} s of CPU time)"
    )


def _timed(bench: Bench, embedder: TimedEmbedder, work: Callable[[], int], *, cached: bool = False) -> Run:
    bench.server.forget()
    embedder.cached = cached
    clocks = embedder.clock, bench.retriever.clock
    before = [(clock.seconds, clock.items) for clock in clocks]
    cpu, began = time.process_time(), time.perf_counter()
    failures = work()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    (embedding, embedded), (searching, searched) = (
        (clock.seconds - seconds, clock.items - items) for clock, (seconds, items) in zip(clocks, before, strict=True)
    )
    count = len(bench.questions)
    threads = min(bench.concurrency, count)
    return Run(
        wall=wall,
        calls=bench.server.counts().calls / count,
        embedded=embedded / count,
        searched=searched / count,
        embedding=embedding / threads,
        searching=searching / threads,
        cpu=cpu,
        failures=failures,
    )


def _result(bench: Bench, name: str, stages: Sequence[int], cold: Run, cached: Run) -> Result:
    threads = min(bench.concurrency, len(stages))
    ends = [0] * threads
    for taken in stages:
        heapq.heapreplace(ends, ends[0] + taken)
    path = sum(stages) / threads
    floor = max(ends) / path if path else 1.0
    return Result(name, statistics.mean(stages), path * bench.server.latency, floor, cold, cached)


def embedding_ratio(embedder: Embedder, *, threads: int, texts: int = 1024, rounds: int = 3) -> float:
    """Return the median ratio of embedding throughput: many threads with four texts per call to one large ``encode``.

    Args:
        embedder: An embedder without a cache, so that each text is embedded every time.
        threads: Number of threads that embed at the same time.
        texts: Number of distinct texts, a multiple of 4.
        rounds: Number of rounds, each of which measures both.
    """
    lines = [sentence(number) for number in range(texts)]
    fours = [lines[start : start + 4] for start in range(0, texts, 4)]
    ratios = []
    for number in range(rounds + 1):
        large = _seconds(lambda: embedder.encode(lines))
        apart = _seconds(lambda: bounded_map(embedder.encode, fours, threads=threads))
        if number:  # the first round warms up
            ratios.append(large / apart)
    return statistics.median(ratios)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _one_by_one() -> TimedEmbedder:
    """Return the embedded model, used the way other libraries use it."""
    import importlib.util

    from sentence_transformers import SentenceTransformer

    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return TimedEmbedder(OneByOne("plain", SentenceTransformer(str(Path(spec.origin).parent / "model"))))


HEAD = (
    f"{'':32}{'LM':>6}{'LM':>6}{'path':>7}{'cold':>14}{'cached':>14}{'cold: s of the wall':>24}{'CPU':>7}\n"
    f"{'':32}{'stages':>6}{'calls':>6}{'s':>7}{'s':>7}{'ratio':>7}{'s':>7}{'ratio':>7}"
    f"{'embed':>8}{'search':>8}{'rest':>8}{'ms/q':>7}{'floor':>7}{'busy':>7}"
)


def line(result: Result, count: int) -> str:
    """Return a row for the table under ``HEAD``."""
    cold, cached = result.cold, result.cached
    ratios = [result.ratio(cold), result.ratio(cached), result.floor if result.path else None, result.busy(cold)]
    one, two, floor, busy = (f"{'-' if ratio is None else format(ratio, '.2f'):>7}" for ratio in ratios)
    failed = cold.failures + cached.failures
    return (
        f"{result.name:32}{result.stages:6.2f}{cold.calls:6.1f}{result.path:7.2f}{cold.wall:7.2f}{one}"
        f"{cached.wall:7.2f}{two}{cold.embedding:8.2f}{cold.searching:8.2f}{result.rest(cold):8.2f}"
        f"{1000 * cold.cpu / count:7.1f}{floor}{busy}" + (f"  {failed} FAILED" if failed else "")
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--latency", type=float, default=0.2, help="latency of an LM call, in seconds (default: 0.2)")
    made.add_argument("--questions", type=int, default=100, help="number of questions, at least 3 (default: 100)")
    made.add_argument(
        "--concurrency", type=int, default=32, help="number of questions to run in parallel (default: 32)"
    )
    made.add_argument("--passages", type=int, default=2000, help="number of passages in the collection (default: 2000)")
    made.add_argument(
        "--data",
        type=Path,
        default=HOTPOTQA,
        help=f"folder with corpus.jsonl and questions.jsonl (default: {HOTPOTQA})",
    )
    made.add_argument("--home", type=Path, help="folder to keep for the next run (default: a temporary folder)")
    made.add_argument(
        "--model",
        default="openai/bench",
        help="model name of the LM (default: openai/bench); openai/gpt-4o-mini gets a schema",
    )
    made.add_argument(
        "--reader", choices=("short_answer", "multiple_choice"), help="reader, which adds an LM stage (default: none)"
    )
    made.add_argument("--judged", action="store_true", help="also judge passages with the LM")
    made.add_argument("--technique", action="append", choices=NAMES, help="run only this technique; repeatable")
    made.add_argument("--part", action="append", choices=PARTS, help="run only this part; repeatable")
    made.add_argument("--rounds", type=int, default=1, help="number of rounds over the libraries (default: 1)")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main() -> None:
    options = parser().parse_args()
    parts = options.part or (["techniques"] if options.technique else PARTS)
    embedder = resolve_embedder("embedded")
    report: dict[str, Any] = {
        "options": {key: value for key, value in vars(options).items() if key not in {"data", "home"}}
    }
    report["machine"] = {"processors": os.cpu_count(), "load": os.getloadavg()[0]}
    say(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before the run")
    with bench(
        latency=options.latency, questions=options.questions, concurrency=options.concurrency,
        passages=options.passages, data=options.data, embedder=embedder, home=options.home, model=options.model,
    ) as ready:  # fmt: skip
        ready.server.forget()
        overhead = ready.server.overhead(options.concurrency)
        counts = ready.server.counts()
        report |= {"material": ready.material.source, "server": {"overhead": overhead, **asdict(counts)}}
        show = print if not options.json else say
        show(_heading(options, ready, overhead, counts))
        if "techniques" in parts:
            report["techniques"] = []
            show(f"\nTechniques, {'with ' + options.reader if options.reader else 'no reader'}\n{HEAD}")
            for name in options.technique or NAMES:
                result = run_technique(ready, name, reader=options.reader, judged=options.judged)
                report["techniques"].append(result.to_json())
                show(line(result, len(ready.questions)))
        if "comparison" in parts:
            report["comparison"] = run_comparison(ready, judged=options.judged)
            show(f"\nComparison\n{report['comparison']}")
        if "libraries" in parts:
            show(f"\nThe same work, {WORDINGS + 1} queries and a short answer\n{HEAD}")
            found: list[Result] = []
            for _ in range(options.rounds):
                for result in _libraries(ready, show):
                    found.append(result)
                    show(line(result, len(ready.questions)))
            report["libraries"] = [result.to_json() for result in found]
            if options.rounds > 1:
                show(_spread(found, options.rounds))
    if "embedding" in parts:
        report["embedding_ratio"] = embedding_ratio(embedder, threads=options.concurrency)
        show(
            f"\nTexts embedded per second by {options.concurrency} threads, four texts at a time, compared with one "
            f"large call: {report['embedding_ratio']:.2f} (aim: at least 0.8)"
        )
    if options.json:
        print(json.dumps(report, indent=2))


def _libraries(ready: Bench, show: Callable[[str], None]) -> Iterator[Result]:
    ours = run_technique(ready, "multi_query", reader="short_answer", n_queries=WORDINGS)
    yield Result("querywright multi_query", ours.stages, ours.path, ours.floor, ours.cold, ours.cached)
    embedder = _one_by_one()
    for name in PEERS:
        try:
            yield run_library(ready, name, embedder)
        except ImportError as error:
            show(f"{name:33} skipped, not installed ({error}): pip install -c constraints.txt --group bench")


def _spread(found: Sequence[Result], rounds: int) -> str:
    """Return each library's ratios over all rounds: median, minimum, and maximum."""
    lines = [f"\nWall time over critical path, {rounds} rounds: median (minimum to maximum)"]
    for name in dict.fromkeys(one.name for one in found):
        said = ""
        for kind in ("cold", "cached"):
            ratios = [one.ratio(getattr(one, kind)) or 0.0 for one in found if one.name == name]
            said += f"   {kind} {statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"{name:32}{said}")
    return "\n".join(lines)


def _heading(options: argparse.Namespace, ready: Bench, overhead: float, counts: Counts) -> str:
    return (
        f"{len(ready.questions)} questions, {ready.concurrency} in parallel, LM latency {ready.server.latency:g} s, "
        f"{ready.material.source}, {os.cpu_count()} processors\n"
        f"loopback server, {ready.concurrency} calls in parallel: {1000 * overhead:.1f} ms per call above its latency, "
        f"{1000 * counts.cpu / counts.calls:.2f} ms of CPU time per call"
    )


if __name__ == "__main__":
    main()
