"""One directory of Chroma: written once, then only read.

It stores ids, vectors and metadata, never texts and no embedding function; we hand it our own vectors, and Chroma's
distance becomes a similarity here.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import file_digests, locked
from querywright.models.embedder import TextEmbedder, Vectors
from querywright.retrieval.collection import Generation, index_command

FOLDER = "chroma"
TABLE = "passages"
SPACE = "cosine"
EF_SEARCH = 400
EF_CONSTRUCTION = 200
# Chroma keeps in memory what it has not synced; 2 is its least, so that nothing is left for readers to write.
SYNC_THRESHOLD = 2
SAME_VECTOR = 1e-4
OPENING_SECONDS = 60.0
"""Chroma writes to a directory for a moment when it opens it; others wait for so long."""
QUERIES = 500
"""Passages that are searched for at a time when an index is checked."""


def _client(path: Path) -> Any:
    """A client of a directory. One that failed to open stays unusable in this process: never reuse a path."""
    import chromadb
    from chromadb.config import Settings

    settings = Settings(
        anonymized_telemetry=False, allow_reset=False, chroma_api_impl="chromadb.api.rust.RustBindingsAPI"
    )
    return chromadb.PersistentClient(str(path), settings=settings)


def write_index(
    path: Path, passages: Sequence[Passage], vectors_of: Callable[[Sequence[Passage]], Vectors]
) -> dict[str, str]:
    """Builds an index of sorted passages in a new directory and closes it.

    Returns:
        SHA-256 of each file of the index that reading leaves alone, by its path beside the directory.

    Raises:
        CollectionError: When it cannot be written.
    """
    from chromadb.errors import ChromaError

    hnsw = {
        "space": SPACE,
        "ef_search": EF_SEARCH,
        "ef_construction": EF_CONSTRUCTION,
        "sync_threshold": SYNC_THRESHOLD,
    }
    try:
        client = _client(path)
        try:
            table = client.create_collection(TABLE, configuration={"hnsw": hnsw}, embedding_function=None)
            size = client.get_max_batch_size()
            for start in range(0, len(passages), size):
                part = passages[start : start + size]
                rows = [dict(one.metadata) or None for one in part]
                table.add(
                    ids=[one.id for one in part], embeddings=vectors_of(part), metadatas=rows if any(rows) else None
                )
            table.query(query_embeddings=vectors_of(passages[:1]), n_results=1, include=[])
        finally:
            client.close()
    except (ChromaError, OSError) as error:
        raise CollectionError(
            f"the index could not be written: {error}; what was published before stays. Make room, or see that the "
            "working folder can be written, and index again: vectors embedded so far are kept"
        ) from error
    segments = {file.parent for file in path.rglob("index_metadata.pickle")}
    names = [file.relative_to(path.parent).as_posix() for segment in segments for file in segment.iterdir()]
    return file_digests(path.parent, sorted(names))


class ChromaIndex:
    """An open index that is only read; safe for threads, and for processes that are not forked from this one.

    Args:
        path: The directory.
        name: The collection, for messages.

    Raises:
        CollectionError: When it cannot be opened.
    """

    def __init__(self, path: Path, name: str) -> None:
        from chromadb.errors import ChromaError

        self.name = name
        self._pid = os.getpid()
        slow = CollectionError(f"another process has been opening {path.name} for a minute; end it first")
        try:
            with locked(path / "opening.lock", slow, seconds=OPENING_SECONDS):
                client = _client(path)
                try:
                    self._table = client.get_collection(TABLE, embedding_function=None)
                except Exception:
                    client.close()
                    raise
        except (ChromaError, ValueError, OSError, RuntimeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"the index of the collection {name!r} cannot be opened ({error}); {_remedy(name)}"
            ) from error
        self._close = weakref.finalize(self, _close_here, client, self._pid)
        self._close.atexit = False

    def close(self) -> None:
        """Gives Chroma's files back; the index cannot be used afterwards."""
        self._close()

    def query(self, vectors: Vectors, k: int, where: Mapping[str, Any] | None = None) -> list[list[tuple[str, float]]]:
        """The nearest ids and their cosine similarities, best first, equal ones by id; one list a row.

        Raises:
            InputError: When Chroma does not understand ``where``.
            CollectionError: In a forked process, or when the index cannot be read.
        """
        self.check_process()
        with chroma_errors(where, self.name):
            answer = self._table.query(
                query_embeddings=np.ascontiguousarray(vectors, dtype=np.float32),
                n_results=k,
                where=dict(where) if where else None,
                include=["distances"],
            )
        return [
            [(id, max(-1.0, min(1.0, 1.0 - distance))) for distance, id in sorted(zip(distances, ids, strict=True))]
            for ids, distances in zip(answer["ids"], answer["distances"], strict=True)
        ]

    def check_process(self) -> None:
        """Raise ``CollectionError`` in a process that was forked from the one that opened the index."""
        if os.getpid() != self._pid:
            raise CollectionError(
                f"the collection {self.name!r} was opened before this process was forked, and Chroma hangs "
                "there; start workers with multiprocessing's 'spawn' method"
            )

    def check(self, passages: Mapping[str, Passage], embedder: TextEmbedder, most: int) -> None:
        """Looks at count and settings, and searches for at most ``most`` passages by their own vectors.

        Passages with the same vector may stand for each other.

        Raises:
            CollectionError: When something does not fit.
        """
        self.check_process()
        with chroma_errors(None, self.name):
            count, settings = int(self._table.count()), dict(self._table.configuration_json)
        space = (settings.get("hnsw") or {}).get("space")
        if count != len(passages) or space != SPACE:
            raise CollectionError(
                f"the index of the collection {self.name!r} is not the one that was published (it holds {count} "
                f"passages by {space!r}, {len(passages)} by {SPACE!r} are expected); {_remedy(self.name)}"
            )
        ids = list(passages)
        if len(ids) > most:
            ids = [ids[number * len(ids) // most] for number in range(most)]
        for start in range(0, len(ids), QUERIES):
            part = ids[start : start + QUERIES]
            found = self.query(embedder.encode([passages[id].content for id in part]), 1)
            for own, hits in zip(part, found, strict=True):
                best, score = hits[0] if hits else ("", -1.0)
                if best != own and best in passages:
                    one, other = embedder.encode([passages[own].content, passages[best].content])
                    score = min(score, float(one @ other))
                if score < 1 - SAME_VECTOR or best not in passages:
                    raise CollectionError(
                        f"the index of the collection {self.name!r} does not find all of its passages by their own "
                        f"vector, such as {own!r}; {_remedy(self.name)}"
                    )


_open: weakref.WeakValueDictionary[Path, ChromaIndex] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def open_index(folder: Path, manifest: Generation) -> ChromaIndex:
    """The index of a published generation: opened, or the one that this process has open.

    Raises:
        CollectionError: When it cannot be opened, or one of its files is missing or has other bytes.
    """
    place = folder / manifest.folder
    found = file_digests(place, manifest.index_files)
    wrong = [name for name, digest in manifest.index_files.items() if found.get(name) != digest]
    if wrong or not (place / FOLDER / "chroma.sqlite3").is_file():
        raise CollectionError(
            f"the index of the collection {manifest.name!r} is damaged or missing "
            f"({', '.join(wrong) or 'chroma.sqlite3'}); {_remedy(manifest.name)}"
        )
    with _open_lock:
        index = _open.get(place)
        if index is None:
            index = _open[place] = ChromaIndex(place / FOLDER, manifest.name)
        return index


@contextmanager
def chroma_errors(where: Mapping[str, Any] | None, name: str) -> Iterator[None]:
    """Turns Chroma's errors into ours: ``InputError`` for what was asked, ``CollectionError`` for the index."""
    from chromadb.errors import ChromaError, InvalidArgumentError

    try:
        yield
    except (ValueError, TypeError, InvalidArgumentError) as error:
        raise InputError(f"Chroma refused the search (where={where!r}): {error}") from error
    except ChromaError as error:
        raise CollectionError(
            f"the index of the collection {name!r} cannot be read ({error}); {_remedy(name)}"
        ) from error


def _remedy(name: str) -> str:
    return f"run {index_command(name)}: its passages and vectors are kept, nothing is embedded again"


def _close_here(client: Any, pid: int) -> None:
    """Closes a client in the process that opened it; a forked copy of it would hang."""
    if os.getpid() == pid:
        client.close()
