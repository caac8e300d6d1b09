"""Evidence of questions and metadata of passages."""

from __future__ import annotations

import math
from datetime import date

from querywright.data.columns import Record, is_whole, parse_text_cell
from querywright.data.types import Label, Scalar


def read_evidence(record: Record) -> dict[str, Label]:
    """Labels by passage id; ids without labels are ENTAILED."""
    column, value = record.cell("evidence")
    value = parse_text_cell(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        ids = value if isinstance(value, list) else [value]
        names = [record.name(item, column, "a passage id, or a list of them") for item in ids]
        return dict.fromkeys(names, Label.ENTAILED)
    evidence = {}
    for key, label in value.items():
        name = str(label).strip().upper().replace(" ", "_")
        if name in Label.__members__:
            evidence[record.text(key, column, "a non-empty passage id")] = Label[name]
        elif label is not None:
            record.complain(column, {key: label}, f"a label: {', '.join(Label)}")
    return evidence


def read_jointly(record: Record) -> bool:
    """Whether it takes all the evidence; False where the row does not say."""
    column, value = record.cell("jointly")
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if value is None or isinstance(value, bool):
        return bool(value)
    record.complain(column, value, "true or false")
    return False


def read_metadata(record: Record) -> dict[str, Scalar]:
    """The metadata's flat values; a missing one is left out, and a date is its ISO 8601 text."""
    column, value = record.cell("metadata")
    value = parse_text_cell(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        record.complain(column, value, "an object of text, numbers and truth values")
        return {}
    metadata: dict[str, Scalar] = {}
    for key, item in value.items():
        name = record.text(key, column, "a non-empty key")
        if isinstance(item, str):
            metadata[name] = record.text(item, column, f"a non-empty text for {name!r}") if item.strip() else ""
        elif isinstance(item, date):
            metadata[name] = item.isoformat()
        elif is_whole(item) or isinstance(item, bool) or (isinstance(item, float) and math.isfinite(item)):
            metadata[name] = item
        elif item is not None:
            record.complain(column, {key: item}, "a flat value (text, finite number, truth value or date) for each key")
    return metadata
