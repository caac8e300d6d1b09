"""A retriever that searches nothing twice: rankings are kept at the greatest depth, and shorter ones begin them."""

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
"""Depths are this, doubled as often as is needed, so that runs of different depths find each other's rankings."""
MOST_RANKINGS = 20_000
"""Rankings in memory, some 10 kB each where they have 100 passages; where there are more, all are forgotten."""


class ReplayRetriever(Shared):
    """Finds what another retriever finds, and asks it for nothing twice.

    A query is searched once, at the greatest depth, also by other processes where there is a store; a smaller ``k`` is
    the beginning of that. Where that does not hold, each ``k`` is searched by itself: with a retriever of kind
    ``foreign``, and with a hybrid beyond its own depth. What a retriever found whose fingerprint is not known is kept
    in memory only. The retriever must stay as it is while it is wrapped. Safe for threads where the retriever is; a
    copy is the same object, and what is not told here is the other retriever's.

    Args:
        inner: The retriever. One that takes vectors, or that matches questions, does so here too.
        store: Where rankings are kept beside memory, or None.
        deepest: Most hits that will be asked for; more may be, and are searched when they are.
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
        """What the retriever finds; it is asked once for all queries that are new.

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
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
        """The first ``k`` of each ranking; those that are not kept are searched in one go.

        Args:
            way: How it is searched.
            asked: What is searched for, under its key.
            k: Hits wanted.
            limit: Up to which depth a shallower search is the beginning of a deeper one; None for any depth.
            search: Given a list of what is missing and a depth, their rankings.
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
                    f"the retriever gave {len(lists)} lists for {len(missing)} queries; search must give one a "
                    "query, in their order"
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
        """Into the store goes what comes back from there as it was found."""
        if self._store is not None:
            rows = {name: [[one.passage.id, one.score, one.question] for one in hits] for name, hits in made.items()}
            values = {name: json.dumps(row).encode() for name, row in rows.items()}
            lasting = {name: data for name, data in values.items() if self._read(data) == made[name]}
            self._store.put_many(f"ranking:{self.fingerprint}", lasting)

    def _read(self, data: bytes) -> list[Hit] | None:
        """A ranking from the store; None where it is damaged, or of a passage that is gone."""
        try:
            rows = json.loads(data)
            passages = self.inner.get([row[0] for row in rows])
            found = enumerate(zip(passages, rows, strict=True), 1)
            return [Hit(one, float(score), rank, question) for rank, (one, (_, score, question)) in found]
        except (QuerywrightError, LookupError, TypeError, ValueError, AttributeError):  # ``get`` may be anyone's method
            return None

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # not there yet, while an object is being made
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return {"search_vectors": self._search_vectors, "match": self._match}.get(name, found)

    def __contains__(self, id: object) -> bool:
        return id in self.inner

    def __repr__(self) -> str:
        return f"ReplayRetriever({self.inner!r}, deepest={self._deepest})"


def searched_by(retriever: Any) -> Any:
    """The retriever itself that searches, where rankings are kept in front of it."""
    while isinstance(retriever, ReplayRetriever):
        retriever = retriever.inner
    return retriever
