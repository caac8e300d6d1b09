"""Search by words over a published collection: BM25."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.models.embedder import Progress
from querywright.retrieval.bm25_index import METHOD, Scores, open_index
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import Generation, collection_folder, published_passages
from querywright.retrieval.filters import matcher
from querywright.retrieval.held import HeldPassages
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.retrieval.words import TOKENISER, query_terms

K1, B = 1.5, 0.75


class BM25Retriever(HeldPassages):
    """Searches a collection by shared words; no embedder and no model is needed.

    Title and text of a passage count alike. The index is built at the first opening and kept beside the
    collection; it is built again when the passages or the settings are others, or when it is damaged. Passages
    and index are held in memory, and what was opened stays as it is. Safe for threads; a copy is the same object.

    Args:
        name: The collection.
        home: The working folder. Default: ``querywright.home.home()``.
        where: A filter over metadata as ``ChromaRetriever`` has it; how rare a word is, is still counted over
            the whole collection. Default: every passage.
        k1: Saturation of a word that is repeated in a passage, 0 or more. Default 1.5.
        b: Share of a passage's length that is made up for, 0 to 1. Default 0.75.
        progress: Called with (passages read, passages in all) while the index is built. Default None.

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
        progress: Progress | None = None,
    ) -> None:
        _check_settings(k1, b)
        matcher(where)
        folder = collection_folder(name, home)
        manifest, passages = published_passages(folder, home)
        self._fill(folder, manifest, passages, where, k1, b, progress)

    @classmethod
    def beside(
        cls, other: ChromaRetriever, *, home: Path | None = None, progress: Progress | None = None
    ) -> BM25Retriever:
        """Searches the same passages as a retriever that is open, and shares them in memory.

        Args:
            other: The retriever; its ``where`` holds here too.
            home: The working folder it was opened in. Default: ``querywright.home.home()``.
            progress: Called with (passages read, passages in all) while the index is built. Default None.

        Raises:
            InputError: When the filter of ``other`` is none that can be had without Chroma.
        """
        made = cls.__new__(cls)
        passages = {passage.id: passage for passage in other.passages()}
        folder = collection_folder(other.name, home)
        made._fill(folder, other.manifest, passages, other.where, K1, B, progress)
        return made

    def _fill(
        self,
        folder: Path,
        manifest: Generation,
        passages: dict[str, Passage],
        where: Mapping[str, Any] | None,
        k1: float,
        b: float,
        progress: Progress | None,
    ) -> None:
        self.name = folder.name
        self.manifest = manifest
        self.where = dict(where) if where else None
        self.k1, self.b = float(k1), float(b)
        self._passages = passages
        self._rows = [passages[id] for id in sorted(passages)]
        place, content, indexed = self._indexed(folder, manifest)
        self._index = open_index(place, content, indexed, k1=k1, b=b, progress=progress)
        passes = matcher(where)
        self._mask = None if passes is None else np.array([passes(one.metadata) for one in self._rows], dtype=bool)

    def _indexed(self, folder: Path, manifest: Generation) -> tuple[Path, Generation, Sequence[Passage]]:
        """Where the index lies, what is in it, and the texts that are scored, one a passage in their order."""
        return folder, manifest, self._rows

    @property
    def count(self) -> int:
        """Passages in the collection, whatever ``where`` says."""
        return self.manifest.count

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the way of scoring, its settings, collection, count, content and filter."""
        parts = [METHOD, TOKENISER, self.k1, self.b, self.name, self.count, self.manifest.content_hash, self.where]
        return hashlib.sha256(json.dumps(["bm25", *parts], sort_keys=True, default=str).encode()).hexdigest()

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
        return [self._hits(self._index.scores(query_terms(query)), k) for query in queries]

    def __repr__(self) -> str:
        return f"BM25Retriever({self.name!r}, k1={self.k1:g}, b={self.b:g}, count={self.count})"

    def _hits(self, scores: Scores | None, k: int) -> list[Hit]:
        if scores is None:
            return []
        found = scores > 0
        rows = np.flatnonzero(found if self._mask is None else found & self._mask)
        if len(rows) > k:  # all that reach the k-th score stay, so that ids decide among equal ones
            rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
        best = rows[np.lexsort((rows, -scores[rows]))][:k]
        return [Hit(self._rows[row], float(scores[row]), rank) for rank, row in enumerate(best, start=1)]


def _check_settings(k1: float, b: float) -> None:
    if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
        raise InputError(f"BM25 needs k1 of 0 or more and b from 0 to 1, but got {k1} and {b}")
