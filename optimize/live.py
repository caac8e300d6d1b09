"""A run under way: the score of every arm so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from querywright.metrics.statistics import mean_with_interval
from querywright.optimize.evaluate import Evaluation, Row, finite
from querywright.programs import RAG
from querywright.progress import Bar, LiveArm, Progress


def live_arm(name: str, state: str, values: Sequence[float], total: int, done: int | None = None) -> LiveArm:
    """An arm as it stands, from its score of each question met (NaN where it could not be scored) of so many."""
    found = mean_with_interval(values)
    mean, low, high = (finite(one) for one in (found.value, found.low, found.high))
    done = len(values) if done is None else done
    return {"name": name, "state": state, "done": done, "total": total, "mean": mean, "low": low, "high": high}


def stands(
    progress: Progress | None,
    told: Callable[[], tuple[str, list[LiveArm]]],
    spent: Callable[[], str] | None = None,
) -> None:
    """Show in a bar the metric and the score of each arm so far; a callable is not told."""
    if isinstance(progress, Bar):
        progress.stand(told, spent)


@dataclass(slots=True)
class Rounds:
    """Arms that advance together: whichever is furthest behind meets the next block of questions.

    The first of the metrics that has a value is shown.
    """

    arms: dict[str, RAG]
    total: int
    metrics: Iterable[str]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    found: dict[str, Evaluation] = field(default_factory=dict)
    _now: str = ""

    def next(self) -> str | None:
        """The arm that is next; None where all have met all questions."""
        left = [name for name in self.arms if self.met(name) < self.total]
        self._now = min(left, key=self.met, default="")
        return self._now or None

    def met(self, name: str) -> int:
        """Questions that an arm has met."""
        return len(self.found[name].rows) if name in self.found else 0

    def add(self, met: Evaluation) -> None:
        """An arm has met a block."""
        before = self.found.get(met.name, Evaluation(met.name, (), 0.0))
        self.found[met.name] = Evaluation(met.name, (*before.rows, *met.rows), before.seconds + met.seconds)

    @property
    def whole(self) -> tuple[int, int]:
        """Questions met, and to be met, by all arms."""
        return sum(map(self.met, self.arms)), self.total * len(self.arms)

    def standing(self) -> tuple[str, list[LiveArm]]:
        """How the arms stand, question by question."""
        rows = {name: list(self.rows.get(name, ())) for name in self.arms}
        scored = [
            name
            for name in self.metrics
            if any(not math.isnan(one.scores.get(name, math.nan)) for each in rows.values() for one in each)
        ]
        metric = next(iter([*scored, *self.metrics]), "")
        return metric, [
            live_arm(name, self._state(name), [row.scores.get(metric, math.nan) for row in each], self.total,
                     max(len(each), self.met(name)))
            for name, each in rows.items()
        ]  # fmt: skip

    def _state(self, name: str) -> str:
        if self.met(name) == self.total:
            return "done"
        return "running" if name == self._now else "waiting"
