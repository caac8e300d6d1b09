"""Questions and passages: types, functions that read, check, and split them, and the packaged sample.

The names below are imported on first use. pandas, pyarrow, datasets, and dspy are imported only when a source needs
them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querywright.data.documents import read_documents
    from querywright.data.reading import load_sample, read_passages, read_questions
    from querywright.data.splits import Splits, data_hash, split_questions
    from querywright.data.types import Label, Passage, Question

_HOMES = {
    "documents": ("read_documents",),
    "reading": ("load_sample", "read_passages", "read_questions"),
    "splits": ("Splits", "data_hash", "split_questions"),
    "types": ("Label", "Passage", "Question"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Label",
    "Passage",
    "Question",
    "Splits",
    "data_hash",
    "load_sample",
    "read_documents",
    "read_passages",
    "read_questions",
    "split_questions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"querywright.data.{_HOME[name]}"), name)
