"""The text of one field of a JSON answer, while the answer is still being written."""

from __future__ import annotations

import re

from pydantic_core import from_json

_OBJECT = re.compile(r'\{(?=\s*(?:"|\}|$))')


class FieldText:
    """Reads an answer piece by piece and gives the field's text as far as it is certain.

    The field is a text among the keys of the first JSON object. What stands around the object, other fields, escapes
    and space at the ends of the text are left out. A field that is no text gives nothing, and one that is no valid JSON
    nothing from there on.

    Args:
        name: The field's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._heard = ""
        self._given = 0

    def feed(self, piece: str) -> str:
        """The part of the field's text that became certain with the next piece of the answer."""
        self._heard += piece
        found = _OBJECT.search(self._heard)
        try:
            value = from_json(self._heard[found.start() :], allow_partial="trailing-strings") if found else None
        except ValueError:
            return ""
        text = value.get(self._name) if isinstance(value, dict) else None
        certain = text.strip() if isinstance(text, str) else ""
        new, self._given = certain[self._given :], max(self._given, len(certain))
        return new
