"""Retrieval of passages through the questions that were written for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from querywright.errors import InputError
from querywright.files import json_digest
from querywright.models.embedder import TextEmbedder, Vectors, with_store
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import HeldPassages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    fill_command,
    live_questions,
    questions_name,
    stored_answers,
)
from querywright.retrieval.question_match import (
    FILLED,
    HYBRID,
    MATCHES,
    PROTOTYPES,
    Answers,
    Match,
    Matching,
    Prototypes,
    blend,
    drawn,
    gathered,
    is_settled,
    time_of,
    walk,
)
from querywright.retrieval.types import Hit, Kind, check_queries

DATE = "date"
"""Key of a passage's metadata that tells which of two passages is newer, as ISO text."""
FETCHED = 8
"""Questions fetched at first for each passage that is wanted; several of the nearest are often of one passage, and
forty hits cost hardly more than five, a second search twice as much."""
DRAWS_KEPT = 8


class QuestionIndex(HeldPassages):
    """Searches a collection by cosine similarity of the query with the questions that its passages answer.

    The collection and its questions are opened as they are published. A question whose passage is gone, or is not any
    more what it was when the question was written, leads nowhere, and a warning says how many there are. A passage
    without a question that takes part is found by ``hybrid`` matching only. Scores of ``search`` are similarities of
    two questions, which run higher than those of a question and a passage: a gate over them needs a threshold of its
    own. Safe for threads; a copy is the same object.

    Args:
        name: The collection of the passages.
        embedder: The embedder that both were built with. Default: the one that the collection names.
        home: The working folder. Default: ``querywright.home.home()``.
        where: A filter over the passages' metadata, as ``ChromaRetriever`` has it. Default: every passage.

    Raises:
        CollectionError: When the collection or its questions are missing, damaged or were built with another embedder.

    Source: QB-RAG, arXiv 2407.18044, algorithm 1. It does not say how k passages are filled when several of the nearest
    questions are of one passage; here the walk goes on until there are k passages.
    """

    kind: ClassVar[Kind] = "dense"

    def __init__(
        self,
        name: str,
        *,
        embedder: TextEmbedder | None = None,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.plain = ChromaRetriever(name, embedder=embedder, home=home, where=where)
        """Searches the same passages without their questions."""
        self.embedder = self.plain.embedder
        self._passages = {passage.id: passage for passage in self.plain.passages()}
        self._questions = ChromaRetriever(questions_name(name), embedder=self.embedder, home=home)
        self._texts = {question.id: question.text for question in self._questions.passages()}
        live = live_questions(name, list(self._questions.passages()), self._passages)
        self._own = {question.id: str(question.metadata["passage"]) for question in live}
        self._complete = frozenset(question.id for question in live if question.metadata["label"] == COMPLETE)
        self._answers = stored_answers(name, self._own, self._passages, home)
        self._allowed = self.plain.allowed
        self._times = {id: time_of(one.metadata[DATE]) for id, one in self._passages.items() if DATE in one.metadata}
        self._drawn = lru_cache(DRAWS_KEPT)(self._draw)
        self._prototypes: Prototypes | None = None
        self._embedder = with_store(self.embedder, home)
        self._lock = threading.Lock()
        further = sorted((question, list(found)) for question, found in (self._answers or {}).items())
        parts = ["questions", self.plain.fingerprint, self._questions.fingerprint, further]
        self._fingerprint = json_digest(parts)

    @property
    def count(self) -> int:
        """Passages in the collection, whatever ``where`` says."""
        return self.plain.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the passages, the questions, and what is known of further answers."""
        return self._fingerprint

    @property
    def matches(self) -> tuple[str, ...]:
        """The ways of matching that can be had here: ``filled`` only where further answers are known."""
        return tuple(one for one in MATCHES if one != FILLED or self._answers)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The passages of the questions nearest to each query.

        Args:
            queries: Any number of texts; all are embedded in one batch.
            k: At most so many passages a query, 1 or more; fewer when questions lead to fewer.

        Returns:
            One list a query in their order, best first, each hit with its question; a score is the cosine similarity,
            in [-1, 1], of the query with the nearest question of the passage. Equal scores: the passage that is newer
            by its metadata ``date``, then the one that answers more questions, then the smaller id.

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
        """
        return self.match(queries, k)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The vectors by which ``search`` looks for some texts, in one batch; see ``ChromaRetriever.embed``."""
        return self.plain.embed(texts)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The vectors that some texts would have as passages; see ``ChromaRetriever.embed``."""
        return self.plain.embed_documents(texts)

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """``search`` for vectors.

        Args:
            vectors: Shape (n, dimension) of any length, finite, none of them zero.
            k: At most so many passages a vector, 1 or more.

        Raises:
            InputError: When the vectors have another shape or ``k`` is below 1.
        """
        return self._match(vectors, k, Matching())

    def match(self, queries: Sequence[str], k: int, matching: Matching | None = None) -> list[list[Hit]]:
        """``search`` in other ways.

        Args:
            queries: Any number of texts; all are embedded in one batch.
            k: At most so many passages a query, 1 or more.
            matching: How. Default: as ``search`` does.

        Returns:
            One list a query in their order, best first.

        Raises:
            InputError: When ``queries`` is a single text, ``k`` is below 1, or the matching is ``filled`` and nothing
                is known of further answers.
        """
        check_queries(queries, k)
        return self._match(self.embed(queries), k, matching or Matching()) if queries else []

    def check(self, matching: Matching) -> None:
        """Look at whether a matching can be had here.

        Raises:
            InputError: It is ``filled``, and no further answer is known.
        """
        if matching.match not in self.matches:
            known = "nobody has looked for any" if self._answers is None else "none was found that still holds"
            raise InputError(
                f"match={matching.match} needs further passages that answer the questions of the collection "
                f"{self.name!r}, and {known}; run {fill_command(self.name)}, or use one of: {', '.join(self.matches)}"
            )

    def __repr__(self) -> str:
        return f"QuestionIndex({self.name!r}, embedder={self.embedder.id!r}, questions={self._questions.count})"

    def _match(self, vectors: ArrayLike, k: int, matching: Matching) -> list[list[Hit]]:
        check_queries((), k)
        self.check(matching)
        answers = self._drawn(matching.match == FILLED, matching.coverage, matching.keep_partial)
        rows = np.asarray(vectors, dtype=np.float32)
        if rows.size == 0:
            return []
        if matching.match == HYBRID:
            found = self._blended(rows, max(matching.depth, k), matching.weight, answers)
        elif matching.match == PROTOTYPES:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            found = [gathered(self._cells().cells(row), answers, k) for row in rows / lengths]
        else:
            found = self._walked(rows, k, answers)
        return [
            [
                Hit(self._passages[one.passage], one.score, rank, self._texts.get(one.question, ""))
                for rank, one in enumerate(matches[:k], start=1)
            ]
            for matches in found
        ]

    def _walked(self, rows: Vectors, k: int, answers: Answers) -> list[list[Match]]:
        """The passages of the nearest questions, all rows in one search a round, twice as deep in each round."""
        found: list[list[Match]] = [[] for _ in rows]
        todo = list(range(len(rows))) if answers.reachable else []
        total = self._questions.count
        depth = math.ceil(FETCHED * min(k, answers.reachable) * total / max(1, len(answers.passages)))
        while todo:
            lists = self._questions.search_vectors(rows[todo], min(depth, total))
            unsettled = []
            for row, hits in zip(todo, lists, strict=True):
                ranked = [(hit.passage.id, hit.score) for hit in hits]
                found[row] = walk(ranked, answers)
                if depth < total and not is_settled(ranked, found[row], answers, k):
                    unsettled.append(row)
            todo, depth = unsettled, 2 * depth
        return [matches[:k] for matches in found]

    def _blended(self, rows: Vectors, depth: int, weight: float, answers: Answers) -> list[list[Match]]:
        nothing: list[list[Any]] = [[] for _ in rows]
        questions = self._walked(rows, depth, answers) if weight < 1 else nothing
        hits = self.plain.search_vectors(rows, depth) if weight > 0 else nothing
        return [
            blend(matches, [(hit.passage.id, hit.score) for hit in own], weight, answers)
            for matches, own in zip(questions, hits, strict=True)
        ]

    def _cells(self) -> Prototypes:
        """All questions around their prototypes, made at the first use."""
        with self._lock:
            if self._prototypes is None:
                ids, texts = list(self._texts), list(self._texts.values())
                self._prototypes = Prototypes(ids, self._embedder.encode_query(texts))
            return self._prototypes

    def _draw(self, filled: bool, coverage: float, keep_partial: bool) -> Answers:
        """The questions that take part, and where they lead."""
        further = (self._answers or {}) if filled else {}
        leads = {}
        for question in drawn(self._own if keep_partial else self._complete, len(self._passages), coverage):
            passages = dict.fromkeys((self._own[question], *further.get(question, ())))
            leads[question] = tuple(passage for passage in passages if passage in self._allowed)
        return Answers({question: passages for question, passages in leads.items() if passages}, self._times)
