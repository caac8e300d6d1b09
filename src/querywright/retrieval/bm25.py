"""Search by words over a published collection: BM25.

The index is a build product like Chroma's: it lies in ``bm25/`` beside the collection's generations, one folder for
each content and each setting, is checked when it is loaded, and built again when it does not fit. Arrays are stored and
read without pickle. The only file that imports bm25s.
"""

from __future__ import annotations

import logging
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from querywright.checksummed import Checksummed
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import file_digests, json_digest, replace_folder
from querywright.models.embedder import Progress
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import Generation, collection_folder, published_passages, read_manifest
from querywright.retrieval.filters import matcher
from querywright.retrieval.held import HeldPassages
from querywright.retrieval.types import Hit, Kind, check_queries
from querywright.retrieval.words import TOKENISER, query_terms, terms

K1, B = 1.5, 0.75
METHOD = "lucene"
FOLDER = "bm25"
FACTS = "index.json"
FILES = (
    "data.csc.index.npy",
    "indices.csc.index.npy",
    "indptr.csc.index.npy",
    "params.index.json",
    "vocab.index.json",
)
PROGRESS_EVERY = 1000

_logger = logging.getLogger(__name__)


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
        beside: A retriever that has the collection open, whose passages are shared in memory. Default None.
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
        beside: ChromaRetriever | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not (math.isfinite(k1) and k1 >= 0 and 0 <= b <= 1):
            raise InputError(f"BM25 needs k1 of 0 or more and b from 0 to 1, but got {k1} and {b}")
        passes = matcher(where)
        folder = collection_folder(name, home)
        if beside is None:
            self.manifest, self._passages = published_passages(folder, home)
        else:
            self.manifest, self._passages = beside.manifest, {passage.id: passage for passage in beside.passages()}
        self.name = name
        self.where = dict(where) if where else None
        self.k1, self.b = float(k1), float(b)
        self._rows = [self._passages[id] for id in sorted(self._passages)]
        self._model = _opened(*self._indexed(folder, self.manifest), self.k1, self.b, progress)
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
        return json_digest(["bm25", *parts])

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
        return f"BM25Retriever({self.name!r}, k1={self.k1:g}, b={self.b:g}, count={self.count})"

    def _hits(self, query: str, k: int) -> list[Hit]:
        known = sorted(self._model.get_tokens_ids(query_terms(query)))  # their order is of no consequence
        if not known:
            return []
        scores: NDArray[np.float32] = self._model.get_scores_from_ids(known)
        found = scores > 0
        rows = np.flatnonzero(found if self._mask is None else found & self._mask)
        if len(rows) > k:  # all that reach the k-th score stay, so that ids decide among equal ones
            rows = rows[scores[rows] >= np.partition(scores[rows], -k)[-k]]
        best = rows[np.lexsort((rows, -scores[rows]))][:k]
        return [Hit(self._rows[row], float(scores[row]), rank) for rank, row in enumerate(best, start=1)]


class IndexFacts(Checksummed):
    """Everything that decides what is in an index, and the SHA-256 of its files once they are there."""

    content_hash: str
    count: int
    tokeniser: str
    method: str
    k1: float
    b: float
    bm25s: str
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """``<content>.<settings>``: an index of other content is known by its name."""
        return f"{self.content_hash[:16]}.{json_digest(self.model_dump())[:16]}"


def _opened(
    folder: Path, manifest: Generation, passages: Sequence[Passage], k1: float, b: float, progress: Progress | None
) -> Any:
    """The ``bm25s.BM25`` of some passages: loaded, or built, and saved where the folder can be written."""
    facts = IndexFacts(
        content_hash=manifest.content_hash,
        count=manifest.count,
        tokeniser=TOKENISER,
        method=METHOD,
        k1=k1,
        b=b,
        bm25s=version("bm25s"),
    )
    place = folder / FOLDER / facts.name
    model = _load(place, facts)
    if model is not None:
        return model
    model = _build(passages, k1, b, progress)

    def fill(folder: Path) -> None:
        model.save(folder, allow_pickle=False, show_progress=False)
        facts.model_copy(update={"files": file_digests(folder, FILES)}).write(folder / FACTS)

    try:
        replace_folder(place, fill)
        _sweep(folder, place)
    except OSError as error:
        _logger.warning("the BM25 index of %r cannot be saved and will be built again: %s", manifest.name, error)
    return model


def _build(passages: Sequence[Passage], k1: float, b: float, progress: Progress | None) -> Any:
    vocabulary = {"": 0}  # no word is empty: a collection without any word has a vocabulary too
    rows: list[list[int]] = []
    for number, passage in enumerate(passages):
        if progress is not None and number % PROGRESS_EVERY == 0:
            progress(number, len(passages))
        rows.append([vocabulary.setdefault(word, len(vocabulary)) for word in terms(passage.content)])
    model = _bm25s().BM25(k1=k1, b=b, method=METHOD, backend="numpy", csc_backend="numpy")
    with np.errstate(divide="ignore", invalid="ignore"):  # the mean length is 0 where no passage has a word
        model.index((rows, vocabulary), create_empty_token=False, show_progress=False)
    if progress is not None:
        progress(len(passages), len(passages))
    return model


def _bm25s() -> Any:
    """The library; it sets its own logger to DEBUG when it is imported, which is the application's to decide."""
    known = "bm25s" in sys.modules
    import bm25s

    if not known:
        logging.getLogger("bm25s").setLevel(logging.NOTSET)
    return bm25s


def _load(place: Path, facts: IndexFacts) -> Any | None:
    """The index that is stored, or None when there is none or it does not fit."""
    if not place.is_dir():
        return None
    try:
        stored = IndexFacts.read(place / FACTS)
        if stored is None or stored.model_copy(update={"files": {}}) != facts:
            raise ValueError("it was made of something else")
        if set(stored.files) != set(FILES) or file_digests(place, FILES) != stored.files:
            raise ValueError("its files are damaged or missing")
        model = _bm25s().BM25.load(place, mmap=False, allow_pickle=False, load_corpus=False, show_progress=False)
        if model.scores["num_docs"] != facts.count:
            raise ValueError("it has another number of passages")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _logger.warning("the BM25 index %s is built again: %s", place.name, error)
        return None
    return model


def _sweep(folder: Path, place: Path) -> None:
    """Removes indexes of content that is no longer there."""
    try:
        published = read_manifest(folder)
    except CollectionError:
        return
    kept = {place.name[:16]} | ({published.content_hash[:16]} if published else set())
    for path in place.parent.iterdir():
        if path.is_dir() and not path.name.startswith(".") and path.name.partition(".")[0] not in kept:
            shutil.rmtree(path, ignore_errors=True)
