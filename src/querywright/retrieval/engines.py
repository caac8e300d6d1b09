"""Open a collection with the retriever for an engine, given by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from querywright.data.types import Passage
from querywright.errors import InputError, unknown
from querywright.models.embedder import EMBEDDED_ID, TextEmbedder
from querywright.retrieval.addresses import is_address, open_collection
from querywright.retrieval.bm25 import BM25Retriever, ExpandedRetriever
from querywright.retrieval.callable import is_collection
from querywright.retrieval.chroma import ChromaRetriever, ForeignChromaRetriever, passages_of
from querywright.retrieval.chroma_index import ids_passing, open_index
from querywright.retrieval.collection import collection_folder, hold_published, published_passages
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.replay import searched_by

Engine = Literal["dense", "bm25", "hybrid", "questions", "expanded"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
"""``dense`` compares vectors. ``bm25`` compares words, without an embedder. ``hybrid`` fuses both. ``questions``
compares the query's vector with the vectors of the questions that were generated for the passages. ``expanded``
compares the query's words with the words in the passages and their questions, without an embedder."""
LEXICAL: frozenset[Engine] = frozenset({"bm25", "expanded"})
"""Engines that need no embedder."""
VECTOR: frozenset[Engine] = frozenset({"dense", "questions"})
"""Engines that search with vectors, which techniques such as HyDE need."""

CollectionRetriever: TypeAlias = (
    ChromaRetriever | ForeignChromaRetriever | BM25Retriever | HybridRetriever | QuestionIndex
)


def check_engine(engine: str) -> Engine:
    """Return an engine's name unchanged, or raise ``InputError`` if there is no such engine."""
    for known in ENGINES:
        if known == engine:
            return known
    raise InputError(unknown("engine", engine, ENGINES))


def split_engine(name: str, default: str = "dense") -> tuple[str, str]:
    """Return the collection and the engine of ``COLLECTION@ENGINE``, or the default engine if none is named."""
    collection, at, engine = (name, "", "") if is_address(name) else name.partition("@")
    return collection, engine if at else default


def open_retriever(
    name: Any,
    *,
    engine: str = "dense",
    embedder: TextEmbedder | None = None,
    home: Path | None = None,
    where: Mapping[str, Any] | None = None,
) -> CollectionRetriever:
    """Open a collection in the workspace, or a Chroma collection outside it.

    Args:
        name: Name of the collection, a ``chromadb`` collection, or its address (see ``ForeignChromaRetriever``).
            Foreign collections support only ``dense``; for them, passing the embedded model is the same as passing no
            embedder. If it is an open retriever that this function returned for ``dense``, ``hybrid``, or
            ``questions``, the result searches the passages that it has open, with its embedder and filter, even if the
            collection was rebuilt in the meantime.
        engine: ``dense``, ``bm25``, ``hybrid`` (dense and BM25 with equal weights), ``questions``, or ``expanded``.
            Default ``dense``.
        embedder: The embedder that the collection was built with; ``bm25`` and ``expanded`` need none. Default: the
            embedder recorded in the collection.
        home: The workspace. Default: ``querywright.home.home()``.
        where: A filter on metadata. Default: every passage.

    Raises:
        InputError: There is no such engine, or there is a filter but the collection is already open.
        CollectionError: The collection or its questions are missing or damaged, or were built with a different
            embedder.
    """
    name = _vector_part(name)
    beside = name if isinstance(name, ChromaRetriever) else None
    if beside is not None:
        if where:
            raise InputError(f"where= works only with a collection's name, but got {name!r:.80}; set the filter in it")
        name, home, where = beside.name, beside.folder.parents[1], beside.where
    elif not isinstance(name, str) or is_address(name):
        is_foreign = isinstance(name, str | ForeignChromaRetriever) or is_collection(name)
        if check_engine(engine) != "dense" and is_foreign:
            raise InputError(
                f"a foreign Chroma collection supports only the dense engine, but got {engine}; to use {engine}, build "
                "a collection in the workspace: ChromaRetriever.build(NAME, ChromaRetriever(...).passages())"
            )
        named = None if embedder is None or embedder.id == EMBEDDED_ID else embedder
        return ForeignChromaRetriever(name, embedder=named, home=home, where=where)
    if check_engine(engine) == "bm25":
        return BM25Retriever(name, home=home, where=where, beside=beside)
    if engine == "expanded":
        return ExpandedRetriever(name, home=home, where=where, beside=beside)
    if engine == "questions":
        return QuestionIndex(name, embedder=embedder, home=home, where=where, plain=beside)
    dense = beside or ChromaRetriever(name, embedder=embedder, home=home, where=where)
    if engine == "dense":
        return dense
    return HybridRetriever([dense, BM25Retriever(name, home=home, where=where, beside=dense)])


def passages_in(name: Any, home: Path | None = None) -> Mapping[str, Passage]:
    """Return a collection's passages, keyed by id.

    Args:
        name: Name of the collection, the address of a Chroma collection, or an open retriever with ``passages``.
        home: The workspace of a collection given by name. Default: ``querywright.home.home()``.
    """
    if not isinstance(name, str):
        return {one.id: one for one in name.passages()}
    if is_address(name):
        return {one.id: one for one in passages_of(open_collection(name))}
    return published_passages(collection_folder(name, home), home)[1]


def passing_in(name: str, where: Mapping[str, Any], home: Path | None = None) -> Collection[str]:
    """Return the ids of the passages that match a filter; ``name`` may be the address of a Chroma collection."""
    if is_address(name):
        return ids_passing(open_collection(name), where)
    folder = collection_folder(name, home)
    manifest, held = hold_published(folder, home)
    with held:
        return open_index(folder, manifest).ids(where)


def with_engine(retriever: Any, engine: str) -> Any:
    """Return a retriever that searches the passages that a retriever has open, with another engine.

    The retriever itself is returned if the engine is ``dense`` or the retriever's engine, and if the retriever does
    not search a collection with vectors.
    """
    found = searched_by(retriever)
    if engine == "dense" or opened(found)["engine"] == engine:
        return retriever
    is_open = isinstance(_vector_part(found), ChromaRetriever | ForeignChromaRetriever)
    return open_retriever(found, engine=engine) if is_open else retriever


def _vector_part(retriever: Any) -> Any:
    """Return the retriever that compares vectors in a retriever from ``open_retriever``, or else the argument."""
    found = searched_by(retriever)
    if isinstance(found, HybridRetriever) and opened(found)["engine"]:
        return found.retrievers[0]
    return found.plain if isinstance(found, QuestionIndex) else found


def opened(retriever: object) -> dict[str, Any]:
    """Return the arguments with which ``open_retriever`` reopens a retriever.

    The arguments are ``collection``, ``engine``, ``embedder`` (its id), and ``where``; they are None for retrievers
    that ``open_retriever`` did not open. Other settings are not included, but they do affect the fingerprint.
    """
    found: dict[str, Any] = dict.fromkeys(("collection", "engine", "embedder", "where"))
    retriever = searched_by(retriever)
    if isinstance(retriever, QuestionIndex):
        return {**opened(retriever.plain), "engine": "questions"}
    if isinstance(retriever, ChromaRetriever):
        found |= {"engine": "dense", "embedder": retriever.embedder.id}
    elif isinstance(retriever, BM25Retriever):
        found |= {"engine": "expanded" if isinstance(retriever, ExpandedRetriever) else "bm25"}
    elif isinstance(retriever, HybridRetriever):
        dense, *others = map(opened, retriever.retrievers)
        is_hybrid = dense["engine"] == "dense" and others == [{**dense, "engine": "bm25", "embedder": None}]
        return {**dense, "engine": "hybrid"} if is_hybrid else found
    else:
        return found
    return {**found, "collection": retriever.name, "where": retriever.where}
