"""One directory of Chroma: written once, then only read.

The only file that imports chromadb. It stores ids, vectors and metadata, never texts and no embedding
function; we hand it our own vectors, and Chroma's distance becomes a similarity here and nowhere else.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from querywright.errors import CollectionError, InputError
from querywright.files import file_digests, locked
from querywright.models.embedder import Vectors
from querywright.retrieval.collection import SPACE, Generation, index_command, share_generation

TABLE = "passages"
EF_SEARCH = 400
EF_CONSTRUCTION = 200
# Chroma keeps in memory what it has not synced; 2 is its least, so that nothing is left for readers to write.
SYNC_THRESHOLD = 2
SAME_VECTOR = 1e-4
OPENING_SECONDS = 60.0
"""Chroma writes to a directory for a moment when it opens it; others wait for so long."""

Found = list[tuple[str, float]]


def chroma_version() -> str:
    """The installed version of chromadb."""
    import chromadb

    return str(chromadb.__version__)


def _client(path: Path) -> Any:
    """A client of a directory. One that failed to open stays unusable in this process: never reuse a path."""
    import chromadb
    from chromadb.config import Settings

    settings = Settings(
        anonymized_telemetry=False, allow_reset=False, chroma_api_impl="chromadb.api.rust.RustBindingsAPI"
    )
    return chromadb.PersistentClient(str(path), settings=settings)


class Rows(Protocol):
    """Vectors that are had some at a time; an array, or what reads them where they are kept."""

    def __getitem__(self, part: slice, /) -> Vectors:
        """Those of some places."""
        ...


def write_index(path: Path, ids: Sequence[str], vectors: Rows, metadata: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Builds an index in a new directory and closes it.

    Args:
        path: The directory, not there yet.
        ids: Ids of the passages, distinct and sorted: equal scores are then found in the order of ids.
        vectors: One normalised row an id; a batch of Chroma's is asked for at a time.
        metadata: One mapping an id, also empty ones.

    Returns:
        SHA-256 of each file of the index that reading leaves alone, by its path in the directory.
    """
    from chromadb.errors import ChromaError

    try:
        return _write_index(path, ids, vectors, metadata)
    except (ChromaError, OSError) as error:
        raise CollectionError(
            f"the index could not be written: {error}; what was published before stays. Make room, or see that the "
            "working folder can be written, and index again: vectors embedded so far are kept"
        ) from error


def _write_index(
    path: Path, ids: Sequence[str], vectors: Rows, metadata: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    client = _client(path)
    try:
        hnsw = {
            "space": SPACE,
            "ef_search": EF_SEARCH,
            "ef_construction": EF_CONSTRUCTION,
            "sync_threshold": SYNC_THRESHOLD,
        }
        table = client.create_collection(TABLE, configuration={"hnsw": hnsw}, embedding_function=None)
        size = client.get_max_batch_size()
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            rows = [dict(row) or None for row in metadata[part]]
            table.add(ids=list(ids[part]), embeddings=vectors[part], metadatas=rows if any(rows) else None)
        table.query(query_embeddings=np.asarray(vectors[:1]), n_results=1, include=[])
    finally:
        client.close()
    segments = sorted({file.parent for file in path.rglob("index_metadata.pickle")})
    names = [file.relative_to(path).as_posix() for segment in segments for file in sorted(segment.iterdir())]
    return file_digests(path, names)


class ChromaIndex:
    """An open index that is only read; safe for threads, and for processes that are not forked from this one.

    Args:
        path: The directory.
        name: The collection, for messages.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._pid = os.getpid()
        slow = CollectionError(f"another process has been opening {path.name} for a minute; end it first")
        with locked(path / "opening.lock", slow, seconds=OPENING_SECONDS):
            client = _client(path)
            try:
                self._table = client.get_collection(TABLE, embedding_function=None)
            except Exception:
                client.close()
                raise
        self._close = weakref.finalize(self, _close_here, client, self._pid)
        self._close.atexit = False

    def close(self) -> None:
        """Gives Chroma's files back; the index cannot be used afterwards."""
        self._close()

    def count(self) -> int:
        """How many ids there are."""
        with self._reading(None):
            return int(self._table.count())

    def settings(self) -> dict[str, Any]:
        """Chroma's stored configuration."""
        return dict(self._table.configuration_json)

    def query(self, vectors: Vectors, k: int, where: Mapping[str, Any] | None = None) -> list[Found]:
        """The nearest ids and their cosine similarities, best first, equal ones by id; one list a row.

        Raises:
            InputError: When Chroma does not understand ``where``.
            CollectionError: In a forked process, or when the index cannot be read.
        """
        if not len(vectors):
            return []
        with self._reading(where):
            answer = self._table.query(
                query_embeddings=np.ascontiguousarray(vectors, dtype=np.float32),
                n_results=k,
                where=dict(where) if where else None,
                include=["distances"],
            )
        return [
            [(id, _similarity(distance)) for distance, id in sorted(zip(distances, ids, strict=True))]
            for ids, distances in zip(answer["ids"], answer["distances"], strict=True)
        ]

    def check_process(self) -> None:
        """Refuses a process that was forked from the one that opened the index.

        Raises:
            CollectionError: In such a process.
        """
        if os.getpid() != self._pid:
            raise CollectionError(
                f"the collection {self.name!r} was opened before this process was forked, and Chroma hangs "
                "there; start workers with multiprocessing's 'spawn' method"
            )

    @contextmanager
    def _reading(self, where: Mapping[str, Any] | None) -> Iterator[None]:
        """Turns Chroma's errors into ours."""
        from chromadb.errors import ChromaError, InvalidArgumentError

        self.check_process()
        try:
            yield
        except (ValueError, TypeError, InvalidArgumentError) as error:
            raise InputError(f"Chroma refused the search (where={where!r}): {error}") from error
        except ChromaError as error:
            raise CollectionError(
                f"the index of the collection {self.name!r} cannot be read ({error}); run {index_command(self.name)}"
            ) from error


def _close_here(client: Any, pid: int) -> None:
    """Closes a client in the process that opened it; a forked copy of it would hang."""
    if os.getpid() == pid:
        client.close()


def _similarity(distance: float) -> float:
    return max(-1.0, min(1.0, 1.0 - float(distance)))


class SharedIndex(ChromaIndex):
    """A published generation, opened once a process; nobody removes it while it is open."""

    def __init__(self, path: Path, name: str, descriptor: int) -> None:
        try:
            super().__init__(path, name)
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(self, os.close, descriptor)


_open: weakref.WeakValueDictionary[Path, SharedIndex] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_shared(folder: Path, manifest: Generation) -> SharedIndex | None:
    """Opens the published generation of a collection, or returns the one this process has open.

    Returns:
        The index, or None when the generation has just been removed: read the manifest again.

    Raises:
        CollectionError: When its files are missing or damaged.
    """
    path = folder / manifest.chroma_folder
    with _open_lock:
        known = _open.get(path)
        if known is not None:
            return known
        descriptor = share_generation(folder / manifest.readers_lock)
        if descriptor is None:
            return None
        try:
            check_files(path, manifest)
        except BaseException:
            os.close(descriptor)
            raise
        index = _opened(path, manifest.name, descriptor)
        _open[path] = index
        return index


def _opened(path: Path, name: str, descriptor: int) -> SharedIndex:
    from chromadb.errors import ChromaError

    try:
        return SharedIndex(path, name, descriptor)
    except (ChromaError, ValueError, OSError, RuntimeError, KeyError, AttributeError) as error:
        raise CollectionError(
            f"the index of the collection {name!r} cannot be opened ({error}); run {index_command(name)}: "
            "its passages and vectors are kept, nothing is embedded again"
        ) from error


def check_files(path: Path, manifest: Generation) -> None:
    """Compares the index's files with the manifest.

    Raises:
        CollectionError: When one is missing or has other bytes.
    """
    found = file_digests(path, list(manifest.index_files))
    wrong = [name for name, digest in manifest.index_files.items() if found.get(name) != digest]
    if wrong or not (path / "chroma.sqlite3").is_file():
        raise CollectionError(
            f"the index of the collection {manifest.name!r} is damaged or missing "
            f"({', '.join(wrong) or 'chroma.sqlite3'}); run {index_command(manifest.name)}: its passages and "
            "vectors are kept, nothing is embedded again"
        )


def check_answers(index: ChromaIndex, manifest: Generation) -> None:
    """Compares count and settings of an open index with the manifest.

    Raises:
        CollectionError: When one is another.
    """
    settings = index.settings()
    space = (settings.get("hnsw") or {}).get("space")
    function = (settings.get("embedding_function") or {}).get("type")
    problems = []
    if (count := index.count()) != manifest.count:
        problems.append(f"it holds {count} passages, the manifest says {manifest.count}")
    if space != manifest.space:
        problems.append(f"its space is {space!r}, the manifest says {manifest.space!r}")
    if function not in (None, "legacy"):
        problems.append("it names an embedding function, which is not ours")
    if problems:
        raise CollectionError(
            f"the index of the collection {manifest.name!r} is not the one that was published "
            f"({'; '.join(problems)}); run {index_command(manifest.name)}"
        )


def missed(
    index: ChromaIndex, ids: Sequence[str], vectors: Vectors, similarity: Callable[[str, str], float]
) -> list[str]:
    """Those of some passages that a search for their own vector does not find first.

    Args:
        index: The index to try.
        ids: Ids of the passages.
        vectors: Their vectors.
        similarity: Called with (id, id) of two passages; gives their exact cosine similarity. Passages with
            the same vector may stand for each other.

    Returns:
        The ids that were not found.
    """
    wrong = []
    for own, hits in zip(ids, index.query(vectors, 1), strict=True):
        best, score = hits[0] if hits else ("", -1.0)
        exact = 1.0 if best == own else similarity(own, best)
        if min(exact, score) < 1 - SAME_VECTOR:
            wrong.append(own)
    return wrong
