"""Retrieval programs in DSPy, compiled for decision-useful retrieval over Chroma.

The names below are imported on first use, so that ``import querywright`` is fast.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

warnings.filterwarnings("ignore", "IProgress not found|Using `tqdm.autonotebook")  # bars that are never drawn

if TYPE_CHECKING:
    from querywright.api import Compilation, compare, compile, evaluate, label
    from querywright.data import (
        Label,
        Passage,
        Question,
        Splits,
        load_sample,
        read_documents,
        read_passages,
        read_questions,
        split_questions,
    )
    from querywright.models.embedder import resolve_embedder
    from querywright.models.lm import resolve_lm
    from querywright.optimize.artifacts.load import load
    from querywright.optimize.artifacts.loaded import LoadedProgram
    from querywright.optimize.results import CompileSettings
    from querywright.programs import (
        HCQR,
        QARAG,
        QBRAG,
        RAG,
        ClosedBook,
        ContrastiveHypotheses,
        CorpusSteeredExpansion,
        Decomposition,
        Ensemble,
        Filter,
        HyDE,
        IRCoT,
        MultiQuery,
        PlainRetrieval,
        Query2Doc,
        RAGFusion,
        Rerank,
        RewriteRetrieveRead,
        RewriteRetrieveSelect,
        StepBackRetrieval,
        make_program,
    )
    from querywright.retrieval.chroma import ChromaRetriever
    from querywright.retrieval.index import build_collection
    from querywright.studies import Study, study
    from querywright.workspace import Workspace

_HOMES = {
    "api": ("Compilation", "compare", "compile", "evaluate", "label"),
    "data": (
        *("Label", "Passage", "Question", "Splits", "read_documents", "read_passages", "read_questions"),
        *("load_sample", "split_questions"),
    ),
    "models.embedder": ("resolve_embedder",),
    "models.lm": ("resolve_lm",),
    "optimize.artifacts.load": ("load",),
    "optimize.artifacts.loaded": ("LoadedProgram",),
    "optimize.results": ("CompileSettings",),
    "programs": (
        *("HCQR", "QARAG", "QBRAG", "RAG", "ClosedBook", "ContrastiveHypotheses", "CorpusSteeredExpansion"),
        *("Decomposition", "Ensemble", "Filter", "HyDE", "IRCoT", "MultiQuery", "PlainRetrieval", "Query2Doc"),
        *("RAGFusion", "Rerank", "RewriteRetrieveRead", "RewriteRetrieveSelect", "StepBackRetrieval", "make_program"),
    ),
    "retrieval.chroma": ("ChromaRetriever",),
    "retrieval.index": ("build_collection",),
    "studies": ("Study", "study"),
    "workspace": ("Workspace",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "HCQR", "QARAG", "QBRAG", "RAG", "ChromaRetriever", "ClosedBook", "Compilation", "CompileSettings",
    "ContrastiveHypotheses", "CorpusSteeredExpansion", "Decomposition", "Ensemble", "Filter", "HyDE", "IRCoT", "Label",
    "LoadedProgram", "MultiQuery", "Passage", "PlainRetrieval", "Query2Doc", "Question", "RAGFusion", "Rerank",
    "RewriteRetrieveRead", "RewriteRetrieveSelect", "Splits", "StepBackRetrieval", "Study", "Workspace",
    "build_collection", "compare", "compile", "evaluate", "label", "load", "load_sample", "make_program",
    "read_documents", "read_passages", "read_questions", "resolve_embedder", "resolve_lm", "split_questions", "study",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"querywright.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
