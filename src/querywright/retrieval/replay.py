"""A retriever that searches nothing twice: rankings are kept at the greatest depth, and shorter ones begin them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from querywright.errors import InputError, QuerywrightError
from querywright.models.embedder import Vectors
from querywright.models.store import Store
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.question_index import Matched, QuestionIndex
from querywright.retrieval.question_match import HYBRID, Matching
from querywright.retrieval.types import Hit, Kind, Shared, VectorRetriever, check_queries, kind_of

KIND = "ranking"
LEAST_DEPTH = 25
"""Depths are this, doubled as often as is needed, so that runs of different depths find each other's rankings."""
MOST_RANKINGS = 20_000
"""Rankings in memory, some 10 kB each where they have 100 passages; where there are more, all are forgotten."""

T = TypeVar("T", Hit, Matched)


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

    def __new__(cls, inner: Any, **options: Any) -> Self:
        """A replay with what the retriever has: vectors, questions."""
        searched = searched_by(inner)
        chosen: type[Any] = cls
        if cls is ReplayRetriever and isinstance(searched, QuestionIndex):
            chosen = _ReplayQuestions
        elif cls is ReplayRetriever and isinstance(searched, VectorRetriever):
            chosen = _ReplayVectors
        made: Self = object.__new__(chosen)
        return made

    def __init__(self, inner: Any, *, store: Store | None, deepest: int) -> None:
        self.inner = searched_by(inner)
        self._store, self._deepest = store, deepest
        self._fingerprint = str(self.inner.fingerprint)
        self._found: dict[str, list[Any]] = {}

    @property
    def kind(self) -> Kind:
        """What the retriever goes by."""
        return kind_of(self.inner)

    @property
    def fingerprint(self) -> str:
        """The retriever's."""
        return self._fingerprint

    @property
    def is_known(self) -> bool:
        """Whether the fingerprint tells one index from another."""
        return bool(getattr(self.inner, "is_known", True))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """What the retriever finds; it is asked once for all queries that are new.

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
        """
        check_queries(queries, k)
        limit = 0 if self.kind == "foreign" else None
        if isinstance(self.inner, HybridRetriever):
            limit = self.inner.depth

        def search(places: list[int], depth: int) -> list[list[Hit]]:
            found: list[list[Hit]] = self.inner.search([queries[one] for one in places], depth)
            return found

        return self._ranked([f"text\0{query}" for query in queries], k, limit, search)

    def _ranked(
        self, keys: Sequence[str], k: int, limit: int | None, search: Callable[[list[int], int], Sequence[list[T]]]
    ) -> list[list[T]]:
        """The first ``k`` of each ranking; those that are not kept are searched in one go.

        Args:
            keys: What is searched for, and how.
            k: Hits wanted.
            limit: Up to which depth a shallower search is the beginning of a deeper one; None for any depth.
            search: Given the places of the keys that are missing and a depth, their rankings.
        """
        depth = _depth(max(k, self._deepest))
        if limit is not None:
            depth = k if k > limit else min(depth, limit)
        names = [hashlib.sha256(f"{depth}\0{key}".encode("utf-8", "surrogatepass")).hexdigest() for key in keys]
        places = {name: place for place, name in reversed(list(enumerate(names)))}
        found: dict[str, list[T]] = {name: one for name in places if (one := self._found.get(name)) is not None}
        if missing := places.keys() - found.keys():
            found |= self._stored(missing)
            new = sorted(places[name] for name in missing - found.keys())
            if new:
                searched = search(new, depth)
                if len(searched) != len(new):
                    raise InputError(
                        f"the retriever gave {len(searched)} lists for {len(new)} queries; search must give one a "
                        "query, in their order"
                    )
                made = {names[place]: list(one) for place, one in zip(new, searched, strict=True)}
                self._keep(made)
                found |= made
            if len(self._found) + len(missing) > MOST_RANKINGS:
                self._found.clear()
            self._found.update(found)
        return [found[name][:k] for name in names]

    @cached_property
    def _kind_in_store(self) -> str | None:
        """None where nothing is kept in a store."""
        lasting = self._store is not None and self.is_known and hasattr(self.inner, "get")
        return f"{KIND}:{self._fingerprint}" if lasting else None

    def _stored(self, names: Collection[str]) -> Mapping[str, list[Any]]:
        if self._store is None or self._kind_in_store is None:
            return {}
        found = {}
        for name, data in self._store.get_many(self._kind_in_store, list(names)).items():
            try:
                found[name] = self._read(data)
            except (QuerywrightError, LookupError, TypeError, ValueError, AttributeError):
                continue  # damaged, or of a passage that is gone: it is searched again
        return found

    def _read(self, data: bytes) -> list[Any]:
        rows = json.loads(data)
        passages = self.inner.get([row[0] for row in rows])
        hits = [Hit(one, float(row[1]), rank) for rank, (one, row) in enumerate(zip(passages, rows, strict=True), 1)]
        return [hit if len(row) == 2 else Matched(hit, str(row[2])) for hit, row in zip(hits, rows, strict=True)]

    def _keep(self, made: Mapping[str, Sequence[Any]]) -> None:
        """Into the store goes what comes back from there as it was found."""
        if self._store is None or self._kind_in_store is None:
            return
        values = {name: json.dumps([_row(one) for one in found]).encode() for name, found in made.items()}
        try:
            lasting = {name: data for name, data in values.items() if self._read(data) == made[name]}
        except (QuerywrightError, LookupError, TypeError, ValueError, AttributeError):  # it may be anyone's method
            return
        self._store.put_many(self._kind_in_store, lasting)

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):  # not there yet, while an object is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __contains__(self, id: object) -> bool:
        return id in self.inner

    def __repr__(self) -> str:
        return f"ReplayRetriever({self.inner!r}, deepest={self._deepest})"


class _ReplayVectors(ReplayRetriever):
    """One whose retriever takes vectors."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The retriever's vectors."""
        vectors: Vectors = self.inner.embed(texts)
        return vectors

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """What the retriever finds for vectors; it is asked once for all that are new.

        Raises:
            InputError: When the vectors have another shape or ``k`` is below 1.
        """
        check_queries((), k)
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        if rows.ndim != 2 or rows.size == 0:
            found: list[list[Hit]] = self.inner.search_vectors(vectors, k)
            return found

        def search(places: list[int], depth: int) -> list[list[Hit]]:
            found: list[list[Hit]] = self.inner.search_vectors(rows[places], depth)
            return found

        return self._ranked([f"vector\0{row.tobytes().hex()}" for row in rows], k, None, search)


class _ReplayQuestions(_ReplayVectors):
    """One whose retriever is an index of questions."""

    @cached_property
    def plain(self) -> ReplayRetriever:
        """The same collection without its questions, which is searched through here as well."""
        return ReplayRetriever(self.inner.plain, store=self._store, deepest=self._deepest)

    def match(self, queries: Sequence[str], k: int, matching: Matching | None = None) -> list[list[Matched]]:
        """What the index matches; it is asked once for all queries that are new.

        Raises:
            InputError: When ``queries`` is a single text, ``k`` is below 1, or the matching cannot be had.
        """
        check_queries(queries, k)
        matching = matching or Matching()
        self.inner.check(matching)
        limit = matching.depth if matching.match == HYBRID else None

        def search(places: list[int], depth: int) -> list[list[Matched]]:
            found: list[list[Matched]] = self.inner.match([queries[one] for one in places], depth, matching)
            return found

        return self._ranked([f"{matching!r}\0{query}" for query in queries], k, limit, search)


def searched_by(retriever: Any) -> Any:
    """The retriever itself that searches, where rankings are kept in front of it."""
    while isinstance(retriever, ReplayRetriever):
        retriever = retriever.inner
    return retriever


def _depth(wanted: int) -> int:
    depth = LEAST_DEPTH
    while depth < wanted:
        depth *= 2
    return depth


def _row(found: Hit | Matched) -> list[Any]:
    hit = found.hit if isinstance(found, Matched) else found
    return [hit.passage.id, hit.score, *([found.question] if isinstance(found, Matched) else [])]
