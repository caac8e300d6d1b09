"""Objectives of a search: quality metrics, which are means over questions, and costs per question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import dspy
from dspy.lm15 import Message, Request

from querywright.data.splits import Splits
from querywright.errors import InputError, unknown
from querywright.metrics.dspy_metrics import METRICS, RANKED, metric_named, needs
from querywright.metrics.judges import JUDGED
from querywright.models.lm import engine_of
from querywright.models.response_parsing import text_response
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.judge_files import SavedJudge
from querywright.programs import READERS
from querywright.retrieval.checks import TO_LABEL, helpful

_LACKING = {
    "answer": "questions with an answer, but no dev question has one",
    "evidence": f"labeled evidence, but no dev question has any ({TO_LABEL})",
    "helpful": f"labeled evidence with an ENTAILED or USEFUL passage, but no dev question has any ({TO_LABEL})",
    "options": "questions with options, but no dev question has any",
    "reader": "a reader; add a reader, or use a different objective",
    "support": "a reader that names its supporting passages, such as grounded",
}
COSTS: Mapping[str, Callable[[Cost], float]] = {
    "lm_calls": lambda cost: float(cost.asked),
    "tokens": lambda cost: float(cost.asked_tokens),
    "seconds": lambda cost: cost.seconds + cost.saved_seconds,
    "dollars": lambda cost: cost.dollars + cost.saved_dollars,
}
"""Costs per question, as if no answer had been cached."""

MEANS = {"both": ("decision_useful", "accuracy")}
"""The metrics in an objective that is the mean of several metrics."""


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective: a quality measure to maximize, or a cost per question to minimize.

    Args:
        name: The objective's name in a study file.
        metrics: The metrics that are averaged for each question; empty for a cost.
    """

    name: str
    metrics: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str) -> Objective:
        """Return the objective with a name that was checked before."""
        return cls(name, () if name in COSTS else MEANS.get(name, (name,)))

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Whether the objective is maximized or minimized."""
        return "maximize" if self.metrics else "minimize"

    @property
    def sign(self) -> int:
        """1 if more is better, otherwise -1."""
        return 1 if self.metrics else -1

    @property
    def reads(self) -> bool:
        """Whether the objective needs a reader; a custom metric is assumed to need one."""
        return any("reader" in needs(metric) or ":" in metric for metric in self.metrics)

    def value(self, evaluation: Evaluation) -> float:
        """Return the value of the objective; NaN if no question has a score."""
        if self.metrics:
            return sum(evaluation.average(metric) for metric in self.metrics) / len(self.metrics)
        return COSTS[self.name](evaluation.cost) / len(evaluation.rows) if evaluation.rows else math.nan

    def scores(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the value of each question that every metric scored, by question id."""
        found = {
            row.id: sum(row.scores.get(metric, math.nan) for metric in self.metrics) / len(self.metrics)
            for row in evaluation.rows
        }
        return {key: value for key, value in found.items() if not math.isnan(value)}

    def scored(self, row: Row) -> tuple[bool, ...]:
        """Return which of the objective's metrics have a score for a question."""
        return tuple(not math.isnan(row.scores.get(metric, math.nan)) for metric in self.metrics)

    def paired(self, one: Evaluation, other: Evaluation) -> tuple[Evaluation, Evaluation]:
        """Return both evaluations without the questions that only one of them scored."""
        theirs = {row.id: row for row in other.rows}  # a pruned trial has fewer rows
        rows = [(row, theirs[row.id]) for row in one.rows if row.id in theirs]
        rows = [(a, b) for a, b in rows if self.scored(a) == self.scored(b)]
        mine, others = (tuple(pair[side] for pair in rows) for side in (0, 1))
        return Evaluation(one.name, mine, one.seconds), Evaluation(other.name, others, other.seconds)


def objective_named(name: str) -> Objective:
    """Return the objective with the given name.

    Objectives to maximize are ``decision_useful``, ``accuracy``, ``both`` (their mean), and every metric that
    ``metric_named`` knows, such as ``recall@5``, ``judged_useful`` or ``module:function``. Objectives to minimize are
    the costs per question ``lm_calls``, ``tokens``, ``seconds``, and ``dollars``, as if no answer had been cached.

    Raises:
        InputError: The name is unknown.
    """
    try:
        if name not in COSTS and name not in MEANS:
            metric_named(name)
    except InputError:
        if ":" in name:
            raise
        known = dict.fromkeys([*METRICS, *MEANS, *JUDGED, *COSTS, *(f"{one}@K" for one in RANKED)])
        there = unknown("objective", name, [*known, "MODULE:FUNCTION"])
        raise InputError(
            f"{there} (K from 1 to 1000); a judge is not an objective: pass its name or file with --judge"
        ) from None
    return Objective.of(name)


def objectives_of(names: Sequence[str]) -> tuple[Objective, ...]:
    """Return the objectives with these names, in this order. Raises the same errors as ``objective_named``."""
    return tuple(map(objective_named, names))


def check_objectives(objectives: Sequence[str], splits: Splits, reader: str | None) -> None:
    """Raise if the questions or the reader do not suit the objectives.

    Args:
        objectives: Names of objectives.
        splits: The questions.
        reader: The name of the reader; None if no reader runs.

    Raises:
        InputError: A split is empty, or an objective needs something that is missing. Lists all problems at once.
    """
    parts = splits._asdict().items()
    problems = [f"the {name} split is empty; add questions or use different sizes" for name, part in parts if not part]
    there = {what for what in ("answer", "options", "evidence") if any(getattr(one, what) for one in splits.dev)}
    there |= {"helpful"} if any(helpful(one) for one in splits.dev) else set()
    there |= set() if reader is None else {"reader", *(["support"] if READERS[reader].GROUNDED else [])}
    for objective in objectives_of(objectives):
        lacking = sorted({need for metric in objective.metrics for need in _needs(metric)} - there)
        problems += [f"the objective {objective.name} requires {_LACKING[need]}" for need in lacking]
    if problems:
        raise InputError("\n".join(problems))


def _needs(metric: str) -> set[str]:
    """Return what a metric requires. Only abstention is scored on evidence without a helpful passage."""
    return {"helpful" if one == "evidence" and metric != "abstention_recall" else one for one in needs(metric)}


def check_price(objectives: Sequence[str], lm: dspy.LM) -> None:
    """Raise if ``dollars`` is an objective but the LM's price is not known.

    Args:
        objectives: Names of objectives.
        lm: The LM.

    Raises:
        InputError: The price is not known.
    """
    if "dollars" not in objectives:
        return
    price = getattr(engine_of(lm).inner, "price", None)
    request = Request(model=lm.model.partition("/")[2], messages=(Message.user("-"),))
    known = price is not None and price(request, text_response("-", "stop", lm.model, 1, 1)) is not None
    if not known:
        raise InputError(f"the objective dollars requires an LM with a known price, but got {lm.model}; use tokens")


def check_judges(metrics: Iterable[str], judges: Sequence[SavedJudge], *, asks: bool) -> None:
    """Raise if a judge or a judge LM is given but no metric uses it.

    Args:
        metrics: Names of metrics.
        judges: The judges.
        asks: Whether a judge LM is given.

    Raises:
        InputError: A judge or the judge LM is not used, or a metric cannot be an objective.
    """
    if "judged_guideline" in (metrics := list(metrics)):
        raise InputError(
            "judged_guideline requires guidelines, but only evaluate and compare accept guidelines; use a different "
            "metric"
        )
    at_work = {JUDGED[name].NAME for name in metrics if name in JUDGED}
    for one in judges:
        if one.judge.NAME not in at_work:
            mine = " or ".join(one.judge.metrics())
            raise InputError(
                f"no objective uses the judge {one.judge.NAME}; add the objective {mine}, or remove the judge"
            )
    if asks and not at_work:
        raise InputError("no objective uses a judge; add the objective judged_useful, or remove the judge's LM")
