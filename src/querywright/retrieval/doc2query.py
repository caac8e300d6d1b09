"""Search by words over passages with the questions that were written for them appended: Doc2Query with a filter.

A passage that uses other words than those who ask is found through the words of its questions. Unlike in an index of
questions, a passage without any stays findable.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from querywright.data.types import Passage
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.collection import Generation, content_hash
from querywright.retrieval.generated_questions import COMPLETE, live_questions, published_questions, questions_folder

FOLDER = "expanded"
"""Where the index lies in the folder of the questions."""


class ExpandedRetriever(BM25Retriever):
    """Searches passages by the words of their text and of their questions; the hits are the passages as they are.

    The questions are those that are published, the same as ``QuestionIndex`` searches, and of them those that their
    passage answers completely. Questions that were written for a passage before it changed are left out, with a
    warning. Questions are read at the opening, and what was opened stays as it is.

    Args:
        name: The collection of the passages.
        home, where, k1, b, progress: As ``BM25Retriever`` has them.

    Raises:
        InputError: When ``k1``, ``b`` or ``where`` is out of range.
        CollectionError: When the collection or its questions are missing or damaged.

    Source: Doc2Query-- (Gospodinov et al., arXiv:2301.03266). A judge's verdict filters the questions here, where the
    paper cuts a relevance score at one threshold.
    """

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what ``BM25Retriever`` has in its own, and the texts with their questions."""
        return hashlib.sha256(f"expanded {super().fingerprint} {self._content}".encode()).hexdigest()

    def __repr__(self) -> str:
        return (
            f"ExpandedRetriever({self.name!r}, k1={self.k1:g}, b={self.b:g}, count={self.count}, "
            f"appended={self.appended})"
        )

    def _indexed(self, folder: Path, manifest: Generation) -> tuple[Path, Generation, Sequence[Passage]]:
        home = folder.parent.parent
        texts = _texts(live_questions(self.name, published_questions(self.name, home), self._passages))
        expanded = [_expanded(passage, texts.get(passage.id, ())) for passage in self._rows]
        self.appended = sum(map(len, texts.values()))
        self._content = content_hash(expanded)
        place = questions_folder(self.name, home) / FOLDER
        with suppress(OSError):  # where nothing can be written, the index is built in memory
            place.mkdir(mode=0o700, exist_ok=True)
        return place, manifest.model_copy(update={"content_hash": self._content}), expanded


def _texts(questions: Iterable[Passage]) -> dict[str, list[str]]:
    """By passage the questions that are appended to it."""
    texts = defaultdict(list)
    for question in questions:
        if question.metadata["label"] == COMPLETE:
            texts[str(question.metadata["passage"])].append(question.text)
    return texts


def _expanded(passage: Passage, questions: Iterable[str]) -> Passage:
    return replace(passage, text="\n".join([passage.text, *questions]))
