"""How far a study is: pure functions over what its storage knows at one moment."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.optimize.evaluate import finite, mean_json
from querywright.optimize.study.spec import AS_WRITTEN, StudySpec
from querywright.optimize.study.types import ArmConfig, TrialRecord
from querywright.programs import TECHNIQUES

RECENT = 20
"""Trials that the pace is taken from, the last ones that ended."""

FEWEST_FOR_PACE = 3

STATES = ("complete", "pruned", "failed", "running")


class Account(Protocol):
    """What a study spent, over all its workers and resumed runs."""

    @property
    def calls(self) -> int:
        """LM calls made."""
        ...

    @property
    def saved(self) -> int:
        """LM calls saved."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens of the calls made."""
        ...

    @property
    def dollars(self) -> float:
        """Estimated US dollars of the calls made."""
        ...

    @property
    def minutes(self) -> float:
        """Minutes in which at least one worker ran."""
        ...


class Known(Protocol):
    """What a storage knows of a study at one moment, such as the engine's ``Snapshot``."""

    @property
    def spec(self) -> StudySpec:
        """What was asked for."""
        ...

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """By number."""
        ...

    @property
    def spent(self) -> Account:
        """What it cost so far."""
        ...

    @property
    def finished(self) -> bool:
        """Whether selection and test are done."""
        ...

    @property
    def outcome(self) -> Mapping[str, Any] | None:
        """What came of it; None, or in parts, before the end."""
        ...


class Aim(Protocol):
    """An objective."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """Which way is better."""
        ...

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics whose mean it is, question by question; none for a cost."""
        ...


def aims(spec: StudySpec) -> list[Aim]:
    """The objectives of a study, the one that decides first."""
    from querywright.optimize.study.objectives import objective_named

    return [objective_named(name) for name in spec.objectives]


def front(trials: Sequence[TrialRecord], directions: Mapping[str, str]) -> list[int]:
    """The complete trials that no other one beats: as good in every objective and better in one.

    Args:
        trials: Any; those that are not complete or miss a value are left out.
        directions: ``maximize`` or ``minimize`` by objective.

    Returns:
        Numbers, in order. Of trials with the same values the first alone.
    """
    points: dict[tuple[float, ...], int] = {}
    for one in sorted(ended(trials, "complete"), key=lambda one: one.number):
        point = _point(one, directions)
        if not any(math.isnan(value) for value in point):
            points.setdefault(point, one.number)
    return sorted(number for point, number in points.items() if not any(_beats(other, point) for other in points))


def best(trials: Sequence[TrialRecord], aim: Aim) -> TrialRecord | None:
    """The complete trial with the best value; the first of equals; None where none has one."""
    scored = [one for one in ended(trials, "complete") if not math.isnan(one.values.get(aim.name, math.nan))]
    sign = 1 if aim.direction == "maximize" else -1
    return max(scored, key=lambda one: (sign * one.values[aim.name], -one.number), default=None)


def ended(trials: Sequence[TrialRecord], *states: str) -> list[TrialRecord]:
    """The trials that are in one of these states; without any, all that are not running."""
    return [one for one in trials if one.state in (states or STATES[:3])]


def interval(record: TrialRecord, aim: Aim) -> Mean:
    """A trial's value with its interval, from its questions; a cost has none.

    A question counts where every metric of the objective could be scored.
    """
    value = record.values.get(aim.name, math.nan)
    if record.dev is None or not aim.metrics:
        return Mean(value, math.nan, math.nan, 0 if record.dev is None else len(record.dev.rows), 0)
    if len(aim.metrics) == 1:
        found = record.dev.mean(aim.metrics[0])
    else:
        columns = [record.dev.values(metric) for metric in aim.metrics]
        found = _mean(tuple(math.fsum(values) / len(values) for values in zip(*columns, strict=True)))
    return found if math.isnan(value) else Mean(value, found.low, found.high, found.n, found.unscored)


@functools.lru_cache(maxsize=4096)
def _mean(values: tuple[float, ...]) -> Mean:
    """The mean, resampled once for all that ask."""
    return mean_with_interval(values)


def minutes_busy(trials: Sequence[TrialRecord]) -> float:
    """Minutes in which at least one of these trials was under way."""
    spans = sorted((one.began, one.ended) for one in trials if one.began is not None and one.ended is not None)
    seconds, until = 0.0, -math.inf
    for began, over in spans:
        seconds += max(0.0, over - max(began, until))
        until = max(until, over)
    return seconds / 60


def pace(trials: Sequence[TrialRecord]) -> float | None:
    """Trials a minute, from those that ended last; None where too few did. A time without workers counts nothing."""
    timed = [one for one in ended(trials) if one.began is not None and one.ended is not None]
    recent = sorted(timed, key=lambda one: one.ended or 0.0)[-RECENT:]
    minutes = minutes_busy(recent)
    return len(recent) / minutes if len(recent) >= FEWEST_FOR_PACE and minutes > 0 else None


def arm_name(arm: ArmConfig | None) -> str:
    """An arm without its knobs, such as ``hyde@dense, prompts boot.2, reader short_answer``."""
    if arm is None:
        return "not settled"
    name = f"{arm.technique}@{arm.engine}"
    if arm.prompt != AS_WRITTEN:
        name += f", prompts {arm.prompt}"
    return name if arm.reader is None else f"{name}, reader {arm.reader}"


def changed_knobs(arm: ArmConfig | None) -> str:
    """The knobs that are not at their technique's defaults; ``-`` where all are."""
    if arm is None:
        return "-"
    known = TECHNIQUES.get(arm.technique)
    defaults = {} if known is None else {knob.name: knob.default for knob in known.KNOBS}
    changed = [f"{name}={value}" for name, value in arm.knobs.items() if defaults.get(name) != value]
    return " ".join(changed) or "-"


def status(snapshot: Known) -> dict[str, Any]:
    """How far a study is, as a JSON object.

    ``workers`` counts those with a trial under way; the trial of one that was killed counts until another takes it up.
    """
    trials, spec = snapshot.trials, snapshot.spec
    objectives = aims(spec)
    counts = {state: len(ended(trials, state)) for state in STATES}
    left = 0 if snapshot.finished else max(0, spec.trials - len(ended(trials)))
    speed = pace(trials)
    outcome = snapshot.outcome or {}
    under_way = ended(trials, "running")
    return {
        "name": spec.name,
        "finished": snapshot.finished,
        "trials": {"planned": spec.trials, **counts, "left": left},
        "objectives": {aim.name: aim.direction for aim in objectives},
        "techniques": [_technique(name, trials, objectives[0]) for name in techniques(snapshot)],
        "best": _trial(best(trials, objectives[0]), objectives[0]),
        "front": front(trials, {aim.name: aim.direction for aim in objectives}) if len(objectives) > 1 else None,
        "spent": _spent(snapshot),
        "trials_per_minute": None if speed is None else round(speed, 3),
        "minutes_left": None if speed is None else round(left / speed, 1),
        "workers": len({one.worker or f"of {one.name}" for one in under_way}),
        "verdict": outcome.get("verdict"),
        "sentence": outcome.get("sentence"),
        "recommended": outcome.get("recommended"),
    }


def techniques(snapshot: Known) -> list[str]:
    """The techniques of a study: no rewriting, those asked for, and any other that a trial was about."""
    tried = (one.arm.technique for one in snapshot.trials if one.arm is not None)
    return list(dict.fromkeys(["plain", *snapshot.spec.techniques, *tried]))


def of_technique(trials: Sequence[TrialRecord], technique: str) -> list[TrialRecord]:
    """The trials of one technique."""
    return [one for one in trials if one.arm is not None and one.arm.technique == technique]


def _technique(name: str, trials: Sequence[TrialRecord], aim: Aim) -> dict[str, Any]:
    mine = of_technique(trials, name)
    counts = {state: len(ended(mine, state)) for state in STATES}
    return {"technique": name, "trials": len(mine), **counts, "best": _trial(best(mine, aim), aim)}


def _trial(record: TrialRecord | None, aim: Aim) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "number": record.number,
        "arm": arm_name(record.arm),
        "knobs": {} if record.arm is None else dict(record.arm.knobs),
        "objective": aim.name,
        **mean_json(interval(record, aim)),
        "values": {name: finite(value) for name, value in record.values.items()},
    }


def _spent(snapshot: Known) -> dict[str, Any]:
    """What was spent, beside what may be; what was saved has no limit."""
    spent, budget = snapshot.spent, snapshot.spec.budget
    return {
        "calls": {"made": spent.calls, "limit": budget.calls},
        "saved": spent.saved,
        "tokens": {"made": spent.tokens, "limit": budget.tokens},
        "dollars": {"made": round(spent.dollars, 6), "limit": budget.dollars},
        "minutes": {"made": round(spent.minutes, 2), "limit": budget.minutes},
    }


def _point(record: TrialRecord, directions: Mapping[str, str]) -> tuple[float, ...]:
    """The values, larger being better; NaN where there is none."""
    return tuple(
        record.values.get(name, math.nan) * (1 if direction == "maximize" else -1)
        for name, direction in directions.items()
    )


def _beats(point: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return point != other and all(a >= b for a, b in zip(point, other, strict=True))
