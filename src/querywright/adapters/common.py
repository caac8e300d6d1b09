"""What the adapters share: how a program is given, and what was found in a form that a framework can take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram

GivenProgram = str | Path | LoadedProgram
"""The path of an artifact, or a program that ``querywright.load`` gave."""


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage as a program gave it.

    Args:
        passage: The passage.
        rank: 1 for the best.
        score: Its best score in the searches that found it, on the scale of the retriever; None where none was kept.
        queries: Texts of the searches that found it.
    """

    passage: Passage
    rank: int
    score: float | None
    queries: tuple[str, ...]

    @property
    def metadata(self) -> dict[str, Any]:
        """The passage's own metadata, and ``id``, ``title``, ``rank``, ``score`` and ``queries``."""
        scored = {} if self.score is None else {"score": self.score}
        own = {"id": self.passage.id, "title": self.passage.title, "rank": self.rank, "queries": list(self.queries)}
        return {**self.passage.metadata, **own, **scored}


def opened(program: GivenProgram, **options: Any) -> LoadedProgram:
    """The program itself, or the one at a path, loaded with these options.

    Raises:
        InputError: It is neither, or cannot be loaded.
    """
    if isinstance(program, LoadedProgram):
        return program
    if isinstance(program, str | Path):
        return load(program, **options)
    raise InputError(
        f"give the path of an artifact, or what querywright.load gave, but not a {type(program).__name__}: {program!r}"
    )


def lm_by_name(name: str | None) -> str | None:
    """The name of an LM that a saved pipeline or model may hold.

    Raises:
        InputError: It holds an address, to which the key of the user's environment would be sent.
    """
    if name is not None and "//" in name:
        raise InputError(
            f"the LM {name!r} holds an address, which what is saved may not; give the address in the provider's "
            "environment variable, or a program that querywright.load gave"
        )
    return name


def missing(extra: str, error: ImportError) -> InputError:
    """What is said where the package that an adapter is for cannot be imported."""
    return InputError(
        f"querywright.adapters.{extra.replace('-', '_')} needs the extra {extra}: pip install 'querywright[{extra}]' "
        f"({error})"
    )


def found(passages: Sequence[Passage], steps: Iterable[Any] = ()) -> list[FoundPassage]:
    """Passages, best first, with what the records of the searches tell of how they were found."""
    scores: dict[str, list[float]] = {}
    queries: dict[str, dict[str, None]] = {}
    for step in steps:
        if step.kind != "search" or not isinstance(step.made, Mapping):
            continue
        scored = getattr(step, "scores", {})
        for text, ids in step.made.items():
            for key in ids:
                queries.setdefault(key, {})[text] = None
            for key, score in zip(ids, scored.get(text, ()), strict=False):
                scores.setdefault(key, []).append(float(score))
    return [
        FoundPassage(passage, rank, max(scores.get(passage.id, ()), default=None), tuple(queries.get(passage.id, ())))
        for rank, passage in enumerate(passages, 1)
    ]


def found_by(prediction: Any) -> list[FoundPassage]:
    """The passages of a prediction with how they were found."""
    return found(prediction.passages, prediction.steps)


def query_data(queries: Iterable[Any]) -> list[dict[str, str]]:
    """Queries as plain data."""
    return [{"text": query.text, "role": query.role} for query in queries]


def asked(given: Any) -> tuple[str, list[str] | None]:
    """Question and options of what a framework passes along.

    Args:
        given: A question, or a mapping with ``question`` and, for a program that compares options, ``options``.

    Raises:
        InputError: It is neither.
    """
    if isinstance(given, str):
        return given, None
    if isinstance(given, Mapping) and isinstance(given.get("question"), str):
        options = given.get("options")
        return given["question"], None if options is None else list(options)
    raise InputError(f'give a question, or {{"question": "...", "options": ["...", "..."]}}, but not {given!r}')
