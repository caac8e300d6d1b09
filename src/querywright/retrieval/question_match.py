"""Matching a query with passages through the questions that they answer: without any index or file.

A list of questions holds (id, similarity) pairs. A passage scores as its most similar question; equal scores go to the
newer passage, then to the one that answers more questions, then to the smaller id.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from querywright.errors import InputError
from querywright.models.embedder import Vectors

NEAREST, HYBRID, FILLED, PROTOTYPES = "nearest", "hybrid", "filled", "prototypes"
MATCHES = (NEAREST, HYBRID, FILLED, PROTOTYPES)
"""``nearest``: a question leads to the passage it was written for. ``hybrid``: that, with the similarity of query and
passage. ``filled``: a question leads to every passage that is known to answer it. ``prototypes``: the questions
around the prototype nearest to the query, then those around the next (QuIM-RAG)."""
ITERATIONS = 25
"""Of k-means, which finds the prototypes."""

Scored = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Matching:
    """How a query is matched.

    Args:
        match: One of ``MATCHES``. Default ``nearest``.
        coverage: Questions per passage on average that take part, 0 or more; 0 is all of them. Default 0.
        keep_partial: Whether questions that their passage answers only in part take part. Default False.
        weight: Share of the similarity of query and passage in a hybrid score, 0 to 1. Default 0.5.
        depth: Passages that a hybrid takes from each of its two lists, 1 or more; never fewer than are wanted.
            Default 100.

    Raises:
        InputError: A value is not allowed.
    """

    match: str = NEAREST
    coverage: float = 0
    keep_partial: bool = False
    weight: float = 0.5
    depth: int = 100

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise InputError(f"match must be one of {', '.join(MATCHES)}, but got {self.match!r}")
        if not (math.isfinite(self.coverage) and self.coverage >= 0):
            raise InputError(f"coverage must be a number of 0 or more, but got {self.coverage}")
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight must be 0 to 1, but got {self.weight}")
        if self.depth < 1:
            raise InputError(f"depth must be 1 or more, but got {self.depth}")


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


def gathered(cells: Iterable[Sequence[Scored]], answers: Answers, k: int) -> list[Match]:
    """The passages of the questions in cells, the nearest cell first, until there are ``k``.

    Those of the first cell come as ``walk`` gives them, then those that the next one adds, so that a shorter list
    begins a longer one; a passage of a later cell may have a higher score than one of an earlier.
    """
    found: dict[str, Match] = {}
    for cell in cells:
        for match in walk(cell, answers):
            found.setdefault(match.passage, match)
        if len(found) >= min(k, answers.reachable):
            break
    return list(found.values())[:k]


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


class Prototypes:
    """Questions in cells around prototypes, by k-means; a cell that ends without questions is left out.

    QuIM-RAG (arXiv:2501.02702) quantises the vectors of the questions to prototypes, keeps an inverted index from
    prototype to questions, and looks for a query in the cell of its own prototype. Here the nearest prototype is that
    of the largest cosine similarity, where a printed formula takes the smallest.

    Args:
        ids: Ids of the questions, each once, at least one.
        vectors: A row of length 1 a question, in the same order. There are as many prototypes as the square root of
            their number, or fewer.
    """

    def __init__(self, ids: Sequence[str], vectors: Vectors) -> None:
        from scipy.cluster.vq import kmeans2

        rows = np.asarray(vectors, dtype=np.float64)
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            warnings.simplefilter("ignore")  # of cells that are empty, and of vectors that are all the same
            count, random = round(math.sqrt(len(ids))), np.random.default_rng(0)
            means, _ = kmeans2(rows, count, iter=ITERATIONS, minit="++", rng=random)
        lengths = np.linalg.norm(means, axis=1)
        means = means[lengths > 0] / lengths[lengths > 0, None]
        taken, cells = np.unique(np.argmax(rows @ means.T, axis=1), return_inverse=True)
        self.prototypes: Vectors = means[taken].astype(np.float32)
        order = np.argsort(ids, kind="stable")
        members = [order[cells[order] == cell] for cell in range(len(taken))]
        self._members = [([ids[row] for row in rows_of], vectors[rows_of]) for rows_of in members]

    def cells(self, query: Vectors) -> Iterator[list[Scored]]:
        """All cells, that of the prototype nearest to a row of length 1 first.

        Of each its questions with their cosine similarities, best first, equal ones by id; a cell is looked at when it
        is asked for.
        """
        for cell in np.argsort(-(self.prototypes @ query), kind="stable"):
            ids, vectors = self._members[cell]
            similarities = vectors @ query
            yield [(ids[row], float(similarities[row])) for row in np.argsort(-similarities, kind="stable")]
