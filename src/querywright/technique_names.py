"""Techniques by name, or by their location in the user's code: ``module:NAME`` or ``path/file.py:NAME``.

Code is imported only from locations that the user names in a call, on the command line, or in a study file, never from
a location that an artifact names.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

from querywright.errors import InputError, TechniqueError
from querywright.files import file_digest
from querywright.imports import imported
from querywright.programs import RAG, TECHNIQUES, Technique, register_technique, technique_class, technique_from
from querywright.programs.custom import is_maker

_CODE = re.compile(r"((?:[^:]+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*)((?:@[^:]*)?(?::.*)?)")
"""Matches a location in the user's code, and the rest of the arm."""


def names_code(text: str) -> bool:
    """Return whether an arm or a technique names a location in the user's code."""
    return _CODE.fullmatch(text) is not None and text.partition(":")[0] not in TECHNIQUES


def split_code(text: str) -> tuple[str, str]:
    """Return the location in the user's code that an arm names, and the rest: engine and knobs."""
    found = _CODE.fullmatch(text)
    assert found is not None
    return found[1], found[2]


@functools.cache
def code_at(place: str) -> Any:
    """Return the object at a location in the user's code. A function without arguments is called to get the object."""
    found = imported(place, "program")
    return found() if is_maker(found) else found


def code_digest(place: str) -> str:
    """Return the SHA-256 of the file with the imported code at a location."""
    module = place.rpartition(":")[0]
    file = module if module.endswith(".py") else sys.modules[module].__file__
    return "" if file is None else file_digest(Path(file))


def name_at(place: str) -> str:
    """Return the name of a program in the user's code, without its folder."""
    module, _, name = place.rpartition(":")
    return f"{os.path.basename(module).removesuffix('.py')}.{name}"


def check_technique(name: str) -> None:
    """Raise an error if a technique is unknown; code at a location named by the user is imported later."""
    if not names_code(name):
        technique_class(name)


def import_technique(place: str | None) -> None:
    """Register a technique in the user's code, so that artifacts can name it. If ``place`` is None, do nothing.

    Raises:
        InputError: ``place`` is not a location in the user's code.
    """
    if place is None:
        return
    if not names_code(place):
        raise InputError(
            f"an artifact has its own technique, but --technique is {place!r}; remove --technique, or, if the "
            "artifact's technique is in your code, give FILE.py:NAME"
        )
    technique_named(place)


def technique_named(given: Any) -> type[Technique]:
    """Return the technique for a name, a location in the user's code, a class, or a program, and register it.

    Raises:
        InputError: There is no such technique, or the object cannot be made into a technique.
    """
    if isinstance(given, str) and not names_code(given):
        return technique_class(given)
    if isinstance(given, str):
        place, rest = split_code(given)
        if rest:
            raise InputError(f"a technique in your code must be FILE.py:NAME or MODULE:NAME, but got {given!r}")
        given, name = code_at(place), name_at(place)
    else:
        name = None
    if isinstance(given, Technique | RAG) or not callable(given):
        raise TechniqueError(
            f"a technique must be a name such as hcqr, a class, a dspy.Module, or a function, but got {given!r:.80}"
        )
    technique = technique_from(given, name)
    register_technique(technique)
    return technique
