"""Functions that the adapters share: open a program, and convert a prediction for a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram

ProgramSource = str | Path | LoadedProgram
"""The path of an artifact, or a program that ``querywright.load`` returned."""

Make = Callable[[Passage, float | None, dict[str, Any]], Any]
"""Makes a framework's document from a passage, its score, and its metadata.

The score is the best score of the passage in the searches that found it, on the scale of the retriever; None if the
retriever reports no scores. The metadata are the metadata of the passage, and ``id``, ``title``, ``rank`` (from 1), and
``queries`` (texts of the searches that found the passage).
"""


def opened(program: ProgramSource, **options: Any) -> LoadedProgram:
    """Return a loaded program: the program itself, or the artifact at a path.

    Args:
        program: Path of an artifact, or a loaded program.
        options: Options of ``querywright.load`` for a path.

    Raises:
        InputError: ``program`` has another type, or the artifact cannot be loaded.
    """
    if isinstance(program, LoadedProgram):
        return program
    if isinstance(program, str | Path):
        return load(program, **options)
    raise InputError(
        "pass the path of an artifact, or a program from querywright.load, but not a "
        f"{type(program).__name__}: {program!r}"
    )


def missing(extra: str, error: ImportError) -> InputError:
    """Return the error for a framework that cannot be imported.

    Args:
        extra: Extra of querywright that installs the framework.
        error: Error of the import.
    """
    return InputError(
        f"querywright.adapters.{extra.replace('-', '_')} needs the extra {extra}: pip install 'querywright[{extra}]' "
        f"({error})"
    )


def documents(make: Make, passages: Sequence[Passage], steps: Iterable[Any] = ()) -> list[Any]:
    """Return the documents of passages, best first.

    Args:
        make: Makes one document.
        passages: Passages, best first.
        steps: Steps of the prediction. Its searches tell which queries found a passage, and with which score.
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
    """Return a prediction as a dictionary: answer, support, documents, queries, and fallbacks.

    Args:
        prediction: Prediction of a program.
        make: Makes one document.
    """
    return {
        "answer": getattr(prediction, "answer", None),
        "support": getattr(prediction, "support", None),
        "documents": documents(make, prediction.passages, prediction.steps),
        "queries": [{"text": query.text, "role": query.role} for query in prediction.queries],
        "fallbacks": list(prediction.fallbacks),
    }
