"""Who works at what: a claim is one worker's at a time, and free again when the worker ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from querywright.errors import QuerywrightError

_FIRST_WAIT, _LONGEST_WAIT = 0.002, 0.1
_LONGEST_FILE_NAME = 200


class ClaimLostError(QuerywrightError):
    """What this worker had claimed may be another's by now, because the connection that held the claims broke."""


class Claim(ABC):
    """A claim that was got. Leaving its ``with`` block releases it.

    Args:
        name: What is claimed.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def held(self) -> bool:
        """Whether it is still this worker's; looked up, not remembered."""

    @abstractmethod
    def release(self) -> None:
        """Let others have it; nothing once it is released or lost."""

    def check(self) -> None:
        """Make sure that it is still this worker's.

        Raises:
            ClaimLostError: It is not.
        """
        if not self.held:
            raise ClaimLostError(
                f"this worker's claim to {self.name!r} is lost, so another worker may be at it; its result is not kept"
            )

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Claims(Protocol):
    """The claims of a study; safe for threads."""

    def take(self, name: str) -> Claim | None:
        """The claim, or None when another worker or thread has it.

        Raises:
            ClaimLostError: The connection that held this worker's claims broke; the next call makes another one.
            QuerywrightError: Claims cannot be made.
        """

    def wait(self, name: str, seconds: float) -> AbstractContextManager[Claim]:
        """Hold the claim in a ``with`` block, after waiting for it.

        Args:
            name: What is claimed.
            seconds: How long one waits at most.

        Raises:
            QuerywrightError: Others had it all the time.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release everything."""


class FileClaims:
    """Claims between the processes of a host: ``flock`` on a file each.

    Args:
        folder: Where the files are; made when the first claim is taken. They stay there, empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._taken: set[_FileClaim] = set()

    def take(self, name: str) -> Claim | None:
        """The claim, or None when another worker or thread has it."""
        path = self._folder / _file_name(name)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise QuerywrightError(f"the study's folder cannot be written ({error.strerror}); allow it") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            if error.errno not in {errno.ENOLCK, errno.EOPNOTSUPP}:
                raise
            raise QuerywrightError(
                f"files in the study's folder cannot be locked ({error.strerror}); give it a folder on a disk of this "
                "host, or PostgreSQL as its storage"
            ) from error
        claim = _FileClaim(self, name, path, descriptor)
        with self._lock:
            self._taken.add(claim)
        return claim

    def wait(self, name: str, seconds: float) -> AbstractContextManager[Claim]:
        """Hold the claim in a ``with`` block, after waiting for it."""
        return waited(self.take, name, seconds)

    def close(self) -> None:
        """Release everything."""
        for claim in list(self._taken):
            claim.release()

    def _give_back(self, claim: _FileClaim) -> None:
        with self._lock:
            if claim in self._taken:
                self._taken.remove(claim)
                os.close(claim.descriptor)


class _FileClaim(Claim):
    def __init__(self, claims: FileClaims, name: str, path: Path, descriptor: int) -> None:
        super().__init__(name)
        self.descriptor = descriptor
        self._claims, self._path = claims, path

    @property
    def held(self) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False  # somebody removed the file, so that others lock another one
        with self._claims._lock:
            if self not in self._claims._taken:
                return False
            mine = os.fstat(self.descriptor)
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        self._claims._give_back(self)


class MemoryClaims:
    """Claims between the threads of this process, for a study that is kept in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, _MemoryClaim] = {}

    def take(self, name: str) -> Claim | None:
        """The claim, or None when another thread has it."""
        with self._lock:
            if name in self._taken:
                return None
            return self._taken.setdefault(name, _MemoryClaim(self, name))

    def wait(self, name: str, seconds: float) -> AbstractContextManager[Claim]:
        """Hold the claim in a ``with`` block, after waiting for it."""
        return waited(self.take, name, seconds)

    def close(self) -> None:
        """Release everything."""
        with self._lock:
            self._taken.clear()


class _MemoryClaim(Claim):
    def __init__(self, claims: MemoryClaims, name: str) -> None:
        super().__init__(name)
        self._claims = claims

    @property
    def held(self) -> bool:
        return self._claims._taken.get(self.name) is self

    def release(self) -> None:
        with self._claims._lock:
            if self.held:
                del self._claims._taken[self.name]


@contextmanager
def waited(take: Callable[[str], Claim | None], name: str, seconds: float) -> Iterator[Claim]:
    """Hold a claim in a ``with`` block, after trying for it again and again; see ``Claims.wait``."""
    deadline = time.monotonic() + seconds
    wait = _FIRST_WAIT
    while (claim := take(name)) is None:
        if time.monotonic() >= deadline:
            raise QuerywrightError(
                f"another worker has been at {name!r} for {seconds:g} seconds; end it if it hangs, and run again"
            )
        time.sleep(min(wait, max(0.0, deadline - time.monotonic())))
        wait = min(2 * wait, _LONGEST_WAIT)
    with claim:
        yield claim


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    return f"{quoted if len(quoted) <= _LONGEST_FILE_NAME else hashlib.sha256(name.encode()).hexdigest()}.lock"
