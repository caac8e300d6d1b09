"""Signatures of prompts: told apart by what they say, and made only when they are needed."""

from __future__ import annotations

import dataclasses
import itertools
import types
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from querywright.models.recent import Recent

MOST_MADE = 512
"""Signatures that are kept once made, some tens of kB each: those of as many questions with options of their own."""

_PLAIN = (str, int, float, bool, type(None))
_FORMS = (list, dict, tuple, set, Union, types.UnionType)

_numbers = itertools.count()
_texts: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()
_made: Recent[tuple[Any, str], Any] = Recent(MOST_MADE)


@dataclass(frozen=True, slots=True)
class LateSignature:
    """A signature that differs from another one in a field or in its instructions.

    DSPy makes a class of every change, which takes a millisecond or two; an answer that is remembered needs none, and
    one that was made lately is given again.

    Args:
        base: The signature that is changed.
        field: The field that is changed, or None.
        changes: What ``with_updated_fields`` is given for it.
        instructions: Instructions in the place of its own, or None.
    """

    base: Any
    field: str | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    instructions: str | None = None

    def made(self) -> Any:
        """The signature. It is not to be changed in place, for whoever asks for the same one has it too."""
        if not all(_is_known(one) if name == "type_" else is_plain(one) for name, one in self.changes.items()):
            return self._new()
        key = self.base, signature_text(self)
        made = _made.get(key)
        if made is None:
            made = self._new()
            _made.update({key: made})
        return made

    def _new(self) -> Any:
        signature = self.base if self.field is None else self.base.with_updated_fields(self.field, **self.changes)
        return signature if self.instructions is None else signature.with_instructions(self.instructions)


def signature_text(signature: Any) -> str:
    """A text that is equal for signatures that make equal prompts.

    The fields of a class are looked at once: they are changed by making another class.

    Args:
        signature: A DSPy signature or a ``LateSignature``.
    """
    if isinstance(signature, LateSignature):
        changes = [(name, _type_text(value) if name == "type_" else value) for name, value in signature.changes.items()]
        return repr((signature_text(signature.base), signature.field, changes, signature.instructions))
    instructions = signature.instructions  # they can be changed in place
    known = _texts.get(signature)
    if known is None or known[0] != instructions:
        known = instructions, repr((instructions, [_field_text(*item) for item in signature.fields.items()]))
        _texts[signature] = known
    return known[1]


def is_plain(value: Any) -> bool:
    """Whether a value is a text, a number, a truth value or None, or lists and mappings of them: its repr says all."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is list or kind is tuple:
        return all(map(is_plain, value))
    return kind is dict and all(map(is_plain, value)) and all(map(is_plain, value.values()))


def _field_text(name: str, info: Any) -> str:
    if info.default_factory is not None or not is_plain(info.json_schema_extra):
        return f"{name} like no other {next(_numbers)}"
    return repr((name, _type_text(info.annotation), info.json_schema_extra, info.metadata, info.default))


def _type_text(annotation: Any) -> str:
    """What a type is; a class of the user's own is like no other, for another one may have its name."""
    return repr(annotation) if _is_known(annotation) else f"like no other {next(_numbers)}"


def _is_known(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal:
        return all(map(is_plain, get_args(annotation)))
    if origin is not None:
        return origin in _FORMS and all(map(_is_known, get_args(annotation)))
    return annotation in _PLAIN or annotation is None or annotation is Any or annotation in (list, dict)
