"""Prompt-completion pairs to learn from, and files with one pair per line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from querywright.checksummed import first_problem
from querywright.errors import InputError
from querywright.files import write_file

Role = Annotated[str, StringConstraints(pattern="^(system|user|assistant)$")]
Said = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Pair:
    """A prompt and a completion to learn from.

    Args:
        question: Id of the question.
        technique: The technique that the prompt is from.
        number: Number of the turn in the episode, from 0.
        messages: The prompt: role and text of each message.
        text: The completion.
        reward: The episode's reward; None if nothing was scored.
        source: Where the completion comes from: a model's name or ``evidence``.
        data: The collection that was searched, which is the namespace of the question's id; empty if it is not known.
        asked: The question's hash from ``asked_of``, which does not depend on its id; empty if it is not known.
    """

    question: str
    technique: str
    number: Annotated[int, Field(ge=0, strict=True)]
    messages: Annotated[tuple[tuple[Role, str], ...], Field(min_length=1)]
    text: Said
    reward: float | None
    source: str
    data: str = ""
    asked: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The question's id and its collection."""
        return self.question, self.data


_PAIR = TypeAdapter(Pair)


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs atomically, one per line."""
    told = ({name: one for name, one in _PAIR.dump_python(pair, mode="json").items() if one != ""} for pair in pairs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in told))


def check_pairs_file(path: Path) -> None:
    """Raise if the file exists but does not contain pairs."""
    if path.exists() or path.is_symlink():
        try:
            read_pairs(path)
        except InputError as error:
            raise InputError(
                f"{path.name!r} exists but is not a file of pairs ({error}); use a different --out"
            ) from error


def read_pairs(path: Path) -> list[Pair]:
    """Return the pairs in a file written by ``write_pairs``, or by hand in the same format."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 at byte {error.start}"
        raise InputError(f"cannot read {path.name!r}: {reason}; pass a file with one pair per line") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_PAIR.validate_json(line))
            except ValidationError as error:
                raise InputError(
                    f"{path.name}, line {number}: not a valid pair ({first_problem(error)}); a pair must be an object "
                    "with question, technique, number, messages (pairs of a role and a string), text, reward, and "
                    "source, and optionally data (the collection) and asked"
                ) from None
    return found
