"""What the parts of a study hand each other: an arm, a trial that ended, and the state of the whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from querywright.data.types import Label
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row, finite
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.programs.hyperparameters import Value

TrialState = Literal["running", "complete", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class ArmConfig:
    """A program that a trial is about.

    Args:
        technique: Its name; ``plain`` is no rewriting.
        engine: What searches the collection.
        knobs: The value of every knob of the technique, those at their defaults too.
        prompt: ``as written``, or the variant ``NAME`` or ``NAME.2`` of a name in the study's ``prompts``.
        reader: Name of the reader, or None where none reads.
    """

    technique: str
    engine: str
    knobs: Mapping[str, Value]
    prompt: str = AS_WRITTEN
    reader: str | None = None

    @property
    def key(self) -> str:
        """A hash; equal for equal arms."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def is_plain(self) -> bool:
        """Whether the question is searched as it was asked, in the collection's own passages."""
        return self.technique == "plain" and self.engine == "dense" and self.prompt == AS_WRITTEN

    def to_json(self) -> dict[str, Any]:
        """The arm as a JSON object."""
        return {
            "technique": self.technique,
            "engine": self.engine,
            "knobs": dict(self.knobs),
            "prompt": self.prompt,
            "reader": self.reader,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArmConfig:
        """The arm that ``to_json`` wrote."""
        return cls(data["technique"], data["engine"], dict(data["knobs"]), data["prompt"], data["reader"])


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial, as the storage has it.

    Args:
        number: From 0.
        state: ``running``, ``complete``, ``pruned`` or ``failed``.
        arm: What was tried; None where it was not settled yet.
        late: Whether it belongs to the second phase.
        values: Value of each objective; empty where there is none.
        dev: Results on dev, question by question (a pruned trial: those that it met); None while it runs. Its rows
            have scores, label, passages, cost, seconds and failure, and nothing else.
        spent: What this trial paid and saved, prompts that it had to compile included.
        prompt_spent: The part of it that compiling prompts took.
        same_as: The number of an earlier trial with the same arm, whose results it took.
        params: Optuna's parameters.
        began: Unix time, seconds.
        ended: Unix time, seconds; None while it runs.
        worker: Which worker finished it, such as ``1``; never a host's name.
        message: Why it failed or was pruned.
    """

    number: int
    state: TrialState
    arm: ArmConfig | None
    late: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    dev: Evaluation | None = None
    spent: Cost = field(default_factory=Cost)
    prompt_spent: Cost = field(default_factory=Cost)
    same_as: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    began: float | None = None
    ended: float | None = None
    worker: str = ""
    message: str = ""

    @property
    def name(self) -> str:
        """How the trial is called in tables."""
        return f"trial {self.number}"


def compact_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The rows of an evaluation as far as a storage keeps them."""
    return [
        {
            "id": row.id,
            "scores": {name: finite(value) for name, value in row.scores.items()},
            "label": None if row.label is None else str(row.label),
            "passages": list(row.passages),
            "fallbacks": list(row.fallbacks),
            "cost": {key: value for key, value in row.cost.to_json().items() if value},
            "seconds": round(row.seconds, 4),
            "failure": row.failure,
        }
        for row in evaluation.rows
    ]


def from_compact_rows(name: str, rows: list[dict[str, Any]], seconds: float = 0.0) -> Evaluation:
    """The evaluation whose rows ``compact_rows`` wrote."""
    return Evaluation(
        name,
        tuple(
            Row(
                id=row["id"],
                scores={key: math.nan if value is None else value for key, value in row["scores"].items()},
                label=None if row["label"] is None else Label(row["label"]),
                passages=tuple(row["passages"]),
                fallbacks=tuple(row["fallbacks"]),
                cost=Cost.from_json(row["cost"]),
                seconds=row["seconds"],
                failure=row["failure"],
            )
            for row in rows
        ),
        seconds,
    )
