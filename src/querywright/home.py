"""Where querywright keeps what it builds: collections, vectors and LM answers.

One folder, ``.querywright`` in the current directory unless ``QUERYWRIGHT_HOME`` names another. All of it can
be deleted; it is built again when needed.
"""

from __future__ import annotations

import os
from pathlib import Path

from querywright.errors import InputError

ENVIRONMENT_VARIABLE = "QUERYWRIGHT_HOME"


def home(path: str | Path | None = None) -> Path:
    """The working folder, created with access for its owner only.

    Args:
        path: The folder, or None for ``$QUERYWRIGHT_HOME``, or ``.querywright`` here when that is not set.

    Raises:
        InputError: It is not there and cannot be made, or is no folder.
    """
    given = path or os.environ.get(ENVIRONMENT_VARIABLE) or ".querywright"
    try:
        folder = Path(given).expanduser()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name of a user that there is not
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"the working folder {os.fspath(given)!r} cannot be made ({reason}); name a folder that can be "
            f"written: --home, home= or ${ENVIRONMENT_VARIABLE}"
        ) from error
    return folder
