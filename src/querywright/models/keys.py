"""Keys of services, by the name of the environment variable that holds them."""

from __future__ import annotations

import os
import re

from querywright.errors import InputError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,39}")


def api_key(variable: str | None, *, what: str = "key", option: str = "--api-key-env") -> str | None:
    """The key in an environment variable, or None when none is named.

    Raises:
        InputError: The variable is not set, or empty.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        named = repr(variable) if _VARIABLE.fullmatch(variable) else "that was given"  # it may be the key itself
        raise InputError(
            f"the environment variable {named} is not set or empty; {option} takes the name of a variable: "
            f"put the {what} into one (export NAME=...) and give its name"
        )
    return key
