"""Retrieval of passages through the questions that were written for them.

Below the index stand the rules of matching, without any index or file: a list of questions holds (id, similarity)
pairs; a passage scores as its most similar question; equal scores go to the newer passage, then to the one that answers
more questions, then to the smaller id.
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
"""Of k-means, which finds the prototypes."""

Scored = tuple[str, float]
DATE = "date"
"""Key of a passage's metadata that tells which of two passages is newer, as ISO text."""
FETCHED = 8
"""Questions fetched at first for each passage that is wanted; several of the nearest are often of one passage, and
forty hits cost hardly more than five, a second search twice as much."""
DRAWS_KEPT = 8


class QuestionIndex(CollectionPassages):
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
        self.embedder, self.where = self.plain.embedder, self.plain.where
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

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the passages that a filter passes."""
        return self.plain.passing(where)

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
        """The text of a question; empty where none led to a passage."""
        return self._questions._passages[question].text if question else ""

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

    def _nearest_cells(self, row: Vectors, k: int, answers: Answers) -> list[Match]:
        """Return the passages of the questions in the cells nearest to a vector of length 1, one cell after another.

        Each cell's passages are ordered as ``walk`` returns them, so a passage of a later cell may have a higher score.
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
            for match in walk(zip(ids, (vectors @ row).tolist(), strict=True), answers):
                found.setdefault(match.passage, match)
            if len(found) >= min(k, answers.reachable):
                break
        return list(found.values())

    def _draw(self, filled: bool, coverage: float, keep_partial: bool) -> Answers:
        """The questions that take part, and where they lead."""
        asked = [question for question in self._own if keep_partial or question not in self._partial]
        further, allowed = (self._answers or {}) if filled else {}, self.plain.allowed
        leads = {}
        for question in drawn(asked, len(self._passages), coverage):
            found = dict.fromkeys((self._own[question], *further.get(question, ())))
            if reached := tuple(passage for passage in found if passage in allowed):
                leads[question] = reached
        return Answers(leads, self._times)


class Match(NamedTuple):
    """A passage (its id) that was matched, and the id of the question that led to it, empty where its own text did."""

    passage: str
    score: float
    question: str = ""


class Answers:
    """Which passages the questions that take part lead to; a passage without a time (``time_of``) is the oldest."""

    def __init__(self, passages: Mapping[str, Sequence[str]], times: Mapping[str, float]) -> None:
        self.passages = passages
        self.counts = Counter(passage for found in passages.values() for passage in found)
        self._times = times

    @property
    def reachable(self) -> int:
        """Passages that some question leads to."""
        return len(self.counts)

    def order(self, passage: str) -> tuple[float, int, str]:
        """Sorts passages of equal score: the newer first, then that of more questions, then by id."""
        return -self._times.get(passage, -math.inf), -self.counts[passage], passage


def time_of(date: object) -> float:
    """A date in seconds since 1970; minus infinity for one that cannot be read.

    It is such a number, or ISO text such as ``2024``, ``2024-05`` or ``2024-05-01T10:00+02:00``, in UTC without a zone.
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
    """Some questions, so many that a passage has ``coverage`` of them on average.

    The draw is uniform over all questions, whichever passage they are of; a coverage of 0 takes all. A
    smaller draw lies inside a larger one, and a question that is added later moves no other in or out but the
    last.

    Source: QB-RAG, arXiv 2407.18044, draws uniformly; that draws are nested is ours.
    """
    ids = set(questions)
    size = round(coverage * passages)
    if not coverage or size >= len(ids):
        return ids
    return set(sorted(ids, key=lambda id: (hashlib.sha256(f"0\0{id}".encode()).digest(), id))[:size])


def walk(ranked: Iterable[Scored], answers: Answers) -> list[Match]:
    """The passages that questions lead to, best first, each once; a question that does not take part is passed over.

    Each passage has the similarity of its most similar question; of equal questions that with the smaller id.
    """
    best: dict[str, tuple[float, str]] = {}
    for question, similarity in ranked:
        for passage in answers.passages.get(question, ()):
            best[passage] = min(best.get(passage, (math.inf, "")), (-similarity, question))
    order = sorted(best, key=lambda passage: (best[passage][0], answers.order(passage)))
    return [Match(passage, -best[passage][0], best[passage][1]) for passage in order]


def is_settled(ranked: Sequence[Scored], found: Sequence[Match], answers: Answers, k: int) -> bool:
    """Whether questions further away than the ranked ones change nothing about the first ``k`` that ``walk`` found."""
    wanted = min(k, answers.reachable)
    return len(found) >= wanted > 0 and found[wanted - 1].score > ranked[-1][1]


def blend(matches: Sequence[Match], passages: Sequence[Scored], weight: float, answers: Answers) -> list[Match]:
    """Two lists as one: score = (1 - weight) * similarity of the question + weight * similarity of the passage.

    A passage that one list lacks has that list's least score there: it is at most as near as that. A list that is empty
    or has the weight 0 is left out altogether, so the other comes back as it is. ``answers`` decides between equals.

    Source: the mixture is ours; QB-RAG, arXiv 2407.18044, leaves passages without a question unreachable.
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

    There are up to as many prototypes as the square root of the number of questions.

    Source: QuIM-RAG (arXiv:2501.02702) assigns questions to prototypes and searches the cell of the query's prototype.
    Where we differ: the nearest prototype is the one with the largest cosine similarity; a printed formula takes the
    smallest.

    Args:
        ids: Distinct ids of the questions, at least one.
        vectors: One row of length 1 per question, in the same order.
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
    members = [np.flatnonzero(cell_of == cell) for cell in range(len(used))]
    return means[used].astype(np.float32), [([ids[row] for row in rows_of], vectors[rows_of]) for rows_of in members]
