"""Dense retrieval over a Chroma collection: one that was built and published here, or one of the user's own."""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from querywright.data.documents import names_documents, read_documents
from querywright.data.reading import read_passages
from querywright.data.sources import Source
from querywright.data.types import Passage, Scalar
from querywright.errors import CollectionError, InputError, ModelError
from querywright.files import json_digest
from querywright.models.embedder import (
    Progress,
    Side,
    TextEmbedder,
    Vectors,
    embedder_of,
    encoded,
    resolve_embedder,
    with_store,
)
from querywright.models.store import open_store
from querywright.retrieval.addresses import embeds_itself, is_address, open_collection
from querywright.retrieval.callable import is_collection
from querywright.retrieval.chroma_index import check_process, chroma_errors, ids_passing, nearest, open_index
from querywright.retrieval.collection import (
    PASSAGES,
    CollectionPassages,
    Generation,
    check_embedder,
    collection_folder,
    encoder_of,
    hold_published,
    load_passages,
    picked,
)
from querywright.retrieval.filters import all_of
from querywright.retrieval.index import CHECKED_AT_OPENING, build_collection, longer_notes
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.shared import Shared

PAGE = 1000
"""Passages of a user's own collection that are read at a time."""
LOOKED_AT = 8
"""Passages of it whose vectors are looked at when it is opened."""

_logger = logging.getLogger(__name__)
SAME_MODEL = 0.3
"""Cosine of two vectors of one text by one model, of which one may have seen a file's name beside it; those of two
models are near 0."""
REACH = "see that its server is up and that it is still there"
NAMED = (
    "name the embedder that made them (embedder=), or give a retriever that opens the collection with the function "
    "that did (--retriever MODULE:FUNCTION)"
)


class _Dense:
    """A search by the vectors of the queries."""

    kind: ClassVar[Kind] = "dense"
    dimension: int | None

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
            float32 of shape (n, dimension), one row a text.

        Raises:
            InputError: When ``texts`` is a single text.
        """
        if isinstance(texts, str):
            raise InputError(f"embed takes a list of texts, but got one text: {texts[:60]!r}; write [text]")
        return self._embedded(texts, "query") if texts else np.empty((0, self.dimension or 0), dtype=np.float32)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The vectors that some texts, one or more, would have as passages; see ``embed``."""
        return self._embedded(texts, "document")

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
        if rows.ndim != 2 or rows.shape[1] != (self.dimension or rows.shape[1]):
            raise InputError(f"vectors must have the shape (n, {self.dimension or 'dimension'}), but got {rows.shape}")
        if not np.isfinite(rows).all() or not rows.any(axis=1).all():
            raise InputError("vectors must be finite and not zero: their direction is what is searched for")
        return _hits(self._nearest(rows, k))

    @abstractmethod
    def _embedded(self, texts: Sequence[str], side: Side) -> Vectors: ...

    @abstractmethod
    def _nearest(self, rows: Vectors, k: int) -> list[list[tuple[Passage, float]]]: ...


class ChromaRetriever(_Dense, CollectionPassages):
    """Searches a collection by cosine similarity of vectors.

    Opening checks that the collection is whole and was built with this embedder. Vectors and passages are held in
    memory. The generation that was opened stays as it is, also while a new one is built. Safe for threads; a copy is
    the same object.

    A collection of the user's own, an object of ``chromadb`` or its place, may stand in place of the name: see
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

    def __new__(cls, name: Any, **options: Any) -> Any:
        """A retriever of the kind that the collection needs."""
        if cls is ChromaRetriever and (not isinstance(name, str) or is_address(name)):
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
        self.manifest, held = hold_published(folder, home)
        with held:
            self.embedder = embedder or _own_embedder(self.manifest, home)
            check_embedder(self.manifest, self.embedder)
            self.dimension = self.manifest.dimension
            self._index = open_index(folder, self.manifest)
            self._passages = load_passages(folder / self.manifest.folder / PASSAGES, self.manifest)
            self._index.check(self._passages, encoder_of(name, with_store(self.embedder, home)), CHECKED_AT_OPENING)
            weakref.finalize(self, held.pop_all().close)

    @classmethod
    def build(
        cls,
        name: str,
        passages: Source,
        *,
        columns: Mapping[str, str] | None = None,
        embedder: TextEmbedder | str | None = None,
        home: Path | None = None,
        prune: bool = False,
        progress: Progress | bool | None = None,
    ) -> Self:
        """Builds a collection and opens it; the same passages again cost nothing.

        Args:
            name: The collection: 1 to 63 of ``a-z 0-9 _ -``.
            passages: Passages, rows (dicts, a DataFrame, a ``datasets.Dataset``) with ``id``, ``text`` and, if there
                are, ``title`` and ``metadata``, or where they are: a file, a folder, ``sample`` or ``hf:NAME``;
                documents, too (``querywright.read_documents``).
            columns: Our names (id, text, title, metadata) to those of the rows. Default: guessed.
            embedder: Embeds them, or its name. Default: the embedded one.
            home: The working folder. Default: ``querywright.home.home()``.
            prune: Whether passages of other ids are removed. Default False: they stay, and a warning says how many.
            progress: True for a bar, or called with (passages embedded, passages in all) while it works. Default None.

        Raises:
            DataError: What is wrong with the passages, all of it at once.
            CollectionError: Another process builds it, or it could not be built.
        """
        if embedder is None or isinstance(embedder, str):
            embedder = resolve_embedder(embedder or "embedded", store=open_store(home))
        if names_documents(passages) and not columns:  # which documents do not have: the reader of sources refuses them
            passages = read_documents(passages).passages
        given = read_passages(passages, columns=columns)
        report = build_collection(name, given, embedder=embedder, home=home, prune=prune, progress=progress)
        for line in report.notes:
            _logger.warning("%s: %s", name, line)
        if report.stayed:
            _logger.warning("%d passages of earlier sources stay in %r; prune=True removes them", report.stayed, name)
        return cls(name, embedder=embedder, home=home)

    @property
    def count(self) -> int:
        """Passages in the collection, whatever ``where`` says."""
        return self.manifest.count

    @property
    def allowed(self) -> Collection[str]:
        """Ids of the passages that ``where`` admits."""
        return self._passages.keys() if self.where is None else self.passing(self.where)

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the passages that a filter passes."""
        return self._index.ids(where)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over embedder, collection, count, content and filter."""
        return dense_fingerprint(self.manifest, self.where)

    def __repr__(self) -> str:
        return f"ChromaRetriever({self.name!r}, embedder={self.embedder.id!r}, count={self.count})"

    def _embedded(self, texts: Sequence[str], side: Side) -> Vectors:
        check_process()
        return encoded(self.embedder, texts, side)

    def _nearest(self, rows: Vectors, k: int) -> list[list[tuple[Passage, float]]]:
        # Which of equal vectors Chroma finds first changes from build to build: fetch what may tie, then cut.
        found = self._index.query(rows, min(k + self.manifest.ties - 1, self.count), self.where)
        return [[(self._passages[id], score) for id, score in hits[:k]] for hits in found]


class ForeignChromaRetriever(_Dense, Shared):
    """Searches a collection that ``chromadb`` opened, embedded or on a server; it is read and never written.

    A document is a passage's text, and ``title`` in its metadata its title; keys that begin with ``_`` are left out.
    Records without a document are skipped, and a warning of the log says so.
    Queries are embedded by the embedder that is given, else by the collection's own embedding function, else by the
    embedded embedder where it made the collection's vectors, which are looked at. Scores are similarities, higher is
    better: 1 less Chroma's distance where the space is ``cosine`` or ``ip``, 1 less half of it where it is ``l2``: the
    cosine of vectors of length 1. Safe for threads where Chroma's client is; a copy is the same object.

    Args:
        collection: From a client's ``get_collection``, or its place: ``FOLDER#NAME`` or ``http://HOST:PORT#NAME``.
        embedder: Embeds the queries; the one that made the collection's vectors. Default: as above.
        home: The working folder, where vectors of the embedded embedder are kept. Default: ``home()``.
        where: Chroma's filter over metadata; several keys must all hold. Default: every passage.
        fingerprint: Changes when what is in the collection changes. Default: made of name, id and count, which does not
            tell every change, so that rankings are kept in memory only.

    Raises:
        InputError: It is no collection of Chroma.
        CollectionError: It is empty or has no documents, or its vectors are not those of the embedder.
    """

    def __init__(
        self,
        collection: Any,
        *,
        embedder: TextEmbedder | None = None,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if isinstance(collection, str):
            collection = open_collection(collection)
        if not is_collection(collection):
            raise InputError(
                f"ChromaRetriever takes the name of a collection that was built here, or a collection of chromadb "
                f"(client.get_collection(...)), but got {type(collection).__name__}: {collection!r:.80}"
            )
        self.name = str(collection.name)
        self.embedder = embedder
        self.where = all_of(where)
        self.is_known = fingerprint is not None
        self._given, self._is_told = fingerprint, False
        self._collection = collection
        self._function = embeds_itself(collection)
        settings = getattr(collection, "configuration_json", None) or {}
        stated = (settings.get("hnsw") or settings.get("spann") or {}).get("space")
        self._space = stated or (collection.metadata or {}).get("hnsw:space") or "l2"
        first = next(_pages(collection, LOOKED_AT), None) or next(filter(None, _pages(collection)), None)
        if not first:
            lacks = "has no documents, which are what is read; add them" if self.count else "is empty; fill it"
            raise CollectionError(f"the Chroma collection {self.name!r} {lacks}")
        sample = _page(collection, "documents", "embeddings", ids=list(first)[:LOOKED_AT])
        vectors = np.asarray(sample["embeddings"], dtype=np.float32)
        self.dimension = int(vectors.shape[1])
        if embedder is not None:
            self._check(embedder.dimension)
        elif self._function is None:
            self.embedder = resolve_embedder(store=open_store(home))
            self._check(self.embedder.dimension)
            made = self.embedder.encode(sample["documents"])
            for line in longer_notes(first.values(), self.embedder):
                _logger.warning("of the passages of %r that were looked at, %s", self.name, line)
            alike = np.sum(made * vectors, axis=1) / np.maximum(np.linalg.norm(vectors, axis=1), 1e-9)
            if np.median(alike) < SAME_MODEL:
                self._differ("are not those of", f"for the same texts (cosine {np.median(alike):.2f})")

    @property
    def count(self) -> int:
        """Passages in the collection now, whatever ``where`` says."""
        with chroma_errors(None, self.name, REACH):
            return int(self._collection.count())

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the fingerprint given, or else over name, id and count; embedder and filter are in it."""
        told = [self._given] if self.is_known else [self.name, str(self._collection.id), self.count]
        return json_digest(["chroma", *told, self.embedder and self.embedder.id, self.where])

    def passages(self) -> Iterator[Passage]:
        """All passages of the collection, as Chroma gives them."""
        self._is_told = True  # with their number
        return passages_of(self._collection)

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the records that a filter passes."""
        return ids_passing(self._collection, where, REACH)

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """The passages of some ids, in their order.

        Raises:
            InputError: When an id is not in the collection; the message names all of them.
        """
        asked = {"ids": list(dict.fromkeys(ids))}
        page = _page(self._collection, "documents", "metadatas", **asked) if ids else None
        return picked(self.name, _passages_in(page) if page else {}, ids)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(_passages_in(_page(self._collection, "documents", "metadatas", ids=[id])))

    def __repr__(self) -> str:
        return f"ChromaRetriever(<chromadb collection {self.name!r}>)"

    def _embedded(self, texts: Sequence[str], side: Side) -> Vectors:
        if self.embedder is not None:
            return encoded(self.embedder, texts, side)
        try:  # Chroma has no public name for what embeds
            rows = np.asarray(self._collection._embed(list(texts), is_query=side == "query"), dtype=np.float32)
        except Exception as error:
            raise ModelError(
                f"the embedding function {self._function!r} of the collection {self.name!r} cannot be used "
                f"({type(error).__name__}: {error}); give it what it lacks (a key, a package, a download), or {NAMED}"
            ) from error
        self._check(rows.shape[1])
        return rows

    def _check(self, dimension: int) -> None:
        if dimension != self.dimension:
            self._differ(f"have {self.dimension} numbers, those of", str(dimension))

    def _differ(self, how: str, told: str) -> NoReturn:
        """Say that the collection's vectors are not those of what embeds."""
        by = f"the embedder {self.embedder.id!r}" if self.embedder else f"its embedding function {self._function!r}"
        alone = "" if self._function else ", and it keeps no embedding function of its own"
        raise CollectionError(f"the vectors of the Chroma collection {self.name!r} {how} {by} {told}{alone}; {NAMED}")

    def _nearest(self, rows: Vectors, k: int) -> list[list[tuple[Passage, float]]]:
        read = ("documents", "metadatas")
        wanted = k
        while True:  # records without a document take places, which passages further down fill
            lists = nearest(self._collection, self.name, wanted, self.where, *read, vectors=rows, remedy=REACH)
            found = [[hit for hit in hits if _has_text(hit[2])] for hits in lists]
            if all(len(one) >= k or len(hits) < wanted for one, hits in zip(found, lists, strict=True)):
                break
            wanted *= 2
        if found != lists and not self._is_told:
            self._is_told = True
            _logger.warning("the Chroma collection %r has records without a document; they are skipped", self.name)
        scale = 0.5 if self._space == "l2" else 1.0
        return [
            [(_passage(id, *read), 1.0 - scale * float(distance)) for distance, id, *read in hits[:k]] for hits in found
        ]


def passages_of(collection: Any) -> Iterator[Passage]:
    """All passages of a collection of ``chromadb``, as it gives them; a warning counts records without a document."""
    count = 0
    for page in _pages(collection):
        count += len(page)
        yield from page.values()
    if (records := int(collection.count())) > count:
        _logger.warning(
            "skipped in the Chroma collection %r: %d of %d records, which have no document", collection.name,
            records - count, records,
        )  # fmt: skip


def _pages(collection: Any, size: int = PAGE) -> Iterator[dict[str, Passage]]:
    """The passages of each page of records by id; a record without a document is none."""
    start = 0
    while (page := _page(collection, "documents", "metadatas", limit=size, offset=start))["ids"]:
        yield _passages_in(page)
        start += size


def _passages_in(page: Any) -> dict[str, Passage]:
    rows = zip(page["ids"], page["documents"] or (), page["metadatas"], strict=False)
    return {id: _passage(id, text, metadata) for id, text, metadata in rows if _has_text(text)}


def _has_text(document: str | None) -> bool:
    return document is not None and bool(document.strip())


def _page(collection: Any, *include: str, **asked: Any) -> Any:
    with chroma_errors(None, str(collection.name), REACH):
        return collection.get(include=list(include), **asked)


def dense_fingerprint(manifest: Generation, where: Mapping[str, Any] | None = None) -> str:
    """The fingerprint of a ``ChromaRetriever`` that opens this generation."""
    return json_digest([manifest.embedder, manifest.name, manifest.count, manifest.content_hash, where])


def _hits(lists: Sequence[Sequence[tuple[Passage, float]]]) -> list[list[Hit]]:
    return [[Hit(*one, rank) for rank, one in enumerate(found, start=1)] for found in lists]


def _own_embedder(manifest: Generation, home: Path | None) -> TextEmbedder:
    found = embedder_of(manifest.embedder, store=open_store(home))
    if found is None:
        raise CollectionError(
            f"the collection {manifest.name!r} was built with the embedder {manifest.embedder!r}, which cannot be had "
            "by its name alone; give it (embedder=), or open the collection with it and give that (retriever=)"
        )
    return found


def _passage(id: str, text: str, metadata: Mapping[str, Any] | None) -> Passage:
    told = (metadata or {}).items()
    kept: dict[str, Scalar] = {key: one for key, one in told if isinstance(one, str | int | float) and key[0] != "_"}
    return Passage(id, text, str(kept.pop("title", "")), kept)
