"""One call for equal requests that are under way in several processes: a lease for each key of a stored answer."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER_NAME = "inflight"
FIRST_WAIT, LONGEST_WAIT = 0.001, 0.05
"""Seconds between two tries for a lease that another has, doubled from the first to the longest."""

logger = logging.getLogger(__name__)


class Leases:
    """Leases by key: ``flock`` on a file each, which the kernel gives back when the holder ends, however it ends.

    Who cannot lock, because the file system has no locks or cannot be written, goes on without a lease: an answer
    may then be asked for twice, which costs a call and nothing else.

    Args:
        folder: Where the files are; made when the first lease is taken.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._ready = False
        self._unusable = False

    @contextmanager
    def lease(self, key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Do something while no other process does it for the same key.

        Args:
            key: A file name.
            waiting: Called again and again while another has the lease; it may raise to give up.
        """
        path = self._folder / key
        descriptor = self._take(path, waiting)
        try:
            yield
        finally:
            if descriptor is not None:
                # Removed before it is given back: whoever waited on it sees that it is another file by now.
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                os.close(descriptor)

    def _take(self, path: Path, waiting: Callable[[], None]) -> int | None:
        wait = FIRST_WAIT
        while not self._unusable:
            try:
                self._prepare()
                descriptor = _take_now(path)
            except OSError as error:
                self._unusable = True
                logger.warning(
                    "LM calls are not shared between processes: %s cannot be locked (%s)", path.parent, error.strerror
                )
                break
            if descriptor is not None:
                return descriptor
            waiting()
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)
        return None

    def _prepare(self) -> None:
        """Make the folder, and remove what killed processes left in it."""
        with self._lock:
            if self._ready:
                return
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    descriptor = _take_now(path, create=False)
                    if descriptor is not None:
                        path.unlink()
                        os.close(descriptor)
            self._ready = True


def _take_now(path: Path, *, create: bool = True) -> int | None:
    """The descriptor of the locked file, or None when another has it or has just removed it."""
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
