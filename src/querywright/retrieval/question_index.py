"""Search passages through the questions that were generated for them.

A passage's score is the similarity of its most similar question. Ties go to the newer passage, then to the passage that
answers more questions, then to the smaller id. The functions below the class apply these rules to lists of (question
id, similarity) pairs.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from querywright.errors import InputError
from querywright.files import json_digest
from querywright.models.embedder import TextEmbedder, Vectors, all_encoded, with_store
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import CollectionPassages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    fill_command,
    live_questions,
    questions_name,
    stored_answers,
)
from querywright.retrieval.types import FILLED, HYBRID, MATCHES, PROTOTYPES, Hit, Kind, Matching, check_queries

ITERATIONS = 25
"""Number of k-means iterations when computing the prototypes."""

Scored = tuple[str, float]
DATE = "date"
"""Metadata key for a passage's date, in ISO format."""
FETCHED = 8
"""Number of questions to fetch initially for each requested passage. The nearest questions often belong to the same
passage. Forty hits cost hardly more than five, but a second search doubles the cost."""
DRAWS_KEPT = 8


class QuestionIndex(CollectionPassages):
    """Search a collection by the cosine similarity between the query and the questions that its passages answer.

    Questions are left out if their passage has been removed or has changed since they were generated; a warning reports
    how many. Only ``hybrid`` matching finds passages without questions. The scores from ``search`` are similarities
    between two questions, which are higher than similarities between a question and a passage, so a gate needs a
    different threshold. Thread-safe. A copy is the same object.

    Args:
        name: Name of the collection.
        embedder: The embedder that the collection was built with. Default: the embedder recorded in the collection.
        home: The workspace. Default: ``querywright.home.home()``.
        where: A filter on the metadata of the passages, as in ``ChromaRetriever``. Default: every passage.
        plain: An open retriever for the same collection, whose passages, embedder, and filter are used. Default None.

    Raises:
        CollectionError: The collection or its questions are missing or damaged, or were built with a different
            embedder.

    Source: QB-RAG, arXiv 2407.18044, algorithm 1. The paper does not say how to find k passages if several of the
    nearest questions belong to the same passage; this search continues until it has k passages.
    """

    kind: ClassVar[Kind] = "dense"

    def __init__(
        self,
        name: str,
        *,
        embedder: TextEmbedder | None = None,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
        plain: ChromaRetriever | None = None,
    ) -> None:
        self.name = name
        self.plain = plain or ChromaRetriever(name, embedder=embedder, home=home, where=where)
        """A retriever that searches the same passages by their text."""
        self.folder, self.embedder, self.where = self.plain.folder, self.plain.embedder, self.plain.where
        self.manifest = self.plain.manifest
        self._passages = self.plain._passages
        self._questions = ChromaRetriever(questions_name(name), embedder=self.embedder, home=home)
        self._own, self._partial = dict[str, str](), set[str]()
        for question in live_questions(name, self._questions._passages, self._passages):
            self._own[question.id] = self._passages[str(question.metadata["passage"])].id
            if question.metadata["label"] != COMPLETE:
                self._partial.add(question.id)
        self._answers = stored_answers(name, self._own, self._passages, home)
        self._times = {id: time_of(one.metadata[DATE]) for id, one in self._passages.items() if DATE in one.metadata}
        self._drawn = lru_cache(DRAWS_KEPT)(self._draw)
        self._cells: tuple[Vectors, list[tuple[list[str], Vectors]]] | None = None
        self._embedder = with_store(self.embedder, home)
        self._lock = threading.Lock()
        further = sorted((question, list(found)) for question, found in (self._answers or {}).items())
        parts = ["questions", self.plain.fingerprint, self._questions.fingerprint, further]
        self._fingerprint = json_digest(parts)

    @property
    def count(self) -> int:
        """The number of passages in the collection, before the filter."""
        return self.plain.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the passages, the questions, and the stored answers."""
        return self._fingerprint

    @property
    def matches(self) -> tuple[str, ...]:
        """The ways to match that this collection supports: ``filled`` only if it has stored answers."""
        return tuple(one for one in MATCHES if one != FILLED or self._answers)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the passages of the questions nearest to each query.

        Args:
            queries: Any number of strings; all are embedded in one batch.
            k: Maximum number of passages per query, 1 or more.

        Returns:
            One list per query, best first; each hit contains the question that led to the passage. The score is the
            cosine similarity, in [-1, 1], between the query and the passage's nearest question. Ties go to the passage
            with the later ``date`` in its metadata, then to the passage that answers more questions, then to the
            smaller id.

        Raises:
            InputError: ``queries`` is a single string, or ``k`` is below 1.
        """
        return self.match(queries, k)

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the passages that match a filter."""
        return self.plain.passing(where)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return query vectors for texts; see ``ChromaRetriever.embed``."""
        return self.plain.embed(texts)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return passage vectors for texts; see ``ChromaRetriever.embed_documents``."""
        return self.plain.embed_documents(texts)

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """Return the passages of the questions nearest to each vector, as ``search`` does for strings.

        Args:
            vectors: Array of shape (n, dimension); finite values, no zero vectors.
            k: Maximum number of passages per vector, 1 or more.

        Raises:
            InputError: The vectors have the wrong shape, or ``k`` is below 1.
        """
        return self._match(vectors, k, Matching())

    def match(self, queries: Sequence[str], k: int, matching: Matching | None = None) -> list[list[Hit]]:
        """Search with the given matching settings.

        Args:
            queries: Any number of strings; all are embedded in one batch.
            k: Maximum number of passages per query, 1 or more.
            matching: The settings. Default: the same results as ``search``.

        Returns:
            One list per query, best first.

        Raises:
            InputError: ``queries`` is a single string, ``k`` is below 1, or the matching is ``filled`` but the
                collection has no stored answers.
        """
        check_queries(queries, k)
        return self._match(self.embed(queries), k, matching or Matching()) if queries else []

    def check(self, matching: Matching) -> None:
        """Check that this collection supports the given matching settings.

        Raises:
            InputError: The matching is ``filled``, but the collection has no stored answers.
        """
        if matching.match not in self.matches:
            state = "no answers are stored" if self._answers is None else "all stored answers are outdated"
            raise InputError(
                f"match={matching.match} requires stored answers to the questions in the collection {self.name!r}, "
                f"but {state}; run {fill_command(self.name)}, or set match to one of {', '.join(self.matches)}"
            )

    def __repr__(self) -> str:
        return f"QuestionIndex({self.name!r}, embedder={self.embedder.id!r}, questions={self._questions.count})"

    def _match(self, vectors: ArrayLike, k: int, matching: Matching) -> list[list[Hit]]:
        check_queries((), k)
        self.check(matching)
        self._record_search()
        answers = self._drawn(matching.match == FILLED, matching.coverage, matching.keep_partial)
        rows = np.asarray(vectors, dtype=np.float32)
        if rows.size == 0:
            return []
        if matching.match == HYBRID:
            found = self._blended(rows, max(matching.depth, k), matching.weight, answers)
        elif matching.match == PROTOTYPES:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            found = [self._nearest_cells(row, k, answers) for row in rows / lengths]
        else:
            found = self._walked(rows, k, answers)
        return [
            [
                Hit(self._passages[one.passage], one.score, rank, self._asked(one.question))
                for rank, one in enumerate(matches[:k], start=1)
            ]
            for matches in found
        ]

    def _asked(self, question: str) -> str:
        """Return a question's text; empty if the passage was not found through a question."""
        return self._questions._passages[question].text if question else ""

    def _walked(self, rows: Vectors, k: int, answers: Answers) -> list[list[Match]]:
        """Return the passages of the nearest questions; rows that need more are searched again at twice the depth."""
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

    def _nearest_cells(self, row: Vectors, k: int, answers: Answers) -> list[Match]:
        """Return the passages of the questions in the cells nearest to a unit vector, one cell after another.

        Passages are ordered only within a cell, as ``walk`` returns them, so a passage in a later cell may have a
        higher score.
        """
        with self._lock:
            if self._cells is None:
                asked = self._questions._passages
                vectors = all_encoded(self._embedder, (question.text for question in asked.values()), "query")
                self._cells = question_cells(list(asked), vectors)
        prototypes, cells = self._cells
        found: dict[str, Match] = {}
        for cell in np.argsort(-(prototypes @ row), kind="stable"):
            ids, vectors = cells[cell]
            similarities = vectors @ row
            order = np.argsort(-similarities, kind="stable")  # ``walk`` is faster on a sorted list
            for match in walk(((ids[place], float(similarities[place])) for place in order), answers):
                found.setdefault(match.passage, match)
            if len(found) >= min(k, answers.reachable):
                break
        return list(found.values())

    def _draw(self, filled: bool, coverage: float, keep_partial: bool) -> Answers:
        """Return the questions that are used, with the passages that they lead to."""
        asked = [question for question in self._own if keep_partial or question not in self._partial]
        further, allowed = (self._answers or {}) if filled else {}, self.plain.allowed
        leads = {}
        for question in drawn(asked, len(self._passages), coverage):
            found = dict.fromkeys((self._own[question], *further.get(question, ())))
            if reached := tuple(passage for passage in found if passage in allowed):
                leads[question] = reached
        return Answers(leads, self._times)


class Match(NamedTuple):
    """The id of a matched passage, its score, and the id of its question (empty if the passage's text was matched)."""

    passage: str
    score: float
    question: str = ""


class Answers:
    """The passages that each question leads to, and each passage's time. A passage without a time is the oldest."""

    def __init__(self, passages: Mapping[str, Sequence[str]], times: Mapping[str, float]) -> None:
        self.passages = passages
        self.counts = Counter(passage for found in passages.values() for passage in found)
        self._times = times

    @property
    def reachable(self) -> int:
        """The number of passages that at least one question leads to."""
        return len(self.counts)

    def order(self, passage: str) -> tuple[float, int, str]:
        """Return the sort key for passages with equal scores: newer first, then more questions first, then by id."""
        return -self._times.get(passage, -math.inf), -self.counts[passage], passage


def time_of(date: object) -> float:
    """Return a date in seconds since 1970, or minus infinity if it cannot be parsed.

    Args:
        date: Seconds since 1970, or an ISO string such as ``2024``, ``2024-05`` or ``2024-05-01T10:00+02:00``. A string
            without a time zone is taken as UTC.
    """
    if isinstance(date, int | float) and not isinstance(date, bool):
        return float(date) if math.isfinite(date) else -math.inf
    text = str(date).strip()
    if re.fullmatch(r"\d{4}(-\d{2})?", text):
        text += "-01" if "-" in text else "-01-01"
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return -math.inf
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def drawn(questions: Iterable[str], passages: int, coverage: float) -> set[str]:
    """Return a random sample with ``coverage`` questions per passage on average; return all if ``coverage`` is 0.

    The sample is uniform over all questions. A smaller sample is a subset of a larger one, and adding a question to the
    collection replaces at most one question in a sample.

    Source: QB-RAG, arXiv 2407.18044, samples uniformly; nesting the samples is our addition.
    """
    ids = set(questions)
    size = round(coverage * passages)
    if not coverage or size >= len(ids):
        return ids
    return set(sorted(ids, key=lambda id: (hashlib.sha256(f"0\0{id}".encode()).digest(), id))[:size])


def walk(ranked: Iterable[Scored], answers: Answers) -> list[Match]:
    """Return the distinct passages that questions lead to, best first; unused questions are skipped.

    Each passage gets the similarity of its most similar question. If two questions are equally similar, the one with
    the smaller id counts.
    """
    best: dict[str, tuple[float, str]] = {}
    for question, similarity in ranked:
        for passage in answers.passages.get(question, ()):
            best[passage] = min(best.get(passage, (math.inf, "")), (-similarity, question))
    order = sorted(best, key=lambda passage: (best[passage][0], answers.order(passage)))
    return [Match(passage, -best[passage][0], best[passage][1]) for passage in order]


def is_settled(ranked: Sequence[Scored], found: Sequence[Match], answers: Answers, k: int) -> bool:
    """Return whether the first ``k`` passages are final, so that less similar questions cannot change them."""
    wanted = min(k, answers.reachable)
    return len(found) >= wanted > 0 and found[wanted - 1].score > ranked[-1][1]


def blend(matches: Sequence[Match], passages: Sequence[Scored], weight: float, answers: Answers) -> list[Match]:
    """Combine two lists: score = (1 - weight) * question similarity + weight * passage similarity.

    A passage that is missing from a list gets that list's lowest score. If a list is empty or has weight 0, the other
    list is returned unchanged. ``answers`` breaks ties between passages with equal scores.

    Source: the combination is ours. In QB-RAG, arXiv 2407.18044, passages without questions cannot be found.
    """
    if weight == 0 or (weight < 1 and not passages):
        return list(matches)
    through, own = {match.passage: match for match in matches}, dict(passages)
    if weight == 1 or not matches:
        return [Match(id, score, through[id].question if id in through else "") for id, score in passages]
    least, least_own = min(match.score for match in matches), min(own.values())

    def mixed(id: str) -> Match:
        match = through.get(id, Match(id, least))
        return Match(id, (1 - weight) * match.score + weight * own.get(id, least_own), match.question)

    found = map(mixed, through.keys() | own.keys())
    return sorted(found, key=lambda match: (-match.score, answers.order(match.passage)))


def question_cells(ids: Sequence[str], vectors: Vectors) -> tuple[Vectors, list[tuple[list[str], Vectors]]]:
    """Cluster questions by k-means; return the prototypes, and the ids and vectors of each prototype's questions.

    The maximum number of prototypes is the square root of the number of questions.

    Source: QuIM-RAG (arXiv:2501.02702) assigns questions to prototypes and searches the cell of the query's prototype.
    We differ in one point: the nearest prototype is the one with the largest cosine similarity, while a formula in the
    paper takes the smallest.

    Args:
        ids: Distinct ids of the questions, at least one.
        vectors: One unit-length row per question, in the same order.
    """
    from scipy.cluster.vq import kmeans2

    rows = np.asarray(vectors, dtype=np.float64)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")  # about empty cells, and about vectors that are all the same
        count, random = round(math.sqrt(len(ids))), np.random.default_rng(0)
        means, _ = kmeans2(rows, count, iter=ITERATIONS, minit="++", rng=random)
    lengths = np.linalg.norm(means, axis=1)
    means = means[lengths > 0] / lengths[lengths > 0, None]
    used, cell_of = np.unique(np.argmax(rows @ means.T, axis=1), return_inverse=True)
    members = [np.flatnonzero(cell_of == cell).tolist() for cell in range(len(used))]
    return means[used].astype(np.float32), [([ids[row] for row in rows_of], vectors[rows_of]) for rows_of in members]
