"""Text and data from anywhere, made safe to stand in a page."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def clean(value: str) -> str:
    """The text with a replacement character for what no page may hold: control characters, half surrogates."""
    return _UNFIT.sub("\ufffd", value.replace("\r\n", "\n").replace("\r", "\n"))


def text(value: str) -> str:
    """The text as HTML, also inside a quoted attribute."""
    return escape(clean(value))


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


def json_block(name: str, data: Any) -> str:
    """Data as a script element of that id, which nothing in the data can end.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    written = json.dumps(_cleaned(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    written = re.sub("[<>&\u2028\u2029]", lambda found: _IN_SCRIPT[found[0]], written)
    return f'<script type="application/json" id="{name}">{written}</script>'


def box(name: str, table: str) -> str:
    """A box of that name in which a wide table scrolls."""
    return f'<div class="box" role="region" aria-label="{text(name)}" tabindex="0">{table}</div>'


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {key: _cleaned(value) for key, value in data.items()}
    return [_cleaned(one) for one in data] if isinstance(data, (list, tuple)) else data
