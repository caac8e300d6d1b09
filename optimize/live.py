"""A run under way: the score of every arm so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from querywright.metrics.statistics import mean_with_interval
from querywright.optimize.evaluate import Row, finite
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


def standing(rows: Mapping[str, Sequence[Row]], total: int, metrics: Iterable[str]) -> tuple[str, list[LiveArm]]:
    """Return the first metric that has a value, and its value so far for each arm.

    Args:
        rows: The results of each arm so far.
        total: Questions of each arm.
        metrics: By which arms are scored.
    """
    now = {name: list(each) for name, each in rows.items()}  # they grow meanwhile
    scored = (
        name
        for name in metrics
        if any(not math.isnan(row.scores.get(name, math.nan)) for each in now.values() for row in each)
    )
    metric = next(scored, next(iter(metrics), ""))
    return metric, [
        live_arm(
            name, "waiting" if not each else "done" if len(each) == total else "running",
            [row.scores.get(metric, math.nan) for row in each], total,
        )
        for name, each in now.items()
    ]  # fmt: skip
