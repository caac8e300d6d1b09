"""Trials and techniques as rows for people to read, on the terminal and in the report."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from querywright.metrics.statistics import Mean
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.status import arm_name, best, changed_knobs, ended, interval, of_technique, techniques
from querywright.optimize.study.types import Snapshot, TrialRecord
from querywright.optimize.tables import percent

BEST_SHOWN = 8

_SECRETS = (
    (re.compile(r"(\w://)[^\s'\"]*@"), r"\1...@"),
    (re.compile(r"([?&](?:password|passwd|pwd|token|key)=)[^&\s'\"]+", re.IGNORECASE), r"\1..."),
)


def hidden(value: str) -> str:
    """The text without user names and passwords of the addresses in it."""
    for pattern, kept in _SECRETS:
        value = pattern.sub(kept, value)
    return value


def shown(mean: Mean, aim: Objective) -> str:
    """A value for people: per cent with its interval, or a cost as it is."""
    return percent(mean) if aim.metrics else value_text(mean.value, aim)


def value_text(value: float, aim: Objective) -> str:
    """A value of an objective without an interval; ``-`` where there is none."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f} %" if aim.metrics else f"{value:.4g}"


def ranked(trials: Sequence[TrialRecord], aim: Objective) -> list[TrialRecord]:
    """The complete trials with a value, the best first."""
    sign = 1 if aim.direction == "maximize" else -1
    scored = [one for one in ended(trials, "complete") if not math.isnan(one.values.get(aim.name, math.nan))]
    return sorted(scored, key=lambda one: (-sign * one.values[aim.name], one.number))


def best_rows(
    trials: Sequence[TrialRecord], aims: Sequence[Objective], limit: int = BEST_SHOWN
) -> list[dict[str, str]]:
    """A row a trial, equal arms once.

    Args:
        trials: In the order in which they are shown.
        aims: The objectives.
        limit: Rows at the most.
    """
    arms: dict[str, TrialRecord] = {}
    for one in trials:
        arms.setdefault(one.name if one.arm is None else one.arm.key, one)
    return [
        {
            "trial": str(one.number),
            "arm": arm_name(one.arm),
            **{aim.name: shown(interval(one, aim), aim) for aim in aims},
            "knobs": changed_knobs(one.arm),
        }
        for one in list(arms.values())[:limit]
    ]


def technique_rows(snapshot: Snapshot, aim: Objective) -> list[dict[str, str]]:
    """A row a technique: its trials by state, and its best one."""
    rows = []
    for name in techniques(snapshot):
        mine = of_technique(snapshot.trials, name)
        leader = best(mine, aim)
        rows.append(
            {
                "technique": name,
                "trials": str(len(mine)),
                **{state: str(len(ended(mine, state))) for state in ("complete", "pruned", "failed", "running")},
                "best": "-" if leader is None else shown(interval(leader, aim), aim),
                "knobs": "-" if leader is None else changed_knobs(leader.arm),
            }
        )
    return rows
