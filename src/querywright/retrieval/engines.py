"""Retrievers over a collection by the name of their engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from querywright.data.types import Passage
from querywright.errors import InputError, unknown
from querywright.models.embedder import EMBEDDED_ID, TextEmbedder
from querywright.retrieval.addresses import is_address, open_collection
from querywright.retrieval.bm25 import BM25Retriever, ExpandedRetriever
from querywright.retrieval.chroma import ChromaRetriever, ForeignChromaRetriever, passages_of
from querywright.retrieval.chroma_index import ids_passing, open_index
from querywright.retrieval.collection import collection_folder, hold_published, published_passages
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.replay import searched_by

Engine = Literal["dense", "bm25", "hybrid", "questions", "expanded"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
"""``dense``: nearness of vectors. ``bm25``: shared words, without an embedder. ``hybrid``: both, fused.
``questions``: nearness of the vectors of the questions that were written for the passages. ``expanded``: shared words
of passages and their questions, without an embedder."""
LEXICAL: frozenset[Engine] = frozenset({"bm25", "expanded"})
"""Engines that need no embedder."""
VECTOR: frozenset[Engine] = frozenset({"dense", "questions"})
"""Engines that search with vectors, which techniques such as HyDE need."""

CollectionRetriever: TypeAlias = (
    ChromaRetriever | ForeignChromaRetriever | BM25Retriever | HybridRetriever | QuestionIndex
)


def check_engine(engine: str) -> Engine:
    """The engine of that name."""
    for known in ENGINES:
        if known == engine:
            return known
    raise InputError(unknown("engine", engine, ENGINES))


def open_retriever(
    name: Any,
    *,
    engine: str = "dense",
    embedder: TextEmbedder | None = None,
    home: Path | None = None,
    where: Mapping[str, Any] | None = None,
) -> CollectionRetriever:
    """Open a published collection, or one of Chroma that was made elsewhere.

    Args:
        name: The collection; a collection of ``chromadb`` or its place, as ``ForeignChromaRetriever`` has them, is
            searched by ``dense`` alone and needs no embedder: the embedded one says nothing there.
        engine: ``dense``, ``bm25``, ``hybrid`` (dense first, then BM25, equal weights), ``questions`` or ``expanded``.
            Default ``dense``.
        embedder: The one that the collection was built with; ``bm25`` and ``expanded`` do without. Default: the one
            that the collection names.
        home: The working folder. Default: ``querywright.home.home()``.
        where: A filter over metadata. Default: every passage.

    Raises:
        InputError: When there is no such engine.
        CollectionError: When the collection, or what is written for it, is missing, damaged or was built with another
            embedder.
    """
    if not isinstance(name, str) or is_address(name):
        if check_engine(engine) != "dense":
            raise InputError(
                f"a Chroma of your own is searched by its vectors (the engine dense), but got {engine}; for that make "
                "a collection here: ChromaRetriever.build(NAME, ChromaRetriever(...).passages())"
            )
        named = None if embedder is None or embedder.id == EMBEDDED_ID else embedder
        return ForeignChromaRetriever(name, embedder=named, home=home, where=where)
    if check_engine(engine) == "bm25":
        return BM25Retriever(name, home=home, where=where)
    if engine == "expanded":
        return ExpandedRetriever(name, home=home, where=where)
    if engine == "questions":
        return QuestionIndex(name, embedder=embedder, home=home, where=where)
    dense = ChromaRetriever(name, embedder=embedder, home=home, where=where)
    if engine == "dense":
        return dense
    return HybridRetriever([dense, BM25Retriever(name, home=home, where=where, beside=dense)])


def passages_in(name: str, home: Path | None = None) -> Mapping[str, Passage]:
    """The passages of a collection by id; of one of Chroma where its place is named."""
    if is_address(name):
        return {one.id: one for one in passages_of(open_collection(name))}
    return published_passages(collection_folder(name, home), home)[1]


def passing_in(name: str, where: Mapping[str, Any], home: Path | None = None) -> Collection[str]:
    """Return the ids of the passages of a collection that a filter passes; see ``passages_in``."""
    if is_address(name):
        return ids_passing(open_collection(name), where)
    folder = collection_folder(name, home)
    manifest, held = hold_published(folder, home)
    with held:
        return open_index(folder, manifest).ids(where)


def opened(retriever: object) -> dict[str, Any]:
    """How ``open_retriever`` opens a retriever again: ``collection``, ``engine``, id of the ``embedder``, ``where``.

    All of them are None for one that is not of ours. Settings other than the usual ones are not told here: the
    fingerprint gives them away.
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
