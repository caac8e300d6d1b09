"""Locks between processes: one builder a collection, any number of readers a generation.

``flock`` locks: the kernel gives them back when their process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from querywright.errors import CollectionError

OPENING_SECONDS = 60.0
BUILDING_SECONDS = 600.0


@contextmanager
def building(path: Path, name: str) -> Iterator[None]:
    """Holds the right to build a collection.

    Args:
        path: The lock file.
        name: The collection, for the message.

    Raises:
        CollectionError: At once, when another process or thread builds it; the message names its process.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CollectionError(
                f"the collection {name!r} is being built by process {holder}; wait until it is done and try again"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Lets one process at a time open a Chroma directory, which writes to it for a moment.

    Args:
        path: The lock file.

    Raises:
        CollectionError: When others hold it for longer than a minute.
    """
    with waiting(path, f"another process has been opening {path.parent.name}", OPENING_SECONDS):
        yield


@contextmanager
def waiting(path: Path, what: str, seconds: float = BUILDING_SECONDS) -> Iterator[None]:
    """Lets one process or thread at a time do something, the others after it.

    Args:
        path: The lock file.
        what: What keeps others waiting, for the message.
        seconds: How long one waits at most. Default 600.

    Raises:
        CollectionError: When others hold it for longer.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _locked(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise CollectionError(f"{what} for {seconds:.0f} seconds; end it first")
            time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def share(path: Path) -> int | None:
    """Takes part in reading a generation, which keeps it from being removed.

    Args:
        path: The generation's lock file.

    Returns:
        A descriptor to be closed by ``os.close`` at the end, or None when the generation is gone.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    if _locked(descriptor, fcntl.LOCK_SH) and _same_file(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def unread(path: Path) -> bool:
    """Whether nobody reads the generation of this lock file; it is then deleted, so that nobody can."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        if not _locked(descriptor, fcntl.LOCK_EX):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
