"""Tables of results: texts for people to read, and rows for other tools as Parquet, CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.files import write_file
from querywright.metrics.statistics import Mean
from querywright.optimize.evaluate import Evaluation, Row

_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(value: str) -> str:
    """The text with a replacement character for what no page may hold: control characters, half surrogates."""
    return _UNFIT.sub("\ufffd", value.replace("\r\n", "\n").replace("\r", "\n"))


def cut(value: str, limit: int) -> str:
    """The text, or as many of its words as fit.

    Args:
        value: The text.
        limit: Characters that may stay, before the sign that more followed.
    """
    if len(value) <= limit:
        return value
    head = value[:limit]
    return (head.rsplit(None, 1)[0] if re.search(r"\S\s", head) else head) + " …"


def percent(mean: Mean) -> str:
    """A mean in per cent with its interval; ``-`` where nothing was scored."""
    if math.isnan(mean.value):
        return "-"
    text = f"{100 * mean.value:.1f}"
    if not math.isnan(mean.low):
        text += f" [{100 * mean.low:.0f}, {100 * mean.high:.0f}]"
    return text + (f" ({mean.unscored} unscored)" if mean.unscored else "")


def table_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, str]]:
    """One row an arm for people to read; the columns are those that some arm has a value for."""
    metrics = list(dict.fromkeys(name for one in evaluations for name in one.metrics))
    rows = []
    for one in evaluations:
        row = {"arm": one.name, "n": str(len(one.rows))}
        row.update({metric: percent(one.mean(metric)) if metric in one.metrics else "-" for metric in metrics})
        row["LM calls / question"] = f"{one.cost.asked / max(1, len(one.rows)):.1f}"
        row["LM calls made"] = str(one.cost.calls)
        row["seconds"] = f"{one.seconds:.1f}"
        row["p50 / p95 s"] = " / ".join(_number(one.latency(quantile), "{:.1f}") for quantile in (0.5, 0.95))
        row["fallbacks"] = _number(100 * one.fallback_rate, "{:.0f} %")
        row["invalid"] = _number(100 * one.invalid_rate, "{:.0f} %")
        row["failed"] = ", ".join(f"{kind} {count}" for kind, count in one.failures.items()) or "0"
        rows.append(row)
    return rows


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def question_rows(arms: Sequence[Evaluation], questions: Sequence[Question] = ()) -> list[dict[str, Any]]:
    """A row an arm and question, as plain data.

    Columns: ``arm``, ``question_id``, ``question`` (where questions are given), ``label``, ``answer``, ``support``
    (ids; None where the reader does not say), ``invalid``, a column a metric (None where it could not be scored),
    ``passages`` and ``found`` (ids), ``queries`` (role and text), ``fallbacks``, ``lm_calls`` and ``tokens`` (asked
    for, whether made or saved), ``seconds`` (None where an answer came from the store), ``failure`` and ``message``.
    But for ``seconds`` the table is the same however often the run was broken off.

    Args:
        arms: Results.
        questions: What was asked. Default nothing.
    """
    metrics = list(dict.fromkeys(name for arm in arms for row in arm.rows for name in row.scores))
    texts = {question.id: question.question for question in questions}
    return [_held(_question_row(arm.name, row, texts, metrics)) for arm in arms for row in arm.rows]


def _question_row(arm: str, row: Row, texts: Mapping[str, str], metrics: Sequence[str]) -> dict[str, Any]:
    data = row.to_json()
    scores, cost = data["scores"], row.cost
    return {
        "arm": arm,
        "question_id": row.id,
        **({"question": texts.get(row.id)} if texts else {}),
        **{name: data[name] for name in ("label", "answer", "support", "invalid")},
        **{name: scores.get(name) for name in metrics},
        **{name: data[name] for name in ("passages", "found", "queries", "fallbacks")},
        "lm_calls": cost.asked,
        "tokens": cost.tokens + cost.saved_tokens,
        "seconds": None if cost.saved else data["seconds"],
        **{name: data[name] for name in ("failure", "message")},
    }


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, whole or not at all; their columns are all that some row has.

    Args:
        path: The file; its suffix says which form: ``.parquet``, ``.csv`` or ``.jsonl``.
        rows: Plain data by column.

    Raises:
        InputError: The suffix is another one, or the folder is not there.
    """
    check_table(path)
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["number"]
    held = [{name: _held(row.get(name)) for name in columns} for row in rows]
    write_file(path, _WRITERS[path.suffix.lower()](columns, held))


def check_table(path: Path) -> None:
    """Raise when a table could not be written there: its suffix names no form, or there is no such folder.

    Raises:
        InputError: It is so.
    """
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"{path.name!r} says no form of table; end it in {', '.join(_WRITERS)}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} for {path.name}; make it first")


def _held(value: Any) -> Any:
    """The value as every form can hold it: no NaN, no half of a surrogate pair."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {key: _held(one) for key, one in value.items()}
    return [_held(one) for one in value] if isinstance(value, (list, tuple)) else value


def _jsonl(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([json.dumps(value) if isinstance(value, list) else value for value in row.values()])
    return text.getvalue().encode()


def _parquet(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({name: _column([row[name] for row in rows]) for name in columns}), buffer)
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
    if kinds == {list} and not any(values):
        return pa.array(values, pa.list_(pa.string()))
    return pa.array(values)


_WRITERS: Mapping[str, Callable[[Sequence[str], Sequence[Mapping[str, Any]]], bytes]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".jsonl": _jsonl,
}
