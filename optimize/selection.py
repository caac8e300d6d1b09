"""Which arm is the better one on dev: any two are held against each other on the questions that both scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

from querywright.data.types import Label
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import objective_metrics, objective_value


class Tried(Protocol):
    """What was tried on dev."""

    @property
    def name(self) -> str:
        """How it is called."""
        ...

    @property
    def dev(self) -> Evaluation:
        """Its results."""
        ...


T = TypeVar("T", bound=Tried)


def best_of(arms: Sequence[T], objective: str) -> T:
    """The arm that is ahead of the most others and behind the fewest; the first of equals.

    Of two arms the one with the higher objective is ahead, then the one with the larger share of questions with a
    deciding passage, then the one with fewer LM calls. An arm that failed on hard questions wins nothing by that,
    and costs the comparisons between other arms nothing. Where nothing failed this is the order of the objective.

    Args:
        arms: One or more, on the same questions. One without a value is out of the running, unless all are.
        objective: ``both``, or the name of a metric.
    """
    running = [arm for arm in arms if not math.isnan(objective_value(arm.dev, objective))] or arms
    return max(running, key=lambda arm: sum(_ahead(arm, other, objective) for other in running))


def beats(arm: Tried, other: Tried, objective: str) -> bool:
    """Whether the objective itself is higher, on the questions that both scored; no value beats any."""
    if math.isnan(objective_value(other.dev, objective)):
        return not math.isnan(objective_value(arm.dev, objective))
    mine, theirs = (objective_value(one, objective) for one in paired(arm, other, objective))
    return round(mine, 9) > round(theirs, 9)


def paired(arm: Tried, other: Tried, objective: str) -> tuple[Evaluation, Evaluation]:
    """Both arms on dev without the questions that only one of them scored."""
    rows = [
        pair
        for pair in zip(arm.dev.rows, other.dev.rows, strict=True)
        if _scored(pair[0], objective) == _scored(pair[1], objective)
    ]
    mine, theirs = (tuple(pair[side] for pair in rows) for side in (0, 1))
    return Evaluation(arm.name, mine, arm.dev.seconds), Evaluation(other.name, theirs, other.dev.seconds)


def _scored(row: Row, objective: str) -> list[bool]:
    """For each metric of the objective whether the question could be scored."""
    return [not math.isnan(row.scores.get(metric, math.nan)) for metric in objective_metrics(objective)]


def _ahead(arm: Tried, other: Tried, objective: str) -> int:
    """1 when the arm is ahead of the other, -1 when it is behind, else 0."""
    mine, theirs = (_rank(one, objective) for one in paired(arm, other, objective))
    return (mine > theirs) - (mine < theirs)


def _rank(evaluation: Evaluation, objective: str) -> tuple[float, float, float]:
    value, entailed = objective_value(evaluation, objective), evaluation.label_share(Label.ENTAILED)
    return (
        -math.inf if math.isnan(value) else round(value, 9),
        0.0 if math.isnan(entailed) else round(entailed, 9),
        -float(evaluation.cost.asked),
    )
