"""Traffic as JSON lines: what was asked of a program, what it found and answered, one line a request.

A line is written whole or not at all, from any number of threads and processes: it is appended in one write while the
file is locked, and cut off again where the disk had no room for all of it. Lines are not forced to the disk, so a crash
of the machine (not of the process) can lose the last ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from querywright.errors import InputError
from querywright.watching.traffic import HASHED, line_of, rotated

if TYPE_CHECKING:
    from querywright.optimize.artifacts.interaction import Exchange

logger = logging.getLogger("querywright.watching")

MAX_BYTES = 64 << 20
KEPT_FILES = 10
LOCK_SECONDS = 1.0
SALT_BYTES = 32


class JsonLines:
    """A watcher that appends one line a request to a file.

    It never raises: a line that could not be written is counted in ``lost`` and told to the log, and the next one is
    tried again. The file and its salt are readable by their owner only.

    Args:
        path: The file; made when it is missing, and otherwise added to.
        questions: Whether texts are kept. False: a hash of each question, option, query and answer stands in its place.
            Equal texts of one file have equal hashes, and no hash can be guessed at without the salt, which lies
            beside the file (``.salt``) and should not travel with it.
        passages: Whether the ids of the passages are kept. Their number always is.
        max_bytes: Size at which the file becomes ``.1``, what was ``.1`` becomes ``.2``, and so on; None for never.
        keep: How many of those are kept; the oldest is deleted.
        redact: Applied to every text and to every value of the metadata before anything else is done with it. When it
            fails the line is lost, and nothing of it is written.

    Raises:
        InputError: The file cannot be written there, or a number is out of range.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        questions: bool = True,
        passages: bool = True,
        max_bytes: int | None = MAX_BYTES,
        keep: int = KEPT_FILES,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise InputError(f"max_bytes must be 1 or more, or None for a file that grows, but got {max_bytes}")
        if keep < 1:
            raise InputError(f"keep must be 1 or more files, but got {keep}")
        self.path = Path(path).absolute()
        self.lost = 0
        self._passages = passages
        self._max_bytes = max_bytes
        self._keep = keep
        self._redact = redact
        self._counting = threading.Lock()
        self._failing = False
        try:
            os.close(self._open())
            self._salt = None if questions else _salt(self.path.with_name(self.path.name + ".salt"))
        except OSError as error:
            raise InputError(
                f"traffic cannot be recorded in {self.path.name!r}: {error.strerror or error}; name a file in a folder "
                "that is there and can be written"
            ) from error

    def __call__(self, exchange: Exchange) -> None:
        """Append what came of one question."""
        try:
            self._append(self._line(exchange))
        except Exception as error:  # noqa: BLE001 - whoever asked a question has nothing to do with its record
            self._count(error)
        else:
            self._failing = False

    def __repr__(self) -> str:
        return f"JsonLines({self.path.name!r})"

    def _line(self, exchange: Exchange) -> bytes:
        redact = self._redact or (lambda text: text)

        def text(value: str) -> str:
            shown = redact(value)
            if self._salt is None:
                return shown
            return HASHED + hmac.new(self._salt, shown.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

        data = line_of(exchange, text=text, passages=self._passages)
        data["metadata"] = {key: redact(value) for key, value in exchange.metadata.items()}
        # Half of a surrogate pair is no text in any encoding: a question mark stands in its place.
        return (json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")

    def _open(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _append(self, line: bytes) -> None:
        # The file is opened for each line: one that another process has put aside is never written to, and a process
        # that forks shares nothing.
        while True:
            descriptor = self._open()
            try:
                with _locked(descriptor) as alone:
                    if alone and self._was_put_aside(descriptor):
                        continue
                    size = os.fstat(descriptor).st_size
                    if alone and self._is_full(size, line) and self._rotate():
                        continue
                    _write(descriptor, line, size, alone=alone)
                    return
            finally:
                os.close(descriptor)

    def _was_put_aside(self, descriptor: int) -> bool:
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        held = os.fstat(descriptor)
        return (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino)

    def _is_full(self, size: int, line: bytes) -> bool:
        return self._max_bytes is not None and size > 0 and size + len(line) > self._max_bytes

    def _rotate(self) -> bool:
        """Whether the file could be put aside; where it cannot it goes on growing. Who does so holds its lock."""
        try:
            for number in range(self._keep - 1, 0, -1):
                aside = rotated(self.path, number)
                if aside.exists():
                    aside.replace(rotated(self.path, number + 1))
            self.path.replace(rotated(self.path, 1))
        except OSError:
            return False
        return True

    def _count(self, error: Exception) -> None:
        with self._counting:
            self.lost += 1
            first, self._failing = not self._failing, True
            lost = self.lost
        if first:  # a full disk would fill the log as well
            logger.warning(
                "a line of traffic could not be written to %s (%s); %d lost so far, the next is tried again",
                self.path.name, _why(error), lost,
            )  # fmt: skip


def _why(error: Exception) -> str:
    """The error's name, and what the system says of its number: its own text may hold a question."""
    name = type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    return name if number is None else f"{name}: {os.strerror(number)}"


def _write(descriptor: int, line: bytes, size: int, *, alone: bool) -> None:
    """Append a line in one write; what is left of one that did not fit is taken back."""
    last = os.pread(descriptor, 1, size - 1) if size else b"\n"
    whole = line if last == b"\n" else b"\n" + line  # a process was killed, or the disk was full, in the middle of one
    try:
        written = os.write(descriptor, whole)
        if written < len(whole):
            raise OSError(f"only {written} of {len(whole)} bytes were written")
    except OSError:
        if alone:
            with suppress(OSError):  # what is no file has no size
                os.ftruncate(descriptor, size)
        raise


@contextmanager
def _locked(descriptor: int) -> Iterator[bool]:
    """Whether this is the only one that writes; False where a lock cannot be had in time, as where there are none."""
    end, pause = time.monotonic() + LOCK_SECONDS, 0.0002
    alone = False
    while not alone:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            if time.monotonic() > end:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        except OSError:
            break
    yield alone  # closing the descriptor gives the lock back


def _salt(path: Path) -> bytes:
    """The salt of a file, made once by whichever process comes first."""
    while True:
        try:
            salt = path.read_bytes()
        except FileNotFoundError:
            salt = None
        if salt is not None:
            if len(salt) != SALT_BYTES:
                raise InputError(
                    f"{path.name!r} is no salt of {SALT_BYTES} bytes; remove it, or record in another file"
                )
            return salt
        made = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, secrets.token_bytes(SALT_BYTES))
        finally:
            os.close(descriptor)
        try:
            os.link(made, path)  # fails where another was faster
        except FileExistsError:
            pass
        finally:
            made.unlink()
