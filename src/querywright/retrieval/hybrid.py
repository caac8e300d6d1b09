"""Combine several retrievers into one by fusing their results."""

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
    """Fuse the results of several retrievers by weighted reciprocal rank.

    Each retriever is called once with all queries. Scores are sums of reciprocal ranks, so the retrievers' scores may
    be on different scales. Passages with the same text count once, even if their ids differ (see
    ``querywright.retrieval.fusion``). ``count``, ``passages``, ``folder``, ``get``, ``where``, and ``passing`` come
    from the first retriever that has them. Thread-safe if the retrievers are. A copy is the same object.

    Args:
        retrievers: Two or more retrievers, or objects that ``as_retriever`` accepts. Ties go to the passage with the
            better single rank, then to the earlier retriever.
        weights: One weight per retriever, 0 or more, not all 0. A retriever with weight 0 does not search. Default 1
            each.
        rrf_k: Smoothing constant, 0 or more. Larger values reduce the advantage of the top ranks. Default 60.
        depth: Number of hits to request from each retriever, 1 or more, and always at least ``k``. Default 100.

    Raises:
        InputError: There are fewer than two retrievers, or a number is out of range.

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
            raise InputError(f"a hybrid retriever must have two or more retrievers, but got {len(self.retrievers)}")
        usable = all(math.isfinite(weight) and weight >= 0 for weight in self.weights) and any(self.weights)
        if len(self.weights) != len(self.retrievers) or not usable:
            raise InputError(
                f"cannot fuse {len(self.retrievers)} retrievers with the weights {list(self.weights)}; pass one "
                "finite, nonnegative weight per retriever, and at least one positive weight"
            )
        if not (math.isfinite(rrf_k) and rrf_k >= 0) or depth < 1:
            raise InputError(f"rrf_k must be 0 or more and depth must be 1 or more, but got {rrf_k} and {depth}")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the retrievers' fingerprints, in order, and of the settings."""
        parts = [one.fingerprint for one in self.retrievers]
        return json_digest(["hybrid", parts, self.weights, float(self.rrf_k), self.depth])

    @property
    def is_known(self) -> bool:
        """Whether the fingerprint distinguishes indexes. True only if every retriever's fingerprint does."""
        return all(getattr(one, "is_known", True) for one in self.retrievers)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the passages with the highest fused scores for each query.

        Args:
            queries: Any number of strings.
            k: Maximum number of hits per query, 1 or more.

        Returns:
            One list per query, best first. A score is the sum of weight / (rrf_k + rank) over the retrievers.

        Raises:
            InputError: ``queries`` is a single string, or ``k`` is below 1.
        """
        check_queries(queries, k)
        if not queries:
            return []
        asked = [(one, weight) for one, weight in zip(self.retrievers, self.weights, strict=True) if weight > 0]
        found = [one.search(queries, max(k, self.depth)) for one, _ in asked]
        weights = [weight for _, weight in asked]
        return [rrf(lists, weights=weights, k=self.rrf_k, limit=k) for lists in zip(*found, strict=True)]

    def __getattr__(self, name: str) -> Any:
        if name in ("count", "passages", "folder", "get", "where", "passing"):
            for one in self.retrievers:
                if hasattr(one, name):
                    return getattr(one, name)
        raise AttributeError(
            f"neither the hybrid nor its {len(self.retrievers)} retrievers have the attribute {name!r}"
        )

    def __contains__(self, id: object) -> bool:
        holding: list[Any] = [one for one in self.retrievers if hasattr(one, "__contains__")]
        return any(id in one for one in holding)

    def __repr__(self) -> str:
        return f"HybridRetriever({list(self.retrievers)!r}, weights={list(self.weights)!r})"
