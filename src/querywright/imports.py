"""Import objects that the user names as ``module:name`` or ``path/file.py:name``."""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from querywright.errors import InputError, unknown

MOST_NAMES = 20
"""Maximum number of a module's names in a message."""


def imported(name: str, what: str) -> Any:
    """Return the object named by ``module:name`` or ``path/file.py:name``.

    Modules in the current folder and next to the file are found too.

    Args:
        name: The object's name, which may have dots on both sides of the colon.
        what: What the object is, for the message.

    Raises:
        InputError: The object cannot be imported.
    """
    module, _, function = name.rpartition(":")
    file = Path(module) if module.endswith(".py") else None
    if file is not None and not file.is_file():
        raise InputError(f"cannot import the {what} {name!r}: there is no file {module!r}; correct the path")
    path = list(sys.path)
    sys.path.insert(0, "" if file is None else str(file.absolute().parent))
    try:
        found = importlib.import_module(module if file is None else file.stem)
        if file is not None and not file.samefile(found.__file__ or ""):
            raise ImportError(f"another module has the name {file.stem!r}; rename the file")
    except Exception as error:
        raise InputError(
            f"cannot import the {what} {name!r}: {type(error).__name__}: {error}; use MODULE:FUNCTION or "
            "FILE.py:FUNCTION, with a module in the current folder or on Python's path"
        ) from error
    finally:
        sys.path[:] = path
    try:
        return functools.reduce(getattr, function.split("."), found)
    except AttributeError:
        there = unknown("name", function, _names_in(found, function))
        raise InputError(f"cannot import the {what} {name!r}: {there}") from None


def _names_in(module: ModuleType, asked: str) -> list[str]:
    """Return the public classes, functions, and callable objects that a module defines, most similar name first."""
    own = [
        name
        for name, one in vars(module).items()
        if not name.startswith("_") and callable(one) and getattr(one, "__module__", module.__name__) == module.__name__
    ]
    return difflib.get_close_matches(asked, own, MOST_NAMES, cutoff=0.0) if own else []
