"""What a study costs beside its LM: replayed trials, workers, overhead, and other searches at equal LM calls.

Usage: python benchmarks/study.py [--part replay] [--latency 0.2] [--trials 50] [--questions 50] [--json]
       python benchmarks/study.py --part equal-calls [--lm embedded] [--home FOLDER] [--json]

replay       trials over the numbers of rag_fusion, against a loop of DSPy, Chroma and Optuna written by hand
             (``by_hand.py``) in three variants. Aim: one LM call a question for all trials. Then the same study again,
             every answer known. Aim: 3 seconds for 50 trials.
big          a trial on 1,000 questions whose answers and rankings are all known. Aim: less than 1 second.
workers      trials a minute of four workers over those of one, where every trial asks anew. Aim: 3.5.
overhead     the share of a trial that is not its LM's; then without the time in the LM's client, and without that of
             embedding and searching, which a trial is for: own code and Optuna. Aim of that: less than 5 per cent.
equal-calls  what a study finds, held against other searches that may ask the LM as often (``contest.py``); it has to be
             named, and takes the LM of ``--lm``. With ``--home`` it goes on where it was stopped.

All but equal-calls ask a server of fixed latency on 127.0.0.1. Everything is a ratio within one run; run it on a
machine that has nothing else to do, whose load is printed. Passages and questions are HotpotQA's where it is beside
the checkout, else made up; workers, overhead and equal-calls take the packaged sample, whose questions have options.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from by_hand import MOST_QUERIES, VARIANTS, Task, search_by_hand
from contest import Contest, contest
from loopback import Loopback
from measured import material, more_questions
from techniques import HOTPOTQA
from trials import TESTED, TRAIN, Site, rate, run

from querywright.data import load_sample
from querywright.data.types import Passage, Question
from querywright.files import write_file
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.types import Hit

PARTS = ("replay", "big", "workers", "overhead", "equal-calls")
PORT = "port"
"""File with the port of the server here, in the folder of ``--home``."""

WORKERS = 4
SEARCHED = {
    "n_queries": {"low": 1, "high": MOST_QUERIES},
    "top_k": {"low": 1, "high": 50},
    "rrf_k": {"low": 1, "high": 200},
    "search_question": [True, False],
    "question_weight": {"low": 0.25, "high": 4.0},
}
"""The numbers of rag_fusion, as ``by_hand.py`` searches them."""

RETRIEVAL = {
    "reader": "none",
    "objectives": ["recall@5"],
    "techniques": {"rag_fusion": {"search": "named", "knobs": SEARCHED}},
    "pruner": "none",
}
READING = {"reader": "multiple_choice", "objectives": ["accuracy"], "fixed": {}, "pruner": "none", "threads": 1}


@dataclass(frozen=True)
class Search:
    """What a search took.

    Args:
        name: Who searched.
        calls: LM calls of all trials.
        seconds: From the first trial's beginning to the last one's end.
        cpu: Seconds of CPU of this process; ours opened the collection, loaded the embedder and met test as well.
        trials: Trials.
        best: The best recall on dev.
    """

    name: str
    calls: int
    seconds: float
    cpu: float
    trials: int
    best: float


def replay(site: Site, options: argparse.Namespace, show: Callable[[str], None]) -> dict[str, Any]:
    """Our trials over numbers, and those of loops written by hand."""
    questions, threads = site.asked[: options.questions], options.threads
    changes = {**RETRIEVAL, "trials": options.trials, "threads": threads, "pruner": options.pruner}
    cpu = time.process_time()
    ran = run(site, "replay", questions, changes)
    cpu = time.process_time() - cpu
    best = max(one.values["recall@5"] for one in ran.trials if one.values)
    ours = Search("querywright", ran.calls, ran.seconds, cpu, len(ran.trials), best)
    floor = math.ceil(len(questions) / threads) * site.server.latency
    show(
        f"\nreplay: {options.trials} trials on {len(questions)} questions, {threads} at a time; only the LM's time: "
        f"{floor:.1f} s\n{'':50}{'LM calls':>9}{'a trial':>9}{'ratio':>7}{'seconds':>9}{'ratio':>7}{'CPU':>7}"
        f"{'recall':>8}"
    )
    show(_searched(ours, ours))
    known = run(site, "replay-known", questions, changes, after="replay")
    show(f"{'the same, every answer known':50}{known.calls:9}{known.seconds:34.1f}")
    vectors = site.vectors()
    asked = [(question.question, frozenset(question.evidence)) for question in questions]
    task = Task(site.server.url, vectors, asked, site.embedder.encode, threads, options.trials, options.seed)
    loops = []
    for variant in VARIANTS:
        site.server.forget()
        cpu = time.process_time()
        looped = search_by_hand(task, variant)
        calls, cpu = site.server.counts().calls, time.process_time() - cpu
        loops.append(Search(variant.name, calls, looped.seconds, cpu, options.trials, looped.best))
        show(_searched(loops[-1], ours))
    first, *others = (one.seconds for one in ran.walls if one.number > 0)
    show(
        f"ours: the first trial that asks, which loads the embedder, {first:.2f} s, another "
        f"{statistics.median(others):.3f} s (median); opening {ran.opening:.1f} s and meeting test {ran.closing:.1f} s "
        "are not counted"
    )
    return {
        "ours": asdict(ours), "known": known.seconds, "floor": floor, "first": first,
        "other": statistics.median(others), "opening": ran.opening, "closing": ran.closing,
        "by hand": [asdict(one) for one in loops],
    }  # fmt: skip


def _searched(one: Search, ours: Search) -> str:
    return (
        f"{one.name:50}{one.calls:9}{one.calls / one.trials:9.1f}{one.calls / ours.calls:7.1f}{one.seconds:9.1f}"
        f"{one.seconds / ours.seconds:7.1f}{one.cpu:7.1f}{one.best:8.2f}"
    )


def big(site: Site, options: argparse.Namespace, show: Callable[[str], None]) -> dict[str, Any]:
    """Trials on many questions, of which all but the first ask nothing."""
    with Loopback(0.01) as quick:
        there = site.with_server(quick)
        questions = more_questions(site.asked, site.passages, options.big_questions)
        changes = {**RETRIEVAL, "trials": 2 + options.big_trials, "threads": options.threads}
        ran = run(there, "big", questions, changes)
    known = [one.seconds for one in ran.walls if one.number > 1 and not one.calls]
    show(
        f"\nbig: a trial on {len(questions)} questions whose answers and rankings are known takes "
        f"{statistics.median(known):.2f} s (median of {len(known)}, {min(known):.2f} to {max(known):.2f}; aim: 1)"
    )
    return {"questions": len(questions), "seconds": known, "median": statistics.median(known)}


def workers(site: Site, options: argparse.Namespace, show: Callable[[str], None]) -> dict[str, Any]:
    """Trials a minute of several workers, and of one."""
    count = options.worker_trials
    plain = {"plain": {"search": "named", "knobs": {"max_passages": list(range(1, count + 1))}}}
    changes = {**READING, "techniques": plain, "trials": count, "sampler": {"name": "random"}}
    show(f"\nworkers: {count} trials on {options.worker_questions} questions; arms that repeat are not counted")
    found: dict[str, Any] = {}
    for number in (1, WORKERS):
        ran = run(site, f"workers-{number}", site.asked[: options.worker_questions], changes, workers=number)
        took = len({one.worker for one in ran.walls})
        found[str(number)] = {
            "a minute": rate([one for one in ran.trials if one.same_as is None]), "calls": ran.calls, "took part": took,
            "seconds": ran.seconds, "opening": ran.opening,
        }  # fmt: skip
        show(
            f"  {took} of {number} at work: {found[str(number)]['a minute']:6.1f} trials a minute, {ran.calls} LM "
            f"calls; {ran.opening:.1f} s until the first trial, which is not counted"
        )
    one, several = (found[str(number)]["a minute"] for number in (1, WORKERS))
    found["ratio"] = several / one
    show(f"  {found['ratio']:.2f} times as many (aim: 3.5)")
    return found


def overhead(site: Site, options: argparse.Namespace, show: Callable[[str], None]) -> dict[str, Any]:
    """The share of trials that is not the LM's, and what of it is no search either."""
    count = options.worker_trials
    plain = {"plain": {"search": "named", "knobs": {"max_passages": list(range(1, count + 1))}}}
    fusion = {"rag_fusion": {"search": "named", "knobs": SEARCHED}}
    found = {}
    show("\noverhead: share of a trial beside its LM calls, one question at a time (aim: 5 %)")
    for name, techniques, sampler in (("plain", plain, "random"), ("rag_fusion", fusion, "tpe")):
        changes = {**READING, "techniques": techniques, "fixed": {}, "trials": count, "sampler": {"name": sampler}}
        with searching() as searched:
            ran = run(site, f"overhead-{name}", site.asked[: options.worker_questions], changes)
        asking = [one for one in ran.walls[2:] if one.calls]  # the first ones open what is opened once
        wall, calls = sum(one.seconds for one in asking), sum(one.calls for one in asking)
        path, client = calls * site.server.latency, sum(one.lm_seconds for one in asking)
        numbers = {one.number for one in asking}
        spans = [(one.began or 0, one.ended or 0) for one in ran.trials if one.number in numbers]
        search = sum(took for at, took in searched if any(began <= at <= ended for began, ended in spans))
        found[name] = {
            "trials": len(asking), "calls": calls, "share": 1 - path / wall, "without client": 1 - client / wall,
            "own": 1 - (client + search) / wall, "a call": (wall - path) / calls,
            "a trial": (wall - path) / len(asking),
        }  # fmt: skip
        share, less, own = (100 * found[name][key] for key in ("share", "without client", "own"))
        show(
            f"  {name:12} {share:5.1f} % of {len(asking)} trials, {1000 * found[name]['a call']:.1f} ms a call; "
            f"{less:.1f} % without what the LM's client takes, {own:.1f} % own code and Optuna"
        )
    return found


@contextmanager
def searching() -> Iterator[list[tuple[float, float]]]:
    """When each search of a Chroma collection ended and the seconds it took, its queries' vectors included."""
    taken: list[tuple[float, float]] = []
    search = ChromaRetriever.search

    def timed(self: ChromaRetriever, queries: Sequence[str], k: int) -> list[list[Hit]]:
        began = time.perf_counter()
        hits = search(self, queries, k)
        taken.append((time.time(), time.perf_counter() - began))
        return hits

    ChromaRetriever.search = timed  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        ChromaRetriever.search = search  # type: ignore[method-assign]


def equal_calls(site: Site, options: argparse.Namespace, show: Callable[[str], None]) -> dict[str, Any]:
    """What several searches find at equal LM calls."""
    given = Contest(
        lm=options.lm,
        server=None if options.lm == "embedded" else options.api_base or site.server.url,
        objective=options.objective,
        dev=options.dev,
        test=options.test,
        calls=options.calls,
        most_trials=options.most_trials,
        seed=options.seed,
        threads=1 if options.lm == "embedded" else options.threads,
    )
    return contest(site, given, show)


WORK: Mapping[str, Callable[[Site, argparse.Namespace, Callable[[str], None]], dict[str, Any]]] = {
    "replay": replay,
    "big": big,
    "workers": workers,
    "overhead": overhead,
    "equal-calls": equal_calls,
}


@contextmanager
def opened(options: argparse.Namespace, parts: Sequence[str]) -> Iterator[Callable[[str], Site]]:
    """Gives the place where a part works, its collection built when it is first asked for."""
    with ExitStack() as closing:
        folder = options.home or Path(closing.enter_context(tempfile.TemporaryDirectory()))
        server = closing.enter_context(Loopback(options.latency, port=_port(folder)))
        if options.home is not None and not options.home.joinpath(PORT).exists():
            write_file(options.home / PORT, str(server.port).encode())
        sites: dict[str, Site] = {}

        def site(part: str) -> Site:
            name = "public" if part in {"replay", "big"} else "sample"
            if name not in sites:
                passages, questions, source = _material(name, options)
                say(f"embedding {source}")
                sites[name] = Site.build(folder / name, server, passages, questions, options.seed)
            return sites[name]

        yield site


def _port(folder: Path) -> int:
    """The port that the server here has to have, for an answer is its server's; 0 for any."""
    return int(folder.joinpath(PORT).read_text()) if folder.joinpath(PORT).exists() else 0


def _material(name: str, options: argparse.Namespace) -> tuple[Sequence[Passage], Sequence[Question], str]:
    if name == "sample":
        sample = load_sample()
        return sample.passages, sample.questions, "the packaged sample"
    made = material(options.data, options.passages, options.questions + TRAIN + TESTED)
    return made.passages, made.questions, made.source


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    made.add_argument("--latency", type=float, default=0.2, help="seconds of an LM call (0.2)")
    made.add_argument("--trials", type=int, default=50, help="of replay (50)")
    made.add_argument("--questions", type=int, default=50, help="of replay, 6 or more (50)")
    made.add_argument("--threads", type=int, default=8, help="questions under way at a time, replay and big (8)")
    made.add_argument("--pruner", choices=("none", "paired"), default="none", help="of replay (none, as by hand)")
    made.add_argument("--passages", type=int, default=2000, help="of the collection (2000)")
    made.add_argument("--data", type=Path, default=HOTPOTQA, help=f"corpus.jsonl and questions.jsonl ({HOTPOTQA})")
    made.add_argument("--big-questions", type=int, default=1000, help="(1000)")
    made.add_argument("--big-trials", type=int, default=8, help="that ask nothing (8)")
    made.add_argument("--worker-trials", type=int, default=40, help="of workers and overhead, 50 at most (40)")
    made.add_argument("--worker-questions", type=int, default=10, help="of workers and overhead (10)")
    made.add_argument("--lm", default="embedded", help="of equal-calls: embedded, or openai/bench for the server here")
    made.add_argument("--api-base", help="of equal-calls: another server")
    made.add_argument("--objective", default="decision_useful", help="of equal-calls (decision_useful)")
    made.add_argument("--dev", type=int, default=16, help="questions that equal-calls searches on (16)")
    made.add_argument("--test", type=int, default=40, help="questions that equal-calls tests on (40)")
    made.add_argument("--calls", type=int, help="of each search of equal-calls (as many as MIPROv2 makes)")
    made.add_argument("--most-trials", type=int, default=100, help="of each search of equal-calls (100)")
    made.add_argument(
        "--home", type=Path, help="of equal-calls: kept, so that the same command goes on when it is stopped"
    )
    made.add_argument("--seed", type=int, default=0, help="(0)")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    options = parser().parse_args(arguments)
    parts = [part for part in PARTS if part in (options.part or PARTS[:-1])]
    if options.home is not None:
        if parts != ["equal-calls"]:
            parser().error("--home is for --part equal-calls alone: the others measure what has to be done anew")
        options.home = options.home.expanduser().resolve()
        options.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    show = say if options.json else lambda text: print(text, flush=True)
    shown = {key: value for key, value in vars(options).items() if key not in {"data", "api_base", "home"}}
    report: dict[str, Any] = {"options": shown, "machine": {"processors": os.cpu_count(), "load": {}}}
    with opened(options, parts) as site:
        for part in parts:
            there = site(part)
            load = report["machine"]["load"][part] = os.getloadavg()[0]
            began = time.perf_counter()
            report[part] = WORK[part](there, options, show)
            show(f"({os.cpu_count()} processors, load {load:.1f} before, {time.perf_counter() - began:.0f} s)")
    if options.json:
        print(json.dumps(report, indent=2))
    return report


if __name__ == "__main__":
    main()
