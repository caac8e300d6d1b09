"""What an LM wrote, made fit to be searched: one clean line a query, nothing twice, at most so many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import dspy

from querywright.models.constrained_decoding import apostrophes, ended

LONGEST_QUERY = 120
"""Characters of a query that a model is held to where its answers are written by a grammar."""

_MARK = re.compile(
    r"^(?:(?:[-*\u2022>]\s+|\(?\d{1,2}[.):\u3001\uff0e\uff09\uff1a](?!\d)|"
    r"(?:query|question)\s*\d{0,2}\s*[:.)]|q\d{1,2}\s*[:.)])\s*)+",
    re.IGNORECASE,
)
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d"
_OPENING = '"\u201c\u00ab\u300c\u300e'
_NOTHING = frozenset({"", "none", "null", "n/a", "no query", "-"})


def plain_line(value: Any) -> str:
    """A text without line breaks and without quotes around the whole of it; numbers and signs stay.

    Args:
        value: What stands in an answer's field; empty when it stands for nothing, such as ``none``.
    """
    text = " ".join(str(value if value is not None else "").split())
    inside = text[1:-1].strip()
    quoted = len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES
    text = inside if quoted and not any(quote in inside for quote in _OPENING) else text
    return "" if text.casefold().rstrip(".") in _NOTHING else text


def one_line(value: Any) -> str:
    """``plain_line`` of a query or a sentence, without a list's number or bullet before it."""
    return plain_line(_MARK.sub("", plain_line(value)))


def written_in(made: dspy.Prediction | None, field: str) -> str:
    """``plain_line`` of a field of an answer; empty where the answer could not be read."""
    return "" if made is None else plain_line(made.get(field))


def query_texts(written: Any, limit: int, *, besides: Iterable[str] = ()) -> list[str]:
    """The queries of an answer, in their order.

    Args:
        written: The value of an answer's field: a list of texts, or one text with a query a line or between
            semicolons.
        limit: Queries at most, 0 or more.
        besides: Texts that are searched anyway and are not repeated, whole or cut off at ``LONGEST_QUERY``.
    """
    lines = re.split(r"[\n;]", written) if isinstance(written, str) else list(written or ())
    seen = {folded(one) for text in besides for one in (text, _cut_off(text))}
    kept: list[str] = []
    for line in lines:
        if len(kept) >= limit:
            break
        text = one_line(line)
        if text and folded(text) not in seen:
            seen.add(folded(text))
            kept.append(text)
    return kept


def _cut_off(text: str) -> str:
    """A copy of a text where answers are written by a grammar."""
    return ended(" ".join(text.split())[:LONGEST_QUERY], LONGEST_QUERY)


def folded(text: str) -> str:
    """The text as it is compared with others: without capitals, spaces, kinds of quotation marks and final marks."""
    return " ".join(apostrophes(text).split()).casefold().rstrip(".?!\u3002\uff1f\uff01 ")
