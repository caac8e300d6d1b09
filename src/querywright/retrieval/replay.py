"""A retriever that caches rankings, so that each query is searched only once, at the greatest depth a run needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from querywright.errors import InputError, QuerywrightError
from querywright.files import json_digest
from querywright.models.store import Store
from querywright.retrieval.types import HYBRID, Hit, Matching, check_queries, kind_of
from querywright.shared import Shared

LEAST_DEPTH = 25
"""Depths are this number times a power of 2, so that runs with different depths can share rankings."""
MOST_RANKINGS = 20_000
"""Maximum number of rankings in memory, about 10 kB each with 100 passages. If there are more, all rankings are removed
from memory."""


class ReplayRetriever(Shared):
    """Return another retriever's results, searching each query only once.

    A query is searched at the greatest depth, and a smaller ``k`` returns the beginning of the ranking. With a store,
    processes share the rankings. For a retriever of kind ``foreign``, and for a hybrid retriever beyond its depth, a
    shorter ranking may differ from the beginning of a longer one, so each ``k`` is searched separately. If the
    retriever's fingerprint does not distinguish indexes, rankings are kept in memory only. The retriever must not
    change while it is wrapped. All other attributes come from the wrapped retriever. Thread-safe if the retriever is. A
    copy is the same object.

    Args:
        inner: The retriever. If it can search for vectors or match questions, so can the wrapper.
        store: The store for rankings; None to keep them in memory only.
        deepest: The largest number of hits that is expected. A larger ``k`` works but costs another search.
    """

    inner: Any

    def __init__(self, inner: Any, *, store: Store | None, deepest: int) -> None:
        self.inner = searched_by(inner)
        self.kind = kind_of(self.inner)
        self.fingerprint = str(self.inner.fingerprint)
        self.is_known = bool(getattr(self.inner, "is_known", True))
        self._store = store if self.is_known and hasattr(self.inner, "get") else None
        self._deepest = deepest
        self._found: dict[str, list[Hit]] = {}

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return up to ``k`` hits for each query, best first. All new queries are searched together.

        Raises:
            InputError: ``queries`` is a single string, or ``k`` is below 1.
        """
        check_queries(queries, k)
        limit = {"foreign": 0, "hybrid": getattr(self.inner, "depth", None)}.get(self.kind)
        return self._ranked("search", zip(queries, queries, strict=True), k, limit, self.inner.search)

    def _search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        check_queries((), k)
        rows = np.asarray(vectors, dtype=np.float32)
        asked = ((row.tobytes().hex(), row) for row in rows)
        return self._ranked("vectors", asked, k, None, self.inner.search_vectors)

    def _match(self, queries: Sequence[str], k: int, matching: Matching | None = None) -> list[list[Hit]]:
        check_queries(queries, k)
        matching = matching or Matching()
        self.inner.check(matching)
        limit = matching.depth if matching.match == HYBRID else None

        def match(texts: list[str], depth: int) -> Any:
            return self.inner.match(texts, depth, matching)

        return self._ranked(repr(matching), zip(queries, queries, strict=True), k, limit, match)

    def _ranked(
        self, way: str, asked: Iterable[tuple[str, Any]], k: int, limit: int | None, search: Callable[..., Any]
    ) -> list[list[Hit]]:
        """Return the first ``k`` hits in each ranking; missing rankings are fetched with one search call.

        Args:
            way: Name of the search method and its settings, as part of the cache key.
            asked: Pairs of a cache key and a query or vector.
            k: Number of hits.
            limit: Depth up to which a shorter ranking equals the beginning of a longer one; None if there is no limit.
            search: A function that returns the rankings for a list of queries or vectors at a given depth.
        """
        depth = LEAST_DEPTH
        while depth < max(k, self._deepest):
            depth *= 2
        if limit is not None:
            depth = k if k > limit else min(depth, limit)
        named = [(json_digest([way, depth, key]), one) for key, one in asked]
        wanted = dict(named)
        found = {name: self._found[name] for name in wanted if name in self._found}
        found |= self._stored([name for name in wanted if name not in found])
        missing = [name for name in wanted if name not in found]
        if missing:
            lists = search([wanted[name] for name in missing], depth)
            if len(lists) != len(missing):
                raise InputError(
                    f"the retriever returned {len(lists)} lists for {len(missing)} queries; search must return one "
                    "list per query, in the order of the queries"
                )
            made = {name: list(one) for name, one in zip(missing, lists, strict=True)}
            self._keep(made)
            found |= made
        if len(self._found) + len(found) > MOST_RANKINGS:
            self._found.clear()
        self._found.update(found)
        return [found[name][:k] for name, _ in named]

    def _stored(self, names: Sequence[str]) -> dict[str, list[Hit]]:
        if self._store is None or not names:
            return {}
        rows = self._store.get_many(f"ranking:{self.fingerprint}", names)
        return {name: found for name, data in rows.items() if (found := self._read(data)) is not None}

    def _keep(self, made: Mapping[str, Sequence[Any]]) -> None:
        """Store the rankings that can be read back from the store without loss."""
        if self._store is not None:
            rows = {name: [[one.passage.id, one.score, one.question] for one in hits] for name, hits in made.items()}
            values = {name: json.dumps(row).encode() for name, row in rows.items()}
            lasting = {name: data for name, data in values.items() if self._read(data) == made[name]}
            self._store.put_many(f"ranking:{self.fingerprint}", lasting)

    def _read(self, data: bytes) -> list[Hit] | None:
        """Return a ranking from its stored bytes; None if it is damaged or one of its passages was removed."""
        try:
            rows = json.loads(data)
            passages = self.inner.get([row[0] for row in rows])
            found = enumerate(zip(passages, rows, strict=True), 1)
            return [Hit(one, float(score), rank, question) for rank, (one, (_, score, question)) in found]
        except (QuerywrightError, LookupError, TypeError, ValueError, AttributeError):  # any object may have a ``get``
            return None

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # ``inner`` is missing until the constructor has set it
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return {"search_vectors": self._search_vectors, "match": self._match}.get(name, found)

    def __contains__(self, id: object) -> bool:
        return id in self.inner

    def __repr__(self) -> str:
        return f"ReplayRetriever({self.inner!r}, deepest={self._deepest})"


def searched_by(retriever: Any) -> Any:
    """Return the retriever that a ``ReplayRetriever`` wraps; any other retriever is returned unchanged."""
    while isinstance(retriever, ReplayRetriever):
        retriever = retriever.inner
    return retriever
