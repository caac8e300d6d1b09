"""API keys from environment variables."""

from __future__ import annotations

import os
import re

from querywright.errors import InputError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,39}")


def api_key(variable: str | None, *, what: str = "key", option: str = "--api-key-env") -> str | None:
    """Return the API key in an environment variable, or None if no variable is given.

    Args:
        variable: Name of the environment variable, or None.
        what: What the variable contains, for the error message. Default ``key``.
        option: Option that gave the variable's name, for the error message.

    Raises:
        InputError: The variable is unset or empty.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        named = repr(variable) if _VARIABLE.fullmatch(variable) else "you named"  # the name may be the API key
        raise InputError(
            f"the environment variable {named} is unset or empty; {option} takes the name of a variable: set a "
            f"variable to the {what} (export NAME=...) and pass its name"
        )
    return key
