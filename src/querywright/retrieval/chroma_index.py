"""A Chroma index on disk that is written once and then only read.

It stores ids, metadata, and the vectors from our embedder, but no texts and no embedding function.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import file_digests, locked
from querywright.home import scratch
from querywright.models.embedder import CHUNK, Progress, Vectors
from querywright.retrieval.collection import Generation, index_command

FOLDER = "chroma"
TABLE = "passages"
SPACE = "cosine"
# With 400 and 200, about one search in 100 missed a passage. With these values, none of 6,000 searches did.
EF_SEARCH = 1000
EF_CONSTRUCTION = 400
DATABASE = "chroma.sqlite3"
NEIGHBOURS = (16, 64, 64)
"""Links per vector in successive builds. If some passages cannot be found after a build, as can happen with hundreds of
near-duplicates, the next build uses more links. Builds are random, so the last value is tried twice."""
WRITES = 20
"""Maximum number of times that Chroma writes its data to disk during a build."""
LEAST_SYNC = 2
"""Minimum number of vectors between two such writes."""
SAME_VECTOR = 1e-4
Encode = Callable[[Sequence[str]], Vectors]
OPENING_SECONDS = 60.0
"""How long to wait while another process opens the same directory; Chroma writes to a directory on opening it."""
QUERIES = 500
"""Number of passages per search when an index is checked."""

_opened_in = 0  # id of the process that opened Chroma


def open_client(path: Path) -> Any:
    """Return a client for a directory. If opening fails, this process can never open the same path again."""
    global _opened_in
    import chromadb
    from chromadb.config import Settings

    check_process()
    _opened_in = os.getpid()
    settings = Settings(
        anonymized_telemetry=False, allow_reset=False, chroma_api_impl="chromadb.api.rust.RustBindingsAPI"
    )
    return chromadb.PersistentClient(str(path), settings=settings)


def check_process() -> None:
    """Raise ``CollectionError`` if this process was forked after an index was opened."""
    if _opened_in not in (0, os.getpid()):
        raise CollectionError(
            "a collection was opened before this process was forked, and Chroma would hang in this process; start "
            "workers with multiprocessing's 'spawn' method"
        )


def write_index(
    path: Path, passages: Mapping[str, Passage], encode: Encode, progress: Progress | None, neighbours: int
) -> tuple[dict[str, str], int]:
    """Embed sorted passages, and write their index to a new directory.

    Returns:
        The SHA-256 of each index file that stays the same when the index is read, keyed by its path relative to the
        directory's parent; and the size of the largest group of passages with equal vectors.

    Raises:
        CollectionError: The index cannot be written.
    """
    from chromadb.errors import ChromaError

    hashed, left = list[NDArray[np.int64]](), iter(passages.values())
    writing: Future[None] | None = None  # Chroma links vectors while the next batch is embedded
    try:
        client = open_client(path)
        writer = ThreadPoolExecutor(1, thread_name_prefix="querywright-index")
        try:
            calls, sync = calls_and_sync(len(passages), client.get_max_batch_size())
            hnsw = hnsw_of(neighbours, sync)
            table = client.create_collection(TABLE, configuration={"hnsw": hnsw}, embedding_function=None)
            for first, until in pairwise(len(passages) * call // calls for call in range(calls + 1)):
                batch, made = list(islice(left, until - first)), list[Vectors]()
                for start in range(0, len(batch), CHUNK):
                    part = batch[start : start + CHUNK]
                    made.append(encode([one.content for one in part]))
                    if progress is not None:
                        progress(first + start + len(part), len(passages))
                vectors, rows = np.concatenate(made), [dict(one.metadata) for one in batch]
                told = [row or None for row in rows] if any(rows) else None
                if writing is not None:
                    writing.result()
                ids = [one.id for one in batch]
                writing = writer.submit(table.add, ids=ids, embeddings=vectors, metadatas=told)
                hashed.append(np.fromiter((hash(row.tobytes()) for row in vectors), np.int64))
            if writing is not None:
                writing.result()
            first_text = next(iter(passages.values())).content
            table.query(query_embeddings=encode([first_text]), n_results=1, include=[])
        finally:
            writer.shutdown()
            client.close()
    except (ChromaError, OSError) as error:
        raise CollectionError(
            f"the index could not be written: {error}; the published collection is unchanged. Free disk space, or make "
            "the workspace writable, and re-index the passages; the vectors computed so far are cached"
        ) from error
    segments = {file.parent for file in path.rglob("index_metadata.pickle")}
    names = [file.relative_to(path.parent).as_posix() for segment in segments for file in segment.iterdir()]
    ties = int(np.unique(np.concatenate(hashed), return_counts=True)[1].max())
    return _digests(path.parent, sorted([*names, f"{path.name}/{DATABASE}"])), ties


def calls_and_sync(count: int, most: int) -> tuple[int, int]:
    """Return the number of calls for adding the vectors to Chroma, and the number of vectors between writes to disk.

    Each write stores all vectors so far. Chroma keeps newer vectors in memory, so the last call must be followed by a
    write.

    Args:
        count: Number of vectors.
        most: Maximum number of vectors per call.
    """
    least = -(-count // most)
    between = -(-least // WRITES)
    calls = between * -(-least // between)
    return calls, max(LEAST_SYNC, between * (count // calls))


def hnsw_of(neighbours: int, sync: int) -> dict[str, Any]:
    """Return Chroma's index settings for this many links per vector and vectors between writes to disk."""
    return {
        "space": SPACE,
        "ef_search": EF_SEARCH,
        "ef_construction": EF_CONSTRUCTION,
        "max_neighbors": neighbours,
        "sync_threshold": sync,
    }


class ChromaIndex:
    """An open, read-only index. It is thread-safe, but it does not work in forked processes.

    Raises:
        CollectionError: The index cannot be opened.
    """

    def __init__(self, path: Path, name: str) -> None:
        from chromadb.errors import ChromaError

        self.name = name
        slow = CollectionError(f"another process has been opening {path.name} for a minute; stop that process first")
        try:
            with locked(path / "opening.lock", slow, seconds=OPENING_SECONDS):
                client = open_client(path)
                try:
                    self._table = client.get_collection(TABLE, embedding_function=None)
                except Exception:
                    client.close()
                    raise
        except (ChromaError, ValueError, OSError, RuntimeError, KeyError, AttributeError) as error:
            raise CollectionError(
                f"the index of the collection {name!r} cannot be opened ({error}); {_remedy(name)}"
            ) from error
        self.close = weakref.finalize(self, close_client, client, os.getpid())
        """Close Chroma's files; the index cannot be used afterwards."""
        self.close.atexit = False

    def query(self, vectors: Vectors, k: int, where: Mapping[str, Any] | None = None) -> list[list[tuple[str, float]]]:
        """Return the ids nearest to each vector with their cosine similarities, best first; ties are ordered by id."""
        check_process()
        found = nearest(self._table, self.name, k, where, vectors=vectors)
        return [[(id, max(-1.0, min(1.0, 1.0 - distance))) for distance, id in hits] for hits in found]

    def ids(self, where: Mapping[str, Any]) -> set[str]:
        """Return the ids that match a filter."""
        check_process()
        return ids_passing(self._table, where, name=self.name)

    def check(self, passages: Mapping[str, Passage], encode: Encode, most: int) -> None:
        """Check the index's count and metric, and search for up to ``most`` passages by their own vectors.

        A search may return a different passage with the same vector.

        Raises:
            CollectionError: A check failed.
        """
        check_process()
        with chroma_errors(None, self.name):
            count, space = int(self._table.count()), (self._table.configuration_json.get("hnsw") or {}).get("space")
        if count != len(passages) or space != SPACE:
            raise CollectionError(
                f"the index of the collection {self.name!r} must have {len(passages)} passages with the metric "
                f"{SPACE!r}, but has {count} with {space!r}; {_remedy(self.name)}"
            )
        ids = list(passages)
        if len(ids) > most:
            ids = [ids[number * len(ids) // most] for number in range(most)]
        for start in range(0, len(ids), QUERIES):
            part = ids[start : start + QUERIES]
            found = self.query(encode([passages[id].content for id in part]), 1)
            for own, hits in zip(part, found, strict=True):
                best, score = hits[0] if hits else ("", -1.0)
                if best != own and best in passages:
                    one, other = encode([passages[own].content, passages[best].content])
                    score = min(score, float(one @ other))
                if score < 1 - SAME_VECTOR or best not in passages:
                    raise CollectionError(
                        f"the index of the collection {self.name!r} is incomplete: searching with the vector of "
                        f"{own!r} does not find this passage; {_remedy(self.name)}"
                    )


def _digests(place: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of index files, leaving out files that are missing or damaged.

    The database's digest covers all rows except the table in which Chroma counts how often it was opened. A damaged
    database must be detected here, because opening it in Chroma would crash the process.
    """
    found = file_digests(place, names)
    for name in [one for one in found if one.endswith(DATABASE)]:
        # A process that is killed while opening the index leaves a journal. Rolling it back requires write access.
        mode, digest = "mode=rw" if os.access(place / FOLDER, os.W_OK) else "immutable=1", hashlib.sha256()
        try:
            with closing(sqlite3.connect(f"{(place / name).absolute().as_uri()}?{mode}", uri=True)) as database:
                database.text_factory = bytes
                for table, sql in database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall():
                    digest.update(repr((table, sql)).encode())
                    if (sql or b"").startswith(b"CREATE TABLE") and table != b"acquire_write":
                        for row in database.execute(f'SELECT * FROM "{table.decode()}"'):
                            digest.update(repr(row).encode())
            found[name] = digest.hexdigest()
        except (sqlite3.Error, ValueError):
            del found[name]
    return found


def open_index(folder: Path, manifest: Generation) -> ChromaIndex:
    """Open the index of a published generation.

    Raises:
        CollectionError: The index is missing or damaged, or cannot be opened.
    """
    place = folder / manifest.folder
    found = _digests(place, manifest.index_files)
    wrong = [name for name, digest in manifest.index_files.items() if found.get(name) != digest]
    if wrong or not (place / FOLDER / DATABASE).is_file():
        raise CollectionError(
            f"the index of the collection {manifest.name!r} is damaged or missing "
            f"({', '.join(wrong) or DATABASE}); {_remedy(manifest.name)}"
        )
    if os.access(place / FOLDER, os.W_OK):
        return ChromaIndex(place / FOLDER, manifest.name)
    copied = copy_for_reading(place / FOLDER)
    index = ChromaIndex(copied, manifest.name)
    removed_with(index, copied)
    return index


def copy_for_reading(folder: Path) -> Path:
    """Copy a Chroma folder to the scratch folder, because Chroma writes to a folder even if it only reads from it."""
    copied = Path(tempfile.mkdtemp(dir=scratch())) / FOLDER
    copied.mkdir()
    for file in sorted(folder.rglob("*")):
        target = copied / file.relative_to(folder)
        if file.suffix == ".sqlite3":  # a consistent copy, even while another process writes
            place = f"{file.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(place, uri=True)) as source, closing(sqlite3.connect(target)) as made:
                source.backup(made)
        elif file.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    return copied


def removed_with(reader: object, copied: Path) -> None:
    """Remove a copy when its reader is garbage collected."""
    weakref.finalize(reader, shutil.rmtree, copied.parent, ignore_errors=True).atexit = False


def nearest(
    table: Any, name: str, k: int, where: Mapping[str, Any] | None, *include: str, vectors: Vectors, remedy: str = ""
) -> list[list[tuple[Any, ...]]]:
    """Return the records in a Chroma collection nearest to each vector, as tuples of distance, id, and ``include``.

    Records with equal distances are ordered by id.
    """
    with chroma_errors(where, name, remedy):
        answer = table.query(n_results=k, where=where, include=["distances", *include], query_embeddings=vectors)
    columns = (answer[column] for column in ("distances", "ids", *include))
    return [sorted(zip(*lists, strict=True), key=lambda one: one[:2]) for lists in zip(*columns, strict=True)]


def ids_passing(table: Any, where: Mapping[str, Any], remedy: str = "", *, name: str = "") -> set[str]:
    """Return the ids of the records in a Chroma collection that match a filter."""
    with chroma_errors(where, name or str(table.name), remedy):
        return set(table.get(where=dict(where), include=[])["ids"])


@contextmanager
def chroma_errors(where: Mapping[str, Any] | None, name: str, remedy: str = "") -> Iterator[None]:
    """Turn Chroma's errors into ``InputError`` if the request is invalid, and ``CollectionError`` if the index is."""
    import httpx
    from chromadb.errors import ChromaError, InvalidArgumentError

    try:
        yield
    except (ValueError, TypeError, InvalidArgumentError) as error:
        raise InputError(f"Chroma rejected the search with the filter {where!r}: {error}") from error
    except (ChromaError, httpx.HTTPError) as error:
        raise CollectionError(
            f"the index of the collection {name!r} cannot be read ({error}); {remedy or _remedy(name)}"
        ) from error


def _remedy(name: str) -> str:
    return f"run {index_command(name)} to rebuild the index from the stored passages and vectors"


def close_client(client: Any, pid: int) -> None:
    """Close a client in the process that opened it; closing a forked copy would hang."""
    if os.getpid() == pid:
        client.close()
