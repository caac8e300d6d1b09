"""The cache: a database of answers, vectors, and rankings, shared by threads, processes, and hosts.

The database is a SQLite file (the default) or PostgreSQL. Each key is written only once, so every reader sees the same
bytes. Each value has a checksum; a damaged value is deleted and computed again. A damaged file is moved away and
replaced with a new file. Values are bytes (UTF-8 JSON or raw float32); nothing is unpickled.
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from querywright.errors import QuerywrightError
from querywright.files import locked
from querywright.home import is_read_only, named_home
from querywright.models.postgres import server_options, unreachable
from querywright.shared import Shared

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, TextClause

FILE_NAME = "store.sqlite"
BUSY_SECONDS = 30.0
KEYS_PER_SELECT = 500

_NO_DAMAGE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE,
}  # fmt: skip
"""SQLite errors caused by the file's location, temporary conditions, or the caller. All others mean a damaged file."""
_MOVED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_READONLY_DBMOVED}
"""SQLite also reports these errors if a file's header is damaged, or if another process moved the file."""
_ENTRIES = """CREATE TABLE IF NOT EXISTS querywright_entries (
    kind TEXT NOT NULL, key TEXT NOT NULL, checksum BIGINT NOT NULL, value {bytes} NOT NULL, PRIMARY KEY (kind, key))"""
_SELECT = "SELECT key, checksum, value FROM querywright_entries WHERE kind = :kind AND key IN :keys"
_INSERT = "INSERT INTO querywright_entries VALUES (:kind, :key, :checksum, :value) ON CONFLICT DO NOTHING"
_DELETE = "DELETE FROM querywright_entries WHERE kind = :kind AND key IN :keys"
_ALL = "SELECT key, checksum, value FROM querywright_entries WHERE kind = :kind ORDER BY key"
_COUNT = "SELECT COUNT(*) FROM querywright_entries WHERE kind = :kind"
_SETUP = "SELECT pg_advisory_xact_lock(7193028114552310)"
"""A lock for PostgreSQL, where one of two simultaneous ``CREATE TABLE IF NOT EXISTS`` statements fails."""

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Does work only once if several threads need it at the same time."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Future[_T]] = {}

    def run(self, key: Hashable, work: Callable[[], _T]) -> _T:
        """Run the work in one thread, and return its result or raise its error in every thread that requested it.

        If the thread doing the work is interrupted, a waiting thread takes over.

        Args:
            key: Identifies the work; the same key means the same work.
            work: Function that does the work.
        """
        mine: Future[_T] = Future()
        while (under_way := self._under_way.setdefault(key, mine)) is not mine:
            with suppress(CancelledError):
                return under_way.result()
        try:
            made = work()
        except BaseException as error:
            del self._under_way[key]
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        del self._under_way[key]
        mine.set_result(made)
        return made


class Store(Shared):
    """Stores bytes by kind and key; safe to use from many threads and processes.

    Args:
        place: A SQLite file, which is created with its folder and is readable only by its owner; a database URL,
            ``postgresql://user:password@host/database``, to share the store between hosts (requires the
            ``postgres`` extra); or None to store values in this process's memory. Default None.

    Raises:
        InputError: The URL cannot be used, or the driver is not installed.
        QuerywrightError: The database cannot be created, read, or written (for example: no space, no permission, or no
            server).
    """

    def __init__(self, place: str | Path | None = None) -> None:
        url = place if isinstance(place, str) and "://" in place else None
        self.path = Path(place) if place is not None and url is None else None
        self._server = None if url is None else server_options(url)
        # SQLite allows one writer at a time. A lock in this process is handed over faster than SQLite's lock.
        self._turn: AbstractContextManager[Any] = threading.RLock() if url is None else nullcontext()
        self._flights = SingleFlight[bytes]()
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._tables = [_ENTRIES.format(bytes="BLOB" if url is None else "BYTEA")]
        self._is_full = False
        self._inode = self._pid = 0
        self.transact(lambda connection: None)

    def __repr__(self) -> str:
        return f"<the store {self.path or ('in memory' if self._server is None else 'in PostgreSQL')}>"

    def get_many(self, kind: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the values for the keys that exist.

        Args:
            kind: Kind of the values, such as ``lm`` or ``vector:<embedder id>``.
            keys: Any number of keys; repeated keys are looked up once.
        """
        wanted = list(dict.fromkeys(keys))
        rows: list[Any] = []
        for start in range(0, len(wanted), KEYS_PER_SELECT):
            rows += self.execute(_SELECT, kind=kind, keys=wanted[start : start + KEYS_PER_SELECT])[0]
        asked = set(wanted)  # a damaged index may return rows for other keys
        found = {key: value for key, sum_, value in rows if key in asked and _is_whole(kind, key, sum_, value)}
        if len(found) < len(rows):
            n_damaged = len(rows) - len(found)
            _logger.warning("recomputing %d damaged %r value%s in %r", n_damaged, kind, "s" * (n_damaged > 1), self)
            self.delete_many(kind, [key for key in wanted if key not in found])  # a damaged row may have any key
        return found

    def put_many(self, kind: str, items: Mapping[str, bytes]) -> None:
        """Write and commit the values for new keys, either all or none.

        Args:
            kind: Kind of the values.
            items: Values, keyed by the keys to store them under. A key that already exists keeps its value.
        """
        if items:
            rows: list[dict[str, Any]] = [
                {"kind": kind, "key": key, "checksum": _checksum(kind, key, value), "value": bytes(value)}
                for key, value in items.items()
            ]
            self.transact(lambda connection: connection.execute(_sql(_INSERT), rows))

    def delete_many(self, kind: str, keys: Sequence[str]) -> None:
        """Delete the values for some keys, so that they can be written again."""
        for start in range(0, len(keys), KEYS_PER_SELECT):
            self.execute(_DELETE, kind=kind, keys=list(keys[start : start + KEYS_PER_SELECT]))

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the value for a key, or None if the key does not exist."""
        return self.get_many(kind, [key]).get(key)

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Write and commit the value for a new key."""
        self.put_many(kind, {key: value})

    def values(self, kind: str) -> list[bytes]:
        """Return all values of a kind, sorted by key, without damaged values."""
        rows, _ = self.execute(_ALL, kind=kind)
        return [value for key, checksum, value in rows if _is_whole(kind, key, checksum, value)]

    def count(self, kind: str) -> int:
        """Return the number of keys that a kind has."""
        return int(self.execute(_COUNT, kind=kind)[0][0][0])

    def get_or_compute(
        self, kind: str, key: str, make: Callable[[], bytes], *, keep: Callable[[bytes], bool] | None = None
    ) -> bytes:
        """Return the value for a key; if it is missing, compute and write it.

        If several threads need the same key, one of them computes the value and the others wait; if ``make`` raises an
        error, it is raised in all of them. Two processes may compute the same value. If the value cannot be written,
        for example because the disk is full, a warning is logged and the value is still returned.

        Args:
            kind: Kind of the value.
            key: The key.
            make: Computes the value.
            keep: Decides whether to write a new value. Default: write every value.
        """
        value = self.get(kind, key)
        return self._flights.run((kind, key), lambda: self._made(kind, key, make, keep)) if value is None else value

    def _made(self, kind: str, key: str, make: Callable[[], bytes], keep: Callable[[bytes], bool] | None) -> bytes:
        value = self.get(kind, key)  # another thread may have written it in the meantime
        if value is None:
            value = make()
            if keep is None or keep(value):
                self._put_if_there_is_room(kind, key, value)
        return value

    def _put_if_there_is_room(self, kind: str, key: str, value: bytes) -> None:
        try:
            self.put(kind, key, value)
            self._is_full = False
        except QuerywrightError as error:
            if not self._is_full:
                _logger.warning("%s. Until then, new values are not saved", error)
            self._is_full = True

    def add_table(self, statement: str) -> None:
        """Add a module's table to the database. If a damaged file is replaced, the new file gets the table too.

        Args:
            statement: ``CREATE TABLE IF NOT EXISTS`` in SQL that both SQLite and PostgreSQL support.

        Raises:
            QuerywrightError: The database cannot be used.
        """
        if statement not in self._tables:
            self._tables.append(statement)
            self.transact(self._create_tables)

    def _create_tables(self, connection: Connection) -> None:
        for statement in [*([] if self._server is None else [_SETUP]), *self._tables]:
            connection.execute(_sql(statement))

    def execute(self, statement: str, **values: Any) -> tuple[list[Any], int]:
        """Execute a SQL statement as one transaction, and return its rows and the number of rows it changed.

        Args:
            statement: SQL that both SQLite and PostgreSQL support; ``:keys`` is replaced by a list.
            values: Values for the statement's parameters.

        Raises:
            QuerywrightError: The database cannot be used.
        """

        def run(connection: Connection) -> tuple[list[Any], int]:
            result = connection.execute(_sql(statement), values)
            return (list(result), 0) if result.returns_rows else ([], result.rowcount)

        return self.transact(run)

    def transact(self, operation: Callable[[Connection], _T]) -> _T:
        """Run an operation in one transaction, and return its result.

        If the file is damaged, it is replaced with a new file, and the operation runs again.

        Args:
            operation: Function that takes a SQLAlchemy connection to the database.

        Raises:
            QuerywrightError: The database cannot be used.
        """
        from sqlalchemy.exc import SQLAlchemyError

        cause: Any = None
        with self._turn:
            for is_last in (False, True):
                try:
                    with self._opened().begin() as connection:
                        return operation(connection)
                except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:  # a decode error: damaged text
                    cause = getattr(error, "orig", None) or error
                if is_last or not self._set_aside(cause):
                    break
        raise self._unusable(cause)  # outside the handler, because the driver's error may contain an address

    def close(self) -> None:
        """Close the database; the next call reopens it."""
        with self._turn, self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self._engine.dispose()
            self._engine = None

    def _opened(self) -> Engine:
        with self._lock:
            # A forked process must not use its parent's connections, but can use its copy of an in-memory database.
            is_parents = self._pid != os.getpid() and (self.path is not None or self._server is not None)
            if self._engine is None or is_parents:
                self._engine, self._pid = None, os.getpid()
                self._engine = self._file_engine() if self._server is None else self._server_engine(self._server)
            return self._engine

    def _server_engine(self, options: dict[str, Any]) -> Engine:
        from sqlalchemy import create_engine

        engine = create_engine("postgresql+psycopg://", **options)
        with engine.begin() as connection:
            self._create_tables(connection)
        return engine

    def _file_engine(self) -> Engine:
        from sqlalchemy import URL, create_engine, event
        from sqlalchemy.pool import StaticPool

        def prepare(connection: Any, record: object) -> None:
            connection.text_factory = _text
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")

        options = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        url = URL.create("sqlite", database=None if self.path is None else str(self.path))
        engine = create_engine(url, poolclass=StaticPool, connect_args=options, hide_parameters=True)
        event.listen(engine, "connect", prepare)
        try:
            with self._exclusive():
                if self.path is not None:
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
                    self.path.chmod(0o600)
                    self._inode = self.path.stat().st_ino
                with engine.begin() as connection:
                    self._create_tables(connection)
        except OSError as error:
            raise QuerywrightError(f"cannot create the store {self.path} ({error.strerror or error})") from error
        except BaseException:
            engine.dispose()
            raise
        return engine

    def _set_aside(self, error: BaseException) -> bool:
        """Move a damaged file away, unless a different process already has. Return whether to retry with a new file."""
        if self.path is None or not _is_damage(error, self.path):
            return False
        self.close()
        with self._exclusive():
            if not self.path.exists() or self.path.stat().st_ino != self._inode:
                return True
            number = 1
            while (aside := _beside(self.path, f".damaged-{number}")).exists():
                number += 1
            for ending in ("-wal", ""):
                with suppress(FileNotFoundError):
                    _beside(self.path, ending).rename(_beside(aside, ending))
            _beside(self.path, "-shm").unlink(missing_ok=True)
        _logger.warning(
            "%s is damaged (%s); renamed it to %s and started a new file", self.path.name, error, aside.name
        )
        return True

    def _exclusive(self) -> AbstractContextManager[None]:
        """Return the lock that processes hold while they create, open, or replace the file."""
        if self.path is None:
            return nullcontext()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return locked(_beside(self.path, ".lock"), seconds=BUSY_SECONDS)

    def _unusable(self, error: BaseException) -> QuerywrightError:
        if self._server is not None:
            return unreachable(error, "store")
        return QuerywrightError(
            f"cannot use the store {self.path} ({error}); free some disk space, make the folder writable, or set "
            "QUERYWRIGHT_HOME to a different folder"
        )


_stores: dict[str | Path, Store] = {}
_stores_lock = threading.Lock()


def open_store(home: Path | None = None, url: str | None = None) -> Store:
    """Return the store for a workspace or a database. A process has one instance per workspace or database.

    If the workspace is not writable, the store is kept in memory, and a warning is logged once.

    Args:
        home: The workspace. Default: ``querywright.home.home()``.
        url: URL of a database to use instead of the workspace's file. Default None.
    """
    folder = named_home(home).absolute()
    place = url or folder.resolve() / FILE_NAME
    with _stores_lock:
        if place not in _stores:
            is_kept = url is not None or not is_read_only(folder)
            if not is_kept:
                _logger.warning("the workspace %s is not writable, so answers are not saved", folder)
            _stores[place] = Store(place if is_kept else None)
        return _stores[place]


@functools.lru_cache(maxsize=64)
def _sql(statement: str) -> TextClause:
    from sqlalchemy import bindparam, text

    made = text(statement)
    return made.bindparams(bindparam("keys", expanding=True)) if ":keys" in statement else made


def _checksum(kind: str, key: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{kind}\0{key}\0".encode("utf-8", "surrogatepass")))


def _is_whole(kind: object, key: object, checksum: object, value: object) -> bool:
    """Return whether a row's checksum matches its content; a damaged row may contain anything."""
    return isinstance(value, bytes) and _checksum(str(kind), str(key), value) == checksum


def _text(raw: bytes) -> str:
    """Decode text from the file, even if it is damaged."""
    return raw.decode("utf-8", "surrogateescape")


def _is_damage(error: BaseException, path: Path) -> bool:
    """Return whether a SQLite error means a damaged file, not a problem with its location or a temporary condition."""
    code = getattr(error, "sqlite_errorcode", None)
    if code in _MOVED:
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return isinstance(error, UnicodeDecodeError) or (code is not None and code & 0xFF not in _NO_DAMAGE)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)
