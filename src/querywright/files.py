"""Write files and folders atomically, and hold locks that all threads and processes respect.

All other packages use this module to write everything that must survive a killed process.
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
"""The mode of files that are meant to be shared. Other files are private to their owner."""


def private(name: str, flags: int) -> int:
    """Open a file that only its owner may read; for use as the ``opener`` in ``open``."""
    return os.open(name, flags, 0o600)


def write_file(path: Path, data: bytes | str | Iterable[bytes], *, mode: int = 0o600) -> str:
    """Write a file atomically: even if the process is killed, either the old file or the whole new file exists.

    Args:
        path: The file. Its folder must exist.
        data: The content: bytes, a string (written as UTF-8; a lone surrogate becomes ``?``), or an iterable of bytes.
            If the iterable raises an error, the old file stays.
        mode: The file's mode, before the umask is applied. An existing file keeps its mode. Default 0o600 (owner only),
            because most of these files contain questions.

    Returns:
        The SHA-256 of the file.

    Raises:
        OSError: The file cannot be written. The old file stays.
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
    """Open a temporary file next to a path, locked until its writer exits. Remove files left by killed writers."""
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
    """Append a line to a file. If a killed process left an incomplete last line, remove that line first.

    Only one writer may append at a time: see ``locked``.

    Args:
        path: The file. A new file is private to its owner.
        line: The line, without a line break.
        durable: Whether to force the line to disk before the function returns. Default True.

    Raises:
        OSError: The line cannot be written. The file is restored.
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
    """Fill a new folder and replace the target with it.

    Args:
        target: The folder. A missing parent is created.
        fill: A function that writes the files into an empty folder. If it raises an error, the target stays unchanged.
            No other writer can replace the target in the meantime.
        check: A function that is called with the target and raises an error if the target must not be replaced.
            Default: no check.

    Raises:
        OSError: The folder cannot be written.
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
    """Write files by name into a folder, which is created if it is missing."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@contextmanager
def writing(what: str, state: str = "nothing was written", place: str = "--out path") -> Iterator[None]:
    """Turn any ``OSError`` in the ``with`` block into an ``ArtifactError``.

    Args:
        what: What is being written, for the message.
        state: The state after an error, for the message.
        place: The option with which the user can choose a different place, for the message.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArtifactError(
            f"could not write {what}: {reason}; {state}. Use a different {place}, or free up disk space"
        ) from error


def place_of(target: Path) -> Path:
    """Return a folder's path: the target, or the place where a killed writer left the old folder."""
    return target if os.path.exists(target) or not os.path.isdir(aside(target)) else aside(target)


def aside(target: Path) -> Path:
    """Return the path to which the old folder is moved while a new folder replaces it."""
    return target.with_name(f".{target.name}.old")


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to disk, so that they survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, busy: Exception | None = None, *, seconds: float | None = None) -> Iterator[None]:
    """Hold a lock against other threads and processes inside the ``with`` block. It is released if its process ends.

    Args:
        path: The lock: a file, which is created with access for its owner only, or an existing folder.
        busy: The error to raise if others hold the lock for too long. Default: ``TimeoutError``.
        seconds: Maximum time to wait for the lock, in seconds. Default: 0 if ``busy`` is given, else no limit.

    Raises:
        OSError: The file cannot be created.
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
    """Return a descriptor for ``take_lock``. The lock is released when the descriptor is closed or the process ends.

    Raises:
        OSError: The file does not exist, or cannot be created.
    """
    if path.is_dir():
        return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o600)


def take_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take an open descriptor's lock without waiting, and return whether the lock was free."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each named file in a folder, leaving out missing files."""
    return {name: file_digest(folder / name) for name in names if (folder / name).is_file()}


def json_digest(content: Any) -> str:
    """Return the SHA-256 of JSON data. It does not depend on the order of the keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def jsonable(data: Any) -> Any:
    """Return data as JSON types: NaN and infinity become None, and values of unknown types become strings."""
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
    """Restore or remove the folders that killed writers left."""
    if aside(target).is_dir():
        if target.exists():
            shutil.rmtree(aside(target), ignore_errors=True)
        else:
            aside(target).rename(target)
    for left in target.parent.glob(f".{target.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)
