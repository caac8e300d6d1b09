"""The trials of a study as a table for other tools: Parquet, CSV or JSON lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from querywright.optimize.evaluate import Row
from querywright.optimize.study.status import aims, interval
from querywright.optimize.study.types import Snapshot, TrialRecord
from querywright.optimize.tables import write_table

_COST = ("calls", "saved", "retries", "failures", "repairs", "input_tokens", "output_tokens", "dollars")


def export(snapshot: Snapshot, path: str | Path, *, questions: bool = False) -> int:
    """Write a row a trial, whole or not at all.

    A trial has ``number``, ``state``, ``technique``, ``engine``, ``prompt``, ``reader``, ``late``, ``same_as``,
    ``worker``, ``began`` and ``ended`` (Unix time), ``message``; ``value.NAME``, ``low.NAME`` and ``high.NAME`` of each
    objective; the number of ``questions`` that it met; ``spent.NAME`` in calls, tokens and dollars, and
    ``prompt_spent.calls``; ``knob.NAME`` and ``param.NAME``, empty where it has none.

    A question has the first six of these, and ``id``, ``score.NAME``, ``label``, ``passages`` (ids), ``lm_calls``,
    ``tokens``, ``seconds``, ``fallbacks`` and ``failure``.

    Args:
        snapshot: The study.
        path: The file; its suffix says which form: ``.parquet``, ``.csv`` or ``.jsonl``.
        questions: A row a trial and question, in place of a row a trial.

    Returns:
        The number of rows.

    Raises:
        InputError: The suffix is another one, or the folder is not there.
    """
    rows = question_rows(snapshot) if questions else trial_rows(snapshot)
    write_table(Path(path), rows)
    return len(rows)


def trial_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """A row a trial."""
    objectives = aims(snapshot.spec)
    rows = []
    for one in snapshot.trials:
        row = {
            **_of_trial(one),
            **{name: getattr(one, name) for name in ("late", "same_as", "worker", "began", "ended", "message")},
        }
        for aim in objectives:
            found = interval(one, aim)
            values = (one.values.get(aim.name, math.nan), found.low, found.high)
            row |= {f"{what}.{aim.name}": value for what, value in zip(("value", "low", "high"), values, strict=True)}
        row["questions"] = 0 if one.dev is None else len(one.dev.rows)
        row |= {f"spent.{name}": getattr(one.spent, name) for name in _COST}
        row["prompt_spent.calls"] = one.prompt_spent.calls
        row |= {f"knob.{name}": value for name, value in ({} if one.arm is None else one.arm.knobs).items()}
        row |= {f"param.{name}": value for name, value in one.params.items()}
        rows.append(row)
    return rows


def question_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """A row a trial and question that it met."""
    return [
        {**_of_trial(trial), **_of_question(row)}
        for trial in snapshot.trials
        if trial.dev is not None
        for row in trial.dev.rows
    ]


def _of_trial(trial: TrialRecord) -> dict[str, Any]:
    named = {name: getattr(trial.arm, name, None) for name in ("technique", "engine", "prompt", "reader")}
    return {"number": trial.number, "state": trial.state, **named}


def _of_question(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        **{f"score.{name}": value for name, value in row.scores.items()},
        "label": None if row.label is None else str(row.label),
        "passages": list(row.passages),
        "lm_calls": row.cost.asked,
        "tokens": row.cost.tokens + row.cost.saved_tokens,
        "seconds": row.seconds,
        "fallbacks": list(row.fallbacks),
        "failure": row.failure,
    }
