"""A limit of LM calls that processes share: a count in a file, which no number of processes and threads can exceed."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from querywright.models.engine_errors import LMBudgetError, LMStoreError
from querywright.models.usage import Cost

BUSY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SharedCalls:
    """The calls of one LM, wherever it is asked: a ``Purse`` for ``Limits``.

    Args:
        path: The file, from ``counted_calls``.
        name: Whose calls they are; each name has a count of its own.
        limit: Attempts that may be sent in all, 0 or more.
    """

    path: Path
    name: str
    limit: int

    def reserve(self) -> None:
        """Count one attempt before it is sent.

        Raises:
            LMBudgetError: The limit is reached; nothing was counted.
            LMStoreError: The count cannot be kept.
        """
        place = f"{self.path.as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(place, timeout=BUSY_SECONDS, uri=True)) as file, file:
                file.execute("INSERT OR IGNORE INTO calls VALUES (?, 0)", (self.name,))
                counted = file.execute(
                    "UPDATE calls SET sent = sent + 1 WHERE name = ? AND sent < ?", (self.name, self.limit)
                ).rowcount
        except sqlite3.Error as error:
            raise LMStoreError(
                f"the count of LM calls cannot be kept ({error}); free some space or allow writing in "
                f"{str(self.path.parent)!r}, and run again: answers received so far are kept"
            ) from None
        if not counted:
            raise LMBudgetError(
                f"the limit of {self.limit} LM calls is reached; answers received so far are kept. "
                "Raise --max-calls to go on"
            )

    def settle(self, cost: Cost) -> None:
        """Nothing: what a call cost has no limit."""


@contextmanager
def counted_calls(folder: Path) -> Iterator[Path]:
    """A file in which calls are counted from 0; it is removed at the end.

    Args:
        folder: Where it lies; there already.
    """
    path = folder.resolve() / f".calls-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("CREATE TABLE calls (name TEXT PRIMARY KEY, sent INTEGER NOT NULL)")
        path.chmod(0o600)
        yield path
    finally:
        path.unlink(missing_ok=True)
