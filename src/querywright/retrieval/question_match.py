"""Matching a query with passages through the questions that they answer: pure functions, without any index.

A list of questions holds (id, similarity) pairs. A passage scores as its most similar question; equal scores go to the
newer passage, then to the one that answers more questions, then to the smaller id.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from querywright.errors import InputError

NEAREST, HYBRID, FILLED, PROTOTYPES = "nearest", "hybrid", "filled", "prototypes"
MATCHES = (NEAREST, HYBRID, FILLED, PROTOTYPES)
"""``nearest``: a question leads to the passage it was written for. ``hybrid``: that, with the similarity of query and
passage. ``filled``: a question leads to every passage that is known to answer it. ``prototypes``: the questions
around the prototype nearest to the query, then those around the next (QuIM-RAG)."""

Scored = tuple[str, float]

_REDUCED_DATE = re.compile(r"\d{4}(-\d{2})?")


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
        seed: Of the draw of questions for ``coverage``. Default 0.

    Raises:
        InputError: A value is not allowed.
    """

    match: str = NEAREST
    coverage: float = 0
    keep_partial: bool = False
    weight: float = 0.5
    depth: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise InputError(f"match must be one of {', '.join(MATCHES)}, but got {self.match!r}")
        if not (math.isfinite(self.coverage) and self.coverage >= 0):
            raise InputError(f"coverage must be a number of 0 or more, but got {self.coverage}")
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight must be 0 to 1, but got {self.weight}")
        if self.depth < 1:
            raise InputError(f"depth must be 1 or more, but got {self.depth}")


@dataclass(frozen=True, slots=True)
class Match:
    """A passage that was matched.

    Args:
        passage: Its id.
        score: Higher is better.
        question: Id of the question that led to it; empty where only its own text did.
    """

    passage: str
    score: float
    question: str = ""


class Answers:
    """Which passages the questions that take part lead to.

    Args:
        passages: By question the ids of its passages, each once.
        times: By passage its time (``time_of``); one that is missing is the oldest.
    """

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
    """A date as a number, larger when it is newer; minus infinity for one that is missing or cannot be read.

    Args:
        date: A number, or ISO text such as ``2024``, ``2024-05``, ``2024-05-01`` or ``2024-05-01T10:00+02:00``, in
            UTC where it names no zone. Texts count as seconds since 1970, so numbers beside them should as well.
    """
    if isinstance(date, (int, float)) and not isinstance(date, bool):
        return float(date) if math.isfinite(date) else -math.inf
    if not isinstance(date, str):
        return -math.inf
    text = date.strip()
    if _REDUCED_DATE.fullmatch(text):
        text += "-01" if "-" in text else "-01-01"
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return -math.inf
    zoned = read if read.tzinfo else read.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def drawn(questions: Iterable[str], passages: int, coverage: float, seed: int = 0) -> set[str]:
    """Some questions, so many that a passage has ``coverage`` of them on average.

    The draw is uniform over all questions, whichever passage they are of; a coverage of 0 takes all. With the same
    seed a smaller draw lies inside a larger one, and a question that is added later moves no other in or out but the
    last.

    Source: QB-RAG, arXiv 2407.18044, draws uniformly; that draws are nested is ours.
    """
    ids = set(questions)
    size = round(coverage * passages)
    if not coverage or size >= len(ids):
        return ids
    return set(sorted(ids, key=lambda id: (hashlib.sha256(f"{seed}\0{id}".encode()).digest(), id))[:size])


def walk(ranked: Iterable[Scored], answers: Answers, k: int | None = None) -> list[Match]:
    """The passages that questions lead to, best first, each once; a question that does not take part is passed over.

    Each passage has the similarity of its most similar question; of equal questions that with the smaller id.

    Source: QB-RAG, arXiv 2407.18044, does not say how k passages are filled when several of the nearest questions
    are of one passage; here the walk goes on until there are k passages.
    """
    best: dict[str, tuple[float, str]] = {}
    for question, similarity in ranked:
        for passage in answers.passages.get(question, ()):
            known = best.get(passage)
            if known is None or (-similarity, question) < known:
                best[passage] = (-similarity, question)
    order = sorted(best, key=lambda passage: (best[passage][0], answers.order(passage)))
    return [Match(passage, -best[passage][0], best[passage][1]) for passage in order[:k]]


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


def blend(
    matches: Sequence[Match], passages: Sequence[Scored], weight: float, answers: Answers, k: int | None = None
) -> list[Match]:
    """Two lists as one: score = (1 - weight) * similarity of the question + weight * similarity of the passage.

    A passage that one list lacks has that list's least score there: it is at most as near as that. A list that is empty
    or has the weight 0 is left out altogether, so the other comes back as it is. ``answers`` decides between equals.

    Source: the mixture is ours; QB-RAG, arXiv 2407.18044, leaves passages without a question unreachable.
    """
    questions = {match.passage: match for match in matches}
    if weight == 0 or (weight < 1 and not passages):
        return list(matches[:k])
    if weight == 1 or not matches:
        return [
            Match(passage, score, questions[passage].question if passage in questions else "")
            for passage, score in passages[:k]
        ]
    own = dict(passages)
    least_question, least_own = min(match.score for match in matches), min(own.values())

    def mixed(passage: str) -> Match:
        match = questions.get(passage) or Match(passage, least_question)
        score = (1 - weight) * match.score + weight * own.get(passage, least_own)
        return Match(passage, score, match.question)

    found = [mixed(passage) for passage in questions.keys() | own.keys()]
    return sorted(found, key=lambda match: (-match.score, answers.order(match.passage)))[:k]
