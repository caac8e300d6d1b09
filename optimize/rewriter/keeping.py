"""Files of a training: written whole or not at all, and read again after a kill."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from querywright.errors import InputError


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a text or bytes so that the file is the old one or the new one, whenever the process ends.

    Raises:
        OSError: It cannot be written; the old one stands, and nothing else.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON, whole; NaN becomes null."""
    write_whole(path, json.dumps(finite_all(data), ensure_ascii=False, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What ``write_json`` wrote; None where there is no file.

    Raises:
        InputError: It is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InputError(f"{path.name} in {path.parent.name!r} is no JSON ({error}); delete the folder") from error


def add_line(path: Path, data: Mapping[str, Any]) -> None:
    """Add a line of JSON; a line that cannot be written whole is taken back.

    Raises:
        OSError: It cannot be written.
    """
    line = (json.dumps(finite_all(data), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of JSON; half a line at the end, of a process that was killed, is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines() if line.strip()]


def keep_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Leave only some lines in the file, whole."""
    if path.exists():
        kept = [line for line in read_lines(path) if keep(line)]
        write_whole(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))


def finite_all(data: Any) -> Any:
    """Data with null for a number that is none."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): finite_all(value) for key, value in data.items()}
    return [finite_all(value) for value in data] if isinstance(data, (list, tuple)) else data


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """The right to train in a folder; the kernel gives it back when the process ends, however it ends.

    Raises:
        InputError: Another process trains there.
    """
    descriptor = os.open(folder / "training.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process trains in {folder.name!r}; wait until it has ended, or give another folder (--work)"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
