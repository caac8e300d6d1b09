"""How far a study is and what came of it, from a snapshot of its storage."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from querywright.data.types import Question
from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row, finite, mean_json
from querywright.optimize.results import NO_REWRITING, Comparison
from querywright.optimize.significance import READER_CHECK
from querywright.optimize.study.objectives import Objective, objectives_of
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.optimize.study.types import ArmConfig, Snapshot, TrialRecord
from querywright.programs import TECHNIQUES

RECENT = 20
"""Trials that the pace is taken from, the last ones that ended."""

FEWEST_FOR_PACE = 3
STATES = ("complete", "pruned", "failed", "running")


def aims(spec: Any) -> tuple[Objective, ...]:
    """The objectives of a study, the one that decides first."""
    return objectives_of(spec.objectives)


def points(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> dict[int, tuple[float, ...]]:
    """The values of the complete trials that have all of them, by number; larger is better."""
    signs = {one.name: 1 if one.direction == "maximize" else -1 for one in objectives}
    found = {
        one.number: tuple(sign * one.values.get(name, math.nan) for name, sign in signs.items())
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


def best(trials: Sequence[TrialRecord], aim: Objective) -> TrialRecord | None:
    """The complete trial with the best value; the first of equals; None where none has one."""
    values = points(trials, [aim])
    number = max(values, key=lambda number: (values[number], -number), default=None)
    return next((one for one in trials if one.number == number), None)


def ended(trials: Sequence[TrialRecord], *states: str) -> list[TrialRecord]:
    """The trials that are in one of these states; without any, all that are not running."""
    return [one for one in trials if one.state in (states or STATES[:3])]


def interval(record: TrialRecord, aim: Objective) -> Mean:
    """A trial's value with its interval, from its questions; a cost has none.

    A question counts where every metric of the objective could be scored.
    """
    value = record.values.get(aim.name, math.nan)
    rows = () if record.dev is None else record.dev.rows
    if record.dev is None or not aim.metrics:
        return Mean(value, math.nan, math.nan, len(rows), 0)
    scored = aim.scores(record.dev)
    found = _mean(tuple(scored.get(row.id, math.nan) for row in rows))
    return found if math.isnan(value) else replace(found, value=value)


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
    return " ".join(f"{name}={value}" for name, value in arm.knobs.items() if defaults.get(name) != value) or "-"


def techniques(snapshot: Snapshot) -> list[str]:
    """The techniques of a study: no rewriting, those asked for, and any other that a trial was about."""
    tried = (one.arm.technique for one in snapshot.trials if one.arm is not None)
    return list(dict.fromkeys(["plain", *snapshot.spec.techniques, *tried]))


def of_technique(trials: Sequence[TrialRecord], technique: str) -> list[TrialRecord]:
    """The trials of one technique."""
    return [one for one in trials if one.arm is not None and one.arm.technique == technique]


def status(snapshot: Snapshot) -> dict[str, Any]:
    """How far a study is, as a JSON object.

    ``workers`` counts those with a trial under way; the trial of one that was killed counts until another takes it up.
    """
    trials, spec, spent, outcome = snapshot.trials, snapshot.spec, snapshot.spent, snapshot.outcome or {}
    objectives, budget = aims(spec), snapshot.spec.budget
    first = objectives[0]
    left = 0 if snapshot.finished else max(0, spec.trials - len(ended(trials)))
    speed = pace(trials)
    rows = {name: of_technique(trials, name) for name in techniques(snapshot)}
    return {
        "name": spec.name,
        "finished": snapshot.finished,
        "trials": {"planned": spec.trials, **_counts(trials), "left": left},
        "objectives": {aim.name: aim.direction for aim in objectives},
        "techniques": [
            {"technique": name, "trials": len(mine), **_counts(mine), "best": _trial(best(mine, first), first)}
            for name, mine in rows.items()
        ],
        "best": _trial(best(trials, first), first),
        "front": front(trials, objectives) if len(objectives) > 1 else None,
        "spent": {
            "calls": {"made": spent.calls, "limit": budget.calls},
            "saved": spent.saved,
            "tokens": {"made": spent.tokens, "limit": budget.tokens},
            "dollars": {"made": round(spent.dollars, 6), "limit": budget.dollars},
            "minutes": {"made": round(spent.minutes, 2), "limit": budget.minutes},
        },
        "trials_per_minute": None if speed is None else round(speed, 3),
        "minutes_left": None if speed is None else round(left / speed, 1),
        "workers": len({one.worker or one.name for one in ended(trials, "running")}),
        **{name: outcome.get(name) for name in ("verdict", "sentence", "recommended")},
    }


def _counts(trials: Sequence[TrialRecord]) -> dict[str, int]:
    return {state: len(ended(trials, state)) for state in STATES}


def _trial(record: TrialRecord | None, aim: Objective) -> dict[str, Any] | None:
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


def evaluations(outcome: Mapping[str, Any] | None) -> list[Evaluation]:
    """The results on test, where their rows were kept."""
    return [
        Evaluation(one["arm"], tuple(Row.from_json(row) for row in one["rows"]), one.get("seconds") or 0.0)
        for one in (outcome or {}).get("test") or ()
        if one.get("rows")
    ]


def on_test(outcome: Mapping[str, Any] | None) -> Compared | None:
    """Every program that met the test, held against no rewriting; None before that.

    Those that check the reader, and any that met other questions, are references.
    """
    met = evaluations(outcome)
    if not met:
        return None
    baseline = next((one for one in met if one.name == NO_REWRITING), met[0])
    asked = [row.id for row in baseline.rows]
    rivals = [one for one in met if one.name not in READER_CHECK and [row.id for row in one.rows] == asked]
    arms = {one.name: one for one in (baseline, *rivals)}
    held = []
    for one in (outcome or {}).get("comparisons") or ():  # as they were made, with the corrected p that was kept
        if one["arm"] in arms and one["other"] == baseline.name:
            p = one.get("p_holm")
            raw = arms[one["arm"]].against(baseline, one["metric"])
            test = replace(raw, p_two_sided=math.nan if p is None else p)
            held.append(Comparison(one["family"], one["metric"], one["arm"], baseline.name, test, one["sentence"]))
    references = tuple(one for one in met if one.name not in arms)
    return Compared(tuple(arms.values()), baseline.name, tuple(held), references)


def asked_on_test(outcome: Mapping[str, Any], ids: Sequence[str]) -> list[Question]:
    """The test questions in the order of these ids; one whose text was not kept is called by its id."""
    known = {one["id"]: one for one in outcome.get("questions") or ()}
    found = []
    for id in ids:
        data = known.get(id, {"id": id, "question": id})
        answer, options = data.get("answer"), tuple(data.get("options") or ())
        answer = answer if isinstance(answer, str) else None
        found.append(Question(id, data["question"], options, answer, tuple(data.get("aliases") or ())))
    return found
