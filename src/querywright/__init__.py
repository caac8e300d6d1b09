"""Retrieval programs in DSPy, compiled for decision-useful retrieval over Chroma.

The names below are imported when they are first used, so that ``import querywright`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from querywright.data.types import Label, Passage, Question
    from querywright.models.embedder import resolve_embedder
    from querywright.models.lm import resolve_lm
    from querywright.optimize.artifacts.load import load
    from querywright.optimize.artifacts.loaded import LoadedProgram
    from querywright.optimize.evaluate import evaluate
    from querywright.optimize.study.compile import CompileSettings
    from querywright.optimize.study.compile import compile_program as compile
    from querywright.programs import make_program
    from querywright.retrieval.chroma import ChromaRetriever
    from querywright.retrieval.index import build_collection

_HOMES = {
    "ChromaRetriever": "querywright.retrieval.chroma",
    "CompileSettings": "querywright.optimize.study.compile",
    "Label": "querywright.data.types",
    "LoadedProgram": "querywright.optimize.artifacts.loaded",
    "Passage": "querywright.data.types",
    "Question": "querywright.data.types",
    "build_collection": "querywright.retrieval.index",
    "compile": "querywright.optimize.study.compile",
    "evaluate": "querywright.optimize.evaluate",
    "load": "querywright.optimize.artifacts.load",
    "make_program": "querywright.programs",
    "resolve_embedder": "querywright.models.embedder",
    "resolve_lm": "querywright.models.lm",
}

__all__ = [
    "ChromaRetriever",
    "CompileSettings",
    "Label",
    "LoadedProgram",
    "Passage",
    "Question",
    "build_collection",
    "compile",
    "evaluate",
    "load",
    "make_program",
    "resolve_embedder",
    "resolve_lm",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return getattr(module, "compile_program" if name == "compile" else name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
