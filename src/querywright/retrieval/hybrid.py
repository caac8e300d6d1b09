"""Several retrievers as one: each is asked once, and their lists are fused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from querywright.errors import InputError
from querywright.files import json_digest
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.fusion import rrf
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.shared import Shared

RRF_K = 60
DEPTH = 100


class HybridRetriever(Shared):
    """Fuses the lists of several retrievers by weighted reciprocal ranks.

    Each retriever is asked once for all queries. Scores are reciprocal-rank sums, so the scales of the parts do
    not matter. A passage counts once, also when two ids have the same text (see ``querywright.retrieval.fusion``).
    ``count``, ``passages``, ``get``, ``where`` and ``passing`` are those of the first retriever that has them. Safe for
    threads when the parts are; a copy is the same object.

    Args:
        retrievers: Two or more, each a ``Retriever`` or what ``as_retriever`` understands. Where they are of one
            mind about two passages' fused score, the better single rank decides, then the earlier retriever.
        weights: One a retriever, 0 or more, not all of them 0; one of weight 0 is not asked. Default 1 each.
        rrf_k: Smoothing of the ranks, 0 or more: the larger, the less the first ranks stand out. Default 60.
        depth: Hits that each retriever is asked for, 1 or more; never fewer than ``k``. Default 100.

    Raises:
        InputError: When there are fewer than two retrievers, or a number is out of range.

    Source: Cormack, Clarke and Buettcher, SIGIR 2009, DOI 10.1145/1571941.1572114; the weights are ours.
    """

    kind: ClassVar[Kind] = "hybrid"

    def __init__(
        self,
        retrievers: Sequence[Any],
        *,
        weights: Sequence[float] | None = None,
        rrf_k: float = RRF_K,
        depth: int = DEPTH,
    ) -> None:
        self.retrievers = tuple(as_retriever(one) for one in retrievers)
        self.weights = tuple(float(weight) for weight in weights) if weights is not None else (1.0,) * len(retrievers)
        self.rrf_k, self.depth = rrf_k, depth
        if len(self.retrievers) < 2:
            raise InputError(f"a hybrid needs two or more retrievers, but got {len(self.retrievers)}")
        usable = all(math.isfinite(weight) and weight >= 0 for weight in self.weights) and any(self.weights)
        if len(self.weights) != len(self.retrievers) or not usable:
            raise InputError(
                f"a hybrid of {len(self.retrievers)} retrievers needs as many finite weights of 0 or more, not all of "
                f"them 0, but got {list(self.weights)}"
            )
        if not (math.isfinite(rrf_k) and rrf_k >= 0) or depth < 1:
            raise InputError(f"a hybrid needs rrf_k of 0 or more and depth of 1 or more, but got {rrf_k} and {depth}")

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the parts' fingerprints, in their order, and the settings."""
        parts = [one.fingerprint for one in self.retrievers]
        return json_digest(["hybrid", parts, self.weights, float(self.rrf_k), self.depth])

    @property
    def is_known(self) -> bool:
        """Whether the fingerprint tells one index from another: that of every part does."""
        return all(getattr(one, "is_known", True) for one in self.retrievers)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The passages that the retrievers together place first.

        Args:
            queries: Any number of texts.
            k: At most so many hits a query, 1 or more.

        Returns:
            One list a query in their order, best first; a score is the sum of weight / (rrf_k + rank).

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
        """
        check_queries(queries, k)
        if not queries:
            return []
        asked = [(one, weight) for one, weight in zip(self.retrievers, self.weights, strict=True) if weight > 0]
        found = [one.search(queries, max(k, self.depth)) for one, _ in asked]
        weights = [weight for _, weight in asked]
        return [rrf(lists, weights=weights, k=self.rrf_k, limit=k) for lists in zip(*found, strict=True)]

    def __getattr__(self, name: str) -> Any:
        if name in ("count", "passages", "get", "where", "passing"):
            for one in self.retrievers:
                if hasattr(one, name):
                    return getattr(one, name)
        raise AttributeError(f"neither a hybrid nor one of its {len(self.retrievers)} retrievers has {name!r}")

    def __contains__(self, id: object) -> bool:
        holding: list[Any] = [one for one in self.retrievers if hasattr(one, "__contains__")]
        return any(id in one for one in holding)

    def __repr__(self) -> str:
        return f"HybridRetriever({list(self.retrievers)!r}, weights={list(self.weights)!r})"
