"""The per-question table of a comparison, as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from querywright.data.types import Question
from querywright.files import write_file
from querywright.optimize.evaluate import Evaluation, Row


def write_rows(path: Path, arms: Sequence[Evaluation], questions: Sequence[Question]) -> None:
    """Write one row an arm and question, whole or not at all.

    Columns: ``arm``, ``question_id``, ``question``, ``label``, ``answer``, ``support`` (ids; null where the reader does
    not say), ``invalid``, a column a metric (null where it could not be scored), ``passages`` and ``found`` (ids),
    ``queries`` (role and text), ``fallbacks``, ``lm_calls`` and ``tokens`` (asked for, whether made or saved),
    ``seconds`` (null where an answer came from the store), ``failure`` and ``message``. But for ``seconds``
    the table is the same however often the run was broken off.

    Args:
        path: The file.
        arms: Results, all on these questions.
        questions: What was asked.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    metrics = list(dict.fromkeys(name for arm in arms for row in arm.rows for name in row.scores))
    texts = {question.id: question.question for question in questions}
    records = [_record(arm.name, row, texts[row.id], metrics) for arm in arms for row in arm.rows]
    query = pa.struct([("role", pa.string()), ("text", pa.string())])
    schema = pa.schema(
        [
            ("arm", pa.string()),
            ("question_id", pa.string()),
            ("question", pa.string()),
            ("label", pa.string()),
            ("answer", pa.string()),
            ("support", pa.list_(pa.string())),
            ("invalid", pa.bool_()),
            *((name, pa.float64()) for name in metrics),
            ("passages", pa.list_(pa.string())),
            ("found", pa.list_(pa.string())),
            ("queries", pa.list_(query)),
            ("fallbacks", pa.list_(pa.string())),
            ("lm_calls", pa.int64()),
            ("tokens", pa.int64()),
            ("seconds", pa.float64()),
            ("failure", pa.string()),
            ("message", pa.string()),
        ]
    )
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records, schema=schema), buffer)
    write_file(path, buffer.getvalue().to_pybytes())


def _record(arm: str, row: Row, question: str, metrics: Sequence[str]) -> dict[str, Any]:
    data: dict[str, Any] = _encodable(row.to_json())
    cost = row.cost
    return {
        "arm": _encodable(arm),
        "question_id": row.id,
        "question": _encodable(question),
        **{name: data["scores"].get(name) for name in metrics},
        **{
            name: data[name]
            for name in (
                "label",
                "answer",
                "support",
                "invalid",
                "passages",
                "found",
                "queries",
                "fallbacks",
                "failure",
                "message",
            )
        },
        "lm_calls": cost.asked,
        "tokens": cost.tokens + cost.saved_tokens,
        "seconds": None if cost.saved else data["seconds"],
    }


def _encodable(value: Any) -> Any:
    """The value without halves of surrogate pairs, which an LM can write and Parquet cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _encodable(one) for key, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list) else value
