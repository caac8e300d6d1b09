"""BM25 search over a collection, with or without the generated questions appended to the passages.

The index is cached in the workspace's store and rebuilt if the passages change. It is loaded without pickle. This is
the only module that imports bm25s.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import weakref
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.files import json_digest
from querywright.models.store import open_store
from querywright.models.usage import loading
from querywright.retrieval.checks import all_of
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.chroma_index import open_index
from querywright.retrieval.collection import (
    PASSAGES,
    CollectionPassages,
    collection_folder,
    content_hash,
    hold_published,
    load_passages,
)
from querywright.retrieval.generated_questions import COMPLETE, live_questions, published_questions
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.retrieval.words import TOKENISER, query_terms, terms

K1, B = 1.5, 0.75
METHOD = "lucene"
KIND = "bm25"


class BM25Retriever(CollectionPassages):
    """Search a collection by the words that queries and passages share, without an embedder or any other model.

    A passage's title and text have the same weight. The index is built when the collection is first opened, and cached
    in the store. It is rebuilt if the passages or the settings change. The index takes about 500 bytes of memory per
    75-word passage, in addition to the passages themselves, and six times as much while it is being built. An open
    retriever does not change. Thread-safe. A copy is the same object.

    Args:
        name: Name of the collection.
        home: The workspace. Default: ``querywright.home.home()``.
        where: A Chroma filter on metadata. Document frequencies are still computed over the whole collection. Default:
            every passage.
        k1: Saturation of term frequency, 0 or more. The larger the value, the more each repetition of a word adds to
            the score. Default 1.5.
        b: Strength of the length normalization, 0 to 1. Default 0.75.
        beside: An open retriever for the same collection. The two retrievers share the passages in memory, so both
            search the same passages even if the collection was rebuilt in the meantime. Default None.

    Raises:
        InputError: ``k1`` or ``b`` is out of range, or ``where`` is not a valid filter.
        CollectionError: The collection is missing or damaged.

    Source: Robertson and Zaragoza, DOI 10.1561/1500000019, with Lucene's inverse document frequency
    (Kamphuis et al., DOI 10.1007/978-3-030-45442-5_4), which is never negative; computed by bm25s
    (arXiv 2407.03618). The tokenizer is ours.
    """

    kind: ClassVar[Kind] = "lexical"

    def __init__(
        self,
        name: str,
        *,
        home: Path | None = None,
        where: Mapping[str, Any] | None = None,
        k1: float = K1,
        b: float = B,
        beside: ChromaRetriever | None = None,
    ) -> None:
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise InputError(f"k1 must be 0 or more and b must be from 0 to 1, but got {k1} and {b}")
        self.name = name
        self.folder = folder = collection_folder(name, home) if beside is None else beside.folder
        self.where = all_of(where)
        if beside is not None:
            self.manifest, self._passages, self._chroma = beside.manifest, beside._passages, beside._index
        else:
            self.manifest, held = hold_published(folder, home)
            with held:
                self._passages = load_passages(folder / self.manifest.folder / PASSAGES, self.manifest)
                if self.where is not None:
                    self._chroma = open_index(folder, self.manifest)
                    weakref.finalize(self, held.pop_all().close)
        self._ids = list(self._passages)
        self.k1, self.b = float(k1), float(b)
        self._index = self._opened_index(home)
        self._allowed: NDArray[np.bool_] | bool = True
        if self.where is not None:
            admitted = self.passing(self.where)
            self._allowed = np.array([id in admitted for id in self._ids], dtype=bool)

    @property
    def count(self) -> int:
        """The number of passages in the collection, before the filter."""
        return self.manifest.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the scoring method, its settings, the filter, and the collection's name, count, and content."""
        found = [self.manifest.name, self.manifest.count, self.manifest.content_hash, self.where]
        return json_digest(["bm25", METHOD, TOKENISER, self.k1, self.b, *found])

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the passages that match a filter; requires that the retriever was opened with a filter."""
        return self._chroma.ids(where)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the passages that share words with each query.

        Args:
            queries: Any number of strings. A word that is repeated in a query counts once per occurrence.
            k: Maximum number of hits per query, 1 or more.

        Returns:
            One list per query, best first. Scores are above 0, without an upper bound; ties are ordered by id.

        Raises:
            InputError: ``queries`` is a single string, or ``k`` is below 1.
        """
        check_queries(queries, k)
        self._record_search()
        return [self._hits(query, k) for query in queries]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, k1={self.k1:g}, b={self.b:g}, count={self.count})"

    def _hits(self, query: str, k: int) -> list[Hit]:
        scores = self._index.scores(query_terms(query), len(self._passages))
        rows = np.flatnonzero((scores > 0) & self._allowed)
        if len(rows) > k:  # keep all rows that reach the k-th score, because ids order ties
            rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
        best = rows[np.lexsort((rows, -scores[rows]))][:k]
        found = ((self._passages[self._ids[row]], float(scores[row])) for row in best)
        return [Hit(*one, rank) for rank, one in enumerate(found, start=1)]

    def _scored(self, home: Path | None) -> tuple[str, Callable[[], Iterable[Passage]]]:
        """Return the content hash of the scored texts, and a function that returns them in the passages' order."""
        return self.manifest.content_hash, self.passages

    def _opened_index(self, home: Path | None) -> _Index:
        """Return the index, read from the store if it is cached there."""
        content, scored = self._scored(home)
        content = json_digest([content, TOKENISER, METHOD, version("bm25s"), self.k1, self.b])
        key, store = json_digest([type(self).__name__, self.name]), open_store(home)  # one index per collection
        index = _Index.read(store.get(KIND, key), content)
        if index is None:
            with loading(f"the BM25 index for {self.name}"):
                index = _built(scored(), self.k1, self.b)
            store.delete_many(KIND, [key])
            store.put(KIND, key, index.to_bytes(content))
        return index


class ExpandedRetriever(BM25Retriever):
    """Search passages by the words in their text and in the questions that were generated for them.

    A search can find a passage through its questions even if the passage's text uses different words than the query.
    Unlike in ``QuestionIndex``, passages without questions can be found too. Only questions that their passage answers
    completely are used. Questions are left out, with a warning, if their passage has changed since they were generated.
    Hits contain the original passages, without the questions. An open retriever does not change.

    Args:
        name: Name of the collection.
        home, where, k1, b, beside: See ``BM25Retriever``.

    Raises:
        InputError: ``k1`` or ``b`` is out of range, or ``where`` is not a valid filter.
        CollectionError: The collection or its questions are missing or damaged.

    Source: Doc2Query-- (Gospodinov et al., arXiv:2301.03266). The paper filters questions by a threshold on a relevance
    score; here, a judge filters them.
    """

    @property
    def fingerprint(self) -> str:
        """SHA-256 of ``BM25Retriever``'s fingerprint and of the passage texts with their questions."""
        return hashlib.sha256(f"expanded {super().fingerprint} {self._content}".encode()).hexdigest()

    def _scored(self, home: Path | None) -> tuple[str, Callable[[], Iterable[Passage]]]:
        appended: defaultdict[str, list[str]] = defaultdict(list)
        for question in live_questions(self.name, published_questions(self.name, home), self._passages):
            if question.metadata["label"] == COMPLETE:
                appended[str(question.metadata["passage"])].append(question.text)

        def expanded() -> Iterator[Passage]:
            return (replace(one, text="\n".join([one.text, *appended.get(one.id, ())])) for one in self.passages())

        self._content = content_hash(expanded())
        return self._content, expanded


@dataclass(frozen=True, slots=True)
class _Index:
    """The scores of words in passages: each word's rows and scores, by the word's position in the vocabulary."""

    vocabulary: Mapping[str, int]
    starts: NDArray[np.integer[Any]]
    rows: NDArray[np.integer[Any]]
    values: NDArray[np.float32]

    def scores(self, words: Sequence[str], count: int) -> NDArray[np.float32]:
        """Return every passage's score for the words in a query."""
        scores = np.zeros(count, dtype=np.float32)
        for place in sorted(self.vocabulary[word] for word in words if word in self.vocabulary):
            part = slice(self.starts[place], self.starts[place + 1])
            scores[self.rows[part]] += self.values[part]
        return scores

    def to_bytes(self, content: str) -> bytes:
        file = io.BytesIO()
        words = np.frombuffer(json.dumps([content, list(self.vocabulary)]).encode(), dtype=np.uint8)
        np.savez(file, words=words, starts=self.starts, rows=self.rows, values=self.values)
        return file.getvalue()

    @classmethod
    def read(cls, data: bytes | None, content: str) -> _Index | None:
        """Return the index from its bytes; None if they are damaged or belong to different content."""
        try:
            with np.load(io.BytesIO(data or b""), allow_pickle=False) as arrays:
                stored, words = json.loads(arrays["words"].tobytes())
                if stored == content:
                    vocabulary = {word: place for place, word in enumerate(words)}
                    return cls(vocabulary, arrays["starts"], arrays["rows"], arrays["values"])
        except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile):
            pass
        return None


def _built(passages: Iterable[Passage], k1: float, b: float) -> _Index:
    logger = logging.getLogger("bm25s")
    level = logger.level
    import bm25s

    logger.setLevel(level)  # importing bm25s sets the level to DEBUG, but only the application should set it
    vocabulary = {"": 0}  # an empty word, so that a collection without words has a vocabulary
    rows = [[vocabulary.setdefault(word, len(vocabulary)) for word in terms(one.content)] for one in passages]
    model = bm25s.BM25(k1=k1, b=b, method=METHOD, backend="numpy", csc_backend="numpy")
    with np.errstate(divide="ignore", invalid="ignore"):  # the mean length is 0 if no passage has words
        model.index((rows, vocabulary), create_empty_token=False, show_progress=False)
    return _Index(vocabulary, *(np.asarray(model.scores[name]) for name in ("indptr", "indices", "data")))
