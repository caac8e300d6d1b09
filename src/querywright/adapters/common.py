"""Functions shared by the adapters: open a program, and convert a prediction for a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram

ProgramSource = str | Path | LoadedProgram
"""An artifact's path, or a program returned by ``querywright.load``."""

Make = Callable[[Passage, float | None, dict[str, Any]], Any]
"""Creates a framework's document from a passage, its score, and its metadata.

The score is the passage's best score in the searches that found it, on the retriever's scale; None if the retriever
does not report scores. The metadata is the passage's metadata, plus ``id``, ``title``, ``rank`` (from 1), and
``queries`` (the text of each query that found the passage).
"""


def opened(program: ProgramSource, **options: Any) -> LoadedProgram:
    """Return a loaded program unchanged, or load the artifact at a path.

    Args:
        program: Path of an artifact, or a loaded program.
        options: Options for ``querywright.load`` if ``program`` is a path.

    Raises:
        InputError: ``program`` has the wrong type, or the artifact cannot be loaded.
    """
    if isinstance(program, LoadedProgram):
        return program
    if isinstance(program, str | Path):
        return load(program, **options)
    raise InputError(
        "a program must be the path of an artifact or the return value of querywright.load, but got a "
        f"{type(program).__name__}: {program!r}"
    )


def missing(extra: str, error: ImportError) -> InputError:
    """Return the error to raise for a framework that cannot be imported.

    Args:
        extra: querywright extra that installs the framework.
        error: The import error.
    """
    return InputError(
        f"querywright.adapters.{extra.replace('-', '_')} requires the {extra} extra ({error}); run: pip install "
        f"'querywright[{extra}]'"
    )


def documents(make: Make, passages: Sequence[Passage], steps: Iterable[Any] = ()) -> list[Any]:
    """Return one document per passage, best first.

    Args:
        make: Creates one document.
        passages: Passages, best first.
        steps: Steps in the prediction. The search steps show which queries found a passage, and its scores.
    """
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
    """Return a prediction as a dictionary with its answer, support, documents, queries, and fallbacks.

    Args:
        prediction: A program's prediction.
        make: Creates one document.
    """
    return {
        "answer": getattr(prediction, "answer", None),
        "support": getattr(prediction, "support", None),
        "documents": documents(make, prediction.passages, prediction.steps),
        "queries": [{"text": query.text, "role": query.role} for query in prediction.queries],
        "fallbacks": list(prediction.fallbacks),
    }
