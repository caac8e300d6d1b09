"""Studies as ``study.py`` runs them: a place to work, a study from its questions to its trials, and their clock."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopback import Loopback

from querywright.data import split_questions
from querywright.data.types import Passage, Question
from querywright.models.embedder import Embedder, resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.study.engine import run_study
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.types import TrialRecord
from querywright.retrieval.index import build_collection

COLLECTION = "bench"
KEY = "QUERYWRIGHT_BENCH_KEY"
"""Environment variable with the key of the server here, which takes any."""

TRAIN, TESTED = 1, 6
"""Questions of train and test, which a study has and no part looks at."""


@dataclass(frozen=True)
class Site:
    """Where studies are run: a working folder with a collection, which each study gets a copy of.

    Args:
        folder: Everything is below it.
        server: The LM.
        passages: Of the collection.
        questions: To choose from; their vectors are known.
        embedder: Without the vectors of questions and passages in memory.
        seed: Of the studies.
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
        """The place, its collection built and its model loaded."""
        home = folder / "home"
        store = open_store(home)
        embedder = resolve_embedder("embedded", store=store)
        build_collection(COLLECTION, list(passages), embedder=embedder, home=home)
        embedder.encode([question.question for question in questions])
        store.close()
        return cls(folder, server, passages, questions, resolve_embedder("embedded"), seed)

    @property
    def asked(self) -> Sequence[Question]:
        """Questions to search on."""
        return self.questions[: -TRAIN - TESTED]

    def vectors(self) -> dict[str, Any]:
        """Vectors of the passages by their ids; none is made anew."""
        store = open_store(self.folder / "home")
        made = resolve_embedder("embedded", store=store).encode([passage.content for passage in self.passages])
        store.close()
        return {passage.id: vector for passage, vector in zip(self.passages, made, strict=True)}

    def with_server(self, server: Loopback) -> Site:
        """The same place with another LM."""
        return replace(self, server=server)

    def home(self, name: str) -> Path:
        """A copy of the working folder, where nothing was asked but by an earlier run of the same name."""
        copied, part = self.folder / f"home-{name}", self.folder / f"part-{name}"
        if not copied.exists():
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(self.folder / "home", part)
            part.rename(copied)
        return copied

    def spec(
        self, name: str, questions: Sequence[Question], sizes: Sequence[int], changes: Mapping[str, Any]
    ) -> StudySpec:
        """A study on these questions, so many of which are for train, dev and test."""
        os.environ.setdefault(KEY, "x")
        path = self.folder / f"{name}.jsonl"
        rows = [question.to_json() for question in dealt(questions, sizes, self.seed)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        usual = {"lm": "openai/bench", "api_base": self.server.url, "api_key_env": KEY, "seed": self.seed}
        named = {"name": name, "questions": str(path), "collection": COLLECTION, "sizes": list(sizes)}
        return read_spec({**usual, **named, **changes})


def dealt(questions: Sequence[Question], sizes: Sequence[int], seed: int) -> list[Question]:
    """The first questions with ids by which so many of them fall into train, dev and test.

    Raises:
        ValueError: There are too few.
    """
    if len(questions) < sum(sizes):
        raise ValueError(f"{sum(sizes)} questions are needed, but there are {len(questions)}")
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
    """A trial and the time since the one before it: choosing, trying, writing down.

    Args:
        number: The trial's.
        worker: Who ran it.
        seconds: Since this worker's trial before it ended; of a worker's first, since it began.
        calls: LM calls that it made.
        lm_seconds: Seconds that they took, as the LM's wrapper sees them.
    """

    number: int
    worker: str
    seconds: float
    calls: int
    lm_seconds: float


@dataclass(frozen=True)
class Ran:
    """A study that was run.

    Args:
        trials: Its trials.
        opening: Seconds before the first of them.
        closing: Seconds after the last.
    """

    trials: Sequence[TrialRecord]
    opening: float
    closing: float

    @property
    def calls(self) -> int:
        """LM calls of all trials."""
        return sum(one.spent.calls for one in self.trials)

    @property
    def seconds(self) -> float:
        """From the first trial's beginning to the last one's end."""
        return max(one.ended or 0 for one in self.trials) - min(one.began or 0 for one in self.trials)

    @property
    def walls(self) -> list[Wall]:
        """The trials with their time."""
        found, before = [], dict[str, float]()
        for one in sorted(self.trials, key=lambda one: one.ended or 0):
            assert one.began is not None
            assert one.ended is not None
            seconds = one.ended - before.get(one.worker, one.began)
            before[one.worker] = one.ended
            found.append(Wall(one.number, one.worker, seconds, one.spent.calls, one.spent.seconds))
        return found


def run(
    site: Site, name: str, questions: Sequence[Question], changes: Mapping[str, Any], *, workers: int = 1,
    after: str | None = None,
) -> Ran:  # fmt: skip
    """A study whose dev questions are these; ``after`` another one, whose answers and rankings it finds.

    Raises:
        RuntimeError: A trial failed.
    """
    train, test = site.questions[-TRAIN - TESTED : -TESTED], site.questions[-TESTED:]
    spec = site.spec(name, [*train, *questions, *test], (TRAIN, len(questions), TESTED), changes)
    home = site.home(after or name)
    began = time.time()
    found = run_study(spec, site.folder / f"study-{name}", workers=workers, home=home)
    ended = time.time()
    failed = [one for one in found.trials if one.state not in {"complete", "pruned"}]
    if failed:
        raise RuntimeError(f"trial {failed[0].number} failed: {failed[0].message}")
    first, last = min(one.began or 0 for one in found.trials), max(one.ended or 0 for one in found.trials)
    return Ran(found.trials, first - began, ended - last)


def rate(trials: Sequence[TrialRecord]) -> float:
    """Trials a minute from when every worker has ended its first trial to when one of them ends its last.

    A trial that reaches beyond that counts by the part of it that lies within; one that took the results of another
    does not count.
    """
    asking = [one for one in trials if one.same_as is None]
    ends: dict[str, list[float]] = {}
    for one in asking:
        ends.setdefault(one.worker, []).append(one.ended or 0)
    since = max(min(times) for times in ends.values())
    until = min(max(times) for times in ends.values())
    done = 0.0
    for one in asking:
        assert one.began is not None
        assert one.ended is not None
        done += max(0.0, min(one.ended, until) - max(one.began, since)) / (one.ended - one.began)
    return 60 * done / (until - since) if until > since else float("nan")
