"""How a PostgreSQL server is reached, without its address, its user or a password in any message."""

from __future__ import annotations

import re
from typing import Any

from querywright.errors import InputError, QuerywrightError

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
CONNECT_SECONDS = 4  # for each address of a host; most names have one or two
_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 30_000, "application_name": "querywright", "keepalives": 1,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
}  # fmt: skip
_REASONS = {
    "password|pg_hba": "it refuses the user or the password",
    "does not exist": "it has no such database or user",
    "too many|connection slots": "it has no connection left",
    "refused|No such file": "nothing listens there",
    "starting up|shutting down|terminating|closed the|reconnect": "it is starting or stopping, or ended the connection",
    "resolve|translate host name": "its host's name is not known",
    "SSL": "the encrypted connection failed",
    "permission denied": "its user may not do this",
}


def server_options(url: str) -> dict[str, Any]:
    """What ``sqlalchemy.create_engine`` needs beside ``postgresql+psycopg://``: the address is not in the engine's URL.

    Args:
        url: ``postgresql://user:password@host:port/database``; libpq's parameters may follow after ``?``. What is
            missing is taken from libpq's environment variables and password file.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise InputError("of the database servers only PostgreSQL is supported: postgresql://user:password@host/name")
    try:
        from psycopg import Error
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise InputError(
            "a PostgreSQL database needs the package psycopg, which is not installed: "
            'pip install "querywright[postgres]"'
        ) from error
    options: Any
    try:
        parsed = make_url(f"postgresql+psycopg://{rest}")
        options = _OPTIONS | dict(parsed.get_dialect()().create_connect_args(parsed)[1])
        make_conninfo("", **options)
    except (ArgumentError, ValueError, TypeError, Error):
        options = None  # its text may hold a password, so it is no part of our error
    if options is None:
        raise InputError(
            "the URL of the PostgreSQL database cannot be read; write "
            "postgresql://user:password@host:5432/database, special characters of the password as %XX, and after '?' "
            'only what PostgreSQL\'s manual lists under "Parameter Key Words"'
        )
    return {
        "connect_args": options, "pool_pre_ping": True, "pool_size": 2, "max_overflow": 14, "hide_parameters": True,
    }  # fmt: skip


def unreachable(error: BaseException, what: str = "storage") -> QuerywrightError:
    """What a failure of the driver means, said without addresses and names."""
    if type(error).__name__ == "ConnectionTimeout":
        reason = f"it does not answer within {CONNECT_SECONDS} seconds"
    else:
        reason = next((said for mark, said in _REASONS.items() if re.search(mark, str(error))), type(error).__name__)
    return QuerywrightError(
        f"the PostgreSQL {what} cannot be used: {reason}. Check the URL of the {what} and that the server runs"
    )
