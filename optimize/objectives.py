"""What a study optimises: measures of quality, which are means over questions, and costs a question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from querywright.data.splits import Splits
from querywright.errors import InputError, unknown
from querywright.metrics.dspy_metrics import METRICS, RANKED, metric_named, needs
from querywright.metrics.judges import JUDGED
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.judge_files import SavedJudge
from querywright.programs import READERS

_LACKING = {
    "answer": "questions with an answer, but no dev question has one",
    "evidence": "labelled evidence, but no dev question has any",
    "options": "questions with options, but no dev question has any",
    "reader": "a reader; give one, or another objective",
    "support": "a reader that names its support, such as grounded",
}
COSTS: Mapping[str, Callable[[Cost], float]] = {
    "lm_calls": lambda cost: float(cost.asked),
    "tokens": lambda cost: float(cost.asked_tokens),
    "seconds": lambda cost: cost.seconds + cost.saved_seconds,
}
"""Costs a question, as if nothing had been stored: what was made and what was saved."""

MEANS = {"both": ("decision_useful", "accuracy")}
"""The metrics whose means an objective is the mean of, where its name is not that of a metric."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing that is optimised: a measure of quality, to be large, or a cost a question, to be small.

    Args:
        name: How it is called in a study's file.
        metrics: The metrics whose mean it is, question by question; none for a cost.
    """

    name: str
    metrics: tuple[str, ...] = ()

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Which way is better."""
        return "maximize" if self.metrics else "minimize"

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.metrics else -1

    @property
    def reads(self) -> bool:
        """Whether it takes a reader, as far as is known; a metric of the user's own may."""
        return any("reader" in needs(metric) or ":" in metric for metric in self.metrics)

    def value(self, evaluation: Evaluation) -> float:
        """Its value; NaN where nothing could be scored."""
        if self.metrics:
            return sum(evaluation.average(metric) for metric in self.metrics) / len(self.metrics)
        return COSTS[self.name](evaluation.cost) / len(evaluation.rows) if evaluation.rows else math.nan

    def scores(self, evaluation: Evaluation) -> dict[str, float]:
        """Its value of each question that every metric could score, by the question's id."""
        found = {
            row.id: sum(row.scores.get(metric, math.nan) for metric in self.metrics) / len(self.metrics)
            for row in evaluation.rows
        }
        return {key: value for key, value in found.items() if not math.isnan(value)}


def objective_named(name: str) -> Objective:
    """The objective of that name.

    ``decision_useful``, ``accuracy``, ``both`` (their mean) and every metric that ``metric_named`` knows, such as
    ``recall@5``, ``judged_useful`` or ``module:function``, are to be large; ``lm_calls``, ``tokens`` and ``seconds``
    are a question's, cold, and to be small.

    Raises:
        InputError: There is none.
    """
    if name in COSTS:
        return Objective(name)
    try:
        if name not in MEANS:
            metric_named(name)
    except InputError:
        if ":" in name:
            raise
        known = dict.fromkeys([*METRICS, *MEANS, *JUDGED, *COSTS, *(f"{one}@K" for one in RANKED)])
        there = unknown("objective", name, [*known, "MODULE:FUNCTION"])
        raise InputError(f"{there} (K from 1 to 1000); a judge, or a saved one's path, is a --judge") from None
    return Objective(name, MEANS.get(name, (name,)))


def objectives_of(names: Sequence[str]) -> tuple[Objective, ...]:
    """The objectives of these names, in their order; it raises what ``objective_named`` raises."""
    return tuple(map(objective_named, names))


def check_objectives(objectives: Sequence[str], splits: Splits, reader: str | None) -> None:
    """Refuse objectives that the questions or the reader, None for none, cannot carry, before anything is spent.

    Raises:
        InputError: A split is empty, or an objective lacks what it needs; all that is lacking at once.
    """
    parts = splits._asdict().items()
    problems = [f"the {name} split is empty; give more questions or other sizes" for name, part in parts if not part]
    there = {what for what in ("answer", "options", "evidence") if any(getattr(one, what) for one in splits.dev)}
    there |= set() if reader is None else {"reader", *(["support"] if READERS[reader].GROUNDED else [])}
    for objective in objectives_of(objectives):
        lacking = sorted({need for metric in objective.metrics for need in needs(metric)} - there)
        problems += [f"the objective {objective.name} needs {_LACKING[need]}" for need in lacking]
    if problems:
        raise InputError("\n".join(problems))


def check_judges(metrics: Iterable[str], judges: Sequence[SavedJudge], *, asks: bool) -> None:
    """Refuse judges, or an LM of theirs, that no metric asks, which a user would take for those that decide.

    Raises:
        InputError: A judge, or their LM, is given and no metric is its.
    """
    if "judged_guideline" in (metrics := list(metrics)):
        raise InputError("judged_guideline takes guidelines, which are frozen for evaluate and compare; take another")
    at_work = {JUDGED[name].NAME for name in metrics if name in JUDGED}
    for one in judges:
        if one.judge.NAME not in at_work:
            mine = " or ".join(one.judge.metrics())
            raise InputError(
                f"no objective asks the judge {one.judge.NAME}; take {mine} as one, or leave the judge out"
            )
    if asks and not at_work:
        raise InputError("no objective asks a judge; take judged_useful as one, or leave the judge's LM out")
