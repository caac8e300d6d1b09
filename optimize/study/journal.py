"""The journal of a study: Optuna's log of what happened, made to survive processes that die while they write."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from querywright.errors import InputError, QuerywrightError

FILE_NAME = "journal.log"
LOCK_SECONDS = 60.0
_BLOCK = 65536
_SOON_FOLLOWED = frozenset({4, 5, 6})
"""Optuna's operations (a trial is made, has a parameter, has ended) that are no loss by themselves.

A trial's attributes follow the first two before any LM is asked, and precede the third, which is told again from them.
"""
# What a record that is not as Optuna wrote it makes Optuna raise; a read error or lack of memory is none of it.
_UNREADABLE = (LookupError, ValueError, TypeError, AttributeError, AssertionError, ArithmeticError, RecursionError)

logger = logging.getLogger(__name__)


def open_journal(path: Path) -> Any:
    """Optuna's storage on a journal, shared by any number of processes of this host.

    A last record that is not whole is cut before anybody reads it, and is kept in a file beside the journal.

    Args:
        path: The journal; made where it is not there.

    Raises:
        InputError: A record in the midst cannot be read by this version of Optuna.
        QuerywrightError: Its folder cannot be locked, or another process keeps it locked.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    lock: Any = JournalLock(path)
    lock.acquire()
    try:
        _repair(path)
    finally:
        lock.release()
    backend: Any = JournalFile(path, lock, JournalFileBackend(str(path), lock_obj=lock))
    return JournalStorage(backend)


class JournalFile:
    """Optuna's file of records, which waits for the disk only where something would be lost with the power.

    Optuna waits with every record, some ten times a trial, and each wait takes a few milliseconds. What another record
    of the trial soon follows reaches the disk with that one. A process that is killed loses nothing either way.

    Args:
        path: The journal.
        lock: The right to write to it.
        read: Optuna's own, which reads it.
    """

    def __init__(self, path: Path, lock: JournalLock, read: Any) -> None:
        self._path = path
        self._lock = lock
        self._read = read

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The records from that number on."""
        logs: Iterator[dict[str, Any]] = self._read.read_logs(log_number_from)
        return logs

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write records at the end; those that came before are on the disk by then where these are."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._lock.acquire()
        try:
            with self._path.open("ab") as file:
                file.write(text.encode())
                file.flush()
                if not all(log.get("op_code") in _SOON_FOLLOWED for log in logs):
                    os.fsync(file.fileno())
        finally:
            self._lock.release()


class JournalLock:
    """The right to write to a journal: a ``flock``, which the kernel gives back when its process is killed.

    Whoever gets it cuts what a killed process wrote of a record, so that the next record stands on a line of its own.

    Args:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """Wait for the right to write.

        Raises:
            QuerywrightError: It cannot be had within a minute, or the journal is gone.
        """
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._wait(descriptor)
            _cut_torn_line(self._path)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let others write."""
        os.close(self._descriptor)

    def _wait(self, descriptor: int) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        wait = 0.0005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise QuerywrightError(
                        f"another process has been writing to {self._path.name} for {LOCK_SECONDS:.0f} seconds; "
                        "end it if it hangs, and run again"
                    ) from None
            except OSError as error:
                if error.errno not in {errno.ENOLCK, errno.EOPNOTSUPP}:
                    raise
                raise QuerywrightError(
                    f"the folder of {self._path.name} cannot be locked ({error.strerror}); give the study a folder on "
                    "a disk of this host, or PostgreSQL as its storage"
                ) from None
            time.sleep(wait)
            wait = min(2 * wait, 0.02)


class _Replay:
    """Hands a journal's records to Optuna one after another and notes how many bytes it took without complaint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.good = 0
        self.records = 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as file:
            for line in file:
                record = _record(line)
                if record is None:
                    return
                yield record
                self.good += len(line)
                self.records += 1


def _repair(path: Path) -> None:
    """Cut a journal from the first record on that cannot be read."""
    from optuna.storages import JournalStorage

    replay = _Replay(path)
    backend: Any = replay
    try:
        JournalStorage(backend)
    except _UNREADABLE as error:
        with path.open("rb") as file:
            file.seek(replay.good)
            if all(_record(line) is not None for line in (file.readline(), file.readline())):
                raise InputError(
                    f"record {replay.records + 1} of {path.name} cannot be read ({type(error).__name__}) though whole "
                    "ones follow it; go on with the version of Optuna that wrote it, or start a study in another folder"
                ) from error
    with path.open("rb+") as file:
        _cut(path, file, replay.good)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _cut_torn_line(path: Path) -> None:
    try:
        file = path.open("rb+")
    except FileNotFoundError:
        raise QuerywrightError(f"{path.name} of the study is gone; nothing more is written without it") from None
    with file:
        end = file.seek(0, os.SEEK_END)
        good = end
        while good:
            start = max(0, good - _BLOCK)
            file.seek(start)
            newline = file.read(good - start).rfind(b"\n")
            if newline >= 0:
                good = start + newline + 1
                break
            good = start
        _cut(path, file, good)


def _cut(path: Path, file: BinaryIO, good: int) -> None:
    """Cut a journal to so many bytes; the others are kept beside it."""
    file.seek(good)
    rest = file.read()
    if not rest:
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.cut-{number}")).exists():
        number += 1
    with aside.open("xb") as kept:
        kept.write(rest)
        kept.flush()
        os.fsync(kept.fileno())
    file.truncate(good)
    os.fsync(file.fileno())
    logger.warning(
        "%s did not end in a whole record: %d bytes were cut and are kept in %s", path.name, len(rest), aside.name
    )
