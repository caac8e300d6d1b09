"""How a PostgreSQL server is reached, without its address, its user or a password in any message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from querywright.errors import InputError, QuerywrightError

if TYPE_CHECKING:
    import psycopg

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
CONNECT_SECONDS = 4  # for each address of a host; most names have one or two
_ALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
# A server that lost its client without a word gives the client's locks back as soon; one that counts idle sessions out
# must not count this one.
_SESSION = """
SELECT set_config(wanted.name, wanted.value, false)
FROM (VALUES ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
             ('idle_session_timeout', '0')) AS wanted(name, value)
WHERE wanted.name IN (SELECT name FROM pg_settings)
"""
_REASONS = (
    ("password", "it refuses the user or the password"),
    ("no pg_hba.conf entry", "it does not let this user in from here"),
    ("does not exist", "it has no such database or user"),
    ("too many", "it has no connection left"),
    ("remaining connection slots", "it has no connection left"),
    ("refused", "nothing listens there"),
    ("No such file", "nothing listens there"),
    ("starting up", "it is starting up"),
    ("shutting down", "it is shutting down"),
    ("terminating connection", "it is shutting down"),
    ("closed the connection", "it ended the connection"),
    ("resolve", "its host's name is not known"),
    ("translate host name", "its host's name is not known"),
    ("SSL", "the encrypted connection failed"),
    ("permission denied", "its user may not do this"),
)


class PostgresServer:
    """A database on a PostgreSQL server.

    Args:
        url: ``postgresql://user:password@host:port/database``; libpq's parameters may follow after ``?``. What is
            missing is taken from libpq's environment variables and password file.

    Raises:
        InputError: It is no such URL, or the driver is not installed.
    """

    __slots__ = ("_options",)

    def __init__(self, url: str) -> None:
        self._options = _options(url)

    def __repr__(self) -> str:
        return "<the PostgreSQL storage>"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of one's own, in which each statement stands for itself.

        Raises:
            QuerywrightError: There is none to be had.
        """
        import psycopg

        try:
            connection = psycopg.connect(**self._options, autocommit=True, prepare_threshold=None)
            connection.execute(_SESSION)
            return connection
        except (psycopg.Error, UnicodeError) as error:
            failure = unreachable(error)
        raise failure  # here, so that the driver's error, which names host and user, is not part of it

    def engine_options(self) -> dict[str, Any]:
        """What ``sqlalchemy.create_engine`` needs beside ``postgresql+psycopg://``."""
        return {
            "connect_args": dict(self._options),
            "pool_pre_ping": True,
            "pool_size": 2,
            "max_overflow": 14,
            "hide_parameters": True,
        }


def unreachable(error: Exception) -> QuerywrightError:
    """What a failure of the driver means, said without addresses and names."""
    text = str(error)
    if type(error).__name__ == "ConnectionTimeout":
        reason = f"it does not answer within {CONNECT_SECONDS} seconds"
    else:
        reason = next((reason for mark, reason in _REASONS if mark in text), type(error).__name__)
    return QuerywrightError(
        f"the PostgreSQL storage cannot be used: {reason}. Check the URL of the storage and that the server runs"
    )


def _options(url: str) -> dict[str, Any]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    rest = url.partition("://")[2]
    try:
        parsed = make_url(f"postgresql+psycopg://{rest}")
        options: dict[str, Any] | None = dict(parsed.get_dialect()().create_connect_args(parsed)[1])
    except (ArgumentError, ValueError, TypeError):
        options = None
    if options is None:
        raise InputError(
            "the URL of the PostgreSQL storage cannot be read; write "
            "postgresql://user:password@host:5432/database, special characters of the password as %XX"
        )
    try:
        from psycopg import Error
        from psycopg.conninfo import make_conninfo
    except ImportError as error:
        raise InputError(
            "a PostgreSQL storage needs the package psycopg, which is not installed: "
            'pip install "querywright[postgres]"'
        ) from error
    ours = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 30_000, "application_name": "querywright", **_ALIVE}
    options = {**ours, **options}
    try:
        make_conninfo("", **options)
    except Error:
        known = False
    else:
        known = True
    if not known:
        raise InputError(
            "the URL of the PostgreSQL storage has a parameter after '?' that PostgreSQL does not know; see "
            '"Parameter Key Words" in PostgreSQL\'s manual'
        )
    return options
