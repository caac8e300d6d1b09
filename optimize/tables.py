"""Tables of results: text for people, and rows for other tools as Parquet, CSV, or JSON Lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.files import write_file
from querywright.metrics.statistics import Mean
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation

if TYPE_CHECKING:
    import pandas

FORMS = (".parquet", ".csv", ".jsonl")

_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(value: str) -> str:
    """Return the text with control characters and lone surrogates replaced, because they are not allowed in a page."""
    return _UNFIT.sub("\ufffd", value.replace("\r\n", "\n").replace("\r", "\n"))


def cut(value: str, limit: int) -> str:
    """Return the text, or as many of its first words as fit into ``limit`` characters, followed by an ellipsis."""
    if len(value) <= limit:
        return value
    head = value[:limit]
    return (head.rsplit(None, 1)[0] if re.search(r"\S\s", head) else head) + " …"


def percent(mean: Mean) -> str:
    """Return a mean as a percentage with its interval; ``-`` if nothing was scored."""
    if math.isnan(mean.value):
        return "-"
    text = f"{100 * mean.value:.1f}"
    if not math.isnan(mean.low):
        text += f" [{100 * mean.low:.0f}, {100 * mean.high:.0f}]"
    return text + (f" ({mean.unscored} of {mean.n + mean.unscored} unscored)" if mean.unscored else "")


def table_rows(evaluations: Sequence[Evaluation], *, timed: bool = True) -> list[dict[str, str]]:
    """Return one human-readable row per program, with the columns for which at least one program has a value.

    Args:
        evaluations: Results of the programs.
        timed: Whether to show seconds per question, which a recording does not have. Default True.
    """
    counts = len({len(one.rows) for one in evaluations}) > 1
    metrics = list(dict.fromkeys(name for one in evaluations for name in one.metrics))
    partly = any(0 < one.unjudged_share < 1 for one in evaluations)
    unread = any(one.cost.unreadable for one in evaluations)
    return [
        {
            "arm": one.name,
            **({"n": str(len(one.rows))} if counts else {}),
            **{metric: percent(one.mean(metric)) for metric in metrics},
            **({"unjudged": _number(100 * one.unjudged_share, "{:.0f}%")} if partly else {}),
            "calls per question": f"{one.calls_per_question:.1f}",
            **({"p50 / p95 s": _latency(one)} if timed else {}),
            "fallbacks": _number(100 * one.fallback_rate, "{:.0f}%"),
            "invalid": _number(100 * one.invalid_rate, "{:.0f}%"),
            **({"unreadable": _number(100 * one.unreadable_rate, "{:.0f}%")} if unread else {}),
            "failed": ", ".join(f"{kind} {count}" for kind, count in one.failures.items()) or "0",
        }
        for one in evaluations
    ]


def replayed(evaluations: Sequence[Evaluation]) -> str:
    """Return a note that all or some answers were cached; empty if none were."""
    cost = sum((one.cost for one in evaluations), Cost())
    if not cost.saved:
        return ""
    some = "all" if not cost.calls else f"{cost.saved} of {cost.asked}"
    return f"{some} LM answers were cached, so their latency is not shown"


def pool_notes(evaluations: Sequence[Evaluation], questions: Sequence[Question]) -> list[str]:
    """Return a line for each program whose decision-useful rate depends on unjudged passages in a pool."""
    pooled, notes = {question.id for question in questions if question.assessors}, []
    for one in evaluations:
        rows = [row for row in one.rows if row.id in pooled and "decision_useful" in row.scores and row.failure is None]
        useful = sum(row.scores["decision_useful"] == 1 for row in rows)
        undecided = sum(row.unjudged > 0 and math.isnan(row.scores["decision_useful"]) for row in rows)
        if undecided:
            low, high = (100 * count / len(rows) for count in (useful, useful + undecided))
            notes.append(
                f"{one.name}: {undecided} of {len(rows)} questions depend on unjudged passages, so decision_useful "
                f"over all of these questions is between {low:.1f} and {high:.1f}; label the unjudged passages"
            )
    return notes


def _latency(one: Evaluation) -> str:
    return " / ".join(_number(one.latency(quantile), "{:.1f}") for quantile in (0.5, 0.95))


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)


def question_rows(arms: Sequence[Evaluation], questions: Sequence[Question] = ()) -> list[dict[str, Any]]:
    """Return one row per program and question, as plain data.

    Columns: ``arm``, ``question_id``, ``question`` (if questions are given), ``label``, ``unjudged``, ``answer``,
    ``support`` (ids; None if the reader does not name them), ``invalid``, one column per metric (None if it could not
    be scored), ``passages`` and ``found`` (ids), ``queries`` (role and text), ``fallbacks``, ``lm_calls`` and
    ``tokens`` (including cached calls), ``seconds`` (None for a cached answer), ``failure``, and ``message``. Except
    for ``seconds``, the table is the same if a run was interrupted and resumed.

    Args:
        arms: Results.
        questions: The questions. Default none.
    """
    metrics = list(dict.fromkeys(name for arm in arms for row in arm.rows for name in row.scores))
    texts = {question.id: question.question for question in questions}
    rows = []
    for arm in arms:
        for row in arm.rows:
            data, cost = each_text(row.to_json(), _storable), row.cost
            rows.append(
                {"arm": arm.name, "question_id": row.id}
                | ({"question": each_text(texts.get(row.id), _storable)} if texts else {})
                | {name: data[name] for name in ("label", "unjudged", "answer", "support", "invalid")}
                | {name: data["scores"].get(name) for name in metrics}
                | {name: data[name] for name in ("passages", "found", "queries", "fallbacks")}
                | {"lm_calls": cost.asked, "tokens": cost.asked_tokens}
                | {"seconds": None if cost.saved else data["seconds"]}
                | {name: data[name] for name in ("failure", "message")}
            )
    return rows


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a file atomically. The table has every column that appears in any row.

    Args:
        path: The file; its suffix determines the format: ``.parquet``, ``.csv``, or ``.jsonl``.
        rows: Plain data by column. NaN becomes an empty value, and a lone surrogate becomes ``?``.

    Raises:
        InputError: The suffix is unknown, or the folder does not exist.
    """
    import pandas

    check_table(path)
    frame = pandas.DataFrame([each_text(row, _storable) for row in rows], dtype=object)
    frame = frame.where(frame.notna(), None)
    if path.suffix.lower() == ".parquet":
        data: bytes | str = frame.apply(_one_type).to_parquet(index=False)
    elif path.suffix.lower() == ".csv":
        data = frame.map(lambda value: json.dumps(value) if isinstance(value, list) else value).to_csv(index=False)
    else:
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in frame.to_dict("records"))
    write_file(path, data)


def check_table(path: Path) -> None:
    """Raise if a table cannot be written to this path.

    Raises:
        InputError: The suffix is unknown, or the folder does not exist.
    """
    if path.suffix.lower() not in FORMS:
        raise InputError(f"a table's file name must end in {', '.join(FORMS)}, but got {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot write {path.name}: there is no folder {str(path.parent)!r}; create the folder first")


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return JSON data with a function applied to every string value; keys stay unchanged."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: each_text(one, change) for key, one in value.items()}
    return [each_text(one, change) for one in value] if isinstance(value, (list, tuple)) else value


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _one_type(column: pandas.Series[Any]) -> pandas.Series[Any]:
    """Return a column with values of one type. If a knob is a number in one technique and a word in another, all values
    become strings.
    """
    kinds = {type(value) for value in column if value is not None}
    if len(kinds) < 2 or kinds == {int, float}:
        return column
    return column.map(lambda value: value if value is None or isinstance(value, str) else json.dumps(value))
