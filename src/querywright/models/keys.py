"""API keys from environment variables."""

from __future__ import annotations

import os
import re

from querywright.errors import InputError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,39}")


def api_key(variable: str | None, *, what: str = "API key", option: str = "--api-key-env") -> str | None:
    """Return the API key in an environment variable, or None if no variable is given.

    Args:
        variable: Name of the environment variable, or None.
        what: What the variable contains, for the error message. Default ``API key``.
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
            f"the environment variable {named} is unset or empty; store the {what} in an environment variable "
            f"(export NAME=...), and pass the variable's name with {option} NAME"
        )
    return key
