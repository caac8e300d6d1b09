"""Values of a JSON schema that a small model can write: choices, and grammars with limits.

A value without a limit in the schema gets a limit of characters or items, so that a model that does not know when to
stop still completes its value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import json_repair

from querywright.models.response_parsing import ended

Schema = Mapping[str, Any]

_MOST_NUMBERS = 11  # an integer with at most this many possible values is decided like a choice
_NUMBERS = {"integer": r"/-?(0|[1-9][0-9]{0,8})/", "number": r"/-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,4})?/"}
_LARGEST = 1_000_000_000  # for numbers without bounds in a list or an object
_LONG_TEXT = 200  # characters


def resolved(field: Schema, root: Schema) -> Schema:
    """Return the field, with a reference to a definition of the schema replaced by the definition."""
    if "$ref" not in field:
        return field
    name = str(field["$ref"]).rsplit("/", 1)[-1]
    return {**root["$defs"][name], **{key: value for key, value in field.items() if key != "$ref"}}


def choices(field: Schema, root: Schema) -> list[Any] | None:
    """Return the values that a field allows, or None if they are not listed."""
    field = resolved(field, root)
    if "enum" in field:
        return list(field["enum"])
    if "const" in field:
        return [field["const"]]
    if "anyOf" in field:
        known: list[Any] = []
        for branch in field["anyOf"]:
            values = choices(branch, root)
            if values is None:
                return None
            known += values
        return known
    kind, low, high = field.get("type"), field.get("minimum"), field.get("maximum")
    if kind in ("boolean", "null"):
        return [True, False] if kind == "boolean" else [None]
    if kind == "integer" and low is not None and high is not None and high - low < _MOST_NUMBERS:
        return list(range(int(low), int(high) + 1))
    return None


class Form:
    """Describes how a value is written: its beginning, the grammar of the rest, and how it is read.

    Args:
        field: Schema of the field.
        root: Schema that contains the field.
        max_chars: Maximum number of characters of a text that the schema does not limit.
        max_items: Maximum number of items of a list that the schema does not limit.
        after: A character that may follow a text or a list of texts, in one token with its end. It is not part of the
            value. Default: none.
    """

    def __init__(self, field: Schema, root: Schema, max_chars: int, max_items: int, *, after: str = "") -> None:
        self._field = field = resolved(field, root)
        items = resolved(field.get("items", {}), root)
        self._kind = str(field.get("type", "value"))
        self._limit: int | None = None
        self._after = after
        end = f' "{after}"?' if after else ""
        # The beginning contains the opening quote, because a small model fails if it must write the quote itself.
        self.opening = ""
        if self._kind == "string":
            self._limit = int(field.get("maxLength", max_chars))
            self.opening = '"'
            self.grammar = f'start: TEXT "\\""{end}\n{_text_rule(self._limit)}'
        elif self._kind == "array" and items.get("type") == "string" and "enum" not in items:
            self._kind = "texts"
            self._limit = int(items.get("maxLength", max_chars))
            most = max(int(field.get("maxItems", max_items)), 1)
            least = min(max(int(field.get("minItems", 1)), 1), most)
            self.opening = '["'
            more = f'("\\", \\"" TEXT){{{least - 1},{most - 1}}}' if most > 1 else ""
            self.grammar = f'start: TEXT {more} "\\"]"{end}\n{_text_rule(self._limit)}'
        elif self._kind in _NUMBERS:
            self.grammar = f"start: NUMBER\nNUMBER: {_NUMBERS[self._kind]}"
        else:
            limited = _limited({**field, "$defs": root.get("$defs", {})}, max_chars, max_items)
            self.grammar = "start: %json " + json.dumps({**limited, "x-guidance": {"whitespace_flexible": False}})

    @property
    def may_loop(self) -> bool:
        """Whether a small model is likely to repeat itself in the value: a list of texts, or a long text."""
        return self._kind == "texts" or (self._limit or 0) >= _LONG_TEXT

    def read(self, text: str) -> tuple[Any, bool]:
        """Return the value of a text, and whether the text is complete. An incomplete text gives a partial value."""
        end = '"' if self._kind == "string" else '"]'
        if self._after and text.endswith(end + self._after):
            text = text.removesuffix(self._after)
        try:
            value, whole = json.loads(text), True
        except ValueError:
            value, whole = self._salvaged(text), False
        if self._kind in _NUMBERS and isinstance(value, (int, float)):
            value = min(max(value, self._field.get("minimum", value)), self._field.get("maximum", value))
        elif self._limit is not None and isinstance(value, str):
            value = ended(value, self._limit)
        elif self._limit is not None and isinstance(value, list):
            value = [ended(item, self._limit) for item in value]
        return value, whole

    def _salvaged(self, text: str) -> Any:
        if self._kind == "string":
            return text.strip().removeprefix('"')
        if self._kind == "texts":
            return re.findall(r'"([^"]*)"(?=[,\]])', text) or [text.removeprefix(self.opening)]
        try:
            repaired = json_repair.loads(text)
        except ValueError:  # nested too deep
            return None
        return None if repaired == "" else repaired


def _text_rule(limit: int) -> str:
    return r'TEXT: /[^"\\\x00-\x1f]{1,' + str(limit) + "}/"


def _limited(schema: Any, max_chars: int, max_items: int) -> Any:
    """Return the schema with limits in every place that has none."""
    if isinstance(schema, list):
        return [_limited(part, max_chars, max_items) for part in schema]
    if not isinstance(schema, Mapping) or isinstance(schema.get("enum"), list):  # or a field with the name enum
        return schema
    number = {"minimum": -_LARGEST, "maximum": _LARGEST}
    limits: dict[Any, dict[str, Any]] = {
        "string": {"maxLength": max_chars},
        "array": {"maxItems": max_items},
        "integer": number,
        "number": {**number, "multipleOf": 0.0001},
        "object": {"additionalProperties": False},
    }
    kind = schema.get("type")  # a schema, if a property has the name type
    limited = {key: _limited(value, max_chars, max_items) for key, value in schema.items()}
    return (limits.get(kind, {}) if isinstance(kind, str) else {}) | limited
