"""Recorded traffic, read back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from querywright.errors import DataError

if TYPE_CHECKING:
    from querywright.optimize.artifacts.interaction import Exchange

FORMAT = 1
HASHED = "sha256:"
"""Begins what stands in the place of a text that was not kept."""


class RecordedQuery(BaseModel):
    """A query, and why it was asked."""

    model_config = ConfigDict(frozen=True)

    role: str
    text: str


class Recorded(BaseModel):
    """One line: a question and what came of it, as ``Exchange`` tells it.

    ``passages`` is None where ids were not kept; ``n_passages`` is their number in any case. A field that a later
    version adds is left out.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    format: int = Field(ge=1, le=FORMAT)
    id: str = Field(min_length=1)
    at: str
    artifact: str
    question: str
    options: tuple[str, ...]
    queries: tuple[RecordedQuery, ...]
    passages: tuple[str, ...] | None
    n_passages: int = Field(ge=0)
    support: tuple[str, ...] | None
    answer: str | None
    declined: bool
    fallbacks: tuple[str, ...]
    top_scores: tuple[float, ...]
    seconds: float
    lm_calls: int
    lm_saved: int
    error: str | None
    metadata: dict[str, str]

    @classmethod
    def of(cls, exchange: Exchange) -> Recorded:
        """What would be recorded of a question."""
        return cls.model_validate(line_of(exchange))

    @property
    def hashed(self) -> bool:
        """Whether a hash stands in the place of the question."""
        return self.question.startswith(HASHED)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two requests the same question: its words and its options."""
        return (self.question.strip(), *self.options)


def line_of(
    exchange: Exchange, *, text: Callable[[str], str] = lambda text: text, passages: bool = True
) -> dict[str, Any]:
    """What a line holds of a question, as plain data.

    Args:
        exchange: What came of it.
        text: Applied to every text. Default: it is kept as it is.
        passages: Whether ids of passages are kept.
    """
    found, support = exchange.passages, exchange.support
    return {
        "format": FORMAT,
        "id": exchange.id,
        "at": exchange.at,
        "artifact": exchange.artifact,
        "question": text(exchange.question),
        "options": [text(option) for option in exchange.options],
        "queries": [{"role": role, "text": text(query)} for role, query in exchange.queries],
        "passages": list(found) if passages else None,
        "n_passages": len(found),
        "support": list(support) if passages and support is not None else None,
        "answer": None if exchange.answer is None else text(exchange.answer),
        "declined": exchange.declined,
        "fallbacks": list(exchange.fallbacks),
        "top_scores": [score for score in exchange.top_scores if math.isfinite(score)],
        "seconds": round(exchange.seconds, 4),
        "lm_calls": exchange.lm_calls,
        "lm_saved": exchange.lm_saved,
        "error": exchange.error,
        "metadata": dict(exchange.metadata),
    }


def rotated(path: Path, number: int) -> Path:
    """The file that was put aside so many times ago: ``traffic.jsonl.1`` is the newest."""
    return path.with_name(f"{path.name}.{number}")


def traffic_files(path: Path) -> list[Path]:
    """The file and those that were put aside before it, oldest first."""
    older = itertools.takewhile(Path.is_file, (rotated(path, number) for number in itertools.count(1)))
    return [*reversed(list(older)), path]


def read_traffic(path: str | Path, *, problems: list[str] | None = None) -> list[Recorded]:
    """The recorded traffic of a file and of those that were put aside before it, oldest first.

    A last line without an end that cannot be read is one that is being written, or was when a process was killed; it is
    left out. A line that was copied (it has the id of another) counts once.

    Args:
        path: The file that ``JsonLines`` wrote.
        problems: Gets a line for each other one that cannot be read; the rest is read. Default: they are an error.

    Raises:
        DataError: There is no such file, or a line cannot be read and ``problems`` is not given.
    """
    found: dict[str, Recorded] = {}
    bad: list[str] = []
    for file in traffic_files(Path(path)):
        for recorded in _read(file, bad):
            found.setdefault(recorded.id, recorded)
    if problems is not None:
        problems += bad
    elif bad:
        raise DataError(bad)
    return list(found.values())


def is_traffic(path: str | Path) -> bool:
    """Whether the first line of a file that can be read is one of recorded traffic."""
    try:
        with Path(path).open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
    except OSError:
        return False
    return b'"artifact"' in first and b'"top_scores"' in first


def _read(file: Path, bad: list[str]) -> Iterator[Recorded]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield Recorded.model_validate_json(line, strict=True)
                except ValidationError as error:
                    if line.endswith(b"\n"):
                        first = error.errors(include_url=False, include_input=False)[0]
                        where = ".".join(str(part) for part in first["loc"]) or "the line"
                        bad.append(f"{file.name} line {number}: {where}: {first['msg']}")
    except OSError as error:
        raise DataError(
            f"{file.name}: the traffic cannot be read ({error.strerror}); give the file that a JsonLines watcher wrote"
        ) from error
