"""The folder of an artifact: replaced whole or not at all, and read whole while it is replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from querywright.errors import ArtifactError
from querywright.files import aside
from querywright.files import replace_folder as replace_whole

LIMITS = {
    "manifest.json": 4 * 2**20,
    "program.json": 16 * 2**20,
    "golden.jsonl": 16 * 2**20,
    "README.md": 2**20,
}
"""The files of an artifact, and bytes of each that are read at most."""

SIGNATURE = "signature.json"
OPTIONAL = {SIGNATURE: 4096}
"""Files that an artifact may have besides, and bytes of each that are read at most."""


def identity(target: Path) -> tuple[int, ...]:
    """Changes when the artifact is replaced."""
    found: list[int] = []
    for folder in (target, aside(target)):
        with contextlib.suppress(OSError):
            status = folder.stat()
            found += [status.st_dev, status.st_ino, status.st_mtime_ns]
    return tuple(found)


def read_files(target: Path) -> dict[str, bytes]:
    """Every file of one and the same artifact: the one in place, else the one set aside by an ended writer."""
    for folder in (target, aside(target)):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                continue
            raise ArtifactError(f"the artifact {target.name!r} cannot be read: {error.strerror}") from error
        try:
            return {
                name: _read(target.name, name, descriptor)
                for name in (*LIMITS, *(one for one in OPTIONAL if _is_there(one, descriptor)))
            }
        finally:
            os.close(descriptor)
    raise ArtifactError(
        f"there is no artifact at {target.name!r}; give the folder that querywright compile wrote (--out)"
    )


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _read(artifact: str, name: str, folder: int) -> bytes:
    limit = {**LIMITS, **OPTIONAL}[name]
    try:
        # A link is not followed, and a pipe is not waited for.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ArtifactError(f"the artifact {artifact!r} is not whole: {name} is not a plain file")
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"the artifact {artifact!r} is not whole: {name} is missing; copy the whole folder, or compile again"
        ) from error
    except OSError as error:
        reason = "is a link, not a plain file" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise ArtifactError(f"{name} of the artifact {artifact!r} {reason}") from error
    if len(data) > limit:
        raise ArtifactError(f"{name} has more than the {limit} bytes that are read")
    return data


def replace_folder(target: Path, files: Mapping[str, bytes] | Callable[[], Mapping[str, bytes]]) -> None:
    """Write files beside the target, then put the folder in its place; what else stood there is gone.

    Args:
        target: The folder.
        files: Bytes by name. Where they are made of those that stand there, what makes them: it is called when no
            other writer can come in between.
    """

    def fill(folder: Path) -> None:
        for name, data in (files() if callable(files) else files).items():
            (folder / name).write_bytes(data)

    replace_whole(target, fill, check=check_replaceable)


def check_replaceable(target: Path) -> None:
    """Raise when something else than an artifact or an empty folder would be replaced.

    Raises:
        ArtifactError: The folder holds other files.
        NotADirectoryError: It is a file.
    """
    if not target.exists():
        return
    others = sorted({entry.name for entry in target.iterdir()} - {*LIMITS, *OPTIONAL})
    if others:
        raise ArtifactError(
            f"{target.name!r} holds files that are not of an artifact, such as {others[0]!r}; they would be lost. "
            "Give another folder"
        )
