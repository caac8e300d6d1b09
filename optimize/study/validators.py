"""Validators of what a study's file says: names that there are, values once, addresses without a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from pydantic import AfterValidator

from querywright.errors import InputError, unknown
from querywright.models.postgres import SCHEMES
from querywright.programs import READERS, technique_class

_PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_storage(storage: str) -> str:
    """The storage, where it is one of ours and holds no secret.

    Args:
        storage: ``journal``, ``sqlite`` or an address of PostgreSQL; what else an address holds is never shown.

    Raises:
        InputError: It is something else.
    """
    scheme, address, _ = storage.partition("://")
    if storage in {"journal", "sqlite"} or (address and scheme in SCHEMES):
        return storage
    # Only a plain word is repeated: anything else may be an address, mistyped, with a password.
    word = scheme.replace("+", "").isalnum()
    got = f"begins with {scheme}://" if address and word else f"is {storage!r}" if storage.isalnum() else "is neither"
    raise InputError(
        "must be journal, sqlite (a file in the study's folder) or an address that begins with postgresql:// (its "
        f"driver is psycopg), but {got}"
    )


def rule(check: Callable[[Any], Any]) -> Any:
    """A validator out of a function that raises an ``InputError``."""

    def checked(value: Any) -> Any:
        try:
            check(value)
        except InputError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(checked)


def one_of(what: str, names: Collection[str]) -> Any:
    """A validator of names."""

    def checked(name: str) -> str:
        if name not in names:
            raise ValueError(unknown(what, name, names))
        return name

    return AfterValidator(checked)


def once(values: Any) -> Any:
    """Refuse a value that stands in a list twice."""
    twice = [one for place, one in enumerate(values or ()) if one in values[:place]]
    if twice:
        raise ValueError(f"must hold each value once, but {twice[0]!r} stands there twice")
    return values


def searching(name: str) -> str:
    """Refuse a technique that finds no passages."""
    if technique_class(name).SEARCHES == "0":
        raise ValueError("finds no passages, so there is nothing to search; leave it out")
    return name


def public(address: str) -> str:
    """Refuse an address with a secret, which is never shown: a study's file is copied, shown and kept."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    if parts.password or parts.query:
        what = "a password" if parts.password else "settings after a question mark, which may be a key"
        raise ValueError(f"holds {what}, and no study's file may; give a storage with --storage, a key by api_key_env")
    return address


def readers(asked: Any) -> Any:
    """Refuse what is neither a reader's name, ``auto`` or ``none``, nor a list of readers."""
    named = asked if isinstance(asked, list) else [asked]
    allowed = list(READERS) if isinstance(asked, list) else ["auto", *READERS, "none"]
    if not named or not all(isinstance(one, str) for one in named):
        raise ValueError(f"must be a name or a list of names, but got {asked!r}; write none for a study without")
    for one in named:
        if one not in allowed:
            raise ValueError(unknown("reader", one, allowed))
    return once(asked) if isinstance(asked, list) else asked


def finite(value: Any) -> Any:
    """Refuse numbers that JSON has not."""
    json.dumps(value, allow_nan=False)
    return value


def named_prompt(name: str) -> str:
    """Refuse a prompt's name that a variant could have."""
    if not _PROMPT_NAME.fullmatch(name):
        raise ValueError(f"a prompt's name has letters, digits, - and _, up to 64, but got {name!r}")
    return name
