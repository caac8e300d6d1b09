"""Measure a study's overhead: trials over the numeric knobs of rag_fusion, then again with all answers cached.

Usage: python benchmarks/study.py [--latency 0.2] [--trials 50] [--questions 50] [--json]

Aims: one LM call per question for all trials together, and 3 seconds for 50 trials whose answers are cached. The LM is
a server with a fixed latency on 127.0.0.1. Passages and questions come from HotpotQA if it is next to the checkout, and
are generated otherwise. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopback import Loopback
from measured import material
from techniques import HOTPOTQA

from querywright.data import split_questions
from querywright.data.types import Passage, Question
from querywright.models.embedder import Embedder, resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.search.trials import TrialRecord
from querywright.optimize.study.spec import StudySpec, read_spec
from querywright.retrieval.index import build_collection
from querywright.studies import read_data, run_named

COLLECTION = "bench"
KEY = "QUERYWRIGHT_BENCH_KEY"
"""Environment variable with the API key for the server, which accepts any key."""

TRAIN, TESTED = 1, 6
"""Number of train and test questions. A study must have them, but this benchmark does not use them."""

SEARCHED = {
    "n_queries": {"low": 1, "high": 4},
    "top_k": {"low": 1, "high": 50},
    "rrf_k": {"low": 1, "high": 200},
    "search_question": [True, False],
    "question_weight": {"low": 0.25, "high": 4.0},
}
"""The ranges of the numeric knobs of rag_fusion."""

RETRIEVAL = {
    "reader": "none",
    "objectives": ["recall@5"],
    "techniques": {"rag_fusion": {"search": "named", "knobs": SEARCHED}},
    "pruner": "none",
}


@dataclass(frozen=True)
class Site:
    """The place where studies run: a workspace with a collection. Each study gets a copy of the workspace.

    Args:
        folder: The folder that contains everything.
        server: The LM server.
        passages: The passages in the collection.
        questions: The questions to choose from; their vectors are cached.
        embedder: The embedder, without vectors of questions and passages in memory.
        seed: Random seed for the studies.
    """

    folder: Path
    server: Loopback
    passages: Sequence[Passage]
    questions: Sequence[Question]
    embedder: Embedder
    seed: int

    @classmethod
    def build(
        cls, folder: Path, server: Loopback, passages: Sequence[Passage], questions: Sequence[Question], seed: int
    ) -> Site:
        """Build the collection, load the model, and return the site."""
        home = folder / "home"
        store = open_store(home)
        embedder = resolve_embedder("embedded", store=store)
        build_collection(COLLECTION, list(passages), embedder=embedder, home=home)
        embedder.encode([question.question for question in questions])
        store.close()
        return cls(folder, server, passages, questions, resolve_embedder("embedded"), seed)

    @property
    def asked(self) -> Sequence[Question]:
        """The questions that studies can use as dev questions."""
        return self.questions[: -TRAIN - TESTED]

    def home(self, name: str) -> Path:
        """Return a copy of the workspace whose only cached LM answers are from an earlier run with the same name."""
        copied, part = self.folder / f"home-{name}", self.folder / f"part-{name}"
        if not copied.exists():
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(self.folder / "home", part)
            part.rename(copied)
        return copied

    def spec(
        self, name: str, questions: Sequence[Question], sizes: Sequence[int], changes: Mapping[str, Any]
    ) -> StudySpec:
        """Return the spec for a study on these questions, with ``sizes`` for train, dev, and test."""
        os.environ.setdefault(KEY, "x")
        path = self.folder / f"{name}.jsonl"
        rows = [question.to_json() for question in dealt(questions, sizes, self.seed)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        usual = {"lm": "openai/bench", "api_base": self.server.url, "api_key_env": KEY, "seed": self.seed}
        named = {"name": name, "questions": str(path), "collection": COLLECTION, "sizes": list(sizes)}
        return read_spec({**usual, **named, **changes})


def dealt(questions: Sequence[Question], sizes: Sequence[int], seed: int) -> list[Question]:
    """Return the first questions, with ids chosen so that the given numbers fall into train, dev, and test.

    Raises:
        ValueError: There are too few questions.
    """
    if len(questions) < sum(sizes):
        raise ValueError(f"this benchmark needs {sum(sizes)} questions, but got {len(questions)}")
    parts = [part for part, size in enumerate(sizes) for _ in range(size)]
    return [_falling(question, part, seed) for part, question in zip(parts, questions, strict=False)]


def _falling(question: Question, part: int, seed: int) -> Question:
    for number in itertools.count():
        made = replace(question, id=f"{question.id}.{number}")
        if split_questions([made], seed=seed)[part]:
            return made
    raise AssertionError


@dataclass(frozen=True)
class Wall:
    """A trial and the time since the previous one, which includes choosing, running, and recording the trial.

    Args:
        number: Number of the trial.
        worker: The worker that ran it.
        seconds: Seconds since the end of this worker's previous trial; for its first trial, since the trial's start.
        calls: Number of LM calls in the trial.
        lm_seconds: Seconds that these calls took, as measured by the LM's wrapper.
    """

    number: int
    worker: str
    seconds: float
    calls: int
    lm_seconds: float


@dataclass(frozen=True)
class Ran:
    """A finished study.

    Args:
        trials: The study's trials.
        opening: Seconds before the first trial.
        closing: Seconds after the last trial.
    """

    trials: Sequence[TrialRecord]
    opening: float
    closing: float

    @property
    def calls(self) -> int:
        """Number of LM calls in all trials."""
        return sum(one.spent.calls for one in self.trials)

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first trial to the end of the last."""
        return max(one.ended or 0 for one in self.trials) - min(one.began or 0 for one in self.trials)

    @property
    def walls(self) -> list[Wall]:
        """The trials with their times."""
        found, before = [], dict[str, float]()
        for one in sorted(self.trials, key=lambda one: one.ended or 0):
            assert one.began is not None
            assert one.ended is not None
            seconds = one.ended - before.get(one.worker, one.began)
            before[one.worker] = one.ended
            found.append(Wall(one.number, one.worker, seconds, one.spent.calls, one.spent.seconds))
        return found


def run(
    site: Site, name: str, questions: Sequence[Question], changes: Mapping[str, Any], *, after: str | None = None
) -> Ran:
    """Run a study with the given dev questions; with ``after``, it reuses the cached results of that earlier study.

    Raises:
        RuntimeError: A trial failed.
    """
    train, test = site.questions[-TRAIN - TESTED : -TESTED], site.questions[-TESTED:]
    spec = site.spec(name, [*train, *questions, *test], (TRAIN, len(questions), TESTED), changes)
    home = site.home(after or name)
    began = time.time()
    found = run_named(read_data(spec), site.folder / f"study-{name}", home=home, tell=print)
    ended = time.time()
    failed = [one for one in found.trials if one.state not in {"complete", "pruned"}]
    if failed:
        raise RuntimeError(f"trial {failed[0].number} failed: {failed[0].message}")
    first, last = min(one.began or 0 for one in found.trials), max(one.ended or 0 for one in found.trials)
    return Ran(found.trials, first - began, ended - last)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--latency", type=float, default=0.2, help="latency of an LM call, in seconds (default: 0.2)")
    made.add_argument("--trials", type=int, default=50, help="number of trials (default: 50)")
    made.add_argument("--questions", type=int, default=50, help="number of questions, at least 6 (default: 50)")
    made.add_argument("--threads", type=int, default=8, help="number of questions to run in parallel (default: 8)")
    made.add_argument("--passages", type=int, default=2000, help="number of passages in the collection (default: 2000)")
    made.add_argument(
        "--data",
        type=Path,
        default=HOTPOTQA,
        help=f"folder with corpus.jsonl and questions.jsonl (default: {HOTPOTQA})",
    )
    made.add_argument("--seed", type=int, default=0, help="seed (default: 0)")
    made.add_argument("--json", action="store_true", help="print JSON")
    options = made.parse_args(arguments)
    found = material(options.data, options.passages, options.questions + TRAIN + TESTED)
    changes = {**RETRIEVAL, "trials": options.trials, "threads": options.threads}
    with tempfile.TemporaryDirectory() as folder, Loopback(options.latency) as server:
        site = Site.build(Path(folder), server, found.passages, found.questions, options.seed)
        questions = site.asked[: options.questions]
        asked = run(site, "asked", questions, changes)
        known = run(site, "known", questions, changes, after="asked")
    first, *others = (one.seconds for one in asked.walls if one.number > 0)
    report = {
        "trials": options.trials, "questions": len(questions), "calls": asked.calls, "seconds": asked.seconds,
        "known calls": known.calls, "known seconds": known.seconds, "first trial": first,
        "median trial": statistics.median(others), "opening": asked.opening, "closing": asked.closing,
        "floor": math.ceil(len(questions) / options.threads) * options.latency,
    }  # fmt: skip
    print(
        json.dumps(report)
        if options.json
        else f"{options.trials} trials on {len(questions)} questions: {asked.calls} LM calls, {asked.seconds:.1f} s "
        f"(LM latency alone: {report['floor']:.1f} s); with all answers cached: {known.calls} LM calls, "
        f"{known.seconds:.1f} s"
    )
    return report


if __name__ == "__main__":
    main()
