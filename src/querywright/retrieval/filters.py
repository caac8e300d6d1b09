"""Chroma's filters over metadata: their normal form, and which condition of a filter passes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError, unknown

Passing = Callable[[Mapping[str, Any]], Collection[str]]
"""Returns the ids of the passages that a filter passes."""

EXAMPLES = 3
"""Values of a key that a message shows."""
_KINDS = {"int": "numbers", "float": "numbers", "str": "texts", "bool": "true or false"}


def all_of(where: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a filter in Chroma's form: one key, or ``$and`` over several; None for a filter without a key."""
    if not where:
        return None
    return {"$and": [{key: value} for key, value in where.items()]} if len(where) > 1 else dict(where)


def check_passes(
    where: Mapping[str, Any] | None, passing: Passing, passages: Callable[[], Iterable[Passage]]
) -> Collection[str] | None:
    """Return the ids of the passages that a filter passes; None if there is no filter.

    Args:
        where: The filter.
        passing: Asks Chroma for the ids that a filter passes.
        passages: Returns all passages, whose metadata the message shows.

    Raises:
        InputError: The filter passes nothing. The message shows, for each condition, what its key holds and how many
            passages it passes.
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
        "Correct the filter (where=...); a number, a text and true or false never equal each other"
    )


def conditions(where: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the conditions of a filter: each key of the metadata, and what its value must be."""
    for key, value in where.items():
        if key in ("$and", "$or"):
            for one in value:
                yield from conditions(one)
        else:
            yield key, value


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Say that no passage has a key, the nearest key, and which keys there are."""
    return f"no passage has the metadata {unknown('key', key, sorted(keys)).removeprefix('unknown ')}"


def _reason(key: str, condition: Any, passing: Passing, rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> str:
    """Say what a key holds and how many passages pass a condition on it."""
    values = dict.fromkeys((type(row[key]).__name__, row[key]) for row in rows if key in row)
    if not values:
        return unknown_key(key, keys)
    kinds = " and ".join(dict.fromkeys(_KINDS.get(kind, kind) for kind, _ in values))
    shown = ", ".join(_shown(value) for _, value in islice(values, EXAMPLES))
    count = len(passing({key: condition}))
    return f"{key!r} holds {kinds} such as {shown}, and {_shown({key: condition})} passes {count}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
