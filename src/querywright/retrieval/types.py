"""What goes into a search and what comes out."""

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
"""What a retriever goes by: ``dense`` the nearness of vectors, ``lexical`` shared words, ``hybrid`` several of
these, ``foreign`` what is not ours and may be anything. Every retriever of ours has it as the class attribute
``kind``."""

NEAREST, HYBRID, FILLED, PROTOTYPES = "nearest", "hybrid", "filled", "prototypes"
MATCHES = (NEAREST, HYBRID, FILLED, PROTOTYPES)
"""``nearest``: a question leads to the passage it was written for. ``hybrid``: that, with the similarity of query and
passage. ``filled``: a question leads to every passage that is known to answer it. ``prototypes``: the questions
around the prototype nearest to the query, then those around the next (QuIM-RAG)."""


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


@dataclass(frozen=True, slots=True)
class Query:
    """One search.

    Args:
        text: What is searched for.
        role: Why it is asked: ``original``, ``support``, ``distinguish``, ``verify``, ``paraphrase`` ...
        weight: Its weight in fusion, 0 or more. Default 1.
    """

    text: str
    role: str = "original"
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search found.

    Args:
        passage: The passage.
        score: Higher is better; its scale belongs to the retriever (cosine similarity in [-1, 1] for Chroma).
        rank: 1 for the best of its list.
        question: Text of the stored question that led to it, for a trace and never for a reader; empty where the
            passage's own text did. Default empty.
    """

    passage: Passage
    score: float
    rank: int
    question: str = ""


@runtime_checkable
class Retriever(Protocol):
    """Anything that searches passages."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most ``k`` hits for each query, best first, one list a query in their order."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash that changes when the answers of ``search`` may change."""
        ...


@runtime_checkable
class VectorRetriever(Retriever, Protocol):
    """A retriever that can also be asked by vector."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The vectors by which ``search`` would look for some texts: one row a text, in their order."""
        ...

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """At most ``k`` hits for each row, best first, one list a row in their order."""
        ...


def kind_of(retriever: object) -> Kind:
    """What a retriever goes by; ``foreign`` for one that does not say."""
    kind: Kind = getattr(retriever, "kind", "foreign")
    return kind


def check_queries(queries: Sequence[str], k: int) -> None:
    """Look at what a retriever was asked.

    Raises:
        InputError: When it is not.
    """
    if isinstance(queries, str):
        raise InputError(f"search takes a list of queries, but got one text: {queries[:60]!r}; write [query]")
    if k < 1:
        raise InputError(f"k must be 1 or more, but got {k}")
