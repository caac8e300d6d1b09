"""Files and folders that are there whole or not at all, and locks between threads and processes.

Stands below every floor: whatever must survive a kill is written through here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from querywright.errors import ArtifactError

POLL_SECONDS = 0.005


SHARED = 0o666
"""The mode of a file that is made to be handed on; every other one is its owner's."""


def private(name: str, flags: int) -> int:
    """An ``opener`` that makes a file for its owner only."""
    return os.open(name, flags, 0o600)


def write_file(path: Path, data: bytes | str | Iterable[bytes], *, mode: int = 0o600) -> str:
    """Writes a file so that the old one or the whole new one stands there, whenever the process ends.

    Args:
        path: The file. Its folder is there.
        data: What is in it: bytes, a text (UTF-8; half of a surrogate pair becomes ``?``), or bytes part by part. An
            error that comes out of the parts leaves the older file.
        mode: Who may read and write it, less the umask; an older file's stays. Default 0o600, its owner only, for what
            is written here mostly holds texts of questions.

    Returns:
        SHA-256 of the file.

    Raises:
        OSError: It cannot be written; the older one stands.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    temporary, descriptor = _begin(path, mode)
    digest = hashlib.sha256()
    try:
        with open(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            for part in (data,) if isinstance(data, bytes) else data:
                digest.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    return digest.hexdigest()


def _begin(path: Path, mode: int) -> tuple[Path, int]:
    """A temporary file beside a path, locked for as long as its writer lives; those of writers that were killed go."""
    for left in path.parent.glob(f".{escape(path.name)}.*.tmp"):
        with suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY)
            try:
                if take_lock(descriptor):
                    left.unlink()
            finally:
                os.close(descriptor)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if take_lock(descriptor) and temporary.exists():
            return temporary, descriptor
        os.close(descriptor)


def append_line(path: Path, line: bytes, *, durable: bool = True) -> None:
    """Adds a line to a file; half a line that a killed process left before it is cut off.

    One writer at a time: see ``locked``.

    Args:
        path: The file; made where it is missing, for its owner only.
        line: Without a line's end.
        durable: Whether it is on disk when this returns. Default True.

    Raises:
        OSError: It cannot be written; what was written of it is taken back.
    """
    is_new = not path.exists()
    with open(path, "ab+", buffering=0, opener=private) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                end = file.read().rfind(b"\n") + 1
                file.truncate(end)
        left = line + b"\n"
        try:
            while left:
                left = left[file.write(left) :]
            if durable:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise
    if is_new and durable:
        sync(path.parent)


def replace_folder(target: Path, fill: Callable[[Path], None], *, check: Callable[[Path], None] | None = None) -> None:
    """Fills a folder beside the target, then puts it in its place; what stood there is gone.

    Args:
        target: The folder; its parent is made when missing.
        fill: Writes the files into an empty folder. Where it raises, what stood there stays. It is called when no
            other writer can come in between.
        check: Raises where something would be lost with the target. Default: nothing is looked at.

    Raises:
        OSError: It could not be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent):
        _put_right(target)
        if check is not None:
            check(target)
        made = target.with_name(f".{target.name}.new-{secrets.token_hex(6)}")
        try:
            made.mkdir()
            fill(made)
            for file in made.rglob("*"):
                sync(file)
            sync(made)
            _swap(made, target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by name into a folder, which is made where it is missing."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@contextmanager
def writing(what: str, state: str = "nothing was written", place: str = "--out") -> Iterator[None]:
    """Inside the ``with`` block, what cannot be written is an ``ArtifactError``.

    Args:
        what: What is written.
        state: How things stand where it cannot be.
        place: What names another place.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArtifactError(
            f"{what} could not be written: {reason}; {state}. Give another {place}, or make room"
        ) from error


def place_of(target: Path) -> Path:
    """Where a folder is: in its place, or aside where a writer that was killed left it."""
    return target if os.path.exists(target) or not os.path.isdir(aside(target)) else aside(target)


def aside(target: Path) -> Path:
    """Where a folder stands while another is put in its place."""
    return target.with_name(f".{target.name}.old")


def sync(path: Path) -> None:
    """Makes a file, or the names in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, busy: Exception | None = None, *, seconds: float | None = None) -> Iterator[None]:
    """Holds a lock between threads, processes and whoever else asks for it here; it ends with its process.

    Args:
        path: The lock: a file, made with access for its owner only, or a folder that is there.
        busy: What is raised when others hold it for too long. Default: ``TimeoutError``.
        seconds: How long is waited. Default: not at all where ``busy`` is given, otherwise for as long as it takes.

    Raises:
        OSError: The file cannot be made.
    """
    limit = 0.0 if seconds is None and busy is not None else seconds
    descriptor = open_lock(path)
    try:
        deadline = None if limit is None else time.monotonic() + limit
        while not take_lock(descriptor):
            if deadline is not None and time.monotonic() >= deadline:
                raise busy or TimeoutError(f"{path.name!r} has been locked by another process for {limit:.0f} seconds")
            time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def open_lock(path: Path, *, make: bool = True) -> int:
    """A descriptor for ``take_lock``; closing it, or the end of the process, gives the lock back.

    Raises:
        OSError: It is not there, or cannot be made.
    """
    if path.is_dir():
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o600)


def take_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Takes the lock of an open descriptor without waiting; False where others hold it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each named file of a folder; a file that is missing has none."""
    return {name: file_digest(folder / name) for name in names if (folder / name).is_file()}


def json_digest(content: Any) -> str:
    """SHA-256 of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def jsonable(data: Any) -> Any:
    """Data as JSON has it: a number that is none becomes None, and what JSON does not know its text."""
    from pydantic_core import to_jsonable_python

    def other(one: Any) -> Any:
        return dict(one) if isinstance(one, Mapping) else str(one)

    return to_jsonable_python(data, inf_nan_mode="null", fallback=other)


def _swap(made: Path, target: Path) -> None:
    replaced = target.exists()
    if replaced:
        target.rename(aside(target))
    try:
        made.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if replaced:
            aside(target).rename(target)
        raise
    shutil.rmtree(aside(target), ignore_errors=True)


def _put_right(target: Path) -> None:
    """Puts right what writers that were killed left behind."""
    if aside(target).is_dir():
        if target.exists():
            shutil.rmtree(aside(target), ignore_errors=True)
        else:
            aside(target).rename(target)
    for left in target.parent.glob(f".{target.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)
