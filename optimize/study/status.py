"""How far a study is and what came of it, from a snapshot of its storage; and its trials as rows for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from querywright.metrics.statistics import Mean
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row, finite, mean_json
from querywright.optimize.objectives import Objective
from querywright.optimize.results import PairedComparison, beside
from querywright.optimize.search.spec import PLAIN
from querywright.optimize.search.trials import (
    TrialRecord,
    arm_name,
    best,
    changed_knobs,
    ended,
    front,
    interval,
)
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.tables import percent

BEST_SHOWN = 8
STATES = ("complete", "pruned", "failed", "running")


def of_technique(trials: Sequence[TrialRecord], technique: str) -> list[TrialRecord]:
    """The trials of one technique."""
    return [one for one in trials if one.arm.technique == technique]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a study spent, over all workers and resumed runs: LM calls sent and saved, tokens, dollars, busy minutes."""

    calls: int = 0
    saved: int = 0
    tokens: int = 0
    dollars: float = 0.0
    minutes: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a storage knows of a study at one moment.

    Args:
        spec: The study.
        trials: By number.
        spent: Over all workers and runs.
        outcome: All results, after test was evaluated and programs are saved; None before.
    """

    spec: StudySpec
    trials: tuple[TrialRecord, ...] = ()
    spent: Spent = Spent()
    outcome: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether test was evaluated and programs are saved."""
        return self.outcome is not None


def techniques(snapshot: Snapshot) -> list[str]:
    """Return the techniques of a study, the baseline first."""
    return list(dict.fromkeys([PLAIN, *snapshot.spec.techniques]))


def status(snapshot: Snapshot) -> dict[str, Any]:
    """How far a study is, as a JSON object.

    ``workers`` counts those with a trial under way; the trial of one that was killed counts until another takes it up.
    """
    trials, spec, spent, outcome = snapshot.trials, snapshot.spec, snapshot.spent, snapshot.outcome or {}
    objectives, budget = spec.aims, snapshot.spec.budget
    first = objectives[0]
    left = 0 if snapshot.finished else max(0, spec.trials - len(ended(trials)))
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
    """Return the programs on test, compared with the baseline; None before test was evaluated."""
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
