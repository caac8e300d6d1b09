"""Dense retrieval over a Chroma collection: one that was built and published here, or one of the user's own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from querywright.data.reading import read_passages as read_source
from querywright.data.sources import Source
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import json_digest
from querywright.models.embedder import Progress, TextEmbedder, Vectors, embedder_of, resolve_embedder, with_store
from querywright.models.store import open_store
from querywright.retrieval.chroma_index import FOLDER, ChromaIndex, check_files, open_index
from querywright.retrieval.collection import (
    PASSAGES,
    Generation,
    check_embedder,
    collection_folder,
    index_command,
    open_published,
    read_passages,
)
from querywright.retrieval.held import HeldPassages
from querywright.retrieval.index import CHECKED_AT_OPENING, build_collection
from querywright.retrieval.types import Hit, Kind, check_queries


class ChromaRetriever(HeldPassages):
    """Searches a collection by cosine similarity of vectors.

    Opening checks that the collection is whole and was built with this embedder. The passages are held in
    memory, and the generation that was opened stays as it is, also while a new one is built. Safe for
    threads; a copy is the same object.

    A collection of the user's own, an object of ``chromadb``, may stand in place of the name: see
    ``ForeignChromaRetriever``.

    Args:
        name: The collection.
        embedder: The embedder it was built with. Default: the one that the collection names.
        home: The working folder. Default: ``querywright.home.home()``.
        where: Chroma's filter over metadata, such as ``{"source": "nih"}``; several keys must all hold.
            Default: every passage.

    Raises:
        CollectionError: When the collection is missing, damaged or was built with another embedder.
    """

    kind: ClassVar[Kind] = "dense"

    def __new__(cls, name: Any, **options: Any) -> Any:
        """A retriever of the kind that the collection needs."""
        if cls is ChromaRetriever and not isinstance(name, str):
            from querywright.retrieval.chroma_foreign import ForeignChromaRetriever

            return ForeignChromaRetriever(name, **options)
        return super().__new__(cls, name, **options)

    def __init__(
        self,
        name: str,
        *,
        embedder: TextEmbedder | None = None,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.where = all_of(where)
        folder = collection_folder(name, home)

        def use(manifest: Generation) -> tuple[Generation, TextEmbedder, ChromaIndex, dict[str, Passage]]:
            used = embedder or _own_embedder(manifest, home)
            check_embedder(manifest, used)
            check_files(folder, manifest)
            index = open_index(folder / manifest.folder / FOLDER, name)
            passages = read_passages(folder / manifest.folder / PASSAGES, manifest)
            index.check(passages, with_store(used, home), CHECKED_AT_OPENING)
            return manifest, used, index, passages

        (self.manifest, self.embedder, self._index, self._passages), lock = open_published(folder, home, use)
        weakref.finalize(self, os.close, lock)

    @classmethod
    def build(
        cls,
        name: str,
        passages: Source,
        *,
        embedder: TextEmbedder | None = None,
        home: Path | None = None,
        prune: bool = True,
        progress: Progress | None = None,
    ) -> Self:
        """Builds a collection and opens it; the same passages again cost nothing.

        Args:
            name: The collection: 1 to 63 of ``a-z 0-9 _ -``.
            passages: Passages, rows (dicts, a DataFrame, a ``datasets.Dataset``) with ``text`` and, if there are,
                ``id``, ``title`` and further columns, or where they are: a file, a folder, ``sample`` or ``hf:NAME``.
            embedder: Embeds them. Default: the embedded one.
            home: The working folder. Default: ``querywright.home.home()``.
            prune: Whether the collection holds these passages and no others; False leaves those of other ids that are
                in it. Default True.
            progress: Called with (passages embedded, passages in all) while it works. Default None.

        Raises:
            DataError: What is wrong with the passages, all of it at once.
            CollectionError: Another process builds it, or it could not be built.
        """
        used = embedder or resolve_embedder(store=open_store(home))
        build_collection(name, read_source(passages), embedder=used, home=home, prune=prune, progress=progress)
        return cls(name, embedder=used, home=home)

    @property
    def count(self) -> int:
        """Passages in the collection, whatever ``where`` says."""
        return self.manifest.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 over embedder, collection, count, content and filter."""
        return json_digest([self.manifest.embedder, self.name, self.count, self.manifest.content_hash, self.where])

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
        rows = checked_vectors(vectors, self.manifest.dimension)
        if not len(rows):
            return []
        # Which of equal vectors Chroma finds first changes from build to build: fetch what may tie, then cut.
        found = self._index.query(rows, min(k + self.manifest.ties - 1, self.count), self.where)
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


def checked_vectors(vectors: ArrayLike, dimension: int | None = None) -> Vectors:
    """Vectors of shape (n, dimension) as rows; ``InputError`` where they are none, not finite, or zero."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.size == 0:
        return np.empty((0, dimension or 0), dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] != (dimension or rows.shape[1]):
        raise InputError(f"vectors must have the shape (n, {dimension or 'dimension'}), but got {rows.shape}")
    if not np.isfinite(rows).all() or not rows.any(axis=1).all():
        raise InputError("vectors must be finite and not zero: their direction is what is searched for")
    return rows


def all_of(where: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A filter in Chroma's form: one key, or ``$and`` over several."""
    if not where:
        return None
    return {"$and": [{key: value} for key, value in where.items()]} if len(where) > 1 else dict(where)


def _own_embedder(manifest: Generation, home: Path | None) -> TextEmbedder:
    found = embedder_of(manifest.embedder, store=open_store(home))
    if found is None:
        raise CollectionError(
            f"the collection {manifest.name!r} was built with the embedder {manifest.embedder!r}, which cannot be had "
            "by its name alone; give it: embedder=..."
        )
    return found
