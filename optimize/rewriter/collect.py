"""The first stage: several rewrites per question, by an LM or from the evidence, of which the best are learned from.

A pair is always the prompt that the trained model will be given and an answer that it could write: the teacher's
rewrites are put into that form, searched again in it, and scored so. An interrupted collection starts again and finds
the LM's answers in the cache.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import dspy

from querywright.data.splits import asked_of
from querywright.data.types import Question
from querywright.optimize.dspy_context import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import failure_kind
from querywright.optimize.rewriter.episodes import Episode, Turn, json_text, run_episodes
from querywright.optimize.rewriter.evidence import Writer, passage_pairs, taught_by_evidence
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.rewards import Reward, Scored
from querywright.optimize.rewriter.settings import Given, TrainSettings, check_training, teacher_name
from querywright.pool import bounded_map
from querywright.programs import RAG
from querywright.programs.qb_rag import QBRAG
from querywright.retrieval.replay import searched_by

_AT_A_TIME = 16  # questions between two reports of progress; more if more threads ask


@dataclass(frozen=True, slots=True)
class Collected:
    """The pairs that were kept, in the order of the questions; the number of train questions, of those with a rewrite
    that could be scored (or a passage to learn from), and of those with a pair; and the means of the metric over the
    answered questions, as written (``plain``) and with the best rewrite (``best``). Empty metric: nothing was searched.
    """

    pairs: Sequence[Pair]
    questions: int
    answered: int
    questions_kept: int
    measure: str = ""
    plain: float = math.nan
    best: float = math.nan


class _Line(NamedTuple):
    """The rewrites of one question: its metric as written, all rewards, and the best rewrite with its score."""

    plain: float
    rewards: Sequence[float]
    episode: Episode | None = None
    best: Scored | None = None


def collect(settings: TrainSettings, given: Given, *, progress: Progress | None = None) -> Collected:
    """Collect the teacher's rewrites of the train questions.

    A question's best rewrite is kept if it finds more than the question as it was written.
    """
    check_training(settings, given, collecting=True)
    teacher, train = given.teacher, given.splits.train
    if settings.technique == QBRAG.NAME:
        held: Any = searched_by(given.retriever)
        pairs = passage_pairs(train, held, data=given.collection, limits=settings.limits)
        marks = {one for pair in pairs for one in pair.asked.split()}
        answered = sum(asked_of(question) in marks for question in train)
        return Collected(pairs, len(train), answered, answered)
    work = _Collection(settings, given, progress)
    if teacher is not None and not isinstance(teacher, str):
        writers = [_writer(work.program, _sampling(teacher, settings, n)) for n in range(settings.candidates)]
        return work.collected(work.lines(train, writers))

    def rewards(writers: Sequence[Writer]) -> list[Sequence[float]]:
        return [line.rewards for line in work.lines(train, writers)]

    writer = taught_by_evidence(work.program.technique, train, rewards, work.reward.found, progress)
    return work.collected(work.lines(train, [writer]), every=True)


class _Collection:
    """Turns rewrites into pairs."""

    def __init__(self, settings: TrainSettings, given: Given, progress: Progress | None) -> None:
        self.settings, self.progress, self.data = settings, progress, given.collection
        self.source = str(teacher_name(given.teacher))
        self.program = given.program(settings)
        self.reward = Reward(self.program, settings.metric)

    def lines(self, questions: Sequence[Question], writers: Sequence[Writer]) -> list[_Line]:
        """Return the rewrites of each question by the writers."""
        lines: list[_Line] = []
        step = max(_AT_A_TIME, self.settings.threads)
        for start in range(0, len(questions), step):
            lines += self._batch(questions[start : start + step], writers)
            if self.progress is not None:
                self.progress("collect", len(lines), len(questions))
        return lines

    def collected(self, lines: Sequence[_Line], *, every: bool = False) -> Collected:
        """Return the pairs of the questions with a good rewrite, or of all questions with any."""
        scored = [line for line in lines if line.best is not None]
        pairs = [pair for line in scored if every or self._is_good(line) for pair in self._pairs(line)]
        both = [(line.plain, line.best.value) for line in scored if line.best and not math.isnan(line.plain)]
        plain, best = (fmean(values) for values in zip(*both, strict=True)) if both else (math.nan, math.nan)
        kept = len({pair.question for pair in pairs})
        return Collected(pairs, len(lines), len(scored), kept, self.settings.metric, plain, best)

    def _batch(self, questions: Sequence[Question], writers: Sequence[Writer]) -> list[_Line]:
        places = [(question, write) for question in questions for write in writers]
        found: list[Any] = bounded_map(lambda one: one[1](one[0]), places, threads=self.settings.threads)
        for one in found:
            if isinstance(one, Exception) and failure_kind(one) is None:
                raise one
        written = [place for place, one in enumerate(found) if isinstance(one, list)]

        def answer(turns: Sequence[Turn]) -> list[str]:
            return ["".join(found[written[turn.place]][turn.number : turn.number + 1]) for turn in turns]

        asked = [places[place][0] for place in written]
        given: dict[str, Any] = {"settings": self.settings.limits, "threads": self.settings.threads}
        episodes = run_episodes(self.program, asked, answer, **given)
        scored = dict(zip(written, zip(episodes, self.reward.score(episodes), strict=True), strict=True))
        lines = []
        for number, plain in enumerate(self.reward.plain_values(questions)):
            mine = range(number * len(writers), (number + 1) * len(writers))
            rewards = [scored[place][1].reward if place in scored else math.nan for place in mine]
            known = [scored[place] for place in mine if place in scored and not math.isnan(scored[place][1].reward)]
            best = max(known, key=lambda one: one[1].reward, default=(None, None))
            lines.append(_Line(plain, rewards, *best))
        return lines

    def _is_good(self, line: _Line) -> bool:
        return line.best is not None and line.best.value > line.plain and line.best.reward > 0

    def _pairs(self, line: _Line) -> list[Pair]:
        assert line.episode is not None
        assert line.best is not None
        question, technique = line.episode.question, self.settings.technique
        given = {"reward": line.best.reward, "source": self.source, "data": self.data, "asked": asked_of(question)}
        return [
            Pair(question.id, technique, turn.number, turn.messages, text, **given)  # type: ignore[arg-type]
            for turn, text in zip(line.episode.turns, line.episode.read, strict=True)
            # The grammar of the embedded LM has no empty list.
            if text is not None and not (self.settings.limits is not None and [] in json.loads(text).values())
        ]


def _sampling(lm: dspy.LM, settings: TrainSettings, number: int) -> dspy.LM:
    """Return the LM for one of several rewrites; its seed makes the draw differ from the others and repeatable."""
    if number == 0:
        return lm
    sampling: dict[str, Any] = {"temperature": settings.temperature}
    if "seed" in getattr(lm, "supported_params", ()):
        sampling["seed"] = settings.seed * 1000 + number
    return lm.copy(**sampling)


def _writer(program: RAG, lm: dspy.LM) -> Writer:
    """Return a writer that runs a technique with an LM."""
    mine = copy.deepcopy(program)
    for predictor in mine.technique.predictors():
        predictor.lm = lm

    def write(question: Question) -> list[str]:
        with asking(lm), mine.choosing():
            made = mine.technique(**question.inputs)
        return ["" if step.made is None else json_text(step.made) for step in made.steps if step.kind == "lm"]

    return write
