"""The workspace: the folder that contains collections, vectors, and LM answers.

It is ``.querywright`` in the current folder, or the folder that ``QUERYWRIGHT_HOME`` names. You can delete it at any
time; its content is recomputed when needed.
"""

from __future__ import annotations

import atexit
import errno
import functools
import os
import shutil
import tempfile
from pathlib import Path

from querywright.errors import InputError

ENVIRONMENT_VARIABLE = "QUERYWRIGHT_HOME"


_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def named_home(path: str | Path | None = None) -> Path:
    """Return the workspace's path, whether or not the folder exists; see ``home``.

    Raises:
        InputError: The path begins with ``~`` and an unknown user.
    """
    given = Path(path or os.environ.get(ENVIRONMENT_VARIABLE) or ".querywright")
    try:
        return given.expanduser()
    except RuntimeError as error:
        raise _unusable(given, error) from error


def is_read_only(path: str | Path | None = None) -> bool:
    """Return whether the workspace is not writable, or cannot be created because its parent is not writable.

    Raises:
        InputError: The folder cannot be created for any other reason, or the path is not a folder.
    """
    try:
        return not os.access(home(path), os.W_OK)
    except InputError as error:
        if getattr(error.__cause__, "errno", None) in _READ_ONLY:
            return True
        raise


@functools.cache
def scratch() -> Path:
    """Return this process's temporary folder, for files that cannot be written to a read-only workspace."""
    folder, owner = tempfile.mkdtemp(prefix="querywright-"), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return Path(folder)


def home(path: str | Path | None = None) -> Path:
    """Return the workspace. A new folder is private to its owner.

    Args:
        path: The folder. Default None: ``$QUERYWRIGHT_HOME``, or ``.querywright`` in the current folder if the variable
            is not set.

    Raises:
        InputError: The folder cannot be created, or the path is not a folder.
    """
    folder = named_home(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error.strerror) from error
    return folder


def _unusable(folder: Path, reason: object) -> InputError:
    return InputError(
        f"cannot create the workspace {os.fspath(folder)!r} ({reason}); choose a writable folder with home= or "
        f"${ENVIRONMENT_VARIABLE}"
    )
