"""Equal work is done once: by one thread of a process, and by one of the processes with the same database."""

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
from typing import Any, Generic, TypeVar

from querywright.files import open_lock
from querywright.models.postgres import session
from querywright.models.usage import waiting

POLL_SECONDS = 0.05
"""How often a process looks whether the process that makes a value is done."""

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Runs equal work once for all threads that want it at the same time."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, Future[_T]] = {}

    def run(self, key: Hashable, work: Callable[[], _T]) -> _T:
        """What the work gives, to the one that does it and to all who came meanwhile; an error of it as well.

        Who waits for work that was interrupted does it in its place.

        Args:
            key: Equal for equal work.
            work: The work.
        """
        mine: Future[_T] = Future()
        while (under_way := self._under_way.setdefault(key, mine)) is not mine:
            with suppress(CancelledError), waiting():
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
    """Keys that one process holds at a time. The kernel, or the server, ends a lease with its process.

    Without a file and a server, each lease is granted at once.

    Args:
        file: Locked in parts, one a key; None if no file is.
        server: Options of a PostgreSQL server whose advisory locks are used; None for none.
    """

    def __init__(self, file: Path | None, server: dict[str, Any] | None) -> None:
        self._file, self._server = file, server
        self._lock = threading.RLock()
        self._holder: Any = None  # the descriptor of the file, or a session of the server
        self._pid = 0

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold off other processes inside the ``with`` block."""
        number = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 2
        while not self._taken(number, take=True):
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self._taken(number, take=False)

    def close(self) -> None:
        """End all leases of this process."""
        with self._lock:
            if self._pid != os.getpid():  # a parent's are left to the parent
                return
            if isinstance(self._holder, int):
                os.close(self._holder)
            elif self._holder is not None:
                self._holder.close()
            self._holder = None

    def _taken(self, number: int, *, take: bool) -> bool:
        """Whether a lease was taken, or given back; True as well if no lease can be had: work may be done twice."""
        with self._lock:
            if self._pid != os.getpid():
                self._holder, self._pid = None, os.getpid()
            try:
                if self._file is not None:
                    if self._holder is None:
                        self._holder = open_lock(self._file)
                    fcntl.lockf(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN, 1, number)
                elif self._server is not None:
                    self._holder = self._holder or session(self._server)
                    asked = f"SELECT pg_{'try_advisory_lock' if take else 'advisory_unlock'}({number})"
                    return bool(self._holder.execute(asked).fetchone()[0])
            except BlockingIOError:
                return False
            except Exception:  # noqa: BLE001  a lease saves a call; no failure of a lease may stop a run
                self.close()
            return True
