"""A completion as the embedded LM would have written it: JSON, fields in order, every value within its limits.

The embedded LM writes by a grammar: a text has so many characters and neither quotation marks nor backslashes, a list
so many items. A model is taught, and rewarded for, what it can write in use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from querywright.models.constrained_decoding import Form, Schema, apostrophes, choices, resolved
from querywright.models.embedded import EmbeddedSettings

_CONTROL = re.compile(r"[\x00-\x1f\\]+")
_HALF = re.compile("[\ud800-\udfff]")


def as_written(values: Mapping[str, Any], schema: Schema | None, settings: EmbeddedSettings | None) -> dict[str, Any]:
    """The values of an answer as the embedded LM could have written them.

    Args:
        values: By field, as they were read.
        schema: Of the answer, as it was asked for; None where it was not asked for by schema.
        settings: What a value may be where the schema says nothing. None: values stay as they are.

    Returns:
        The values in the schema's order; half of a surrogate pair, which no file can hold, is U+FFFD.
    """
    values = {name: _whole(value) for name, value in values.items()}
    if schema is None:
        return values
    fields: Mapping[str, Any] = schema["properties"]
    ordered = {name: values[name] for name in fields if name in values}
    if settings is None:
        return ordered
    return {name: _limited(value, fields[name], schema, settings) for name, value in ordered.items()}


def json_text(values: Mapping[str, Any]) -> str:
    """The values as the embedded LM writes them."""
    return _HALF.sub("\ufffd", json.dumps(values, ensure_ascii=False, default=str))


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {name: _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _limited(value: Any, field: Schema, root: Schema, settings: EmbeddedSettings) -> Any:
    if choices(field, root) is not None:
        return value
    field = resolved(field, root)
    if isinstance(value, str):
        value = _plain(value, int(field.get("maxLength", settings.max_chars)))
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        items = resolved(field.get("items", {}), root)
        most = max(int(field.get("maxItems", settings.max_items)), 1)
        longest = int(items.get("maxLength", settings.max_chars))
        value = [_plain(item, longest) for item in value if item.strip()][:most]
    elif not isinstance(value, (int, float)):
        return value
    tidied, _ = Form(field, root, settings.max_chars, settings.max_items).read(json.dumps(value))
    return tidied


def _plain(text: str, limit: int) -> str:
    return " ".join(_CONTROL.sub(" ", apostrophes(text)).split())[:limit]


def has_empty_list(text: str) -> bool:
    """Whether a field of a written answer is an empty list."""
    return any(value == [] for value in json.loads(text).values())
