"""Chroma's filters over metadata, for what is searched without Chroma."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from querywright.errors import InputError

Matcher = Callable[[Mapping[str, Any]], bool]

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_OPERATORS = ("$eq", "$ne", *_ORDER, "$in", "$nin")


def matcher(where: Mapping[str, Any] | None) -> Matcher | None:
    """Whether metadata passes a filter, as Chroma would have it.

    Numbers are compared by value, texts and truth values only with their like: 1 is 1.0, but neither "1" nor true.
    ``$ne`` and ``$nin`` also pass what does not have the key. (Chroma cuts the fraction off a number before it
    compares it with a whole one, so that 2 is 2.5 there; not here.)

    Args:
        where: ``{key: value}``, ``{key: {operator: value}}`` with ``$eq $ne $gt $gte $lt $lte $in $nin``, or
            ``{"$and": [...]}`` and ``{"$or": [...]}`` over such filters; several keys must all hold. None or
            empty: everything passes.

    Returns:
        A function of a passage's metadata, or None when everything passes.

    Raises:
        InputError: When the filter has another form.
    """
    if not where:
        return None
    parts = [_part(key, value, where) for key, value in where.items()]
    return lambda metadata: all(part(metadata) for part in parts)


def _part(key: str, value: Any, where: Mapping[str, Any]) -> Matcher:
    if key in ("$and", "$or"):
        if not isinstance(value, list | tuple) or not value or not all(isinstance(one, Mapping) for one in value):
            raise InputError(f"{key} takes a list of filters, but got {value!r} (where={dict(where)!r})")
        inner = [found for one in value if (found := matcher(one)) is not None]
        if len(inner) < len(value):
            raise InputError(f"{key} holds an empty filter (where={dict(where)!r})")
        rule = all if key == "$and" else any
        return lambda metadata: rule(one(metadata) for one in inner)
    if not isinstance(value, Mapping):
        return _compare(key, "$eq", value, where)
    if len(value) != 1:
        raise InputError(f"{key!r} takes one operator, but got {dict(value)!r} (where={dict(where)!r})")
    ((name, operand),) = value.items()
    return _compare(key, name, operand, where)


def _compare(key: str, name: str, operand: Any, where: Mapping[str, Any]) -> Matcher:
    if key.startswith("$") or name not in _OPERATORS:
        unknown = key if key.startswith("$") else name
        raise InputError(f"unknown operator {unknown!r} in where={dict(where)!r}; known: {', '.join(_OPERATORS)}")
    several = name in ("$in", "$nin")
    operands = operand if several else [operand]
    if not isinstance(operands, list | tuple) or not operands or not all(map(_is_scalar, operands)):
        form = "a list of texts, numbers, true or false" if several else "a text, a number, true or false"
        raise InputError(f"{name} takes {form}, but got {operand!r} (where={dict(where)!r})")
    if name in _ORDER:
        if isinstance(operand, bool | str):
            raise InputError(f"{name} takes a number, but got {operand!r} (where={dict(where)!r})")
        order = _ORDER[name]
        return lambda metadata: _sort(metadata.get(key)) == "number" and order(metadata[key], operand)
    wanted = {(_sort(one), one) for one in operands}
    inside = name in ("$eq", "$in")
    return lambda metadata: ((_sort(metadata.get(key)), metadata.get(key)) in wanted) == inside


def _sort(value: Any) -> str:
    """``number`` for whole and other numbers, otherwise the name of the type."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if number else type(value).__name__


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)
