"""Equal work that is under way is done once: in the threads of a process, and in the processes of a store."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Engine

FIRST_WAIT, LONGEST_WAIT = 0.001, 0.05
"""Seconds between two tries for a lease that another has, doubled from the first to the longest."""

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """Runs work once for all threads that want it at the same time."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Future[V]] = {}

    def run(self, key: Hashable, work: Callable[[], V]) -> V:
        """What the work gives, to the one that does it and to all who came meanwhile; an error of it as well.

        Who waits for work that was interrupted does it in its place.

        Args:
            key: Equal for equal work.
            work: The work.
        """
        mine: Future[V] = Future()
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


class Leases:
    """Leases by key among processes, which end with the process that has them, however it ends.

    Where none can be had, work goes on without: it may then be done twice, which costs a call and nothing else.

    Args:
        place: A file, of which the kernel locks a byte each, for processes of a host; or a database of PostgreSQL,
            whose advisory locks one session takes, for hosts.
    """

    def __init__(self, place: Path | Engine) -> None:
        self._place = place
        self._opened: Any = None  # the file's descriptor, or the session
        self._lock = threading.Lock()

    @contextmanager
    def lease(self, key: str) -> Iterator[None]:
        """Hold off other processes while the ``with`` block lasts; threads of this one are not held off.

        Args:
            key: What is leased.
        """
        number = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 2
        wait = FIRST_WAIT
        while not self._locked(number, take=True):
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        try:
            yield
        finally:
            self._locked(number, take=False)

    def close(self) -> None:
        """End all leases."""
        if self._opened is None:
            return
        if isinstance(self._place, Path):
            os.close(self._opened)
        else:
            self._opened.invalidate()  # it is not to go back among the others with locks of its own
            self._opened.close()

    def _locked(self, number: int, *, take: bool) -> bool:
        """Whether a lock was taken, or given back; True as well where there are none to be had."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        with self._lock:
            try:
                if isinstance(self._place, Path):
                    if self._opened is None:
                        self._opened = os.open(self._place, os.O_RDWR | os.O_CREAT, 0o600)
                    fcntl.lockf(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN, 1, number)
                    return True
                if self._opened is None:
                    self._opened = self._place.connect().execution_options(isolation_level="AUTOCOMMIT")
                function = "pg_try_advisory_lock" if take else "pg_advisory_unlock"
                return bool(self._opened.execute(text(f"SELECT {function}({number})")).scalar())
            except (BlockingIOError, PermissionError):
                return False
            except (OSError, SQLAlchemyError):
                return True
