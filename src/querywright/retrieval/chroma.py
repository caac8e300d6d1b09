"""Dense retrieval over a published Chroma collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder, TextEmbedder, Vectors, with_store
from querywright.retrieval.chroma_index import SharedIndex, check_answers, missed, open_shared
from querywright.retrieval.collection import (
    Generation,
    collection_folder,
    index_command,
    open_published,
    read_passages,
)
from querywright.retrieval.held import HeldPassages
from querywright.retrieval.types import Hit, Kind, check_queries

CHECKED_AT_OPENING = 16


class ChromaRetriever(HeldPassages):
    """Searches a collection by cosine similarity of vectors.

    Opening checks that the collection is whole and was built with this embedder. The passages are held in
    memory, and the generation that was opened stays as it is, also while a new one is built. Safe for
    threads; a copy is the same object.

    Args:
        name: The collection.
        embedder: The embedder it was built with.
        home: The working folder. Default: ``querywright.home.home()``.
        where: Chroma's filter over metadata, such as ``{"source": "nih"}``; several keys must all hold.
            Default: every passage.

    Raises:
        CollectionError: When the collection is missing, damaged or was built with another embedder.
    """

    kind: ClassVar[Kind] = "dense"

    def __init__(
        self,
        name: str,
        *,
        embedder: TextEmbedder,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.embedder = embedder
        self.where = _all_of(where)
        folder = collection_folder(name, home)
        self.manifest, self._passages, self._index = open_published(
            folder, home, lambda manifest: _open(folder, manifest, embedder, home)
        )

    @property
    def count(self) -> int:
        """Passages in the collection, whatever ``where`` says."""
        return self.manifest.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 over embedder, collection, count, content and filter."""
        parts = [self.manifest.embedder, self.name, self.count, self.manifest.content_hash, self.where]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The nearest passages of each query: one batch to the embedder, one call to Chroma.

        Args:
            queries: Any number of texts.
            k: At most so many hits a query, 1 or more; fewer when the collection holds fewer.

        Returns:
            One list a query in their order, best first; scores are cosine similarities in [-1, 1], equal ones
            in the order of their ids.

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
        """
        check_queries(queries, k)
        return self.search_vectors(self.embed(queries), k) if queries else []

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The vectors by which ``search`` looks for some texts, in one batch.

        Args:
            texts: Any number of texts.

        Returns:
            float32 of shape (n, dimension), one row a text, each of length 1.

        Raises:
            InputError: When ``texts`` is a single text.
        """
        if isinstance(texts, str):
            raise InputError(f"embed takes a list of texts, but got one text: {texts[:60]!r}; write [text]")
        self._index.check_process()
        return self.embedder.encode(texts) if texts else np.empty((0, self.manifest.dimension), dtype=np.float32)

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """The nearest passages of each vector.

        Args:
            vectors: Shape (n, dimension) of any length, finite, none of them zero.
            k: At most so many hits a vector, 1 or more.

        Raises:
            InputError: When the vectors have another shape or ``k`` is below 1.
        """
        check_queries((), k)
        rows = np.asarray(vectors, dtype=np.float32)
        if rows.size == 0:
            return []
        if rows.ndim != 2 or rows.shape[1] != self.manifest.dimension:
            raise InputError(f"vectors must have the shape (n, {self.manifest.dimension}), but got {rows.shape}")
        if not np.isfinite(rows).all() or not rows.any(axis=1).all():
            raise InputError("vectors must be finite and not zero: their direction is what is searched for")
        # Which of equal vectors Chroma finds first changes from build to build: fetch what may tie, then cut.
        fetched = min(k + self.manifest.ties - 1, self.count)
        found = self._index.query(rows, fetched, self.where)
        try:
            return [
                [Hit(self._passages[id], score, rank) for rank, (id, score) in enumerate(hits[:k], start=1)]
                for hits in found
            ]
        except KeyError as error:
            raise CollectionError(
                f"the index of the collection {self.name!r} knows {error}, which is no passage of it; "
                f"run {index_command(self.name)}"
            ) from error

    def __repr__(self) -> str:
        return f"ChromaRetriever({self.name!r}, embedder={self.embedder.id!r}, count={self.count})"


def _open(
    folder: Path, manifest: Generation, embedder: TextEmbedder, home: Path | None
) -> tuple[Generation, dict[str, Passage], SharedIndex] | None:
    """A generation, checked, or None when it is gone."""
    check_embedder(manifest, embedder)
    index = open_shared(folder, manifest)
    if index is None:
        return None
    passages = read_passages(folder, manifest)
    check_index(index, manifest, passages, with_store(embedder, home))
    return manifest, passages, index


def check_embedder(manifest: Generation, embedder: TextEmbedder) -> None:
    """Compares an embedder with the one a collection was built with.

    Raises:
        CollectionError: When it is another.
    """
    if manifest.count < 1:
        raise CollectionError(f"the collection {manifest.name!r} is empty; run {index_command(manifest.name)}")
    if manifest.embedder != embedder.id:
        raise CollectionError(
            f"the collection {manifest.name!r} was built with the embedder {manifest.embedder!r}, but the "
            f"one given is {embedder.id!r}; give that one, or build it again: {index_command(manifest.name)}"
        )
    if manifest.dimension != embedder.dimension:
        raise CollectionError(
            f"the collection {manifest.name!r} has vectors of {manifest.dimension} numbers, the embedder "
            f"{embedder.id!r} makes {embedder.dimension}; run {index_command(manifest.name)}"
        )


def check_index(index: SharedIndex, manifest: Generation, passages: Mapping[str, Passage], embedder: Embedder) -> None:
    """Compares an open index with the manifest, and searches it for at most 16 of its own passages.

    Raises:
        CollectionError: When something does not fit.
    """
    check_answers(index, manifest)
    if len(passages) != manifest.count:
        raise CollectionError(
            f"the collection {manifest.name!r} holds {len(passages)} passages, its manifest says "
            f"{manifest.count}; run {index_command(manifest.name, prune=True)}"
        )
    ids = sample(list(passages), CHECKED_AT_OPENING)

    def similarity(own: str, other: str) -> float:
        if other not in passages:
            return -1.0
        one, two = embedder.encode([passages[own].content, passages[other].content])
        return float(one @ two)

    wrong = missed(index, ids, embedder.encode([passages[id].content for id in ids]), similarity)
    if wrong:
        raise CollectionError(
            f"the index of the collection {manifest.name!r} does not find {len(wrong)} of {len(ids)} "
            f"passages by their own vector, such as {wrong[0]!r}; run {index_command(manifest.name)}"
        )


def sample(ids: Sequence[str], size: int) -> list[str]:
    """At most ``size`` of some ids, evenly spread."""
    return [ids[number * len(ids) // size] for number in range(size)] if len(ids) > size else list(ids)


def _all_of(where: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A filter in Chroma's form: one key, or ``$and`` over several."""
    if not where:
        return None
    return {"$and": [{key: value} for key, value in where.items()]} if len(where) > 1 else dict(where)
