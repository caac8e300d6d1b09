"""Equal work that is under way is done once: in the threads of a process, and in the processes of a store."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

FIRST_WAIT, LONGEST_WAIT = 0.001, 0.05
"""Seconds between two tries for a lease that another has, doubled from the first to the longest."""

_logger = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs work once for all threads that want it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[K, Future[V | None]] = {}

    def run(self, key: K, work: Callable[[], V]) -> V:
        """What the work gives, to the one that does it and to all who came meanwhile; an error of it as well.

        Who waits for work that was interrupted does it in its place.

        Args:
            key: Equal for equal work.
            work: The work.
        """
        mine: Future[V | None] = Future()
        while True:
            with self._lock:
                under_way = self._under_way.setdefault(key, mine)
            if under_way is mine:
                return self._lead(key, work, mine)
            result = under_way.result()
            if result is not None:
                return result

    def _lead(self, key: K, work: Callable[[], V], mine: Future[V | None]) -> V:
        try:
            result = work()
        except BaseException as error:
            self._end(key)
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.set_result(None)
            raise
        self._end(key)
        mine.set_result(result)
        return result

    def _end(self, key: K) -> None:
        with self._lock:
            self._under_way.pop(key, None)


class Leases:
    """Leases by key, which end with the process that has them, however it ends. These are for a process alone.

    Where no lease can be taken, work goes on without: it may then be done twice, which costs a call and nothing else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unusable = False

    @contextmanager
    def lease(self, key: str) -> Iterator[None]:
        """Hold off other processes while the ``with`` block lasts; threads of this one are not held off.

        Args:
            key: What is leased.
        """
        number = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 2
        wait = FIRST_WAIT
        while not self._ready(number):
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        try:
            yield
        finally:
            self._try(self._give, number)

    def close(self) -> None:
        """End all leases."""

    def _ready(self, number: int) -> bool:
        return self._try(self._take, number) is not False

    def _try(self, act: Callable[[int], bool], number: int) -> bool | None:
        if self._unusable:
            return None
        try:
            with self._lock:
                return act(number)
        except Exception as error:  # noqa: BLE001  a lease saves a call; no failure of one may stop a run
            self._unusable = True
            _logger.warning("LM calls are not shared between processes: no lease can be had (%s)", type(error).__name__)
            return None

    def _take(self, number: int) -> bool:
        return True

    def _give(self, number: int) -> bool:
        return True


class FileLeases(Leases):
    """Leases among the processes of a host: a byte each of a file that stays empty, locked by the kernel.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._descriptor: int | None = None

    def close(self) -> None:
        """End all leases."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _take(self, number: int) -> bool:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _give(self, number: int) -> bool:
        if self._descriptor is not None:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, number)
        return True


class SessionLeases(Leases):
    """Leases among hosts: advisory locks of one session of PostgreSQL.

    Args:
        engine: The database.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._session: Connection | None = None

    def close(self) -> None:
        """End all leases."""
        if self._session is not None:
            self._session.invalidate()  # it is not to go back among the others with locks of its own
            self._session.close()
        self._session = None

    def _take(self, number: int) -> bool:
        return self._ask("SELECT pg_try_advisory_lock(:number)", number)

    def _give(self, number: int) -> bool:
        return self._ask("SELECT pg_advisory_unlock(:number)", number)

    def _ask(self, statement: str, number: int) -> bool:
        from sqlalchemy import text

        if self._session is None:
            self._session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return bool(self._session.execute(text(statement), {"number": number}).scalar())
