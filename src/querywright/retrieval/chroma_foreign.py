"""Dense retrieval over a Chroma collection of the user's own, embedded or on a server; it is read and never written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from querywright.data.types import Passage, Scalar
from querywright.errors import InputError
from querywright.files import json_digest
from querywright.models.embedder import TextEmbedder, Vectors
from querywright.retrieval.chroma import all_of, checked_vectors
from querywright.retrieval.chroma_index import chroma_errors
from querywright.retrieval.types import Hit, Kind, Shared, check_queries

PAGE = 1000
"""Passages that are read at a time."""

_READ = ("ids", "documents", "metadatas")


class ForeignChromaRetriever(Shared):
    """Searches a collection that ``chromadb`` opened.

    A document is a passage's text, and ``title`` in its metadata its title. Queries are embedded by the collection's
    own embedding function, unless an embedder is given. Scores are similarities, higher is better: 1 less Chroma's
    distance where the space is ``cosine`` or ``ip``, 1 less half of it where it is ``l2``, which is the cosine of
    vectors of length 1. Safe for threads where Chroma's client is; a copy is the same object.

    Args:
        collection: From a client's ``get_collection``.
        embedder: Embeds the queries; the one that made the collection's vectors. Default: the collection's own.
        where: Chroma's filter over metadata; several keys must all hold. Default: every passage.
        fingerprint: Changes when what is in the collection changes. Default: made of name, id and count, which does not
            tell every change, so that rankings are kept in memory only.

    Raises:
        InputError: When it is no collection of Chroma.
    """

    kind: ClassVar[Kind] = "dense"

    def __init__(
        self,
        collection: Any,
        *,
        embedder: TextEmbedder | None = None,
        where: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if not all(callable(getattr(collection, name, None)) for name in ("query", "get", "count")):
            raise InputError(
                f"ChromaRetriever takes the name of a collection that was built here, or a collection of chromadb "
                f"(client.get_collection(...)), but got {type(collection).__name__}: {collection!r:.80}"
            )
        self.name = str(collection.name)
        self.embedder = embedder
        self.where = all_of(where)
        self.is_known = fingerprint is not None
        self._given = fingerprint
        self._collection = collection
        settings = getattr(collection, "configuration_json", None) or {}
        stated = (settings.get("hnsw") or settings.get("spann") or {}).get("space")
        self._space = stated or (collection.metadata or {}).get("hnsw:space") or "l2"

    @property
    def count(self) -> int:
        """Passages in the collection now, whatever ``where`` says."""
        return int(self._collection.count())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the fingerprint given, or else over name, id and count; embedder and filter are in it."""
        told = [self._given] if self.is_known else [self.name, str(self._collection.id), self.count]
        return json_digest(["chroma", *told, self.embedder and self.embedder.id, self.where])

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The nearest passages of each query, best first, equal scores by id; see ``ChromaRetriever``.

        Raises:
            InputError: When ``queries`` is a single text, ``k`` is below 1, or Chroma refuses the search.
        """
        check_queries(queries, k)
        if not queries:
            return []
        if self.embedder is not None:
            return self.search_vectors(self.embed(queries), k)
        return self._found(k, query_texts=list(queries))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The vectors by which ``search`` looks for some texts: float32, one row a text.

        Raises:
            InputError: When ``texts`` is a single text, or nothing embeds here.
        """
        if isinstance(texts, str):
            raise InputError(f"embed takes a list of texts, but got one text: {texts[:60]!r}; write [text]")
        if not texts:
            return np.empty((0, 0), dtype=np.float32)
        if self.embedder is not None:
            return self.embedder.encode(texts)
        with chroma_errors(None, self.name):  # Chroma has no public name for it
            return np.asarray(self._collection._embed(list(texts), is_query=True), dtype=np.float32)

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """The nearest passages of each vector; see ``ChromaRetriever``.

        Raises:
            InputError: When the vectors have another shape or ``k`` is below 1.
        """
        check_queries((), k)
        rows = checked_vectors(vectors)
        return self._found(k, query_embeddings=rows) if len(rows) else []

    def passages(self) -> Iterator[Passage]:
        """All passages of the collection, as Chroma gives them."""
        start = 0
        while True:
            page = self._collection.get(limit=PAGE, offset=start, include=list(_READ[1:]))
            yield from map(_passage, *map(page.get, _READ))
            start += PAGE
            if len(page["ids"]) < PAGE:
                return

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """The passages of some ids, in their order.

        Raises:
            InputError: When an id is not in the collection; the message names all of them.
        """
        page = self._collection.get(ids=list(dict.fromkeys(ids)), include=list(_READ[1:])) if ids else None
        found = {} if page is None else dict(zip(page["ids"], map(_passage, *map(page.get, _READ)), strict=True))
        unknown = [id for id in ids if id not in found]
        if unknown:
            raise InputError(f"not in the collection {self.name!r}: {', '.join(map(repr, unknown[:20]))}")
        return [found[id] for id in ids]

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._collection.get(ids=[id], include=[])["ids"])

    def __repr__(self) -> str:
        return f"ChromaRetriever(<chromadb collection {self.name!r}>)"

    def _found(self, k: int, **asked: Any) -> list[list[Hit]]:
        with chroma_errors(self.where, self.name):
            answer = self._collection.query(
                n_results=k, where=self.where, include=["documents", "metadatas", "distances"], **asked
            )
        lists = zip(answer["ids"], answer["documents"], answer["metadatas"], answer["distances"], strict=True)
        scale = 0.5 if self._space == "l2" else 1.0
        return [
            [
                Hit(_passage(id, text, metadata), 1.0 - scale * float(distance), rank)
                for rank, (distance, id, text, metadata) in enumerate(
                    sorted(zip(distances, ids, texts, metadatas, strict=True), key=lambda one: one[:2]), start=1
                )
            ]
            for ids, texts, metadatas, distances in lists
        ]


def _passage(id: str, text: str | None, metadata: Mapping[str, Any] | None) -> Passage:
    if text is None:
        raise InputError(f"the passage {id!r} of the collection has no document; add the texts to the collection")
    kept: dict[str, Scalar] = {key: one for key, one in (metadata or {}).items() if isinstance(one, str | int | float)}
    return Passage(id, text, str(kept.pop("title", "")), kept)
