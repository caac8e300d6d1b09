"""The user's own retriever in the place of Chroma: a function, dspy.Retrieve, LangChain or LlamaIndex.

Foreign objects are known by the methods they have; none of those libraries is imported.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from querywright.data.types import Passage, Scalar
from querywright.errors import InputError, QuerywrightError
from querywright.retrieval.types import Hit, Kind, Retriever, check_queries
from querywright.shared import Shared

TEXT_KEYS = ("text", "page_content", "content", "long_text")
ID_KEYS = ("id", "id_", "node_id", "doc_id", "_id", "chunk_id", "pid")
"""Names of a passage's id, in an item and then in its metadata."""
MADE_ID = "text:"
"""Begins an id that is made from the text."""
FORMS = (
    "a retriever must return a list, best first, of Passage, text, mapping with 'text' (and 'id', 'title', "
    "'score', 'metadata'), (one of these, score), LangChain documents or LlamaIndex nodes"
)


class CallableRetriever(Shared):
    """Wraps a function or a foreign retriever.

    What it returns is taken in its order. Where a score is missing, it is 1 / rank. If a passage has no id, or another
    UUID at each call, its id is that in its metadata (``id``, ``doc_id``, ``_id``, ``chunk_id`` ...), else it is made
    from the text. If several passages of an answer have one id in their metadata, as chunks of a document do, the first
    keeps it and the others get it with a number made from their text. ``k`` is passed on when the function takes it;
    the answer is cut to ``k`` anyway.

    Args:
        fn: ``(query, k)`` or ``(query)`` to a list of passages, or an object with ``invoke`` (LangChain),
            ``retrieve`` (LlamaIndex) or ``forward`` (dspy.Retrieve).
        fingerprint: Changes when its answers may change, such as the version of its index. Default: made from
            the name of ``fn``, which cannot tell one index from another.

    Raises:
        InputError: When ``fn`` cannot be called.
    """

    kind: ClassVar[Kind] = "foreign"

    def __init__(self, fn: Any, *, fingerprint: str | None = None) -> None:
        self._fn = fn
        self._call = _caller(fn)
        named = fn if hasattr(fn, "__qualname__") else type(fn)
        self._name = f"{named.__module__}.{named.__qualname__}"
        self._fingerprint = fingerprint
        self._changes_ids: bool | None = None  # known once it has returned a UUID
        self.id_key: str | None = None
        """Key of the metadata that holds the ids that labels name; None if the passages' own ids are used."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fingerprint given, or of the name of the function, and of ``id_key`` if it is set."""
        parts = f"callable\0{self._name}" if self._fingerprint is None else f"given\0{self._fingerprint}"
        parts += "" if self.id_key is None else f"\0{self.id_key}"
        return hashlib.sha256(parts.encode()).hexdigest()

    @property
    def is_known(self) -> bool:
        """Whether the fingerprint was given, and so tells one index from another."""
        return self._fingerprint is not None

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most ``k`` hits for each query, one call a query.

        Args:
            queries: Any number of texts.
            k: 1 or more.

        Raises:
            InputError: When ``k`` is below 1, or what comes back cannot be read.
        """
        check_queries(queries, k)
        return [self._hits(query, k) for query in queries]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(CallableRetriever, fingerprint=self._fingerprint), (self._fn,)

    def __repr__(self) -> str:
        return f"CallableRetriever({self._name})"

    def _hits(self, query: str, k: int) -> list[Hit]:
        items = self._items(query, k)
        if self._changes_ids is None and any(map(_is_uuid, (ids := _ids(items)).values())):
            # An id that is new at each call names nothing. Only a second call shows that.
            again = _ids(self._items(query, k))
            self._changes_ids = any(ids[text] != id for text, id in again.items() if text in ids)
        found: dict[str, tuple[Passage, float | None]] = {}
        for passage, score in map(self._read, items):
            if self.id_key is not None and passage.metadata.get(self.id_key, "") != "":
                passage = replace(passage, id=str(passage.metadata[self.id_key]))
            first, _ = found.setdefault(passage.id, (passage, score))
            if first.text != passage.text:
                other = replace(passage, id=f"{passage.id}#{_digest(passage.text)}")
                found.setdefault(other.id, (other, score))
        best = list(found.values())[:k]
        scored = all(score is not None for _, score in best)
        return [
            Hit(passage, score if scored and score is not None else 1 / rank, rank)
            for rank, (passage, score) in enumerate(best, start=1)
        ]

    def _items(self, query: str, k: int) -> list[tuple[Any, Any]]:
        """What was found for a query, each with its score or None."""
        answer = self._call(query, k)
        items = answer if isinstance(answer, list | tuple) else getattr(answer, "passages", answer)
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise InputError(f"{self._name} returned {type(answer).__name__}: {FORMS}")
        return [_item(one) for one in items]

    def _read(self, found: tuple[Any, Any]) -> tuple[Passage, float | None]:
        item, score = found
        if isinstance(item, Passage):
            return item, self._score(score)
        text, id, title, metadata, own_score = _fields(item)
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{self._name} returned an item of type {type(item).__name__} without a text: {FORMS}")
        kept: dict[str, Scalar] = {}
        if isinstance(metadata, Mapping):
            kept = {str(key): value for key, value in metadata.items() if isinstance(value, str | int | float)}
        if id is None or (self._changes_ids and _is_uuid(id)):
            named = (kept[key] for key in ID_KEYS if kept.get(key, "") != "")
            id = next(named, f"{MADE_ID}{_digest(text)}")
        return Passage(str(id), text, str(title or ""), kept), self._score(own_score if score is None else score)

    def _score(self, score: Any) -> float | None:
        if score is None:
            return None
        try:
            value = float(score)
        except (TypeError, ValueError):
            value = math.nan
        if math.isnan(value):
            raise InputError(f"{self._name} returned the score {score!r}: a score is a number, higher is better")
        return value


def is_collection(given: Any) -> bool:
    """Whether it is a collection that ``chromadb`` opened.

    Raises:
        InputError: It is one of an async client.
    """
    named = ("query", "get", "count", "modify")
    found = not inspect.isclass(given) and all(callable(getattr(given, name, None)) for name in named)
    if found and inspect.iscoroutinefunction(getattr(given, "get", None)):
        raise InputError(f"{given!r:.80} is of an async client; open it with chromadb.HttpClient and give that")
    return found


def as_retriever(obj: Any) -> Retriever:
    """The object itself when it is a ``Retriever``, otherwise wrapped.

    Args:
        obj: A retriever of querywright, a collection of ``chromadb``, a function, or a retriever of dspy, LangChain or
            LlamaIndex.

    Raises:
        InputError: When it is none of these.
    """
    if isinstance(obj, Retriever) and not inspect.isclass(obj):
        return obj
    if is_collection(obj):
        from querywright.retrieval.chroma import ForeignChromaRetriever

        return ForeignChromaRetriever(obj)
    return CallableRetriever(obj)


def named_retriever(name: str) -> Retriever:
    """The retriever that ``module:function`` names: what the function, called without an argument, gives.

    Raises:
        InputError: It cannot be imported or called, or what it gives is no retriever.
    """
    from querywright.imports import imported

    found = imported(name, "retriever")
    try:
        return as_retriever(found() if inspect.isroutine(found) or inspect.isclass(found) else found)
    except QuerywrightError as error:
        raise InputError(f"the retriever {name!r}: {error}") from error
    except Exception as error:
        raise InputError(
            f"the retriever {name!r} must be a function without an argument that gives what searches (an object with "
            "search(queries, k) and fingerprint, a collection of chromadb, a function (query, k)), but: "
            f"{type(error).__name__}: {error}"
        ) from error


def _caller(fn: Any) -> Callable[[str, int], Any]:
    """How a retriever is asked: ``k`` by its name, by its place, or not at all, as its form or signature says."""
    if inspect.isclass(fn):
        raise InputError(f"{fn.__name__} is a class; give an instance of it")
    if callable(getattr(fn, "invoke", None)):
        takes_k = hasattr(fn, "search_kwargs")  # LangChain's retrievers over a vector store
        return lambda query, k: fn.invoke(query, k=k) if takes_k else fn.invoke(query)
    if callable(getattr(fn, "retrieve", None)) and not hasattr(fn, "forward"):
        return lambda query, k: fn.retrieve(query)
    if not callable(fn):
        raise InputError(
            f"{type(fn).__name__} is no retriever: give a function (query, k) -> list of passages, or an "
            "object with search and fingerprint, invoke, retrieve or forward"
        )
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters
    except (TypeError, ValueError):
        return lambda query, k: fn(query, k)
    if "k" in parameters:
        return lambda query, k: fn(query, k=k)
    placed = [one for one in parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    if several or sum(one.default is one.empty for one in placed) >= 2:
        return lambda query, k: fn(query, k)
    return lambda query, k: fn(query)


def _item(found: Any) -> tuple[Any, Any]:
    """An item, and the score that stands beside it, or None."""
    item: Any
    item, score = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if hasattr(item, "node"):  # LlamaIndex's NodeWithScore
        return item.node, getattr(item, "score", None) if score is None else score
    return item, score


def _ids(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """The ids that items have themselves, by their texts."""
    fields = (_fields(item) for item, _ in items if not isinstance(item, Passage))
    return {str(text): id for text, id, *_ in fields}


def _is_uuid(id: object) -> bool:
    try:
        return bool(UUID(str(id)))
    except ValueError:
        return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _fields(item: Any) -> tuple[Any, ...]:
    """Text, id, title, metadata and score of an item; None for what it does not have."""
    if isinstance(item, str):
        return item, None, None, None, None

    def first(*names: str) -> Any:
        values = (item.get(name) if isinstance(item, Mapping) else getattr(item, name, None) for name in names)
        told = (None if callable(value) or (isinstance(value, str) and not value) else value for value in values)
        return next((value for value in told if value is not None), None)

    content = getattr(item, "get_content", None)
    text = content() if callable(content) else first(*TEXT_KEYS)
    return text, first(*ID_KEYS), first("title"), first("metadata", "meta"), first("score")
