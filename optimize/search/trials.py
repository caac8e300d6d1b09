"""Arms and trials: their form in Optuna's storage, their ranking, and their names."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from querywright.errors import TechniqueError
from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row, finite, live_arm
from querywright.optimize.objectives import Objective, objective_named
from querywright.optimize.search.spec import UNTUNED
from querywright.programs import technique_class
from querywright.programs.hyperparameters import Value
from querywright.progress import LiveArm

TrialState = Literal["running", "complete", "pruned", "failed"]

ARM, RESULT = "arm", "result"
"""Attributes of a trial in Optuna's storage: its arm and its results."""

MET = "met"
"""Attribute of a trial in Optuna's storage: its score while it runs."""

_KEPT = ("id", "scores", "label", "passages", "fallbacks", "cost", "seconds", "failure", "unjudged", "rebuilt")
_BARE = Row("", {}).to_json()


@dataclass(frozen=True, slots=True)
class ArmConfig:
    """A program that a trial can choose.

    Args:
        technique: The name of the technique; ``plain`` is the baseline.
        engine: The engine, or the name of the retriever.
        knobs: The value of every knob of the technique.
        prompt: ``untuned``, or a name in the study's ``prompts``. Default ``untuned``.
        reader: The name of the reader; None if no reader runs.
        writer: The name in the study's ``writers`` of the LM that writes; None if the study has no writers.
    """

    technique: str
    engine: str
    knobs: Mapping[str, Value]
    prompt: str = UNTUNED
    reader: str | None = None
    writer: str | None = None

    @property
    def key(self) -> str:
        """A hash that is the same for equal arms."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the arm as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArmConfig:
        """Return the arm from a JSON object made by ``to_json``."""
        return cls(**data)


_COSTS = ("spent", "prompt_spent", "judged")


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial and its results.

    Args:
        number: The number of the trial, from 0.
        state: ``running``, ``complete``, ``pruned`` or ``failed``.
        arm: The program.
        values: Value of each objective; empty if the trial is not complete.
        dev: Results on dev, question by question (for a pruned trial, only the first questions); empty while the trial
            runs, and if too many questions failed. Its rows contain only scores, label, passages, fallbacks, cost,
            seconds, failure, unjudged, and rebuilt.
        spent: The trial's LM calls, both made and cached, including the calls for compiling its prompts.
        prompt_spent: The part of ``spent`` for compiling prompts.
        judged: LM calls by judges.
        same_as: The number of an earlier trial with the same arm, whose results this trial copies; otherwise None.
        params: Optuna's parameters.
        began: Start of the trial (Unix time, seconds).
        ended: End of the trial (Unix time, seconds); None while it runs.
        worker: A random id of the worker that ended the trial.
        message: Why the trial failed or was pruned.
        met: The score so far while the trial runs; otherwise None.
    """

    number: int
    state: TrialState
    arm: ArmConfig
    values: Mapping[str, float] = field(default_factory=dict)
    dev: Evaluation = field(default_factory=lambda: Evaluation("", (), 0.0), repr=False)
    spent: Cost = field(default_factory=Cost, repr=False)
    prompt_spent: Cost = field(default_factory=Cost, repr=False)
    judged: Cost = field(default_factory=Cost, repr=False)
    same_as: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    began: float | None = None
    ended: float | None = None
    worker: str = ""
    message: str = ""
    met: LiveArm | None = None

    @property
    def name(self) -> str:
        """The trial's name in tables."""
        return f"trial {self.number}"

    def to_text(self) -> str:
        """Return the results as a string for a trial's attribute, without arm and parameters.

        The results are a single string, because Optuna copies every value in an attribute each time it returns a trial.
        """
        told = {
            "values": {name: finite(value) for name, value in self.values.items()},
            "rows": [
                {name: row[name] for name in _KEPT if row[name] != _BARE[name]}
                for row in (one.to_json() for one in self.dev.rows)
            ],
            "seconds": self.dev.seconds,
            **{name: getattr(self, name).to_json() for name in _COSTS},
            **{name: getattr(self, name) for name in ("state", "same_as", "began", "ended", "worker", "message")},
        }
        return json.dumps(told, ensure_ascii=False)

    @classmethod
    def of(cls, trial: Any) -> TrialRecord:
        """Return the record of an Optuna trial, running or ended.

        Args:
            trial: A ``FrozenTrial`` with the attribute ``ARM``.
        """
        kept = trial.user_attrs
        arm, result = ArmConfig.from_json(kept[ARM]), kept.get(RESULT)
        began = None if trial.datetime_start is None else trial.datetime_start.timestamp()
        over = trial.state.is_finished()
        record = cls(trial.number, "failed" if over else "running", arm, params=dict(trial.params), began=began)
        if result is None or not over:
            return record if over else replace(record, met=kept.get(MET))
        data = json.loads(result)
        rows, seconds = data.pop("rows"), data.pop("seconds")
        data["dev"] = Evaluation(record.name, tuple(Row.from_json({**_BARE, **row}) for row in rows or ()), seconds)
        data["values"] = {name: value for name, value in data["values"].items() if value is not None}
        costs = {name: Cost.from_json(data[name]) for name in _COSTS if name in data}
        return replace(record, **{**data, **costs})


def _value(trial: TrialRecord, aim: Objective) -> float:
    """Return a trial's value for an objective, which need not be an objective of its study."""
    return trial.values[aim.name] if aim.name in trial.values else aim.value(trial.dev)


def points(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> dict[int, tuple[float, ...]]:
    """Return the values of complete trials by number, without trials that lack a value, scaled so that larger is
    better.
    """
    found = {
        one.number: tuple(aim.sign * _value(one, aim) for aim in objectives)
        for one in sorted(ended(trials, "complete"), key=lambda one: one.number)
    }
    return {number: point for number, point in found.items() if not any(map(math.isnan, point))}


def _leads(trials: Sequence[TrialRecord], aim: Objective) -> NDArray[Any]:
    """Return how far each trial (row) is ahead of each other trial (column); NaN if they cannot be compared.

    If two trials have scores for different questions, their quality is compared on the questions for which both have a
    score, so that a trial does not gain from questions without a score.
    """
    values = np.array([aim.sign * _value(one, aim) for one in trials])
    found: NDArray[Any] = values[:, None] - values[None, :]
    tables = [aim.scores(one.dev) for one in trials] if aim.metrics else []
    keys = list(dict.fromkeys(key for table in tables for key in table))
    if keys:
        scores = np.array([[table.get(key, math.nan) for key in keys] for table in tables])
        has = ~np.isnan(scores)
        sets = np.unique(has, axis=0, return_inverse=True)[1].reshape(-1)
        sums, counts = np.nan_to_num(scores) @ has.T.astype(float), has.astype(float) @ has.T.astype(float)
        shared = np.divide(sums - sums.T, counts, out=np.full_like(sums, math.nan), where=counts > 0)
        found = np.where(sets[:, None] == sets[None, :], found, shared)
    return found.round(9)


def ranked(trials: Sequence[TrialRecord], aim: Objective) -> list[TrialRecord]:
    """Return the complete trials with a value, best first; ties are sorted by number.

    Trials are sorted by the number of trials that they beat, minus the number that beat them. Each pair is compared on
    the questions for which both have a score; if all trials have the same scored questions, this is the order of their
    values.
    """
    values = points(trials, [aim])
    scored = [one for one in trials if one.number in values]
    ahead = np.nansum(np.sign(_leads(scored, aim)), axis=1).tolist()
    order = sorted(zip(scored, ahead, strict=True), key=lambda pair: (-pair[1], pair[0].number))
    return [one for one, _ in order]


def front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[int]:
    """Return the numbers of the complete trials on the front, which always contains the first trial of ``ranked``.

    A trial beats another if it is at least as good in every objective and better in one. Except for the first trial of
    ``ranked``, no other trial on the front beats a trial on the front. Each pair is compared as in ``ranked``. If
    trials have the same values, only the first counts.
    """
    values = points(trials, objectives)
    scored = [one for one in ranked(trials, objectives[0]) if one.number in values]
    leads = [_leads(scored, aim) for aim in objectives]
    covers = np.all([lead >= 0 for lead in leads], axis=0)
    beats = covers & np.any([lead > 0 for lead in leads], axis=0)
    kept: list[int] = []
    for place in range(len(scored)):
        if not any(covers[other, place] for other in kept):
            kept = [*(other for other in kept if other == 0 or not beats[place, other]), place]  # 0 is the best
    return sorted(scored[place].number for place in kept)


def cheapest(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective], within: float = 0.01, cost: Objective | None = None
) -> TrialRecord | None:
    """Return the trial with the lowest cost among the complete trials that are almost as good as the best.

    Args:
        trials: The trials.
        objectives: The first one measures quality.
        within: How far the first objective may be below the best trial's, on the questions for which both have a score.
            Default 0.01, which is one point.
        cost: The cost. Default: the first cost among the objectives, otherwise ``tokens``.

    Returns:
        The trial (the best one if several are equally cheap); None if no trial has a value.
    """
    aim = cost or next((one for one in objectives if not one.metrics), objective_named("tokens"))
    order, kept = ranked(trials, objectives[0]), front(trials, [objectives[0], aim])
    near = [one for one, lead in zip(order, _leads(order, objectives[0])[:, :1], strict=True) if lead >= -within - 1e-9]
    found = [one for one in near if one.number in kept] or near
    return min(found, key=lambda one: _value(one, aim), default=None)


def best(trials: Sequence[TrialRecord], aim: Objective) -> TrialRecord | None:
    """Return the first trial of ``ranked``; None if no trial has a value."""
    return next(iter(ranked(trials, aim)), None)


def ended(trials: Sequence[TrialRecord], *states: str) -> list[TrialRecord]:
    """Return the trials in any of these states. Default: all that are not running."""
    return [one for one in trials if one.state in (states or ("complete", "pruned", "failed"))]


def interval(record: TrialRecord, aim: Objective) -> Mean:
    """Return the value of a trial with its 95% interval over questions; a cost has no interval.

    A question counts if every metric in the objective has a score.
    """
    value, rows = record.values.get(aim.name, math.nan), record.dev.rows
    if not rows or not aim.metrics:
        return Mean(value, math.nan, math.nan, len(rows), 0)
    scored = aim.scores(record.dev)
    found = mean_with_interval([scored.get(row.id, math.nan) for row in rows])
    return found if math.isnan(value) else replace(found, value=value)


def arm_name(arm: ArmConfig) -> str:
    """Return an arm's name without its knobs, such as ``hyde@dense, prompts few, reader short_answer``."""
    name = f"{arm.technique}@{arm.engine}"
    if arm.prompt != UNTUNED:
        name += f", prompts {arm.prompt}"
    name += "" if arm.writer is None else f", writer {arm.writer}"
    return name if arm.reader is None else f"{name}, reader {arm.reader}"


def changed_knobs(arm: ArmConfig) -> str:
    """Return an arm's knobs that differ from their defaults; ``-`` if all have their defaults.

    If the technique's class is not registered in this process, its defaults are unknown, and all knobs are returned.
    """
    defaults: dict[str, Value] = {}
    with suppress(TechniqueError):
        defaults = {knob.name: knob.default for knob in technique_class(arm.technique).KNOBS}
    return " ".join(f"{name}={value}" for name, value in arm.knobs.items() if defaults.get(name) != value) or "-"


def standing(trials: Sequence[TrialRecord], aim: Objective, total: int) -> tuple[str, list[LiveArm]]:
    """Return the objective's name and each trial's score so far, for a progress bar.

    Args:
        trials: The trials.
        aim: The objective.
        total: The number of dev questions.
    """

    def live(one: TrialRecord) -> LiveArm:
        name = f"{one.name}, {arm_name(replace(one.arm, reader=None))}"
        state = "done" if one.state == "complete" else one.state
        told = one.met or live_arm(name, state, [*aim.scores(one.dev).values()], total, len(one.dev.rows))
        return {**told, "name": name}

    return aim.name, [live(one) for one in trials if one.same_as is None]
