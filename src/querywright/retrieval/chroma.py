"""Dense retrieval over Chroma collections, both in the workspace and outside it."""

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
from querywright.retrieval.checks import all_of
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
from querywright.retrieval.index import CHECKED_AT_OPENING, build_collection, longer_notes
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.shared import Shared

PAGE = 1000
"""Number of records to read from a foreign collection at a time."""
LOOKED_AT = 8
"""Number of passages whose vectors are checked when a foreign collection is opened."""

_logger = logging.getLogger(__name__)
SAME_MODEL = 0.3
"""Two vectors for a text are taken to come from the same model if their cosine is at least this value. The value is low
because one of the vectors may come from the text with a file name in front. The cosine of vectors from different models
is near 0."""
REACH = "check that its server is running and that the collection still exists"
NAMED = (
    "pass the embedder that made the vectors (embedder=), or a retriever that opens the collection with its embedding "
    "function (on the command line: --retriever MODULE:FUNCTION)"
)


class _Dense:
    """Base class for retrievers that search with query vectors."""

    kind: ClassVar[Kind] = "dense"
    dimension: int | None

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the passages nearest to each query, with one embedder batch and one Chroma call.

        Args:
            queries: Any number of strings.
            k: Maximum number of hits per query, 1 or more.

        Returns:
            One list per query, best first. Scores are cosine similarities in [-1, 1]; ties are ordered by id.

        Raises:
            InputError: ``queries`` is a single string, or ``k`` is below 1.
        """
        check_queries(queries, k)
        return self.search_vectors(self.embed(queries), k) if queries else []

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return query vectors for texts, embedded in one batch.

        Args:
            texts: Any number of strings.

        Returns:
            A float32 array of shape (n, dimension), one row per text.

        Raises:
            InputError: ``texts`` is a single string.
        """
        if isinstance(texts, str):
            raise InputError(f"texts must be a list of strings, but got the string {texts[:60]!r}; pass [text]")
        return self._embedded(texts, "query") if texts else np.empty((0, self.dimension or 0), dtype=np.float32)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return passage vectors for one or more texts, in an array with the same shape as from ``embed``."""
        return self._embedded(texts, "document")

    def search_vectors(self, vectors: ArrayLike, k: int) -> list[list[Hit]]:
        """Return the passages nearest to each vector.

        Args:
            vectors: Array of shape (n, dimension); finite values, no zero vectors.
            k: Maximum number of hits per vector, 1 or more.

        Raises:
            InputError: The vectors have the wrong shape, or ``k`` is below 1.
        """
        check_queries((), k)
        rows = np.asarray(vectors, dtype=np.float32)
        if rows.size == 0:
            return []
        if rows.ndim != 2 or rows.shape[1] != (self.dimension or rows.shape[1]):
            raise InputError(f"vectors must have the shape (n, {self.dimension or 'dimension'}), but got {rows.shape}")
        if not np.isfinite(rows).all() or not rows.any(axis=1).all():
            raise InputError("vectors must be finite and nonzero, because the search uses their direction")
        return _hits(self._nearest(rows, k))

    @abstractmethod
    def _embedded(self, texts: Sequence[str], side: Side) -> Vectors: ...

    @abstractmethod
    def _nearest(self, rows: Vectors, k: int) -> list[list[tuple[Passage, float]]]: ...


class ChromaRetriever(_Dense, CollectionPassages):
    """Search a collection by cosine similarity.

    Opening the retriever checks that the collection is complete and was built with this embedder. Vectors and passages
    are kept in memory. An open retriever does not change, even if the collection is rebuilt. Thread-safe. A copy is the
    same object.

    ``name`` may also be a ``chromadb`` collection object or the address of a Chroma collection; the result is then a
    ``ForeignChromaRetriever``.

    Args:
        name: Name of the collection.
        embedder: The embedder that the collection was built with. Default: the embedder recorded in the collection.
        home: The workspace. Default: ``querywright.home.home()``.
        where: A Chroma filter on metadata, such as ``{"source": "nih"}``; a passage must match all keys. Default: every
            passage.

    Raises:
        CollectionError: The collection is missing or damaged, or was built with a different embedder.
    """

    def __new__(cls, name: Any, **options: Any) -> Any:
        """Create a retriever of the class that suits the collection."""
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
        self.folder = folder = collection_folder(name, home)
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
        """Build a collection and open it. Building it again with the same passages costs nothing.

        Args:
            name: Name of the collection: 1 to 63 characters from ``a-z 0-9 _ -``.
            passages: Passages; rows (dicts, a DataFrame, a ``datasets.Dataset``) with ``id``, ``text``, and optionally
                ``title`` and ``metadata``; or a source: a file, a folder, ``sample``, or ``hf:NAME``. Documents also
                work (``querywright.read_documents``).
            columns: The column names in the rows, keyed by our names (id, text, title, metadata). Default: guessed.
            embedder: The embedder, or its name. Default: the embedded model.
            home: The workspace. Default: ``querywright.home.home()``.
            prune: Whether to remove existing passages whose ids are not in ``passages``. Default False: they stay, and
                a warning reports how many there are.
            progress: True for a progress bar, or a function that is called with the number of embedded passages and the
                total. Default None.

        Raises:
            DataError: The passages are invalid; all problems are reported at once.
            CollectionError: Another process is building the collection, or it could not be built.
        """
        if embedder is None or isinstance(embedder, str):
            embedder = resolve_embedder(embedder or "embedded", store=open_store(home))
        if names_documents(passages) and not columns:  # documents have no columns; read_passages rejects them
            passages = read_documents(passages).passages
        given = read_passages(passages, columns=columns)
        report = build_collection(name, given, embedder=embedder, home=home, prune=prune, progress=progress)
        for line in report.notes:
            _logger.warning("%s: %s", name, line)
        if report.stayed:
            _logger.warning(
                "%r still has passages from earlier builds (%s); prune=True removes them", name, report.stayed_text
            )
        return cls(name, embedder=embedder, home=home)

    @property
    def count(self) -> int:
        """The number of passages in the collection, before the filter."""
        return self.manifest.count

    @property
    def allowed(self) -> Collection[str]:
        """The ids of the passages that match ``where``."""
        return self._passages.keys() if self.where is None else self.passing(self.where)

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the passages that match a filter."""
        return self._index.ids(where)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the embedder, the filter, and the collection's name, count, and content."""
        return dense_fingerprint(self.manifest, self.where)

    def __repr__(self) -> str:
        return f"ChromaRetriever({self.name!r}, embedder={self.embedder.id!r}, count={self.count})"

    def _embedded(self, texts: Sequence[str], side: Side) -> Vectors:
        check_process()
        return encoded(self.embedder, texts, side)

    def _nearest(self, rows: Vectors, k: int) -> list[list[tuple[Passage, float]]]:
        self._record_search()
        # Which of several equal vectors Chroma finds first varies by build, so fetch all possible ties and truncate.
        found = self._index.query(rows, min(k + self.manifest.ties - 1, self.count), self.where)
        return [[(self._passages[id], score) for id, score in hits[:k]] for hits in found]


class ForeignChromaRetriever(_Dense, Shared):
    """Search a Chroma collection outside the workspace, on disk or on a server. The collection is never changed.

    A passage's text is the record's document, and its title is ``title`` in the metadata. Metadata keys that begin with
    ``_`` are left out. Records without a document are skipped, and a warning is logged.

    Queries are embedded with ``embedder``, or else with the collection's embedding function. If there is neither, they
    are embedded with the embedded model, after a check that the collection's vectors came from that model. Scores are
    similarities: 1 - distance for the spaces ``cosine`` and ``ip``, and 1 - distance / 2 for ``l2``, which equals the
    cosine if vectors have length 1. Thread-safe if the Chroma client is. A copy is the same object.

    Args:
        collection: A collection from a client's ``get_collection``, or its address: ``FOLDER#NAME`` or
            ``http://HOST:PORT#NAME``.
        embedder: The embedder that made the collection's vectors. Default: see above.
        home: The workspace, which caches vectors from the embedded model. Default: ``querywright.home.home()``.
        where: A Chroma filter on metadata; a passage must match all keys. Default: every passage.
        fingerprint: A string that changes if the contents of the collection change. Default: derived from the
            collection's name, id, and count. These do not reflect every change, so rankings are then cached in memory
            only.

    Raises:
        InputError: ``collection`` is not a Chroma collection.
        CollectionError: The collection is empty or has no documents, or its vectors were made by a different embedder.
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
                "collection must be the name of a collection in the workspace or a chromadb collection "
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
            lacks = "has no documents; add the texts as documents" if self.count else "is empty; add passages"
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
                _logger.warning("Chroma collection %r (checked a sample): %s", self.name, line)
            alike = np.sum(made * vectors, axis=1) / np.maximum(np.linalg.norm(vectors, axis=1), 1e-9)
            if np.median(alike) < SAME_MODEL:
                self._differ(f"do not match the vectors for the same texts (cosine {np.median(alike):.2f}) from")

    @property
    def count(self) -> int:
        """The current number of records in the collection, before the filter."""
        with chroma_errors(None, self.name, REACH):
            return int(self._collection.count())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of embedder, filter, and the given fingerprint (or else the collection's name, id, and count)."""
        told = [self._given] if self.is_known else [self.name, str(self._collection.id), self.count]
        return json_digest(["chroma", *told, self.embedder and self.embedder.id, self.where])

    def passages(self) -> Iterator[Passage]:
        """Return all passages of the collection, in Chroma's order."""
        self._is_told = True  # passages_of logs the number of records without a document
        return passages_of(self._collection)

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the records that match a filter."""
        return ids_passing(self._collection, where, REACH)

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages with the given ids, in the given order.

        Raises:
            InputError: Some ids are not in the collection; the message names them.
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
        try:  # Chroma has no public method that embeds queries
            rows = np.asarray(self._collection._embed(list(texts), is_query=side == "query"), dtype=np.float32)
        except Exception as error:
            raise ModelError(
                f"the embedding function {self._function!r} of the collection {self.name!r} cannot be used "
                f"({type(error).__name__}: {error}); provide the missing API key, package, or download. Alternatively, "
                f"{NAMED}"
            ) from error
        self._check(rows.shape[1])
        return rows

    def _check(self, dimension: int) -> None:
        if dimension != self.dimension:
            self._differ(f"have {self.dimension} dimensions instead of the {dimension} from")

    def _differ(self, how: str) -> NoReturn:
        """Raise the error for a collection whose vectors differ from the embedder's."""
        by = f"the embedder {self.embedder.id!r}" if self.embedder else f"its embedding function {self._function!r}"
        alone = "" if self._function else ", and the collection has no embedding function"
        raise CollectionError(f"the vectors of the Chroma collection {self.name!r} {how} {by}{alone}; {NAMED}")

    def _nearest(self, rows: Vectors, k: int) -> list[list[tuple[Passage, float]]]:
        read = ("documents", "metadatas")
        wanted = k
        while True:  # records without a document are skipped, so more records may be needed for k passages
            lists = nearest(self._collection, self.name, wanted, self.where, *read, vectors=rows, remedy=REACH)
            found = [[hit for hit in hits if _has_text(hit[2])] for hits in lists]
            if all(len(one) >= k or len(hits) < wanted for one, hits in zip(found, lists, strict=True)):
                break
            wanted *= 2
        if found != lists and not self._is_told:
            self._is_told = True
            _logger.warning("skipping records without a document in the Chroma collection %r", self.name)
        scale = 0.5 if self._space == "l2" else 1.0
        return [
            [(_passage(id, *read), 1.0 - scale * float(distance)) for distance, id, *read in hits[:k]] for hits in found
        ]


def passages_of(collection: Any) -> Iterator[Passage]:
    """Yield all passages of a Chroma collection, and log a warning with the number of records without a document."""
    count = 0
    for page in _pages(collection):
        count += len(page)
        yield from page.values()
    if (records := int(collection.count())) > count:
        _logger.warning(
            "skipping records without a document in the Chroma collection %r (%d of %d)", collection.name,
            records - count, records,
        )  # fmt: skip


def _pages(collection: Any, size: int = PAGE) -> Iterator[dict[str, Passage]]:
    """Yield each page's passages by id, leaving out records without a document."""
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
    """Return the fingerprint of a ``ChromaRetriever`` that opens this generation."""
    return json_digest([manifest.embedder, manifest.name, manifest.count, manifest.content_hash, where])


def _hits(lists: Sequence[Sequence[tuple[Passage, float]]]) -> list[list[Hit]]:
    return [[Hit(*one, rank) for rank, one in enumerate(found, start=1)] for found in lists]


def _own_embedder(manifest: Generation, home: Path | None) -> TextEmbedder:
    found = embedder_of(manifest.embedder, store=open_store(home))
    if found is None:
        raise CollectionError(
            f"the collection {manifest.name!r} was built with the embedder {manifest.embedder!r}, but this "
            "embedder cannot be loaded by name; pass the embedder (embedder=), or a retriever that uses it (on the "
            "command line: --retriever MODULE:FUNCTION)"
        )
    return found


def _passage(id: str, text: str, metadata: Mapping[str, Any] | None) -> Passage:
    told = (metadata or {}).items()
    kept: dict[str, Scalar] = {key: one for key, one in told if isinstance(one, str | int | float) and key[0] != "_"}
    return Passage(id, text, str(kept.pop("title", "")), kept)
