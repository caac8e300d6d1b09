"""The trials of a study as a table for other tools: Parquet, CSV or JSON lines."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.evaluate import Row
from querywright.optimize.study.status import Known, aims, interval
from querywright.optimize.study.types import TrialRecord

SUFFIXES = (".parquet", ".csv", ".jsonl")

_COST = ("calls", "saved", "retries", "failures", "repairs", "input_tokens", "output_tokens", "dollars")


def export(snapshot: Known, path: str | Path, *, questions: bool = False) -> int:
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
    target = Path(path)
    check_suffix(target)
    if not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {str(target.parent)!r} for {target.name}; make it first")
    rows = question_rows(snapshot) if questions else trial_rows(snapshot)
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["number"]
    table = [{name: _held(row.get(name)) for name in columns} for row in rows]
    write_file(target, _WRITERS[target.suffix.lower()](columns, table))
    return len(table)


def check_suffix(path: Path) -> None:
    """Raise when the file's suffix names no form of table.

    Raises:
        InputError: It does not.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path.name!r} says no form of table; end it in {', '.join(SUFFIXES)}")


def trial_rows(snapshot: Known) -> list[dict[str, Any]]:
    """A row a trial."""
    objectives = aims(snapshot.spec)
    rows = []
    for one in snapshot.trials:
        row = {
            **_of_trial(one),
            "late": one.late,
            "same_as": one.same_as,
            "worker": one.worker,
            "began": one.began,
            "ended": one.ended,
            "message": one.message,
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


def question_rows(snapshot: Known) -> list[dict[str, Any]]:
    """A row a trial and question that it met."""
    return [
        {**_of_trial(trial), **_of_question(row)}
        for trial in snapshot.trials
        if trial.dev is not None
        for row in trial.dev.rows
    ]


def _of_trial(trial: TrialRecord) -> dict[str, Any]:
    arm = trial.arm
    return {
        "number": trial.number,
        "state": trial.state,
        "technique": None if arm is None else arm.technique,
        "engine": None if arm is None else arm.engine,
        "prompt": None if arm is None else arm.prompt,
        "reader": None if arm is None else arm.reader,
    }


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


def _held(value: Any) -> Any:
    """The value as every form can hold it: no NaN, no half of a surrogate pair."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return [_held(one) for one in value] if isinstance(value, (list, tuple)) else value


def _jsonl(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    import csv

    held = io.StringIO(newline="")
    writer = csv.writer(held)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([json.dumps(value) if isinstance(value, list) else value for value in row.values()])
    return held.getvalue().encode()


def _parquet(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: _column([row[name] for row in rows]) for name in columns})
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    data: bytes = buffer.getvalue().to_pybytes()
    return data


def _column(values: Sequence[Any]) -> Any:
    """A column in one type: a knob of that name may be a number in one technique and a word in another."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    if len(kinds) > 1:
        return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])
    if kinds == {list}:
        return pa.array(values, pa.list_(pa.string()))
    return pa.array(values)


_WRITERS = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
