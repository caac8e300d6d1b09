"""Recorded traffic: one JSON line a question, written by ``JsonLines`` and read back by ``read_traffic``.

A line is written whole or not at all, from any number of threads and processes, while a lock file is held. A line that
was written outlives its process, and a loss of power only when the system has put it on the disk.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from querywright.checksummed import first_problem
from querywright.errors import DataError, InputError
from querywright.files import append_line, locked
from querywright.optimize.artifacts.watchers import Exchange

logger = logging.getLogger("querywright.watching")

HASHED = "sha256:"
"""Begins what stands in the place of a text that was not kept."""
LOCK_SECONDS = 5.0
"""So long a line waits for others that are being written; then it is lost."""
SALT_BYTES = 32


class JsonLines:
    """A watcher that appends one line a request to a file.

    It never raises: a line that could not be written is counted in ``lost`` and told to the log, and the next one is
    tried again. The file and its salt are readable by their owner only. It is opened anew for each line, so that
    ``logrotate`` or the like may put it aside at any time.

    Args:
        path: The file; made when it is missing, and otherwise added to.
        questions: Whether texts are kept. False: a hash of each question, option, query and answer stands in its place.
            Equal texts of one file have equal hashes, and no hash can be guessed at without the salt, which lies
            beside the file (``.salt``) and should not travel with it.
        redact: Applied to every text and to every value of the metadata before anything else is done with it. When it
            fails the line is lost, and nothing of it is written.

    Raises:
        InputError: The file cannot be written there.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        questions: bool = True,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self.path, self.lost = Path(path).absolute(), 0
        self._redact = redact or (lambda text: text)
        self._lock = self.path.with_name(f".{self.path.name}.lock")
        self._counting = threading.Lock()
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            if not self.path.is_file():  # such as /dev/stdout
                raise OSError("it is no file")
            self._salt = None if questions else self._read_salt(self.path.with_name(self.path.name + ".salt"))
        except OSError as error:
            raise InputError(
                f"traffic cannot be recorded in {self.path.name!r}: {error.strerror or error}; name a file in a folder "
                "that is there and can be written"
            ) from error

    def __call__(self, exchange: Exchange) -> None:
        """Append what came of one question."""
        try:
            line = self._line(exchange)
            with locked(self._lock, seconds=LOCK_SECONDS):
                append_line(self.path, line, durable=False)  # whoever asked a question waits for no disk
        except Exception as error:  # noqa: BLE001 - whoever asked a question has nothing to do with its record
            with self._counting:
                self.lost += 1
            # The error's name, and what the system says of its number: its own text may hold a question.
            said = f": {os.strerror(error.errno)}" if isinstance(error, OSError) and error.errno else ""
            text = "a line of traffic could not be written to %s (%s%s); %d lost so far, the next is tried again"
            logger.warning(text, self.path.name, type(error).__name__, said, self.lost)

    def _text(self, value: str) -> str:
        shown = self._redact(value)
        if self._salt is None:
            return shown
        return HASHED + hmac.new(self._salt, shown.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def _line(self, exchange: Exchange) -> bytes:
        kept: dict[str, Any] = exchange.model_dump() | {
            "question": self._text(exchange.question),
            "options": [self._text(option) for option in exchange.options],
            "history": [self._text(turn) for turn in exchange.history],
            "queries": [{"role": query.role, "text": self._text(query.text)} for query in exchange.queries],
            "answer": None if exchange.answer is None else self._text(exchange.answer),
            "metadata": {key: self._redact(value) for key, value in exchange.metadata.items()},
        }
        # Half of a surrogate pair is no text in any encoding: a question mark stands in its place.
        return json.dumps(kept, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")

    def _read_salt(self, path: Path) -> bytes:
        """The salt of the file, made once by whichever process comes first."""
        with locked(self._lock, seconds=LOCK_SECONDS):
            path.touch(mode=0o600)
            salt = path.read_bytes()
            if not salt:
                salt = secrets.token_bytes(SALT_BYTES)
                path.write_bytes(salt)
        if len(salt) != SALT_BYTES:
            raise InputError(f"{path.name!r} is no salt of {SALT_BYTES} bytes; remove it, or record in another file")
        return salt


def read_traffic(path: str | Path, *, problems: list[str] | None = None) -> list[Exchange]:
    """The recorded traffic of a file, oldest first.

    A last line without an end that cannot be read is one that is being written, or was when a process was killed; it is
    left out. A line that was copied (it has the id of another) counts once.

    Args:
        path: The file that ``JsonLines`` wrote.
        problems: Gets a line for each other one that cannot be read; the rest is read. Default: they are an error.

    Raises:
        DataError: There is no such file, or a line cannot be read and ``problems`` is not given.
    """
    file, found, bad = Path(path), dict[str, Exchange](), list[str]()
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    if line.strip():
                        exchange = Exchange.model_validate_json(line, strict=True)
                        found.setdefault(exchange.id, exchange)
                except ValidationError as error:
                    if line.endswith(b"\n"):
                        bad.append(f"{file.name} line {number}: {first_problem(error)}")
    except OSError as error:
        raise DataError(
            f"{file.name}: the traffic cannot be read ({error.strerror}); give the file that a JsonLines watcher wrote"
        ) from error
    if bad and problems is None:
        raise DataError(bad)
    (problems if problems is not None else []).extend(bad)
    return list(found.values())


def is_traffic(path: str | Path) -> bool:
    """Whether the first line of a file that can be read is one of recorded traffic."""
    try:
        with Path(path).open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
    except OSError:
        return False
    return b'"artifact"' in first and b'"top_scores"' in first
