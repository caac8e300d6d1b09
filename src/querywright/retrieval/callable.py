"""Use a custom retriever instead of a collection: a function, or a retriever from DSPy, LangChain, or LlamaIndex.

Objects from these libraries are recognized by their methods, so the libraries are not imported.
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
"""Names under which a passage's id is looked up, first in the item and then in its metadata."""
MADE_ID = "text:"
"""Prefix of ids that are derived from a passage's text."""
FORMS = (
    "a retriever must return a list, best first, of Passage or Hit objects, strings, dicts with 'text' (and optionally "
    "'id', 'title', 'score', 'metadata'), pairs of one of these and a score, LangChain documents, or LlamaIndex nodes"
)


class CallableRetriever(Shared):
    """Wrap a function or another library's retriever.

    The order of the results is kept. If any score is missing, all scores in the list become 1 / rank. If a passage has
    no id, or gets a new UUID in each call, its id is taken from its metadata (``id``, ``doc_id``, ``_id``, ``chunk_id``
    ...) or, failing that, derived from its text. If several passages in a list have the same id, for example chunks of
    one document, the first keeps the id, and a hash of the text is appended to the ids of the others. ``k`` is passed
    to the function if it accepts ``k``, and the list is truncated to ``k`` hits.

    Args:
        fn: A function ``(query, k)`` or ``(query)`` that returns a list of passages, or an object with ``invoke``
            (LangChain), ``retrieve`` (LlamaIndex), or ``forward`` (dspy.Retrieve).
        fingerprint: A string that changes whenever the results may change, such as the version of the index. Default:
            derived from the name of ``fn``, which does not reflect changes to the index.

    Raises:
        InputError: ``fn`` is not callable.
    """

    kind: ClassVar[Kind] = "foreign"

    def __init__(self, fn: Any, *, fingerprint: str | None = None) -> None:
        self._fn = fn
        self._call = _caller(fn)
        named = fn if hasattr(fn, "__qualname__") else type(fn)
        self._name = f"{named.__module__}.{named.__qualname__}"
        self._fingerprint = fingerprint
        self._changes_ids: bool | None = None  # None until the function has returned a UUID
        self.id_key: str | None = None
        """Metadata key of the ids that the labels use; None if the labels use the ids of the passages."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the given fingerprint, or else of the function's name, and of ``id_key`` if it is set."""
        parts = f"callable\0{self._name}" if self._fingerprint is None else f"given\0{self._fingerprint}"
        parts += "" if self.id_key is None else f"\0{self.id_key}"
        return hashlib.sha256(parts.encode()).hexdigest()

    @property
    def is_known(self) -> bool:
        """Whether a fingerprint was given, so that different indexes can be told apart."""
        return self._fingerprint is not None

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return up to ``k`` hits for each query, with one call per query.

        Args:
            queries: Any number of strings.
            k: Maximum number of hits per query, 1 or more.

        Raises:
            InputError: ``k`` is below 1, or the function returned something other than passages.
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
            # An id that changes with each call is useless. Only a second call shows whether ids change.
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
        """Return the items that the retriever finds for a query, each with its score or None."""
        answer = self._call(query, k)
        items = answer if isinstance(answer, list | tuple) else getattr(answer, "passages", answer)
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise InputError(f"{self._name} returned {type(answer).__name__}; {FORMS}")
        return [_item(one) for one in items]

    def _read(self, found: tuple[Any, Any]) -> tuple[Passage, float | None]:
        item, score = found
        if isinstance(item, Passage):
            return item, self._score(score)
        text, id, title, metadata, own_score = _fields(item)
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{self._name} returned an item of type {type(item).__name__} without text; {FORMS}")
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
            raise InputError(f"{self._name} returned the score {score!r}; scores must be numbers (higher is better)")
        return value


def is_collection(given: Any) -> bool:
    """Return whether an object is a collection of ``chromadb``.

    Raises:
        InputError: The object is a collection from an async client.
    """
    named = ("query", "get", "count", "modify")
    found = not inspect.isclass(given) and all(callable(getattr(given, name, None)) for name in named)
    if found and inspect.iscoroutinefunction(getattr(given, "get", None)):
        raise InputError(f"{given!r:.80} belongs to an async client; open the collection with chromadb.HttpClient")
    return found


def as_retriever(obj: Any) -> Retriever:
    """Return an object unchanged if it is a ``Retriever``; otherwise, wrap it in a ``Retriever``.

    Args:
        obj: A querywright retriever, a ``chromadb`` collection, a function, or a retriever from DSPy, LangChain, or
            LlamaIndex.

    Raises:
        InputError: The object is none of these.
    """
    if isinstance(obj, Retriever) and not inspect.isclass(obj):
        return obj
    if is_collection(obj):
        from querywright.retrieval.chroma import ForeignChromaRetriever

        return ForeignChromaRetriever(obj)
    return CallableRetriever(obj)


def named_retriever(name: str) -> Retriever:
    """Import ``module:function``, call the function without arguments, and return the retriever that it returns.

    Raises:
        InputError: The function cannot be imported or called, or does not return a retriever.
    """
    from querywright.imports import imported

    found = imported(name, "retriever")
    try:
        return as_retriever(found() if inspect.isroutine(found) or inspect.isclass(found) else found)
    except QuerywrightError as error:
        raise InputError(f"the retriever {name!r}: {error}") from error
    except Exception as error:
        raise InputError(
            f"the retriever {name!r} must be a function without arguments that returns a retriever (an object with "
            "search(queries, k) and fingerprint, a chromadb collection, or a function (query, k)), but the call failed "
            f"with {type(error).__name__}: {error}"
        ) from error


def _caller(fn: Any) -> Callable[[str, int], Any]:
    """Return a function that calls a retriever, passing ``k`` by name, by position, or not at all, as required."""
    if inspect.isclass(fn):
        raise InputError(f"{fn.__name__} is a class; pass an instance of the class")
    if callable(getattr(fn, "invoke", None)):
        takes_k = hasattr(fn, "search_kwargs")  # LangChain's vector store retrievers
        return lambda query, k: fn.invoke(query, k=k) if takes_k else fn.invoke(query)
    if callable(getattr(fn, "retrieve", None)) and not hasattr(fn, "forward"):
        return lambda query, k: fn.retrieve(query)
    if not callable(fn):
        collection = f"; to search a collection, pass ChromaRetriever({fn!r})" if isinstance(fn, str) else ""
        raise InputError(
            f"{type(fn).__name__} is not a retriever; pass a function (query, k) that returns a list of passages, or "
            f"an object with invoke, retrieve, forward, or both search and fingerprint{collection}"
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
    """Return an item and its score; the score is None if the item has none."""
    item: Any
    item, score = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if isinstance(item, Hit):
        return item.passage, item.score
    if hasattr(item, "node"):  # LlamaIndex's NodeWithScore
        return item.node, getattr(item, "score", None) if score is None else score
    return item, score


def _ids(items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return the ids that items have outside their metadata, keyed by text."""
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
    """Return the text, id, title, metadata, and score of an item, with None for missing values."""
    if isinstance(item, str):
        return item, None, None, None, None

    def first(*names: str) -> Any:
        values = (item.get(name) if isinstance(item, Mapping) else getattr(item, name, None) for name in names)
        told = (None if callable(value) or (isinstance(value, str) and not value) else value for value in values)
        return next((value for value in told if value is not None), None)

    content = getattr(item, "get_content", None)
    text = content() if callable(content) else first(*TEXT_KEYS)
    return text, first(*ID_KEYS), first("title"), first("metadata", "meta"), first("score")
