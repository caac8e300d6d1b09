"""Judges at work: cases judged in threads, judges held against people, guidelines frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from querywright.data.judged import Case, Judged
from querywright.data.types import Passage, Question
from querywright.metrics.calibration import Calibration, calibration
from querywright.metrics.guideline import Guideline, Guidelines, GuidelineWriter, write_guideline
from querywright.metrics.judge import Judge
from querywright.models.lm import lm_digest
from querywright.optimize.dspy_context import asking
from querywright.optimize.evaluate import Progress
from querywright.optimize.failures import Failures


@dataclass(frozen=True, slots=True)
class Judgements:
    """The labels that a judge gave.

    Args:
        labels: One a case; None where it was unreadable or failed.
        failed: How many failed.
    """

    labels: tuple[str | None, ...]
    failed: int


def judge_cases(
    judge: Judge,
    cases: Sequence[Case],
    *,
    lm: dspy.LM,
    threads: int = 4,
    deadline: float | None = 300.0,
    max_failures: float = 0.05,
    name: str = "",
    progress: Progress | None = None,
) -> Judgements:
    """The judge's label of each case.

    Args:
        judge: Any judge.
        cases: What is judged, in order.
        lm: An LM made by ``resolve_lm``.
        threads: Cases under way at a time, 1 or more. Default 4.
        deadline: Seconds that one case may take, or None. Default 300.
        max_failures: Share of the cases that may fail, 0 to 1; at least one may unless it is 0. Default 0.05.
        name: What is shown beside the progress. Default the judge's name.
        progress: Called after each case.

    Raises:
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More cases failed than allowed.
        DataError: A case lacks what the judge needs.
    """

    def ask(case: Case) -> str | None:
        with asking(lm):
            return judge.label_of(case)

    failures = Failures(name or judge.NAME, len(cases), max_failures, what="judgements")
    found = failures.map(
        ask, cases, id_of=lambda case: case.question.id, threads=threads, deadline=deadline, progress=progress
    )
    labels = tuple(None if isinstance(one, Exception) else one for one in found)
    return Judgements(labels, sum(isinstance(one, Exception) for one in found))


def calibrate(
    judge: Judge,
    judged: Sequence[Judged],
    *,
    lm: dspy.LM,
    threads: int = 4,
    max_failures: float = 0.05,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Holds a judge against the labels of people.

    Args:
        judge: Any judge.
        judged: Cases with labels of people.
        lm: An LM made by ``resolve_lm``.
        threads: Cases under way at a time, 1 or more. Default 4.
        max_failures: Share of the cases that may fail. Default 0.05.
        seed: Of the resampling. Default 0.
        progress: Called after each case.

    It raises what ``judge_cases`` raises.
    """
    found = judge_cases(
        judge, [one.case for one in judged], lm=lm, threads=threads, max_failures=max_failures, progress=progress
    )
    return calibration_of(judge, judged, found, lm, seed)


def freeze_guidelines(
    frozen: Guidelines,
    questions: Sequence[tuple[Question, Sequence[Passage]]],
    *,
    lm: dspy.LM,
    threads: int = 4,
    max_failures: float = 0.05,
    progress: Progress | None = None,
) -> Guidelines:
    """Guidelines for every question that has none yet; those that are there stay as they are.

    Args:
        frozen: What there is.
        questions: Each question with the passages that answer it, at least one.
        lm: An LM made by ``resolve_lm``, which writes them.
        threads: Questions under way at a time, 1 or more. Default 4.
        max_failures: Share of the questions that may fail. Default 0.05.
        progress: Called after each question.

    Returns:
        All of them. A question whose guideline could not be read is left out.

    Raises:
        DataError: A question has a guideline that was frozen for another text.
        OutageError: The LM is out of reach.
        BudgetError: The limit of calls is reached.
        TooManyFailuresError: More questions failed than allowed.
    """
    missing = [(question, sources) for question, sources in questions if not frozen.holds(question, sources)]
    writer = GuidelineWriter()

    def write(one: tuple[Question, Sequence[Passage]]) -> Guideline | None:
        with asking(lm):
            return write_guideline(writer, *one, lm=lm.model)

    failures = Failures("guidelines", len(missing), max_failures)
    found = failures.map(
        write, missing, id_of=lambda one: one[0].id, threads=threads, deadline=300.0, progress=progress
    )
    new = {q.id: made for (q, _), made in zip(missing, found, strict=True) if isinstance(made, Guideline)}
    return frozen.with_new(new)


def calibration_of(judge: Judge, judged: Sequence[Judged], found: Judgements, lm: dspy.LM, seed: int) -> Calibration:
    """The calibration that judgements of these cases make."""
    return calibration(judge, judged, found.labels, failed=found.failed, seed=seed, lm=lm.model, engine=lm_digest(lm))
