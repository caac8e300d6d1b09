"""Arms and trials: how Optuna's storage keeps them, which are best, and how they are called."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from querywright.metrics.statistics import Mean, mean_with_interval
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row, finite, live_arm
from querywright.optimize.objectives import Objective, objective_named
from querywright.optimize.search.spec import UNTUNED
from querywright.programs import TECHNIQUES
from querywright.programs.hyperparameters import Value
from querywright.progress import LiveArm

TrialState = Literal["running", "complete", "pruned", "failed"]

ARM, RESULT = "arm", "result"
"""The attributes of a trial: what is tried, and all that came of it."""

MET = "met"
"""A further one: how it stands while it runs."""

_KEPT = ("id", "scores", "label", "passages", "fallbacks", "cost", "seconds", "failure", "unjudged")
_BARE = Row("", {}).to_json()


@dataclass(frozen=True, slots=True)
class ArmConfig:
    """A program that a trial is about.

    Args:
        technique: Its name; ``plain`` is the baseline.
        engine: What searches the collection.
        knobs: The value of every knob of the technique, those at their defaults too.
        prompt: ``untuned``, or a name in the study's ``prompts``.
        reader: Name of the reader, or None where none reads.
        writer: Name of the LM that writes, out of the study's ``writers``; None where there are none.
    """

    technique: str
    engine: str
    knobs: Mapping[str, Value]
    prompt: str = UNTUNED
    reader: str | None = None
    writer: str | None = None

    @property
    def key(self) -> str:
        """A hash; equal for equal arms."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The arm as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArmConfig:
        """The arm that ``to_json`` wrote."""
        return cls(**data)


_COSTS = ("spent", "prompt_spent", "judged")


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial, as the storage has it.

    Args:
        number: From 0.
        state: ``running``, ``complete``, ``pruned`` or ``failed``.
        arm: What was tried.
        values: Value of each objective; empty where there is none.
        dev: Results on dev, question by question (of a pruned trial: the first ones); empty while it runs, and where
            too many questions failed. Its rows have scores, label, passages, fallbacks, cost, seconds, failure and
            unjudged, and nothing else.
        spent: What this trial paid and saved, prompts that it had to compile included.
        prompt_spent: The part of it that compiling prompts took.
        judged: What judges spent besides.
        same_as: The number of an earlier trial with the same arm, whose results it took.
        params: Optuna's parameters.
        began: Unix time, seconds.
        ended: Unix time, seconds; None while it runs.
        worker: Which worker finished it, by a mark that it drew; never a host's name.
        message: Why it failed or was pruned.
        met: How it stands while it runs, as its worker said last; None before, and after it.
    """

    number: int
    state: TrialState
    arm: ArmConfig
    values: Mapping[str, float] = field(default_factory=dict)
    dev: Evaluation = field(default_factory=lambda: Evaluation("", (), 0.0))
    spent: Cost = field(default_factory=Cost)
    prompt_spent: Cost = field(default_factory=Cost)
    judged: Cost = field(default_factory=Cost)
    same_as: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    began: float | None = None
    ended: float | None = None
    worker: str = ""
    message: str = ""
    met: LiveArm | None = None

    @property
    def name(self) -> str:
        """How the trial is called in tables."""
        return f"trial {self.number}"

    def to_text(self) -> str:
        """What came of it, as the attribute of a trial that ended; its arm and parameters are kept beside.

        Text, since Optuna copies the attributes of a trial, each value of each, whenever it hands it out.
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
        """The record of an Optuna trial, running or ended.

        Args:
            trial: A ``FrozenTrial`` whose arm is settled.
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


def cheapest(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective], within: float = 0.01, cost: Objective | None = None
) -> TrialRecord | None:
    """Return the trial with the lowest cost among the complete trials that are almost as good as the best.

    Args:
        trials: The trials.
        objectives: The first one measures quality.
        within: How much lower than the best value the first objective may be. Default 0.01, a point.
        cost: The cost. Default: the first cost among the objectives, else ``tokens``.

    Returns:
        The trial; of equally cheap trials, the best. None if no trial has a value.
    """
    order, first = ranked(trials, objectives[0]), objectives[0].name
    near = [one for one in order if one.values[first] >= order[0].values[first] - within - 1e-9]
    aim = cost or next((one for one in objectives if not one.metrics), objective_named("tokens"))
    return min(near, key=lambda one: aim.value(one.dev), default=None)


def best(trials: Sequence[TrialRecord], aim: Objective) -> TrialRecord | None:
    """The complete trial with the best value; the first of equals; None where none has one."""
    return next(iter(ranked(trials, aim)), None)


def ended(trials: Sequence[TrialRecord], *states: str) -> list[TrialRecord]:
    """The trials that are in one of these states; without any, all that are not running."""
    return [one for one in trials if one.state in (states or ("complete", "pruned", "failed"))]


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


def arm_name(arm: ArmConfig) -> str:
    """An arm without its knobs, such as ``hyde@dense, prompts boot.2, reader short_answer``."""
    name = f"{arm.technique}@{arm.engine}"
    if arm.prompt != UNTUNED:
        name += f", prompts {arm.prompt}"
    name += "" if arm.writer is None else f", writer {arm.writer}"
    return name if arm.reader is None else f"{name}, reader {arm.reader}"


def changed_knobs(arm: ArmConfig) -> str:
    """The knobs that are not at their technique's defaults; ``-`` where all are."""
    defaults = {knob.name: knob.default for knob in TECHNIQUES[arm.technique].KNOBS}
    return " ".join(f"{name}={value}" for name, value in arm.knobs.items() if defaults.get(name) != value) or "-"


def standing(trials: Sequence[TrialRecord], aim: Objective, total: int) -> tuple[str, list[LiveArm]]:
    """Return the name of the objective, and the trials as arms under way; ``total`` is the number of dev questions."""

    def live(one: TrialRecord) -> LiveArm:
        name = f"{one.name}, {arm_name(replace(one.arm, reader=None))}"
        state = "done" if one.state == "complete" else one.state
        told = one.met or live_arm(name, state, [*aim.scores(one.dev).values()], total, len(one.dev.rows))
        return {**told, "name": name}

    return aim.name, [live(one) for one in trials if one.same_as is None]
