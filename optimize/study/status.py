"""How far a study is and what came of it, from a snapshot of its storage; and its trials as rows for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row, finite, mean_json
from querywright.optimize.live import live_arm
from querywright.optimize.objectives import Objective, objectives_of
from querywright.optimize.results import PairedComparison, beside
from querywright.optimize.study.spec import AS_WRITTEN, PLAIN, StudySpec
from querywright.optimize.study.types import ArmConfig, Snapshot, TrialRecord
from querywright.optimize.tables import percent
from querywright.programs import TECHNIQUES
from querywright.progress import LiveArm

RECENT = 20
"""Trials that the pace is taken from, the last ones that ended."""

FEWEST_FOR_PACE = 3
BEST_SHOWN = 8
STATES = ("complete", "pruned", "failed", "running")


def aims(spec: StudySpec) -> tuple[Objective, ...]:
    """The objectives of a study, the one that decides first."""
    return objectives_of(spec.objectives)


def points(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> dict[int, tuple[float, ...]]:
    """The values of the complete trials that have all of them, by number; larger is better."""
    found = {
        one.number: tuple(aim.sign * one.values.get(aim.name, math.nan) for aim in objectives)
        for one in sorted(ended(trials, "complete"), key=lambda one: one.number)
    }
    return {number: point for number, point in found.items() if not any(map(math.isnan, point))}


def front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[int]:
    """The complete trials that no other one beats, as good in every objective and better in one, by number.

    Of trials with the same values the first alone.
    """
    first = {point: number for number, point in reversed(points(trials, objectives).items())}
    return sorted(
        number
        for point, number in first.items()
        if not any(other != point and all(a >= b for a, b in zip(other, point, strict=True)) for other in first)
    )


def ranked(trials: Sequence[TrialRecord], aim: Objective) -> list[TrialRecord]:
    """The complete trials with a value, the best first, of equals the first."""
    values = points(trials, [aim])
    scored = [one for one in trials if one.number in values]
    return sorted(scored, key=lambda one: (-values[one.number][0], one.number))


def best(trials: Sequence[TrialRecord], aim: Objective) -> TrialRecord | None:
    """The complete trial with the best value; the first of equals; None where none has one."""
    return next(iter(ranked(trials, aim)), None)


def ended(trials: Sequence[TrialRecord], *states: str) -> list[TrialRecord]:
    """The trials that are in one of these states; without any, all that are not running."""
    return [one for one in trials if one.state in (states or STATES[:3])]


def of_technique(trials: Sequence[TrialRecord], technique: str) -> list[TrialRecord]:
    """The trials of one technique."""
    return [one for one in trials if one.arm.technique == technique]


def techniques(snapshot: Snapshot) -> list[str]:
    """The techniques of a study, no rewriting first."""
    return list(dict.fromkeys([PLAIN, *snapshot.spec.techniques]))


def interval(record: TrialRecord, aim: Objective) -> Mean:
    """A trial's value with its interval, from its questions; a cost has none.

    A question counts where every metric of the objective could be scored.
    """
    value, rows = record.values.get(aim.name, math.nan), record.dev.rows
    if not rows or not aim.metrics:
        return Mean(value, math.nan, math.nan, len(rows), 0)
    scored = aim.scores(record.dev)
    found = mean_with_interval([scored.get(row.id, math.nan) for row in rows])
    return found if math.isnan(value) else replace(found, value=value)


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


def arm_name(arm: ArmConfig) -> str:
    """An arm without its knobs, such as ``hyde@dense, prompts boot.2, reader short_answer``."""
    name = f"{arm.technique}@{arm.engine}"
    if arm.prompt != AS_WRITTEN:
        name += f", prompts {arm.prompt}"
    name += "" if arm.writer is None else f", writer {arm.writer}"
    return name if arm.reader is None else f"{name}, reader {arm.reader}"


def changed_knobs(arm: ArmConfig) -> str:
    """The knobs that are not at their technique's defaults; ``-`` where all are."""
    defaults = {knob.name: knob.default for knob in TECHNIQUES[arm.technique].KNOBS}
    return " ".join(f"{name}={value}" for name, value in arm.knobs.items() if defaults.get(name) != value) or "-"


def status(snapshot: Snapshot) -> dict[str, Any]:
    """How far a study is, as a JSON object.

    ``workers`` counts those with a trial under way; the trial of one that was killed counts until another takes it up.
    """
    trials, spec, spent, outcome = snapshot.trials, snapshot.spec, snapshot.spent, snapshot.outcome or {}
    objectives, budget = aims(spec), snapshot.spec.budget
    first = objectives[0]
    left = 0 if snapshot.finished else max(0, spec.trials - len(ended(trials)))
    speed = pace(trials)
    mine = {name: of_technique(trials, name) for name in techniques(snapshot)}
    made = {"calls": spent.calls, "tokens": spent.tokens, "dollars": round(spent.dollars, 6)}
    made["minutes"] = round(spent.minutes, 2)
    return {
        "name": spec.name,
        "finished": snapshot.finished,
        "trials": {"planned": spec.trials, **_counts(trials), "left": left},
        "objectives": {aim.name: aim.direction for aim in objectives},
        "techniques": [
            {"technique": name, "trials": len(own), **_counts(own), "best": _trial(best(own, first), first)}
            for name, own in mine.items()
        ],
        "best": _trial(best(trials, first), first),
        "front": front(trials, objectives) if len(objectives) > 1 else None,
        "spent": {
            **{name: {"made": value, "limit": getattr(budget, name)} for name, value in made.items()},
            "saved": spent.saved,
        },
        "trials_per_minute": None if speed is None else round(speed, 3),
        "minutes_left": None if speed is None else round(left / speed, 1),
        "workers": len({one.worker or one.name for one in ended(trials, "running")}),
        **{name: outcome.get(name) for name in ("verdict", "sentence", "recommended")},
    }


def standing(trials: Sequence[TrialRecord], spec: StudySpec, total: int) -> tuple[str, list[LiveArm]]:
    """The first objective, and the trials as arms under way that meet so many questions in all."""
    aim = aims(spec)[0]

    def live(one: TrialRecord) -> LiveArm:
        name = f"{one.name}, {arm_name(replace(one.arm, reader=None))}"
        state = "done" if one.state == "complete" else one.state
        told = one.met or live_arm(name, state, [*aim.scores(one.dev).values()], total, len(one.dev.rows))
        return {**told, "name": name}

    return aim.name, [live(one) for one in trials if one.same_as is None]


def _counts(trials: Sequence[TrialRecord]) -> dict[str, int]:
    return {state: len(ended(trials, state)) for state in STATES}


def _trial(record: TrialRecord | None, aim: Objective) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "number": record.number,
        "arm": arm_name(record.arm),
        "knobs": dict(record.arm.knobs),
        "objective": aim.name,
        **mean_json(interval(record, aim)),
        "values": {name: finite(value) for name, value in record.values.items()},
    }


def evaluations(outcome: Mapping[str, Any] | None) -> list[Evaluation]:
    """The results on test; none before that."""
    return [
        Evaluation(one["arm"], tuple(map(Row.from_json, one["rows"])), one["seconds"])
        for one in (outcome or {}).get("test", ())
    ]


def on_test(outcome: Mapping[str, Any] | None) -> Comparison | None:
    """Every program that met the test, held against no rewriting; None before that."""
    met = evaluations(outcome)
    return beside(met, comparisons_of(outcome)) if met else None


def comparisons_of(outcome: Mapping[str, Any] | None) -> list[PairedComparison]:
    """The comparisons on test, as they were made, with the corrected p that was kept."""
    by_name, held = {one.name: one for one in evaluations(outcome)}, []
    for one in (outcome or {}).get("comparisons", ()):
        raw = by_name[one["arm"]].against(by_name[one["other"]], one["metric"])
        test = replace(raw, p_two_sided=math.nan if one["p_holm"] is None else one["p_holm"])
        held.append(PairedComparison(one["family"], one["metric"], one["arm"], one["other"], test, one["sentence"]))
    return held


def shown(mean: Mean, aim: Objective) -> str:
    """A value for people: per cent with its interval, or a cost as it is."""
    return percent(mean) if aim.metrics else value_text(mean.value, aim)


def value_text(value: float, aim: Objective) -> str:
    """A value of an objective without an interval; ``-`` where there is none."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f} %" if aim.metrics else f"{value:.4g}"


def best_rows(
    trials: Sequence[TrialRecord], aims: Sequence[Objective], limit: int = BEST_SHOWN
) -> list[dict[str, str]]:
    """A row a trial, in their order, equal arms once."""
    distinct = {one.arm.key: one for one in reversed(trials)}
    return [
        {
            "trial": str(one.number),
            "arm": arm_name(one.arm),
            **{aim.name: shown(interval(one, aim), aim) for aim in aims},
            "knobs": changed_knobs(one.arm),
        }
        for one in [one for one in trials if distinct[one.arm.key] is one][:limit]
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
                **{state: str(count) for state, count in _counts(mine).items()},
                "best": "-" if leader is None else shown(interval(leader, aim), aim),
                "knobs": "-" if leader is None else changed_knobs(leader.arm),
            }
        )
    return rows
