"""The text of one field of a JSON answer, while the answer is still being written."""

from __future__ import annotations

import json
import re

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_REPLACEMENT = "\ufffd"


class FieldText:
    """Reads an answer piece by piece and gives the field's text as far as it is certain.

    The field is a text among the keys of the first JSON object. What stands around the object, other fields, escapes
    and space at the ends of the text are left out. A field that is no text gives nothing.

    Args:
        name: The field's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._take = self._before
        self._key = ""
        self._raw = ""  # of a key, or of an escape
        self._escaped = False  # in a text that is not wanted
        self._in_text = False
        self._depth = 0
        self._high = ""  # half a character
        self._space = ""  # at what may be the end
        self._begun = False
        self._out: list[str] = []

    def feed(self, piece: str) -> str:
        """The part of the field's text that became certain with the next piece of the answer."""
        self._out = []
        for char in piece:
            self._take(char)
        return "".join(self._out)

    # Each of these takes one character and says who takes the next.

    def _before(self, char: str) -> None:
        if char == "{":
            self._take = self._key_or_end

    def _key_or_end(self, char: str) -> None:
        if char == '"':
            self._raw = ""
            self._take = self._in_key
        elif char == "{" or char.isspace() or char == ",":
            pass  # a brace: the one before was no object's
        else:
            self._take = self._before

    def _in_key(self, char: str) -> None:
        if char == '"' and not self._escaped:
            self._key = _decoded(self._raw)
            self._take = self._colon
            return
        self._raw += char
        self._escaped = char == "\\" and not self._escaped

    def _colon(self, char: str) -> None:
        if char == ":":
            self._take = self._value
        elif not char.isspace():
            self._take = self._before

    def _value(self, char: str) -> None:
        if char.isspace():
            return
        if char == '"' and self._key == self._name:
            self._take = self._wanted
        else:
            self._depth, self._in_text, self._escaped = 0, False, False
            self._take = self._other
            self._other(char)

    def _other(self, char: str) -> None:
        """A value that is not wanted."""
        if self._in_text:
            if char == '"' and not self._escaped:
                self._in_text = False
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_text, self._escaped = True, False
        elif char in "[{":
            self._depth += 1
        elif char in "]}":
            self._depth -= 1
            if self._depth < 0:
                self._take = self._nothing
        elif char == "," and self._depth == 0:
            self._take = self._key_or_end

    def _wanted(self, char: str) -> None:
        if char == '"':
            self._end_half()
            self._take = self._nothing
        elif char == "\\":
            self._raw = ""
            self._take = self._escape
        else:
            self._give(char)

    def _escape(self, char: str) -> None:
        self._raw += char
        if self._raw in _ESCAPES:
            self._give(_ESCAPES[self._raw])
            self._take = self._wanted
        elif self._raw[0] != "u":
            self._take = self._nothing  # no JSON
        elif len(self._raw) == 5:
            if _HEX.fullmatch(self._raw[1:]):
                self._give(chr(int(self._raw[1:], 16)))
                self._take = self._wanted
            else:
                self._take = self._nothing

    def _nothing(self, char: str) -> None:
        """All is said, or cannot be read."""

    def _give(self, char: str) -> None:
        if self._high and "\udc00" <= char <= "\udfff":
            char = (self._high + char).encode("utf-16", "surrogatepass").decode("utf-16")
            self._high = ""
        self._end_half()
        if "\ud800" <= char <= "\udbff":
            self._high = char
        else:
            self._emit(_REPLACEMENT if "\udc00" <= char <= "\udfff" else char)

    def _end_half(self) -> None:
        """Half a character that stayed alone is none."""
        if self._high:
            self._high = ""
            self._emit(_REPLACEMENT)

    def _emit(self, char: str) -> None:
        if char.isspace():
            self._space += char if self._begun else ""
            return
        self._out.append(self._space + char)
        self._space, self._begun = "", True


def _decoded(raw: str) -> str:
    try:
        return str(json.loads(f'"{raw}"'))
    except ValueError:
        return raw
