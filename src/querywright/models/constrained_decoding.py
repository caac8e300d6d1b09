"""Help a small model follow a JSON schema, with lists of choices and with grammars that limit lengths.

If the schema sets no limit for a value, the grammar limits the value's characters or items, so that a model that does
not know when to stop still completes the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import json_repair

from querywright.models.response_parsing import ended

Schema = Mapping[str, Any]

_MOST_NUMBERS = 11  # an integer with at most this many possible values is treated as a choice
_NUMBERS = {"integer": r"/-?(0|[1-9][0-9]{0,8})/", "number": r"/-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,4})?/"}
_LARGEST = 1_000_000_000  # for numbers without bounds in a list or an object
_LONG_TEXT = 200  # characters


def resolved(field: Schema, root: Schema) -> Schema:
    """Return the field's schema, with a reference replaced by the definition it refers to."""
    if "$ref" not in field:
        return field
    name = str(field["$ref"]).rsplit("/", 1)[-1]
    return {**root["$defs"][name], **{key: value for key, value in field.items() if key != "$ref"}}


def choices(field: Schema, root: Schema) -> list[Any] | None:
    """Return the values that a field allows, or None if the schema does not list them."""
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
    """Describes how a value is written and parsed: its opening, and the grammar for the rest.

    Args:
        field: The field's schema.
        root: Schema that contains the field.
        max_chars: Maximum number of characters in a string if the schema sets no limit.
        max_items: Maximum number of items in a list if the schema sets no limit.
        after: A character that may follow a string or a list of strings, in the same token as the closing quote or
            bracket. It is not part of the value. Default: none.
    """

    def __init__(self, field: Schema, root: Schema, max_chars: int, max_items: int, *, after: str = "") -> None:
        self._field = field = resolved(field, root)
        items = resolved(field.get("items", {}), root)
        self._kind = str(field.get("type", "value"))
        self._limit: int | None = None
        self._after = after
        end = f' "{after}"?' if after else ""
        # The opening includes the quotation mark, because a small model fails if it must write the mark itself.
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
        """Whether a small model is likely to repeat itself in the value: a list of strings, or a long string."""
        return self._kind == "texts" or (self._limit or 0) >= _LONG_TEXT

    def read(self, text: str) -> tuple[Any, bool]:
        """Parse JSON text, and return the value and whether the text is complete. If not, the value is partial."""
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
        except ValueError:  # nested too deeply
            return None
        return None if repaired == "" else repaired


def _text_rule(limit: int) -> str:
    return r'TEXT: /[^"\\\x00-\x1f]{1,' + str(limit) + "}/"


def _limited(schema: Any, max_chars: int, max_items: int) -> Any:
    """Return the schema, with default limits added where it has no limits."""
    if isinstance(schema, list):
        return [_limited(part, max_chars, max_items) for part in schema]
    if not isinstance(schema, Mapping) or isinstance(schema.get("enum"), list):  # not a field named enum
        return schema
    number = {"minimum": -_LARGEST, "maximum": _LARGEST}
    limits: dict[Any, dict[str, Any]] = {
        "string": {"maxLength": max_chars},
        "array": {"maxItems": max_items},
        "integer": number,
        "number": {**number, "multipleOf": 0.0001},
        "object": {"additionalProperties": False},
    }
    kind = schema.get("type")  # may be a schema, if a property is named type
    limited = {key: _limited(value, max_chars, max_items) for key, value in schema.items()}
    return (limits.get(kind, {}) if isinstance(kind, str) else {}) | limited
