"""Chroma's filters over metadata, for what is searched without Chroma."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from querywright.errors import InputError, unknown

Matcher = Callable[[Mapping[str, Any]], bool]

EXAMPLES = 3
"""Values of a key that a message shows."""
_KINDS = {"number": "numbers", "str": "texts", "bool": "true or false"}

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_SETS = {"$eq": True, "$ne": False, "$in": True, "$nin": False}


def all_of(where: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A filter in Chroma's form: one key, or ``$and`` over several."""
    if not where:
        return None
    return {"$and": [{key: value} for key, value in where.items()]} if len(where) > 1 else dict(where)


def matcher(where: Mapping[str, Any] | None) -> Matcher:
    """Whether metadata passes a filter, as Chroma would have it; everything passes one that is empty.

    Numbers are compared by value, texts and truth values only with their like: 1 is 1.0, but neither "1" nor true.
    ``$ne`` and ``$nin`` also pass what does not have the key. Two things are otherwise than in Chroma, which cuts the
    fraction off a number before it compares it with a whole one, and refuses lists of one filter or of mixed types.

    Raises:
        InputError: When the filter has another form.
    """
    parts = [_part(key, value) for key, value in (where or {}).items()]
    return lambda metadata: all(part(metadata) for part in parts)


def _part(key: str, value: Any) -> Matcher:
    if key in ("$and", "$or") and isinstance(value, list | tuple):
        if value and all(isinstance(one, Mapping) and one for one in value):
            inner, rule = [matcher(one) for one in value], all if key == "$and" else any
            return lambda metadata: rule(one(metadata) for one in inner)
    elif not key.startswith("$"):
        name, operand = next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("$eq", value)
        if name in _ORDER and _typed(operand)[0] == "number":
            order = _ORDER[name]
            return lambda metadata: _typed(metadata.get(key))[0] == "number" and order(metadata[key], operand)
        operands = operand if name in ("$in", "$nin") else [operand]
        is_usable = isinstance(operands, list | tuple) and all(isinstance(one, str | int | float) for one in operands)
        if name in _SETS and is_usable and operands:
            wanted, inside = {_typed(one) for one in operands}, _SETS[name]
            return lambda metadata: (_typed(metadata.get(key)) in wanted) == inside
    refused, known = {key: value}, ", ".join(["$and", "$or", *_SETS, *_ORDER])
    raise InputError(f"a filter cannot hold {refused!r}; its operators are {known}")


def _typed(value: Any) -> tuple[str, Any]:
    """A value beside the name of its type, which is ``number`` for whole and other numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__, value


def check_passes(where: Mapping[str, Any] | None, metadata: Iterable[Mapping[str, Any]]) -> None:
    """Raise an ``InputError`` if a filter passes none of the passages that have this metadata.

    The error shows, for each condition, what its key holds and how many passages it passes. Chroma judges a filter of
    a form that ``matcher`` does not know.
    """
    try:
        passes = matcher(where)
    except InputError:
        return
    rows = []
    for row in metadata:
        if passes(row):
            return
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    reasons = [_reason(key, condition, rows, keys) for key, condition in conditions(where or {})]
    raise InputError(
        f"the filter {_shown(where)} passes 0 of {len(rows)} passages, so nothing can be found: {'; '.join(reasons)}. "
        "Correct the filter (where=...); a number, a text and true or false never equal each other"
    )


def conditions(where: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The conditions of a filter: each key of the metadata, and what its value must be."""
    for key, value in where.items():
        if key in ("$and", "$or"):
            for one in value:
                yield from conditions(one)
        else:
            yield key, value


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Say that no passage has a key, the nearest key, and which keys there are."""
    return f"no passage has the metadata {unknown('key', key, sorted(keys)).removeprefix('unknown ')}"


def _reason(key: str, condition: Any, rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> str:
    """What a key holds and how many passages pass a condition on it."""
    values = dict.fromkeys(_typed(row[key]) for row in rows if key in row)
    if not values:
        return unknown_key(key, keys)
    kinds = " and ".join(dict.fromkeys(_KINDS.get(kind, kind) for kind, _ in values))
    shown = ", ".join(_shown(value) for _, value in islice(values, EXAMPLES))
    passing = sum(map(matcher({key: condition}), rows))
    return f"{key!r} holds {kinds} such as {shown}, and {_shown({key: condition})} passes {passing}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
