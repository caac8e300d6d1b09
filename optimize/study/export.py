"""The trials of a study as a table for other tools: Parquet, CSV or JSON lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from querywright.optimize.search.trials import TrialRecord, interval
from querywright.optimize.study.status import Snapshot
from querywright.optimize.tables import write_table

_COST = ("calls", "saved", "retries", "failures", "repairs", "input_tokens", "output_tokens", "dollars")
_FACTS = ("same_as", "worker", "began", "ended", "message")


def export(snapshot: Snapshot, path: str | Path, *, questions: bool = False) -> int:
    """Write a row a trial, whole or not at all.

    A trial has ``number``, ``state``, ``technique``, ``engine``, ``prompt``, ``reader``, ``same_as``,
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
    rows = trial_rows(snapshot, questions=questions)
    write_table(Path(path), rows)
    return len(rows)


def trial_rows(snapshot: Snapshot, *, questions: bool = False) -> list[dict[str, Any]]:
    """Return the rows that ``export`` writes."""
    made = _of_questions if questions else _of_trial
    return [
        {
            **{name: getattr(one, name) for name in ("number", "state")},
            **{name: getattr(one.arm, name) for name in ("technique", "engine", "prompt", "reader", "writer")},
            **row,
        }
        for one in snapshot.trials
        for row in made(snapshot, one)
    ]


def _of_trial(snapshot: Snapshot, one: TrialRecord) -> list[dict[str, Any]]:
    row = {name: getattr(one, name) for name in _FACTS}
    for aim in snapshot.spec.aims:
        found = interval(one, aim)
        values = {"value": one.values.get(aim.name, math.nan), "low": found.low, "high": found.high}
        row |= {f"{what}.{aim.name}": value for what, value in values.items()}
    row["questions"] = len(one.dev.rows)
    row |= {f"spent.{name}": getattr(one.spent, name) for name in _COST}
    row["prompt_spent.calls"] = one.prompt_spent.calls
    row |= {f"knob.{name}": value for name, value in one.arm.knobs.items()}
    return [row | {f"param.{name}": value for name, value in one.params.items()}]


def _of_questions(snapshot: Snapshot, one: TrialRecord) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id,
            **{f"score.{name}": value for name, value in row.scores.items()},
            "label": None if row.label is None else str(row.label),
            "lm_calls": row.cost.asked,
            "tokens": row.cost.asked_tokens,
            **{name: getattr(row, name) for name in ("passages", "seconds", "fallbacks", "failure")},
        }
        for row in one.dev.rows
    ]
