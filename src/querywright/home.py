"""Where querywright keeps what it builds: collections, vectors and LM answers.

One folder, ``.querywright`` in the current directory unless ``QUERYWRIGHT_HOME`` names another. All of it can
be deleted; it is built again when needed.
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
    """The working folder as it is named, whether it is there or not; see ``home``.

    Raises:
        InputError: It begins with the name of a user that there is not.
    """
    given = Path(path or os.environ.get(ENVIRONMENT_VARIABLE) or ".querywright")
    try:
        return given.expanduser()
    except RuntimeError as error:
        raise _unusable(given, error) from error


def is_read_only(path: str | Path | None = None) -> bool:
    """Whether the working folder cannot be written, or be made, for want of permission: it can be asked from alone.

    Raises:
        InputError: It cannot be made for another reason, or is no folder.
    """
    try:
        return not os.access(home(path), os.W_OK)
    except InputError as error:
        if getattr(error.__cause__, "errno", None) in _READ_ONLY:
            return True
        raise


@functools.cache
def scratch() -> Path:
    """A folder of this process, removed at its end, for what must be written where the working folder cannot be."""
    folder, owner = tempfile.mkdtemp(prefix="querywright-"), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return Path(folder)


def home(path: str | Path | None = None) -> Path:
    """The working folder, created with access for its owner only.

    Args:
        path: The folder, or None for ``$QUERYWRIGHT_HOME``, or ``.querywright`` here when that is not set.

    Raises:
        InputError: It is not there and cannot be made, or is no folder.
    """
    folder = named_home(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error.strerror) from error
    return folder


def _unusable(folder: Path, reason: object) -> InputError:
    return InputError(
        f"the working folder {os.fspath(folder)!r} cannot be made ({reason}); name a folder that can be "
        f"written: home= or ${ENVIRONMENT_VARIABLE}"
    )
