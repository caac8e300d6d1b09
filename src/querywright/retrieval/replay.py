"""A retriever that searches nothing twice: rankings are kept at the greatest depth, and shorter ones begin them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from querywright.models.embedder import Vectors
from querywright.models.recent import Recent
from querywright.models.store import Store
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.question_index import Matched, QuestionIndex
from querywright.retrieval.question_match import HYBRID, Matching
from querywright.retrieval.rankings import MOST_RANKINGS, Ranking, Rankings, depth_for
from querywright.retrieval.types import Hit, Kind, VectorRetriever, check_queries, kind_of

KIND = "ranking"


class ReplayRetriever:
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
        keeps = store if self.is_known else None
        self._rankings = Rankings(keeps, f"{KIND}:{self._fingerprint}", getattr(self.inner, "get", None))
        self._plain: ReplayRetriever | None = None
        self._lock = threading.Lock()

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

        Args:
            queries: Any number of texts.
            k: At most so many hits a query, 1 or more.

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
        """
        check_queries(queries, k)
        depth = depth_for(k, self._deepest, self._prefixes)

        def search(places: list[int]) -> list[Ranking]:
            return [Ranking.of(hits) for hits in self.inner.search([queries[one] for one in places], depth.searched)]

        return [one.hits(k) for one in self._rankings.ranked(queries, k, depth, search)]

    @property
    def _prefixes(self) -> int | None:
        """Up to which depth a shallower search is the beginning of a deeper one; None for any depth."""
        if isinstance(self.inner, HybridRetriever):
            return self.inner.depth
        return 0 if self.kind == "foreign" else None

    def __getattr__(self, name: str) -> Any:
        if name in {"inner", "_store"} or name.startswith("__"):  # not there yet, while an object is being made
            raise AttributeError(name)
        value = getattr(self.inner, name)
        if name != "plain":
            return value
        with self._lock:  # the same collection without its questions is searched through here as well
            if self._plain is None:
                self._plain = ReplayRetriever(value, store=self._store, deepest=self._deepest)
            return self._plain

    def __contains__(self, id: object) -> bool:
        return id in self.inner

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"ReplayRetriever({self.inner!r}, deepest={self._deepest})"


class _ReplayVectors(ReplayRetriever):
    """One whose retriever takes vectors."""

    def __init__(self, inner: Any, *, store: Store | None, deepest: int) -> None:
        super().__init__(inner, store=store, deepest=deepest)
        self._vectors: Recent[str, Any] = Recent(None if store is None else MOST_RANKINGS)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The retriever's vectors; it embeds in one batch the texts that are new.

        Args:
            texts: Any number of texts.

        Raises:
            InputError: When ``texts`` is a single text.
        """
        if isinstance(texts, str) or not texts:
            return self._embedded(texts)
        found = {text: self._vectors.get(text) for text in texts}
        missing = [text for text, vector in found.items() if vector is None]
        if missing:
            new = dict(zip(missing, self._embedded(missing), strict=True))
            self._vectors.update(new)
            found |= new
        return np.array([found[text] for text in texts], dtype=np.float32)

    def _embedded(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = np.asarray(self.inner.embed(texts), dtype=np.float32)
        return vectors

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """What the retriever finds for vectors; it is asked once for all that are new.

        Args:
            vectors: Shape (n, dimension).
            k: At most so many hits a vector, 1 or more.

        Raises:
            InputError: When the vectors have another shape or ``k`` is below 1.
        """
        check_queries((), k)
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        if rows.ndim != 2 or rows.size == 0:
            found: list[list[Hit]] = self.inner.search_vectors(vectors, k)
            return found
        depth = depth_for(k, self._deepest, self._prefixes)

        def search(places: list[int]) -> list[Ranking]:
            return [Ranking.of(hits) for hits in self.inner.search_vectors(rows[places], depth.searched)]

        keys = [row.tobytes() for row in rows]
        return [one.hits(k) for one in self._rankings.ranked(keys, k, depth, search)]


class _ReplayQuestions(_ReplayVectors):
    """One whose retriever is an index of questions."""

    def match(self, queries: Sequence[str], k: int, matching: Matching | None = None) -> list[list[Matched]]:
        """What the index matches; it is asked once for all queries that are new.

        Args:
            queries: Any number of texts.
            k: At most so many passages a query, 1 or more.
            matching: How. Default: as ``search`` does.

        Raises:
            InputError: When ``queries`` is a single text, ``k`` is below 1, or the matching cannot be had.
        """
        check_queries(queries, k)
        matching = matching or Matching()
        self.inner.check(matching)
        is_hybrid = matching.match == HYBRID
        depth = depth_for(k, self._deepest, matching.depth if is_hybrid else None)

        def search(places: list[int]) -> list[Ranking]:
            lists = self.inner.match([queries[one] for one in places], depth.searched, matching)
            return [Ranking.of([one.hit for one in found], [one.question for one in found]) for found in lists]

        found = self._rankings.ranked(queries, k, depth, search, _way(matching))
        return [
            [Matched(*one) for one in zip(ranking.hits(k), ranking.notes, strict=False)] for ranking in found
        ]  # fmt: skip


def _way(matching: Matching) -> str:
    """Names all of a matching that makes a difference to what is found."""
    parts: list[object] = [matching.match, matching.coverage, matching.keep_partial, matching.seed]
    return repr([*parts, matching.weight, matching.depth] if matching.match == HYBRID else parts)


def searched_by(retriever: Any) -> Any:
    """The retriever itself that searches, where rankings are kept in front of it."""
    while isinstance(retriever, ReplayRetriever):
        retriever = retriever.inner
    return retriever
