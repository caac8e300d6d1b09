"""Parse lists and objects in a table's text cells, written as JSON or as Python, pandas, or NumPy prints them.

When a column of lists is saved to a CSV file, each cell contains the string that ``str`` returns: ``['a', 'b']``,
NumPy's ``['a' 'b']``, or ``[array(['p1'], dtype=object)]``. Code in a cell is never executed.
"""

from __future__ import annotations

import ast
import json
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from querywright.errors import DataError

MISSING = frozenset({"nan", "NaN", "NaT", "None", "<NA>", "null"})
"""Strings that libraries print for a missing value."""

_TEXT = r"""(?:'(?:[^'\\]|{0})*'|"(?:[^"\\]|{0})*")""".format(r"\\(?:[\\'\"nrt]|x[\da-f]{2}|u[\da-f]{4}|U[\da-f]{8})")
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<value>{_TEXT}|[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?(?![\w.])|(?:None|True|False)\b)
        |<[\w.]+:\s*(?P<member>{_TEXT})>                                  # a member of an enumeration
        |(?:np\.)?(?P<truth>True|False)_\b
        |(?P<missing>(?:nan|NaN|NaT)\b|<NA>)
        |(?P<open>[\[({{]|(?:array|list|tuple|set|frozenset|np\.(?:array|str_|bool_?|u?int\d*|float\d*))\()
        |(?P<close>[\])}}])
        |(?P<mark>,\s*(?:dtype=(?:{_TEXT}|[\w.]+)|shape=\([\d, ]*\))|[,:])
        |(?P<cut>\.\.\.)
    )""",
    re.VERBOSE,
)
_PRINTED = re.compile(
    r"\s*[\[{](?:[\[{(\s]|[\w.]+\()*(?:b?['\"]|<\w+\.\w).*(?:[\])}]\s*$|['\"][\s,:]+['\"])", re.DOTALL
)
"""Matches a printed list or object of strings, complete or truncated. Other strings rarely match."""
_BARE = re.compile(r"\[([^\[\]{}]+)\]")
_QUOTE = re.compile(r"(?<!\w)['\"]|['\"](?!\w)")
"""Matches a quotation mark, but not an apostrophe inside a word."""


def parse_cell(value: object) -> Any:
    """Return the list or object in a text cell. Return any other string or value unchanged.

    Raises:
        DataError: The cell contains a printed list or object that is truncated or cannot be parsed.
    """
    first = value.strip()[:1] if isinstance(value, str) else ""
    if not isinstance(value, str) or first not in ("[", "{", "(", '"'):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value if first == '"' else _printed(value)
    return found if first != '"' else _encoded_twice(found, value)


def bare_list(value: Any) -> Any:
    """Return the items of an unquoted list, such as ``[Paris, London]``. Return any other value unchanged."""
    found = _BARE.fullmatch(value.strip()) if isinstance(value, str) else None
    items = [item.strip() for item in found[1].split(",")] if found else []
    return items if items and not any(item in ("", "...") or _QUOTE.search(item) for item in items) else value


def plain(value: Any) -> Any:
    """Convert a value to JSON types: arrays, tuples, and sets become lists, and NaN becomes None."""
    if hasattr(value, "tolist"):  # NumPy
        value = value.tolist()
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def short(value: object) -> str:
    """Return a value as a string for a message. Long strings are truncated to about 60 characters."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 60
    shortener.maxlist = shortener.maxdict = 6
    return shortener.repr(value)


def _encoded_twice(inner: str, value: str) -> Any:
    """Return the list or object in a JSON string, or ``value`` if the string contains neither."""
    try:
        found = json.loads(inner)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, list | dict) else value


def _printed(text: str) -> Any:
    """Return the list or object that Python or NumPy printed, or the text itself if it is neither."""
    pieces: list[str] = []
    place, depth, ended = 0, 0, False
    while (token := _TOKEN.match(text, place)) and not token["cut"]:
        kind, found = str(token.lastgroup), str(token[str(token.lastgroup)])
        if ended and kind not in ("close", "mark"):
            pieces.append(",")  # NumPy does not print commas
        pieces.append(
            {"missing": "None", "open": found[-1], "mark": found[:1] if len(found) == 1 else ""}.get(kind, found)
        )
        place, depth = token.end(), depth + (kind == "open") - (kind == "close")
        ended = kind not in ("open", "mark")
        if depth == 0 and text[place:].strip():
            return text
    if not text[place:].strip():
        try:
            value = ast.literal_eval("".join(pieces))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            pass
        else:
            return plain(value) if isinstance(value, list | tuple | set | dict) else text
    if _PRINTED.match(text) or (ended and token):
        raise DataError(
            f"found {short(text)}; expected a complete list or object in JSON, Python, or NumPy notation (to keep the "
            'value as a string, wrap it in a JSON list: ["..."])'
        )
    return text
