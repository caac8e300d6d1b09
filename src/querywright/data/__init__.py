"""Questions and passages: what they are, how they are read, checked and split, and the packaged sample.

Nothing here imports pandas, pyarrow, datasets or dspy before a source needs it.
"""

from __future__ import annotations

from querywright.data.documents import read_documents
from querywright.data.packaged import load_sample
from querywright.data.reading import read_passages, read_questions
from querywright.data.splits import Splits, data_hash, split_questions
from querywright.data.types import Label, Passage, Question

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
