"""Chroma filters on metadata: their normal form, and errors for filters that match no passage."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError, unknown

Passing = Callable[[Mapping[str, Any]], Collection[str]]
"""A function that returns the ids of the passages that match a filter."""

EXAMPLES = 3
"""Number of values of a key that a message shows."""
_KINDS = {"int": "numbers", "float": "numbers", "str": "texts", "bool": "true or false"}


def all_of(where: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a filter in Chroma's form: one key, or ``$and`` of several conditions; None for an empty filter."""
    if not where:
        return None
    return {"$and": [{key: value} for key, value in where.items()]} if len(where) > 1 else dict(where)


def check_passes(
    where: Mapping[str, Any] | None, passing: Passing, passages: Callable[[], Iterable[Passage]]
) -> Collection[str] | None:
    """Return the ids of the passages that match a filter; None if there is no filter.

    Args:
        where: The filter.
        passing: Returns the ids of the passages that match a filter.
        passages: Returns all passages, for the error message.

    Raises:
        InputError: No passage matches the filter. For each condition, the message shows values of its key and the
            number of passages that match.
    """
    filtering = all_of(where)
    if filtering is None:
        return None
    if found := passing(filtering):
        return found
    rows = [passage.metadata for passage in passages()]
    keys = dict.fromkeys(key for row in rows for key in row)
    reasons = [_reason(key, value, passing, rows, keys) for key, value in conditions(filtering)]
    raise InputError(
        f"the filter {_shown(where)} passes 0 of {len(rows)} passages, so nothing can be found: {'; '.join(reasons)}. "
        "Correct the filter (where=...). A number never equals a text, and neither equals true or false"
    )


def conditions(where: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the conditions of a filter as pairs of a metadata key and its required value."""
    for key, value in where.items():
        if key in ("$and", "$or"):
            for one in value:
                yield from conditions(one)
        else:
            yield key, value


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Return the message that no passage has a key, with the most similar key and the known keys."""
    return f"no passage has the metadata {unknown('key', key, sorted(keys)).removeprefix('unknown ')}"


def _reason(key: str, condition: Any, passing: Passing, rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> str:
    """Return a message with values of a key and the number of passages that match a condition on it."""
    values = dict.fromkeys((type(row[key]).__name__, row[key]) for row in rows if key in row)
    if not values:
        return unknown_key(key, keys)
    kinds = " and ".join(dict.fromkeys(_KINDS.get(kind, kind) for kind, _ in values))
    shown = ", ".join(_shown(value) for _, value in islice(values, EXAMPLES))
    count = len(passing({key: condition}))
    return f"{key!r} holds {kinds} such as {shown}, and {_shown({key: condition})} passes {count}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
