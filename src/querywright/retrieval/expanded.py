"""Search by words over passages with the questions that were written for them appended: Doc2Query with a filter.

A passage that uses other words than those who ask is found through the words of its questions. Unlike in an index of
questions, a passage without any stays findable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.models.embedder import Progress
from querywright.retrieval.bm25 import K1, B, BM25Retriever
from querywright.retrieval.collection import Manifest, content_hash
from querywright.retrieval.question_records import (
    COMPLETE,
    KEPT,
    RECORDS,
    PassageRecord,
    questions_folder,
    read_records,
)

FOLDER = "expanded"
"""Where the index lies in the folder of the questions."""


class ExpandedRetriever(BM25Retriever):
    """Searches passages by the words of their text and of their kept questions; the hits are the passages as they are.

    Questions that were written for a passage before it changed are left out. Questions are read at the opening, and
    what was opened stays as it is.

    Args:
        name: The collection of the passages.
        partial: Whether questions of which the passage gives only a part of the answer are appended too. Default
            False.
        home, where, k1, b, progress: As ``BM25Retriever`` has them.

    Raises:
        InputError: When ``k1``, ``b`` or ``where`` is out of range.
        CollectionError: When the collection is missing or damaged, or no questions were written for it.

    Source: Doc2Query-- (Gospodinov et al., arXiv:2301.03266). A judge's verdict filters the questions here, where the
    paper cuts a relevance score at one threshold.
    """

    partial: bool = False

    def __init__(
        self,
        name: str,
        *,
        partial: bool = False,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
        k1: float = K1,
        b: float = B,
        progress: Progress | None = None,
    ) -> None:
        self.partial = partial
        super().__init__(name, home=home, where=where, k1=k1, b=b, progress=progress)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what ``BM25Retriever`` has in its own, and the texts with their questions."""
        return hashlib.sha256(f"expanded {super().fingerprint} {self._content}".encode()).hexdigest()

    def __repr__(self) -> str:
        return (
            f"ExpandedRetriever({self.name!r}, partial={self.partial}, k1={self.k1:g}, b={self.b:g}, "
            f"count={self.count}, appended={self.appended})"
        )

    def _indexed(self, folder: Path, manifest: Manifest) -> tuple[Path, Manifest, Sequence[Passage]]:
        questions = questions_folder(self.name, folder.parent.parent)
        records = read_records(questions)
        if not records:
            raise CollectionError(
                f"no questions were written for the collection {self.name!r} ({RECORDS} is missing or empty); write "
                f"them: querywright questions build {self.name}"
            )
        labels = KEPT if self.partial else frozenset({COMPLETE})
        texts = [_texts(passage, records.get(passage.id), labels) for passage in self._rows]
        expanded = [_expanded(passage, lines) for passage, lines in zip(self._rows, texts, strict=True)]
        self.appended = sum(map(len, texts))
        self._content = content_hash(expanded)
        place = questions / FOLDER
        with suppress(OSError):  # where nothing can be written, the index is built in memory
            place.mkdir(mode=0o700, exist_ok=True)
        return place, replace(manifest, content_hash=self._content), expanded


def _texts(passage: Passage, record: PassageRecord | None, labels: frozenset[str]) -> list[str]:
    """The questions that are appended to a passage."""
    if record is None or record.digest != passage.text_digest():
        return []
    return [question.text for question in record.questions if question.label in labels]


def _expanded(passage: Passage, questions: Sequence[str]) -> Passage:
    return replace(passage, text="\n".join([passage.text, *questions]))
