"""The BM25 index of a collection on disk: built once, checked when it is loaded, built again when it does not fit.

It lies in ``bm25/`` beside the collection's generations, one folder for each content and each setting. It is a
build product like Chroma's index: it can be deleted. Arrays are stored and read without pickle.

The only file that imports bm25s.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from querywright.checksummed import Checksummed
from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.files import file_digests, json_digest, replace_folder
from querywright.models.embedder import Progress
from querywright.retrieval.collection import Generation, read_manifest
from querywright.retrieval.words import TOKENISER, terms

Scores = NDArray[np.float32]

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


class BM25Index:
    """An index in memory; safe for threads, because it is only read.

    Args:
        model: A ``bm25s.BM25`` that is indexed or loaded.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def scores(self, words: Sequence[str]) -> Scores | None:
        """The score of every passage in the order in which they were indexed; None when no word is in any.

        Args:
            words: The words of a query; a repeated word counts as often as it stands there. Their order is of no
                consequence, down to the last bit.
        """
        known = sorted(self._model.get_tokens_ids(words))
        return self._model.get_scores_from_ids(known) if known else None


def open_index(
    folder: Path,
    manifest: Generation,
    passages: Sequence[Passage],
    *,
    k1: float,
    b: float,
    progress: Progress | None = None,
) -> BM25Index:
    """The index of a collection: loaded, or built and saved when there is none that fits.

    Where the folder cannot be written, the index is built in memory and a warning is logged.

    Args:
        folder: The collection's folder.
        manifest: What is published there.
        passages: What is indexed; scores are in their order.
        k1: Saturation of a repeated word, 0 or more.
        b: Share of the length that is made up for, 0 to 1.
        progress: Called with (passages read, passages in all) while an index is built. Default None.
    """
    facts = IndexFacts(
        content_hash=manifest.content_hash,
        count=manifest.count,
        tokeniser=TOKENISER,
        method=METHOD,
        k1=float(k1),
        b=float(b),
        bm25s=version("bm25s"),
    )
    place = folder / FOLDER / facts.name
    found = _load(place, facts)
    if found is not None:
        return BM25Index(found)
    found = _build(passages, k1, b, progress)
    try:
        _save(place, found, facts)
        _sweep(folder, place)
    except OSError as error:
        _logger.warning("the BM25 index of %r cannot be saved and will be built again: %s", manifest.name, error)
    return BM25Index(found)


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


def _save(place: Path, model: Any, facts: IndexFacts) -> None:
    """Puts an index into its place, whole or not at all."""

    def fill(folder: Path) -> None:
        model.save(folder, allow_pickle=False, show_progress=False)
        facts.model_copy(update={"files": file_digests(folder, FILES)}).write(folder / FACTS)

    replace_folder(place, fill)


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
