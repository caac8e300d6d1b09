"""What the adapters share: how a program is given, and what was found in a form that a framework can take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram

GivenProgram = str | Path | LoadedProgram
"""The path of an artifact, or a program that ``querywright.load`` gave."""

Make = Callable[[Passage, float | None, dict[str, Any]], Any]
"""Makes a framework's document of a passage, its best score in the searches that found it (on the scale of the
retriever; None where none was kept), and metadata: its own, and ``id``, ``title``, ``rank`` (1 for the best) and
``queries`` (texts of the searches that found it)."""


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


def documents(make: Make, passages: Sequence[Passage], steps: Iterable[Any] = ()) -> list[Any]:
    """Documents of passages, best first, with what the records of the searches tell of how they were found."""
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
    made = []
    for rank, one in enumerate(passages, start=1):
        own = {"id": one.id, "title": one.title, "rank": rank, "queries": list(queries.get(one.id, ()))}
        made.append(make(one, max(scores.get(one.id, ()), default=None), {**one.metadata, **own}))
    return made


def result(prediction: Any, make: Make) -> dict[str, Any]:
    """A prediction as plain data: answer, support, documents, queries and fallbacks."""
    return {
        "answer": getattr(prediction, "answer", None),
        "support": getattr(prediction, "support", None),
        "documents": documents(make, prediction.passages, prediction.steps),
        "queries": [{"text": query.text, "role": query.role} for query in prediction.queries],
        "fallbacks": list(prediction.fallbacks),
    }
