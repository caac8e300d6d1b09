"""A file of answers and vectors that were computed once, shared by threads and processes.

SQLite in write-ahead mode. A key is written once: the first writer wins, so that every later reader sees the
same bytes. Each value carries a checksum, and a value or a file that is damaged costs its recomputation, not
the run. Values are bytes (UTF-8 JSON, raw float32); nothing is ever unpickled.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from querywright.errors import QuerywrightError
from querywright.home import home as working_folder

FILE_NAME = "store.sqlite"
BUSY_SECONDS = 30.0
KEYS_PER_SELECT = 500

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TABLE = """
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT NOT NULL, key TEXT NOT NULL, checksum INTEGER NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (kind, key)
)
"""

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class Store:
    """Bytes by kind and key, on disk, safe for many threads and processes.

    Args:
        path: The SQLite file. It and its folder are created with access for their owner only.

    Raises:
        QuerywrightError: When the file cannot be created, read or written (no space, no permission).
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._pid = 0
        with self._lock:
            self._run(lambda connection: None)

    def get_many(self, kind: str, keys: Sequence[str]) -> dict[str, bytes]:
        """The values of those keys that are there.

        Args:
            kind: What the values are, such as ``lm`` or ``vector:<embedder id>``.
            keys: Any number of keys; repeated ones are looked up once.
        """
        wanted = list(dict.fromkeys(keys))

        def read(connection: sqlite3.Connection) -> list[tuple[str, int, bytes]]:
            rows: list[tuple[str, int, bytes]] = []
            for start in range(0, len(wanted), KEYS_PER_SELECT):
                part = wanted[start : start + KEYS_PER_SELECT]
                marks = ",".join("?" * len(part))
                sql = f"SELECT key, checksum, value FROM entries WHERE kind = ? AND key IN ({marks})"
                rows.extend(connection.execute(sql, (kind, *part)))
            return rows

        rows = self._run(read) if wanted else []
        damaged = [key for key, checksum, value in rows if zlib.crc32(value) != checksum]
        if damaged:
            self._forget(kind, damaged)
        return {key: value for key, checksum, value in rows if zlib.crc32(value) == checksum}

    def put_many(self, kind: str, items: Mapping[str, bytes]) -> None:
        """Writes the values of keys that are not there yet, all or none; committed when it returns.

        Args:
            kind: What the values are.
            items: Value by key. A key that is there keeps its value.
        """
        rows = [(kind, key, zlib.crc32(value), bytes(value)) for key, value in items.items()]

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?)", rows)

        if rows:
            self._run(write)

    def get(self, kind: str, key: str) -> bytes | None:
        """The value of a key, or None when it is not there."""
        return self.get_many(kind, [key]).get(key)

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Writes the value of a key that is not there yet; committed when it returns."""
        self.put_many(kind, {key: value})

    def count(self, kind: str) -> int:
        """How many keys of a kind there are."""

        def read(connection: sqlite3.Connection) -> int:
            return int(connection.execute("SELECT COUNT(*) FROM entries WHERE kind = ?", (kind,)).fetchone()[0])

        return self._run(read)

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def __deepcopy__(self, memo: dict[int, object]) -> Store:
        return self

    def _forget(self, kind: str, keys: Sequence[str]) -> None:
        """Deletes values whose checksum is wrong, so that they can be written again."""
        _logger.warning("%d damaged values of kind %r in %s are computed again", len(keys), kind, self.path.name)

        def delete(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany("DELETE FROM entries WHERE kind = ? AND key = ?", [(kind, key) for key in keys])

        self._run(delete)

    def _run(self, operation: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs an operation on an open connection; a damaged file is replaced once on the way."""
        with self._lock:
            try:
                return operation(self._open())
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise self._unusable(error) from error
                self.close()
                with self._exclusive():
                    self._set_aside(error)
            try:
                return operation(self._open())
            except sqlite3.DatabaseError as error:
                raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> QuerywrightError:
        return QuerywrightError(
            f"the store {self.path} cannot be used ({error}); free some space or allow writing there, "
            "or name another folder in QUERYWRIGHT_HOME"
        )

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        self._connection = None  # a connection of the parent process is left to it, never closed or used here
        try:
            with self._exclusive():
                self._connection = self._connect()
        except OSError as error:
            raise QuerywrightError(f"the store {self.path} cannot be created ({error.strerror})") from error
        self._pid = os.getpid()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self.path.chmod(0o600)
        self._inode = self.path.stat().st_ino
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_TABLE)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Moves the damaged file away, unless another process has already done so."""
        try:
            if self.path.stat().st_ino != self._inode:
                return
        except FileNotFoundError:
            return
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        self.path.rename(aside)
        for suffix in ("-wal", "-shm"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        _logger.warning("%s is damaged (%s): moved to %s, a fresh one is started", self.path.name, error, aside.name)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Holds the lock under which processes create, open and replace the file."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock_within(descriptor, BUSY_SECONDS)
            yield
        finally:
            os.close(descriptor)


_stores: dict[Path, Store] = {}
_stores_lock = threading.Lock()


def open_store(home: Path | None = None) -> Store:
    """The store of a working folder: one instance a path in a process.

    Args:
        home: The working folder. Default: ``querywright.home.home()``.
    """
    path = working_folder(home).resolve() / FILE_NAME
    with _stores_lock:
        if path not in _stores:
            _stores[path] = Store(path)
        return _stores[path]


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")  # it is this that fails on a full disk
    except BaseException:
        connection.rollback()
        raise


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _DAMAGED


def _lock_within(descriptor: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
