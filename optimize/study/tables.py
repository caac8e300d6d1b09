"""Trials, techniques and costs as rows for people to read, on the terminal and in the report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from querywright.metrics.statistics import Mean
from querywright.models.usage import Cost
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.study.status import (
    Aim,
    Known,
    arm_name,
    best,
    changed_knobs,
    ended,
    interval,
    of_technique,
    techniques,
)
from querywright.optimize.study.types import TrialRecord
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


def shown(mean: Mean, aim: Aim) -> str:
    """A value for people: per cent with its interval, or a cost as it is."""
    return percent(mean) if aim.metrics else value_text(mean.value, aim)


def value_text(value: float, aim: Aim) -> str:
    """A value of an objective without an interval; ``-`` where there is none."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f} %" if aim.metrics else f"{value:.4g}"


def ranked(trials: Sequence[TrialRecord], aim: Aim) -> list[TrialRecord]:
    """The complete trials with a value, the best first."""
    sign = 1 if aim.direction == "maximize" else -1
    scored = [one for one in ended(trials, "complete") if not math.isnan(one.values.get(aim.name, math.nan))]
    return sorted(scored, key=lambda one: (-sign * one.values[aim.name], one.number))


def best_rows(trials: Sequence[TrialRecord], aims: Sequence[Aim], limit: int = BEST_SHOWN) -> list[dict[str, str]]:
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


def technique_rows(snapshot: Known, aim: Aim) -> list[dict[str, str]]:
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


def trial_rows(snapshot: Known) -> list[dict[str, str]]:
    """A row a trial, in their order."""
    rows = [
        {
            "trial": str(one.number),
            "arm": arm_name(one.arm),
            "state": one.state + (", late" if one.late else ""),
            **{name: f"{value:.4g}" for name, value in one.values.items()},
            "questions": "-" if one.dev is None else str(len(one.dev.rows)),
            "LM calls": f"{one.spent.calls} made, {one.spent.saved} saved",
            "seconds": "-" if one.began is None or one.ended is None else f"{one.ended - one.began:.1f}",
            "knobs": changed_knobs(one.arm),
            "why": hidden(one.message) or ("-" if one.same_as is None else f"the same arm as trial {one.same_as}"),
        }
        for one in snapshot.trials
    ]
    columns = list(dict.fromkeys(name for row in rows for name in (*list(row)[:3], *snapshot.spec.objectives, *row)))
    return [{name: row.get(name, "-") for name in columns} for row in rows]


def cost_rows(snapshot: Known, aim: Aim, costs: Mapping[str, Cost]) -> list[dict[str, str]]:
    """A row a technique: what its trials cost, and what a point gained over no rewriting cost.

    Args:
        snapshot: The study.
        aim: The objective.
        costs: Of the trials of each technique.
    """
    plain = next((one for one in ended(snapshot.trials, "complete") if one.arm and one.arm.is_plain), None)
    base = math.nan if plain is None else plain.values.get(aim.name, math.nan)
    rows = []
    for name, cost in costs.items():
        leader = best(of_technique(snapshot.trials, name), aim)
        value = math.nan if leader is None else leader.values[aim.name]
        gain = value - base if aim.direction == "maximize" else base - value
        gained = f"{100 * gain:+.1f} points" if aim.metrics else f"{gain:+.4g}"
        rows.append(
            {
                "technique": name,
                "LM calls made": str(cost.calls),
                "saved": str(cost.saved),
                "tokens": str(cost.tokens),
                "best": value_text(value, aim),
                "gained over no rewriting": "-" if math.isnan(gain) else gained,
                "calls made a point": f"{cost.calls / (100 * gain):.0f}" if aim.metrics and gain > 0 else "-",
            }
        )
    return rows


def use_rows(compared: Compared | None, aim: Aim) -> list[dict[str, str]]:
    """A row an arm: what a point gained on test costs each time that it is asked; none where that cannot be told."""
    if compared is None or not aim.metrics:
        return []
    if not all(metric in arm.metrics for arm in compared.arms for metric in aim.metrics):
        return []
    baseline = compared.arm(compared.baseline)
    rows = []
    for arm in compared.arms:
        gain = 100 * sum(arm.mean(name).value - baseline.mean(name).value for name in aim.metrics) / len(aim.metrics)
        calls, more = _a_question(arm), _a_question(arm) - _a_question(baseline)
        rows.append(
            {
                "arm": arm.name,
                "LM calls / question": f"{calls:.1f}",
                "more than no rewriting": f"{more:+.1f}",
                "gained on test": f"{gain:+.1f} points",
                "calls a question a point": f"{more / gain:.2f}" if gain > 0 else "-",
            }
        )
    return rows


def _a_question(arm: Evaluation) -> float:
    return arm.cost.asked / max(1, len(arm.rows))
