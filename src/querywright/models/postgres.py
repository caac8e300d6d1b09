"""Connect to PostgreSQL, with error messages that never show an address, user, or password."""

from __future__ import annotations

import re
from typing import Any

from querywright.errors import InputError, QuerywrightError

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
CONNECT_SECONDS = 4  # per IP address; most hosts have one or two
_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 30_000, "application_name": "querywright", "keepalives": 1,
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
}  # fmt: skip
_REASONS = {
    "password|pg_hba": "the server rejected the user or password",
    "does not exist": "the database or user does not exist",
    "too many|connection slots": "the server has no free connections",
    "refused|No such file": "no server is listening at this address",
    "starting up|shutting down|terminating|closed the|reconnect": (
        "the server is starting or stopping, or closed the connection"
    ),
    "resolve|translate host name": "the host name could not be resolved",
    "SSL": "the SSL connection failed",
    "permission denied": "the database user lacks the required permission",
}


def server_options(url: str) -> dict[str, Any]:
    """Return ``sqlalchemy.create_engine`` options for a database, so that the engine's URL contains no address.

    Args:
        url: ``postgresql://user:password@host:port/database``, with libpq parameters after ``?``. Missing parts come
            from libpq's environment variables and password file.

    Raises:
        InputError: The URL cannot be parsed, or the driver is not installed.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise InputError(
            "a database URL must start with postgresql://, such as postgresql://user:password@host/database, because "
            "PostgreSQL is the only supported database server"
        )
    try:
        from psycopg import Error
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise InputError(
            'PostgreSQL requires the package psycopg, but it is not installed; run: pip install "querywright[postgres]"'
        ) from error
    options: Any
    try:
        parsed = make_url(f"postgresql+psycopg://{rest}")
        options = _OPTIONS | dict(parsed.get_dialect()().create_connect_args(parsed)[1])
        make_conninfo("", **options)
    except (ArgumentError, ValueError, TypeError, Error):
        options = None  # the driver's error may contain a password
    if options is None:
        raise InputError(
            "cannot parse the PostgreSQL URL; expected postgresql://user:password@host:5432/database. Percent-encode "
            'special characters in the password; after "?", only libpq connection parameters are allowed'
        )
    return {
        "connect_args": options, "pool_pre_ping": True, "pool_size": 2, "max_overflow": 14, "hide_parameters": True,
    }  # fmt: skip


def unreachable(error: BaseException, what: str = "storage") -> QuerywrightError:
    """Return an error that explains a driver failure without addresses or names.

    Args:
        error: The driver's error.
        what: What the database contains, for the message. Default ``storage``.
    """
    if type(error).__name__ == "ConnectionTimeout":
        reason = f"the server did not respond within {CONNECT_SECONDS} seconds"
    else:
        reason = next((said for mark, said in _REASONS.items() if re.search(mark, str(error))), type(error).__name__)
    return QuerywrightError(
        f"cannot use the PostgreSQL {what}: {reason}. Check the {what} URL, and that the server is running"
    )
