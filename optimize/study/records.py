"""Trials as the storage has them: what is written when one ends, and how it is read again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from querywright.models.usage import Cost
from querywright.optimize.evaluate import finite
from querywright.optimize.study.types import ArmConfig, TrialRecord, TrialState, compact_rows, from_compact_rows

RESULT = "result"
"""The attribute of a trial that holds all that came of it, written at once."""

ARM = "arm"
"""The attribute of a trial that holds what is tried, written before it is."""


def result_json(record: TrialRecord) -> dict[str, Any]:
    """What is kept of a trial that ended."""
    return {
        "state": record.state,
        "late": record.late,
        "values": {name: finite(value) for name, value in record.values.items()},
        "rows": None if record.dev is None else compact_rows(record.dev),
        "seconds": 0.0 if record.dev is None else round(record.dev.seconds, 3),
        "spent": record.spent.to_json(),
        "prompt_spent": record.prompt_spent.to_json(),
        "same_as": record.same_as,
        "began": record.began,
        "ended": record.ended,
        "worker": record.worker,
        "message": record.message,
    }


def record_of(trial: Any) -> TrialRecord:
    """The record of an Optuna trial, running or ended.

    Args:
        trial: A ``FrozenTrial``.
    """
    arm, result = trial.user_attrs.get(ARM), trial.user_attrs.get(RESULT)
    began = None if trial.datetime_start is None else trial.datetime_start.timestamp()
    record = TrialRecord(
        number=trial.number,
        state="running",
        arm=None if arm is None else ArmConfig.from_json(arm),
        params=dict(trial.params),
        began=began,
    )
    if result is None:
        state: TrialState = "failed" if trial.state.is_finished() else "running"
        return replace(record, state=state)
    return _ended(record, result)


def _ended(record: TrialRecord, result: Mapping[str, Any]) -> TrialRecord:
    rows = result["rows"]
    return replace(
        record,
        state=result["state"],
        late=result["late"],
        values={name: value for name, value in result["values"].items() if value is not None},
        dev=None if rows is None else from_compact_rows(record.name, rows, result["seconds"]),
        spent=Cost.from_json(result["spent"]),
        prompt_spent=Cost.from_json(result["prompt_spent"]),
        same_as=result["same_as"],
        began=result["began"],
        ended=result["ended"],
        worker=result["worker"],
        message=result["message"],
    )
