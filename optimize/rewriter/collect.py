"""The first stage: several rewrites a question, by an LM, the evidence or a study, of which the best are learnt from.

What is learnt is always the prompt that the trained model will be given and an answer that it could write: rewrites of
another LM, or made with other prompts, are put into that form, searched again in it, and scored so. A collection that
was ended begins again and finds the answers of the LM in the store.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

import dspy

from querywright.data.splits import asked_of
from querywright.data.types import Question
from querywright.metrics.dspy_metrics import METRICS
from querywright.models.cached import stored_only
from querywright.models.engine_errors import NotStoredError
from querywright.optimize.dspy_context import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import failure_kind
from querywright.optimize.pool import bounded_map
from querywright.optimize.rewriter.canonical import has_empty_list, json_text
from querywright.optimize.rewriter.episodes import run_episodes
from querywright.optimize.rewriter.evidence import Writer, passage_pairs, taught_by_evidence
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.settings import Given, TrainSettings, check_collecting, teacher_name
from querywright.optimize.rewriter.study_arms import study_arms
from querywright.optimize.rewriter.types import Episode, Scored, Turn
from querywright.programs import RAG
from querywright.programs.qb_rag import QBRAG
from querywright.retrieval.replay import searched_by

LEAST_RIGHT = 500
"""Pairs that right answers must give; with fewer, a token F1 of .5 is enough."""
_AT_A_TIME = 16  # questions between two reports of progress


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected.

    Args:
        pairs: Those that were kept, in the order of the questions.
        questions: Train questions.
        answered: Those with a rewrite that could be scored, or that a passage was learnt with.
        questions_kept: Those with a pair.
        measure: What ``plain`` and ``best`` are means of, over the answered questions; empty where nothing is
            searched, as for the questions of passages.
        plain: Of the question as it was written; NaN where nothing was scored.
        best: Of the best rewrite.
        arms: Arms of a study that were looked at.
        missing: Answers to questions, over all arms of a study, that were not kept whole and are left out.
    """

    pairs: Sequence[Pair]
    questions: int
    answered: int
    questions_kept: int
    measure: str = ""
    plain: float = math.nan
    best: float = math.nan
    arms: int = 0
    missing: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    """The rewrites of one question: the best, the rewards of all, how many were missing, and what is learnt."""

    plain: float
    rewards: Sequence[float]
    missing: int
    best: Scored | None = None
    right: float = 0.0
    f1: float = 0.0
    pairs: Sequence[Pair] = ()


def collect(settings: TrainSettings, given: Given, *, progress: Progress | None = None) -> Collected:
    """Collects the teacher's rewrites of the train questions.

    For a reward by what is found, a question's best rewrite is kept where it beats the plain question; for one that
    reads answers, where the answer is right, or has a token F1 of .5 where right ones are too few.

    Args:
        settings: Of the training that they are for; its stages do not matter.
        given: What with; there must be a teacher.
        progress: Called as questions are done.

    Raises:
        InputError: Something given is wrong or missing.
        QuerywrightError: An LM is out of reach, or its calls are used up; what it answered is in the store.
    """
    check_collecting(settings, given)
    teacher, train = given.teacher, given.splits.train
    if settings.technique == QBRAG.NAME:
        return _asked_of_passages(settings, given)
    work = _Collection(settings, given, str(teacher_name(teacher)), progress)
    if teacher is None or isinstance(teacher, str):
        found = work.reward.found if work.reward.name == "retrieval" else None

        def rewards(writers: Sequence[Writer]) -> list[Sequence[float]]:
            return [line.rewards for line in work.lines(train, writers)]

        writer = taught_by_evidence(work.program.technique, train, rewards, found, progress)
        return work.collected(work.lines(train, [writer]), every=True)
    writers = [_writer(work.program, _sampling(teacher, settings, n)) for n in range(settings.candidates)]
    return work.collected(work.lines(train, writers))


def collect_from_study(settings: TrainSettings, given: Given, *, progress: Progress | None = None) -> Collected:
    """Takes the rewrites that a study's LM wrote, from the answers that were kept; the LM is not asked.

    Every arm of the technique that the study tried is run again on the train questions, with its prompts and
    demonstrations. What it wrote is scored in the program's own prompts, like the rewrites of ``collect``.

    Args:
        settings: Of the training; ``candidates`` and ``temperature`` are the study's affair.
        given: What with; there must be a study.
        progress: Called as questions are done.

    Raises:
        InputError: There is no such study, it tried no arm of the technique, or it met none of the questions.
    """
    study: Any = given.study
    with study_arms(study, settings.technique, home=given.home) as arms:
        work = _Collection(settings, given, f"study:{arms.name}", progress)
        writers = [partial(_if_stored, _writer(arm, arms.lm)) for arm in arms.programs]
        lines = work.lines(arms.met(given.splits.train), writers)
        missing = sum(line.missing for line in lines)
        return replace(work.collected(lines), arms=len(writers), missing=missing)


class _Collection:
    """Rewrites on their way to pairs; ``source`` says who writes."""

    def __init__(self, settings: TrainSettings, given: Given, source: str, progress: Progress | None) -> None:
        self.settings, self.source, self.progress = settings, source, progress
        self.program = given.program(settings)
        self.lm = given.reader_lm if settings.recipe.needs_reader else None
        self.data = given.collection
        recipe = replace(settings.recipe, length_penalty=0.0)  # there is no length to aim at yet
        self.reward = Reward(recipe, self.program, metric=settings.metric, lm=self.lm, threads=settings.threads)

    def lines(self, questions: Sequence[Question], writers: Sequence[Writer]) -> list[_Line]:
        """What the writers write for each question, and what it is worth."""
        lines: list[_Line] = []
        for start in range(0, len(questions), _AT_A_TIME):
            lines += self._batch(questions[start : start + _AT_A_TIME], writers)
            if self.progress is not None:
                self.progress("collect", len(lines), len(questions))
        return lines

    def collected(self, lines: Sequence[_Line], *, every: bool = False) -> Collected:
        """The pairs of the questions whose best rewrite is good enough, or of every one that has any."""
        scored = [line for line in lines if line.best is not None]
        kept = scored
        if not every and self.reward.needs_reader:
            kept = [line for line in scored if line.right == 1.0]
            if sum(len(line.pairs) for line in kept) < LEAST_RIGHT:
                kept = [line for line in scored if line.right == 1.0 or line.f1 >= 0.5]
        elif not every:
            kept = [line for line in scored if self._beats(line)]
        pairs = [pair for line in kept for pair in line.pairs]
        both = [(line.plain, line.best.value) for line in scored if line.best and not math.isnan(line.plain)]
        return Collected(
            pairs,
            questions=len(lines),
            answered=len(scored),
            questions_kept=len({pair.question for pair in pairs}),
            measure=self.reward.metric if self.reward.name == "retrieval" else self.reward.name,
            plain=fmean(plain for plain, _ in both) if both else math.nan,
            best=fmean(value for _, value in both) if both else math.nan,
        )

    def _batch(self, questions: Sequence[Question], writers: Sequence[Writer]) -> list[_Line]:
        places = [(question, write) for question in questions for write in writers]
        found: list[Any] = bounded_map(lambda one: one[1](one[0]), places, threads=self.settings.threads)
        for one in found:
            if isinstance(one, Exception) and failure_kind(one) is None:
                raise one
        written = [place for place, one in enumerate(found) if isinstance(one, list)]

        def answer(turns: Sequence[Turn]) -> list[str]:
            texts = [found[written[turn.place]] for turn in turns]
            return [
                mine[turn.number] if turn.number < len(mine) else "" for turn, mine in zip(turns, texts, strict=True)
            ]

        episodes = run_episodes(
            self.program,
            [places[place][0] for place in written],
            answer,
            lm=self.lm,
            settings=self.settings.limits,
            threads=self.settings.threads,
        )
        scored = dict(zip(written, zip(episodes, self.reward.score(episodes), strict=True), strict=True))
        plains, each = self.reward.plain_values(questions), range(len(writers))
        return [
            self._line(plain, [(place * len(writers) + n) for n in each], scored, found)
            for place, plain in enumerate(plains)
        ]

    def _line(
        self, plain: float, mine: Sequence[int], scored: dict[int, tuple[Episode, Scored]], found: Sequence[Any]
    ) -> _Line:
        rewards = [scored[place][1].reward if place in scored else math.nan for place in mine]
        missing = sum(found[place] is None for place in mine)
        known = [scored[place] for place in mine if place in scored and not math.isnan(scored[place][1].reward)]
        if not known:
            return _Line(plain, rewards, missing)
        episode, best = max(known, key=lambda one: (*self._answered(one[0]), one[1].reward))
        right, f1 = self._answered(episode)
        return _Line(plain, rewards, missing, best, right, f1, self._pairs(episode, best))

    def _answered(self, episode: Episode) -> tuple[float, float]:
        """Whether a reader's answer is right, and its token F1: a right answer is chosen before one of more reward."""
        if not self.reward.needs_reader:
            return 0.0, 0.0
        example, said = episode.question.to_example(), episode.prediction
        right, f1 = METRICS["accuracy"](example, said), METRICS["token_f1"](example, said)
        return float(right == 1.0), 0.0 if right == 1.0 or math.isnan(f1) else f1

    def _beats(self, line: _Line) -> bool:
        if line.best is None or math.isnan(line.plain):
            return False
        if self.settings.ties and line.best.value == line.plain > 0:
            return line.best.reward >= 0
        return line.best.value > line.plain and line.best.reward > 0

    def _pairs(self, episode: Episode, score: Scored) -> list[Pair]:
        return [
            Pair(
                question=episode.question.id,
                technique=self.settings.technique,
                number=turn.number,
                messages=turn.messages,
                text=text,
                reward=score.reward,
                source=self.source,
                data=self.data,
                asked=asked_of(episode.question),
            )
            for turn, text in zip(episode.turns, episode.read, strict=True)
            # The grammar of the embedded LM has no empty list, so none can be learnt.
            if text is not None and not (self.settings.limits is not None and has_empty_list(text))
        ]


def _asked_of_passages(settings: TrainSettings, given: Given) -> Collected:
    """What people asked of passages, for the writer of their questions."""
    train: Any = given.splits.train
    pairs = passage_pairs(train, searched_by(given.retriever), data=given.collection, limits=settings.limits)
    asked = {one for pair in pairs for one in pair.asked.split()}
    learnt = sum(asked_of(question) in asked for question in train)
    return Collected(pairs, len(train), learnt, learnt)


def _sampling(lm: dspy.LM, settings: TrainSettings, number: int) -> dspy.LM:
    """The LM for one of several rewrites; a seed makes it another draw than the others, and the same one tomorrow."""
    if number == 0:
        return lm
    sampling: dict[str, Any] = {"temperature": settings.temperature}
    if "seed" in getattr(lm, "supported_params", ()):
        sampling["seed"] = settings.seed * 1000 + number
    return lm.copy(**sampling)


def _writer(program: RAG, lm: dspy.LM) -> Writer:
    """Runs a technique with an LM, and gives what the LM wrote."""
    mine = copy.deepcopy(program)
    for predictor in mine.technique.predictors():
        predictor.lm = lm

    def write(question: Question) -> list[str]:
        with asking(lm), mine.choosing():
            made = mine.technique(question=question.question, options=list(question.options))
        steps = [step for step in made.steps if step.kind == "lm"]
        return ["" if step.made is None else json_text(step.made) for step in steps]

    return write


def _if_stored(write: Writer, question: Question) -> list[str] | None:
    """What was written before; None where an answer was not kept."""
    try:
        with stored_only():
            return write(question)
    except NotStoredError:
        return None
