"""Where querywright keeps what it builds: collections, vectors and LM answers.

One folder, ``.querywright`` in the current directory unless ``QUERYWRIGHT_HOME`` names another. All of it can
be deleted; it is built again when needed.
"""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "QUERYWRIGHT_HOME"


def home(path: str | Path | None = None) -> Path:
    """The working folder, created with access for its owner only.

    Args:
        path: The folder, or None for ``$QUERYWRIGHT_HOME``, or ``.querywright`` here when that is not set.
    """
    folder = Path(path or os.environ.get(ENVIRONMENT_VARIABLE) or ".querywright").expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
