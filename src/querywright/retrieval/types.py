"""Search types: queries, hits, the retriever protocol, and ways to match questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from querywright.data.types import Passage
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.models.embedder import Vectors

Kind = Literal["dense", "lexical", "hybrid", "foreign"]
"""How a retriever searches: ``dense`` compares vectors, ``lexical`` compares words, and ``hybrid`` combines retrievers.
``foreign`` is any retriever that does not declare its kind. The retrievers in this package declare it in the class
attribute ``kind``."""

NEAREST, HYBRID, FILLED, PROTOTYPES = "nearest", "hybrid", "filled", "prototypes"
MATCHES = (NEAREST, HYBRID, FILLED, PROTOTYPES)
"""``nearest``: a question leads to the passage that it was generated for. ``hybrid``: the same, combined with the
similarity between query and passage. ``filled``: a question leads to every passage that is known to answer it.
``prototypes``: questions are searched cluster by cluster, starting with the nearest prototype (QuIM-RAG)."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Settings for matching a query with the questions of a question index.

    Args:
        match: One of ``MATCHES``. Default ``nearest``.
        coverage: Average number of questions per passage to use, 0 or more; 0 means all. Default 0.
        keep_partial: Whether to use questions that their passage answers only in part. Default False.
        weight: Weight of the query-passage similarity in a hybrid score, 0 to 1. Default 0.5.
        depth: Number of passages that hybrid matching takes from each of its two lists, 1 or more. If a search requests
            more passages, it takes that many. Default 100.

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
            raise InputError(f"coverage must be 0 or more, but got {self.coverage}")
        if not 0 <= self.weight <= 1:
            raise InputError(f"weight must be from 0 to 1, but got {self.weight}")
        if self.depth < 1:
            raise InputError(f"depth must be 1 or more, but got {self.depth}")


@dataclass(frozen=True, slots=True)
class Query:
    """A search query.

    Args:
        text: The text to search for.
        role: The purpose of the query: ``original``, ``support``, ``distinguish``, ``verify``, ``paraphrase`` ...
        weight: The weight of the query's results in fusion, 0 or more. Default 1.
    """

    text: str
    role: str = "original"
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search found.

    Args:
        passage: The passage.
        score: Higher is better. The scale depends on the retriever (cosine similarity in [-1, 1] for Chroma).
        rank: Position in its list; the best hit has rank 1.
        question: Text of the stored question that led to the passage. It appears in traces but is never shown to
            readers. Empty if the passage's text was matched. Default empty.
    """

    passage: Passage
    score: float
    rank: int
    question: str = ""


@runtime_checkable
class Retriever(Protocol):
    """The interface of a retriever: an object that searches passages."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return up to ``k`` hits for each query, best first, as one list per query."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever the results of ``search`` may change."""
        ...


@runtime_checkable
class VectorRetriever(Retriever, Protocol):
    """The interface of a retriever that can also search for vectors."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return query vectors for texts, one row per text."""
        ...

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """Return up to ``k`` hits for each vector, best first, as one list per vector."""
        ...


def kind_of(retriever: object) -> Kind:
    """Return a retriever's kind; ``foreign`` if it does not declare one."""
    kind: Kind = getattr(retriever, "kind", "foreign")
    return kind


def check_queries(queries: Sequence[str], k: int) -> None:
    """Check the arguments of a search.

    Raises:
        InputError: ``queries`` is a single string, or ``k`` is below 1.
    """
    if isinstance(queries, str):
        raise InputError(f"queries must be a list of strings, but got the string {queries[:60]!r}; pass [query]")
    if k < 1:
        raise InputError(f"k must be 1 or more, but got {k}")
