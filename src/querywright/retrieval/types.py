"""What goes into a search and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from querywright.data.types import Passage


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
    """

    passage: Passage
    score: float
    rank: int


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
