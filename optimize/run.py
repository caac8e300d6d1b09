"""The state of one compilation, and how its programs are made, evaluated and paid for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.ledger import Cost
from querywright.models.lm import engine_of
from querywright.optimize.evaluate import DEFAULT_METRICS, Evaluation, Progress, evaluate
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.results import OBJECTIVE_METRICS, Arm, CompileSettings
from querywright.programs import RAG, make_program, make_reader, technique_class
from querywright.retrieval.rerank import Reranker

T = TypeVar("T")


@dataclass(slots=True)
class Run:
    """The state of one compilation; arms stand in the order in which they were tried."""

    technique: str
    splits: Splits
    retriever: Any
    lm: dspy.LM
    reader: str | None
    knobs: Mapping[str, Any]
    settings: CompileSettings
    progress: Progress | None
    reader_check: Sequence[Question] = ()
    reranker: Reranker | None = None
    arms: list[Arm] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    tried: dict[str, Arm] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def program(self, technique: str, *, reads: bool, knobs: Mapping[str, Any]) -> RAG:
        """A program of this compilation; ``reads`` says whether it has the reader."""
        reranker = self.reranker if technique_class(technique).USES_RERANKER else None
        retriever = self.retriever
        if technique_class(self.technique).ENGINE and not technique_class(technique).ENGINE:
            retriever = getattr(retriever, "plain", retriever)  # no rewriting does without the technique's own index
        return make_program(technique, retriever, reader=self.reader if reads else None, reranker=reranker, **knobs)

    def evaluate(self, program: RAG, questions: Sequence[Question], name: str) -> Evaluation:
        """A program's results on questions, under the compilation's settings."""
        return evaluate(
            program,
            questions,
            lm=self.lm,
            name=name,
            metrics=DEFAULT_METRICS,
            threads=self.settings.threads,
            max_failures=self.settings.max_failures,
            progress=self.progress,
        )

    def fits(self, name: str, work: Callable[[], T]) -> T | None:
        """The result, or None (and the arm noted as failed) when too many prompts did not fit the LM's context."""
        try:
            return work()
        except TooManyFailuresError as error:
            if set(error.kinds) != {"prompt_too_long"}:
                raise
            self.failed[name] = str(error)
            return None

    def stage(self, name: str, work: Callable[[], T]) -> T:
        """The result of a stage, whose cost is entered also when it ends early."""
        ledger = engine_of(self.lm).ledger
        before = ledger.total
        try:
            return work()
        finally:
            self.costs[name] = self.costs.get(name, Cost()) + (ledger.total - before)

    def say(self, what: str) -> Callable[[int, int], None] | None:
        """What to call with how much of some work is done."""
        if self.progress is None:
            return None
        progress = self.progress
        return lambda done, total: progress(what, done, total)


def check(run: Run) -> None:
    """Refuse what cannot be compiled, before anything is asked.

    Raises:
        InputError: The data cannot carry the objective, or a name or value is wrong.
    """
    settings = run.settings
    if settings.objective not in OBJECTIVE_METRICS:
        known = ", ".join(OBJECTIVE_METRICS)
        raise InputError(f"the objective must be one of {known}, but got {settings.objective!r}")
    for what in ("n_trials", "threads"):
        if getattr(settings, what) < 1:
            raise InputError(f"{what} must be 1 or more, but got {getattr(settings, what)}")
    if not 0 <= settings.max_failures <= 1:
        raise InputError(f"max_failures is a share from 0 to 1, but got {settings.max_failures}")
    technique = technique_class(run.technique)
    if "max_passages" not in {knob.name for knob in technique.KNOBS}:
        raise InputError(f"{run.technique} finds no passages, so there is nothing to compile; choose a technique")
    technique(None, reranker=run.reranker, **run.knobs)
    if run.reader is not None:
        make_reader(run.reader)
    for name, part in zip(("train", "dev", "test"), run.splits, strict=True):
        if not part:
            raise InputError(f"the {name} split is empty; give more questions or another share")
    seen = {mark for part in run.splits for question in part for mark in _marks(question)}
    shared = []
    for question in run.reader_check:
        shared += [question.id] if seen & _marks(question) else []
        seen |= _marks(question)
    if shared:
        raise InputError(
            "a question of reader_check must not stand in train, dev or test, nor twice, by id or text, but these do: "
            f"{', '.join(sorted(shared))}; leave them out"
        )
    if run.reader_check and run.reader is None:
        raise InputError("reader_check needs a reader; give one, or no reader_check")
    if settings.objective != "accuracy" and not any(question.evidence for question in run.splits.dev):
        raise InputError(
            f"the objective {settings.objective} needs labelled evidence, but no dev question has any; "
            "use the objective accuracy"
        )
    if settings.objective != "decision_useful":
        if run.reader is None:
            raise InputError(f"the objective {settings.objective} needs a reader")
        if not any(question.answer for question in run.splits.dev):
            raise InputError(f"the objective {settings.objective} needs answers, but no dev question has one")


def _marks(question: Question) -> set[tuple[str, ...]]:
    """What makes a question the same as another: its id, or its text and options."""
    text = " ".join(question.question.casefold().split())
    return {("id", question.id), ("text", text, *sorted(question.options))}
