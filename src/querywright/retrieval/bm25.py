"""Search by words over a published collection: BM25, of the passages alone or with their questions appended.

The index is kept in the store of the working folder, built again where it is of other passages, and read without
pickle. The only file that imports bm25s.
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
from querywright.retrieval.filters import all_of
from querywright.retrieval.generated_questions import COMPLETE, live_questions, published_questions
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.retrieval.words import TOKENISER, query_terms, terms

K1, B = 1.5, 0.75
METHOD = "lucene"
KIND = "bm25"


class BM25Retriever(CollectionPassages):
    """Searches a collection by shared words; no embedder and no model is needed.

    Title and text of a passage count alike. The index is built at the first opening and kept in the store; it is built
    again when the passages or the settings are others. It is held in memory, 500 bytes a passage of 75 words beside
    the passages, and takes six times as much while it is built. What was opened stays as it is. Safe for threads; a
    copy is the same object.

    Args:
        name: The collection.
        home: The working folder. Default: ``querywright.home.home()``.
        where: Chroma's filter over metadata; the rarity of a word is still counted over the whole collection. Default:
            every passage.
        k1: Saturation of a word that is repeated in a passage, 0 or more. Default 1.5.
        b: Share of a passage's length that is made up for, 0 to 1. Default 0.75.
        beside: A retriever that has the collection open, whose passages are shared in memory. Default None.

    Raises:
        InputError: When ``k1``, ``b`` or ``where`` is out of range.
        CollectionError: When the collection is missing or damaged.

    Source: Robertson and Zaragoza, DOI 10.1561/1500000019, with Lucene's inverse document frequency
    (Kamphuis et al., DOI 10.1007/978-3-030-45442-5_4), which is never negative; computed by bm25s
    (arXiv 2407.03618). The words are ours.
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
            raise InputError(f"BM25 needs k1 of 0 or more and b from 0 to 1, but got {k1} and {b}")
        self.name = name
        self.where = all_of(where)
        if beside is not None:
            self.manifest, self._passages, self._chroma = beside.manifest, beside._passages, beside._index
        else:
            folder = collection_folder(name, home)
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
        """Passages in the collection, whatever ``where`` says."""
        return self.manifest.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the way of scoring, its settings, collection, count, content and filter."""
        found = [self.manifest.name, self.manifest.count, self.manifest.content_hash, self.where]
        return json_digest(["bm25", METHOD, TOKENISER, self.k1, self.b, *found])

    def passing(self, where: Mapping[str, Any]) -> Collection[str]:
        """Return the ids of the passages that a filter passes; the retriever must have been opened with a filter."""
        return self._chroma.ids(where)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The passages that share words with each query.

        Args:
            queries: Any number of texts; a word that is repeated in one counts as often as it stands there.
            k: At most so many hits a query, 1 or more; fewer when fewer passages share a word with it.

        Returns:
            One list a query in their order, best first; scores are above 0 and without an upper bound, equal ones
            in the order of their ids.

        Raises:
            InputError: When ``queries`` is a single text or ``k`` is below 1.
        """
        check_queries(queries, k)
        return [self._hits(query, k) for query in queries]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, k1={self.k1:g}, b={self.b:g}, count={self.count})"

    def _hits(self, query: str, k: int) -> list[Hit]:
        scores = self._index.scores(query_terms(query), len(self._passages))
        rows = np.flatnonzero((scores > 0) & self._allowed)
        if len(rows) > k:  # all that reach the k-th score stay, so that ids decide among equal ones
            rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
        best = rows[np.lexsort((rows, -scores[rows]))][:k]
        found = ((self._passages[self._ids[row]], float(scores[row])) for row in best)
        return [Hit(*one, rank) for rank, one in enumerate(found, start=1)]

    def _scored(self, home: Path | None) -> tuple[str, Callable[[], Iterable[Passage]]]:
        """What gives what is scored, one a passage in their order, and its content hash."""
        return self.manifest.content_hash, self.passages

    def _opened_index(self, home: Path | None) -> _Index:
        """The index, from the store or built."""
        content, scored = self._scored(home)
        content = json_digest([content, TOKENISER, METHOD, version("bm25s"), self.k1, self.b])
        key, store = json_digest([type(self).__name__, self.name]), open_store(home)  # one a collection: the last used
        index = _Index.read(store.get(KIND, key), content)
        if index is None:
            with loading(f"the BM25 index of {self.name}"):
                index = _built(scored(), self.k1, self.b)
            store.delete_many(KIND, [key])
            store.put(KIND, key, index.to_bytes(content))
        return index


class ExpandedRetriever(BM25Retriever):
    """Searches passages by the words of their text and of their questions; the hits are the passages as they are.

    A passage that uses other words than those who ask is found through the words of its questions; unlike in an index
    of questions, a passage without any stays findable. The questions are those that are published, the same as
    ``QuestionIndex`` searches, and of them those that their passage answers completely. Questions that were written for
    a passage before it changed are left out, with a warning. What was opened stays as it is.

    Args:
        name: The collection of the passages.
        home, where, k1, b: As ``BM25Retriever`` has them.

    Raises:
        InputError: When ``k1``, ``b`` or ``where`` is out of range.
        CollectionError: When the collection or its questions are missing or damaged.

    Source: Doc2Query-- (Gospodinov et al., arXiv:2301.03266). A judge's verdict filters the questions here, where the
    paper cuts a relevance score at one threshold.
    """

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what ``BM25Retriever`` has in its own, and the texts with their questions."""
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
    """The score of each word in each passage: for a word's place in the vocabulary its rows and their scores."""

    vocabulary: Mapping[str, int]
    starts: NDArray[np.integer[Any]]
    rows: NDArray[np.integer[Any]]
    values: NDArray[np.float32]

    def scores(self, words: Sequence[str], count: int) -> NDArray[np.float32]:
        """The scores of all passages for the words of a query."""
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
        """The index of this content and these settings; None where there is none."""
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

    logger.setLevel(level)  # importing it sets DEBUG, which is the application's to decide
    vocabulary = {"": 0}  # no word is empty: a collection without any word has a vocabulary too
    rows = [[vocabulary.setdefault(word, len(vocabulary)) for word in terms(one.content)] for one in passages]
    model = bm25s.BM25(k1=k1, b=b, method=METHOD, backend="numpy", csc_backend="numpy")
    with np.errstate(divide="ignore", invalid="ignore"):  # the mean length is 0 where no passage has a word
        model.index((rows, vocabulary), create_empty_token=False, show_progress=False)
    return _Index(vocabulary, *(np.asarray(model.scores[name]) for name in ("indptr", "indices", "data")))
