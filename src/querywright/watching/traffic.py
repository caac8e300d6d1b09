"""Recorded traffic: one JSON line a question, written by ``JsonLines`` and read back by ``read_traffic``.

A line is written whole or not at all, from any number of threads and processes, while a lock file is held. A line that
was written outlives its process, and a loss of power only when the system has put it on the disk.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
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
MAX_BYTES = 64 << 20
KEPT_FILES = 10
LOCK_SECONDS = 5.0
"""So long a line waits for others that are being written; then it is lost."""
SALT_BYTES = 32


class JsonLines:
    """A watcher that appends one line a request to a file.

    It never raises: a line that could not be written is counted in ``lost`` and told to the log, and the next one is
    tried again. The file and its salt are readable by their owner only.

    Args:
        path: The file; made when it is missing, and otherwise added to.
        questions: Whether texts are kept. False: a hash of each question, option, query and answer stands in its place.
            Equal texts of one file have equal hashes, and no hash can be guessed at without the salt, which lies
            beside the file (``.salt``) and should not travel with it.
        max_bytes: Size at which the file becomes ``.1``, what was ``.1`` becomes ``.2``, and so on; None for never.
        keep: How many of those are kept; the oldest is deleted.
        redact: Applied to every text and to every value of the metadata before anything else is done with it. When it
            fails the line is lost, and nothing of it is written.

    Raises:
        InputError: The file cannot be written there, or a number is out of range.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        questions: bool = True,
        max_bytes: int | None = MAX_BYTES,
        keep: int = KEPT_FILES,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise InputError(f"max_bytes must be 1 or more, or None for a file that grows, but got {max_bytes}")
        if keep < 1:
            raise InputError(f"keep must be 1 or more files, but got {keep}")
        self.path, self.lost = Path(path).absolute(), 0
        self._max_bytes, self._keep = max_bytes, keep
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
            self._append(self._line(exchange))
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

    def _append(self, line: bytes) -> None:
        with locked(self._lock, seconds=LOCK_SECONDS):
            size = self.path.stat().st_size if self.path.exists() else 0
            if self._max_bytes is not None and size > 0 and size + len(line) >= self._max_bytes:
                with suppress(OSError):  # where it cannot be put aside it goes on growing
                    self._put_aside()
            append_line(self.path, line, durable=False)  # whoever asked a question waits for no disk

    def _put_aside(self) -> None:
        for number in range(self._keep - 1, -1, -1):
            aside = _rotated(self.path, number)
            if aside.exists():
                aside.replace(_rotated(self.path, number + 1))

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
    """The recorded traffic of a file and of those that were put aside before it, oldest first.

    A last line without an end that cannot be read is one that is being written, or was when a process was killed; it is
    left out. A line that was copied (it has the id of another) counts once.

    Args:
        path: The file that ``JsonLines`` wrote.
        problems: Gets a line for each other one that cannot be read; the rest is read. Default: they are an error.

    Raises:
        DataError: There is no such file, or a line cannot be read and ``problems`` is not given.
    """
    found: dict[str, Exchange] = {}
    bad: list[str] = []
    older = itertools.takewhile(Path.is_file, (_rotated(Path(path), number) for number in itertools.count(1)))
    for file in (*reversed(list(older)), Path(path)):
        for exchange in _read(file, bad):
            found.setdefault(exchange.id, exchange)
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


def _rotated(path: Path, number: int) -> Path:
    """The file that was put aside so many times ago: ``traffic.jsonl.1`` is the newest."""
    return path.with_name(f"{path.name}.{number}") if number else path


def _read(file: Path, bad: list[str]) -> Iterator[Exchange]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    if line.strip():
                        yield Exchange.model_validate_json(line, strict=True)
                except ValidationError as error:
                    if line.endswith(b"\n"):
                        bad.append(f"{file.name} line {number}: {first_problem(error)}")
    except OSError as error:
        raise DataError(
            f"{file.name}: the traffic cannot be read ({error.strerror}); give the file that a JsonLines watcher wrote"
        ) from error
