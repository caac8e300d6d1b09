"""What goes into a search and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.models.embedder import Vectors

Kind = Literal["dense", "lexical", "hybrid", "foreign"]
"""What a retriever goes by: ``dense`` the nearness of vectors, ``lexical`` shared words, ``hybrid`` several of
these, ``foreign`` what is not ours and may be anything. Every retriever of ours has it as the class attribute
``kind``."""


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
