"""An arm, a trial and the state of a study, and how Optuna's storage keeps them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row, finite
from querywright.optimize.study.spec import AS_WRITTEN, PLAIN, StudySpec
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
        technique: Its name; ``plain`` is no rewriting.
        engine: What searches the collection.
        knobs: The value of every knob of the technique, those at their defaults too.
        prompt: ``as written``, or a name in the study's ``prompts``.
        reader: Name of the reader, or None where none reads.
        writer: Name of the LM that writes, out of the study's ``writers``; None where there are none.
    """

    technique: str
    engine: str
    knobs: Mapping[str, Value]
    prompt: str = AS_WRITTEN
    reader: str | None = None
    writer: str | None = None

    @property
    def key(self) -> str:
        """A hash; equal for equal arms."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def is_plain(self) -> bool:
        """Whether the question is searched as it was asked, in the collection's own passages."""
        return self.technique == PLAIN and self.engine == "dense" and self.prompt == AS_WRITTEN

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
        late: Whether it belongs to the second phase.
        values: Value of each objective; empty where there is none.
        dev: Results on dev, question by question (a pruned trial: those that it met); empty while it runs, and where
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
    late: bool = False
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
            **{
                name: getattr(self, name)
                for name in ("state", "late", "same_as", "began", "ended", "worker", "message")
            },
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
        outcome: All that was found, once test was met and programs are saved; None before.
    """

    spec: StudySpec
    trials: tuple[TrialRecord, ...] = ()
    spent: Spent = Spent()
    outcome: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether test was met and programs are saved."""
        return self.outcome is not None
