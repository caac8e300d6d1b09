"""What a passage must be to go into a collection."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from querywright.data.types import Passage
from querywright.errors import DataError

LARGEST_INTEGER = 2**63 - 1


def checked_passages(passages: Iterable[Passage]) -> dict[str, Passage]:
    """The passages by id; the same passage twice is one.

    Args:
        passages: At least one.

    Raises:
        DataError: When a passage cannot be stored or one id has two contents; all problems at once.
    """
    by_id: dict[str, Passage] = {}
    problems: list[str] = []
    for passage in passages:
        problem = _problem(passage)
        if problem:
            problems.append(f"passage {passage.id!r}: {problem}")
        elif by_id.setdefault(passage.id, passage).digest() != passage.digest():
            problems.append(f"passage {passage.id!r}: two passages with different content have this id")
    if problems:
        raise DataError(list(dict.fromkeys(problems)))
    if not by_id:
        raise DataError("there are no passages to index; give at least one")
    return by_id


def _problem(passage: Passage) -> str | None:
    """What keeps a passage from being stored; types are looked at, because rows come from outside."""
    id: Any = passage.id
    text: Any = passage.text
    if not isinstance(id, str) or not id or "\0" in id:
        return "its id must be a text that is not empty, without NUL"
    if not isinstance(text, str) or not text.strip():
        return "its text is empty"
    problems = (_metadata_problem(key, value) for key, value in passage.metadata.items())
    if problem := next(filter(None, problems), None):
        return problem
    try:
        passage.digest()
    except UnicodeEncodeError as error:
        return f"it is not valid Unicode ({error.reason})"
    return None


def _metadata_problem(key: Any, value: Any) -> str | None:
    if not isinstance(key, str) or not key or key.startswith(("$", "#", "chroma:")):
        return f"metadata key {key!r} must be a text that does not begin with $, # or chroma:"
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        return f"metadata {key!r} must be a text, a finite number, true or false, but is {value!r}"
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return f"metadata {key!r} is larger than 64 bits: {value}"
    return None
