"""What ``module:function`` names, for those who name a function of their own where a text is asked for."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from querywright.errors import InputError


def imported(name: str, what: str) -> Any:
    """What ``module:function`` names; modules of the current folder are found too.

    Args:
        name: ``module:function``, which may have dots on both sides.
        what: What it is to be, for the message.

    Raises:
        InputError: It cannot be imported.
    """
    module, _, function = name.partition(":")
    path = list(sys.path)
    sys.path.insert(0, "")
    try:
        return functools.reduce(getattr, function.split("."), importlib.import_module(module))
    except Exception as error:
        raise InputError(
            f"the {what} {name!r} is no MODULE:FUNCTION that can be imported here: {type(error).__name__}: {error}; "
            "modules are looked for in the current folder and where Python finds its own"
        ) from error
    finally:
        sys.path[:] = path
