"""The state of one compilation, and how its programs are made, evaluated and paid for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Question
from querywright.models.ledger import Cost
from querywright.models.lm import engine_of
from querywright.optimize.evaluate import DEFAULT_METRICS, Evaluation, Progress, evaluate
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.results import Arm, CompileSettings
from querywright.programs import RAG, make_program

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
    arms: list[Arm] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    tried: dict[str, Arm] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def program(self, technique: str, *, reads: bool, knobs: Mapping[str, Any]) -> RAG:
        """A program of this compilation; ``reads`` says whether it has the reader."""
        return make_program(technique, self.retriever, reader=self.reader if reads else None, **knobs)

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
