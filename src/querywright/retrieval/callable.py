"""The user's own retriever in the place of Chroma: a function, dspy.Retrieve, LangChain or LlamaIndex.

Foreign objects are known by the methods they have; none of those libraries is imported.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from querywright.data.types import Passage, Scalar
from querywright.errors import InputError
from querywright.retrieval.types import Hit, Kind, Retriever, Shared, check_queries

TEXT_KEYS = ("text", "page_content", "content", "long_text")
ID_KEYS = ("id", "id_", "node_id", "doc_id")
FORMS = (
    "a retriever must return a list, best first, of Passage, text, mapping with 'text' (and 'id', 'title', "
    "'score', 'metadata'), (one of these, score), LangChain documents or LlamaIndex nodes"
)


class CallableRetriever(Shared):
    """Wraps a function or a foreign retriever.

    What it returns is taken in its order. Where a score is missing, it is 1 / rank. A text without an id gets
    one made from the text. ``k`` is passed on when the function takes it; the answer is cut to ``k`` anyway.

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
        self._name = _name(fn)
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the fingerprint given, or of the name of the function."""
        parts = f"callable\0{self._name}" if self._fingerprint is None else f"given\0{self._fingerprint}"
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
        return [self._hits(self._call(query, k), k) for query in queries]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._fn, self._fingerprint)

    def __repr__(self) -> str:
        return f"CallableRetriever({self._name})"

    def _hits(self, answer: Any, k: int) -> list[Hit]:
        found: dict[str, tuple[Passage, float | None]] = {}
        for item in self._items(answer):
            passage, score = self._read(item)
            found.setdefault(passage.id, (passage, score))
        best = list(found.values())[:k]
        scored = all(score is not None for _, score in best)
        return [
            Hit(passage, score if scored and score is not None else 1 / rank, rank)
            for rank, (passage, score) in enumerate(best, start=1)
        ]

    def _items(self, answer: Any) -> Iterable[Any]:
        items = answer if isinstance(answer, list | tuple) else getattr(answer, "passages", answer)
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise InputError(f"{self._name} returned {type(answer).__name__}: {FORMS}")
        return items

    def _read(self, item: Any) -> tuple[Passage, float | None]:
        score: Any = None
        if isinstance(item, tuple) and len(item) == 2:
            item, score = item[0], item[1]
        if isinstance(item, Passage):
            return item, self._score(score)
        if hasattr(item, "node"):  # LlamaIndex's NodeWithScore
            score = getattr(item, "score", None) if score is None else score
            item = getattr(item, "node", None)
        fields = _fields(item)
        if fields is None or not isinstance(fields["text"], str) or not fields["text"].strip():
            raise InputError(f"{self._name} returned an item of type {type(item).__name__} without a text: {FORMS}")
        score = fields.get("score") if score is None else score
        return _passage(fields), self._score(score)

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


def as_retriever(obj: Any) -> Retriever:
    """The object itself when it is a ``Retriever``, otherwise wrapped.

    Args:
        obj: A retriever of querywright, a function, or a retriever of dspy, LangChain or LlamaIndex.

    Raises:
        InputError: When it is none of these.
    """
    if isinstance(obj, Retriever) and not inspect.isclass(obj):
        return obj
    return CallableRetriever(obj)


def _caller(fn: Any) -> Callable[[str, int], Any]:
    """How a retriever of this form is asked."""
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
    return _with_k(fn)


def _with_k(fn: Any) -> Callable[[str, int], Any]:
    """Passes ``k`` by its name, by its place, or not at all, as the function's signature says."""
    try:
        parameters = inspect.signature(getattr(fn, "forward", fn)).parameters
    except (TypeError, ValueError):
        return lambda query, k: fn(query, k)
    if "k" in parameters:
        return lambda query, k: fn(query, k=k)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters.values() if one.kind in kinds and one.default is inspect.Parameter.empty]
    if len(required) >= 2 or any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters.values()):
        return lambda query, k: fn(query, k)
    return lambda query, k: fn(query)


def _name(fn: Any) -> str:
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{named.__module__}.{named.__qualname__}"


def _fields(item: Any) -> dict[str, Any] | None:
    """Text, id, title, metadata and score of an item, or None when it has no text."""
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, Mapping):
        text = next((item[key] for key in TEXT_KEYS if key in item), None)
        id = next((item[key] for key in ID_KEYS if item.get(key) is not None), None)
        return None if text is None else {**item, "text": text, "id": id}
    content = getattr(item, "get_content", None)
    text = content() if callable(content) else next((_get(item, key) for key in TEXT_KEYS if _get(item, key)), None)
    id = next((_get(item, key) for key in ID_KEYS if _get(item, key) is not None), None)
    return None if text is None else {"text": text, "id": id, "metadata": _get(item, "metadata")}


def _get(item: Any, name: str) -> Any:
    value = getattr(item, name, None)
    return None if callable(value) else value


def _passage(fields: Mapping[str, Any]) -> Passage:
    metadata = fields.get("metadata")
    kept: dict[str, Scalar] = {}
    if isinstance(metadata, Mapping):
        kept = {str(key): value for key, value in metadata.items() if isinstance(value, str | int | float)}
    text, id = fields["text"], fields.get("id")
    if id is None or id == "":
        id = f"text:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return Passage(str(id), text, str(fields.get("title") or ""), kept)


def _again(fn: Any, fingerprint: str | None) -> CallableRetriever:
    return CallableRetriever(fn, fingerprint=fingerprint)
