"""Builds a collection: passages in, a checked and published generation out.

Everything is built beside what is published and replaces it in one step. Vectors are stored as they are made,
so a build that was killed goes on where it stopped, and a build of the same passages does nothing.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.files import sync
from querywright.home import home as working_folder
from querywright.models.embedder import CHUNK, Embedder, Progress, TextEmbedder, Vectors, with_store
from querywright.retrieval.chroma import check_embedder, check_index, sample
from querywright.retrieval.chroma_index import (
    ChromaIndex,
    check_answers,
    check_files,
    chroma_version,
    missed,
    open_shared,
    write_index,
)
from querywright.retrieval.collection import (
    MANIFEST,
    SPACE,
    Generation,
    building,
    collection_folder,
    content_hash,
    index_command,
    read_manifest,
    read_passages,
    remove_lock,
    write_passages,
)
from querywright.retrieval.passages import checked_passages

ATTEMPTS = 3
SEARCH_ALL = 10_000
SEARCH_SAMPLE = 500

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What a build did.

    Args:
        name: The collection.
        count: Passages in it now.
        added: Passages that were not in it before.
        changed: Passages whose text, title or metadata replaced another of their id.
        removed: Passages that were in it and are not any more.
        embedded: Texts that the model embedded.
        cached: Texts whose vectors were in the store.
        generation: Number of the published generation.
        rebuilt: Whether a new generation was built; False when nothing was to do.
        seconds: How long it took.
    """

    name: str
    count: int
    added: int
    changed: int
    removed: int
    embedded: int
    cached: int
    generation: int
    rebuilt: bool
    seconds: float


def build_collection(
    name: str,
    passages: Iterable[Passage],
    *,
    embedder: TextEmbedder,
    home: Path | None = None,
    prune: bool = False,
    progress: Progress | None = None,
) -> IndexReport:
    """Adds passages to a collection, which is made when it is not there.

    A passage replaces the one of its id. Building the same passages again does nothing; a damaged index is
    built again from the passages and vectors that are kept.

    Args:
        name: The collection: 1 to 63 of ``a-z 0-9 _ -``.
        passages: At least one.
        embedder: Embeds their ``content``. Another one than before embeds the whole collection again.
        home: The working folder. Default: ``querywright.home.home()``.
        prune: Whether passages that are not named here are removed. Default False.
        progress: Called with (texts embedded, texts in all) while it works. Default None.

    Raises:
        DataError: When a passage cannot be stored or one id has two contents; all problems at once, before
            anything is done.
        CollectionError: When another process builds it, or what is published is damaged and passages that are
            not named here would be lost.
    """
    begin = time.monotonic()
    given = checked_passages(passages)
    home = working_folder(home)
    folder = collection_folder(name, home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with building(folder, name):
        published, before = _published(folder, given, prune)
        _sweep(folder, published)
        merged = given if prune else {**before, **given}
        added, removed = len(merged.keys() - before.keys()), len(before.keys() - merged.keys())
        changed = sum(before[id].digest() != merged[id].digest() for id in merged.keys() & before.keys())
        del before  # what is pruned or replaced need not lie in memory while the index is built
        vectors_of = with_store(embedder, home)
        embedded, cached = vectors_of.n_embedded, vectors_of.n_cached
        content = content_hash(merged.values())
        if published is not None and _is_current(folder, published, content, merged, vectors_of):
            manifest = published
            embedded, cached = vectors_of.n_embedded - embedded, vectors_of.n_cached - cached
        else:
            ordered = [merged[id] for id in sorted(merged)]
            _embed(ordered, vectors_of, progress)
            embedded, cached = vectors_of.n_embedded - embedded, vectors_of.n_cached - cached
            number = 1 + max(_generations(folder), default=0)
            manifest = _build(folder, name, number, ordered, content, vectors_of)
            _sweep(folder, manifest)
        return IndexReport(
            name=name,
            count=manifest.count,
            added=added,
            changed=changed,
            removed=removed,
            embedded=embedded,
            cached=cached,
            generation=manifest.generation,
            rebuilt=manifest is not published,
            seconds=time.monotonic() - begin,
        )


def _published(folder: Path, given: Mapping[str, Passage], prune: bool) -> tuple[Generation | None, dict[str, Passage]]:
    """What is published. Damage is an error only where passages that are not given would be lost."""
    try:
        manifest = read_manifest(folder)
    except CollectionError:
        if not prune:
            raise
        _logger.warning("the manifest of the collection %r is damaged and is replaced", folder.name)
        return None, {}
    if manifest is None:
        return None, {}
    try:
        return manifest, read_passages(folder, manifest)
    except CollectionError:
        if not prune and content_hash(given.values()) != manifest.content_hash:
            raise
        _logger.warning("the passages of the collection %r are damaged and are replaced", folder.name)
        return None, {}


def _is_current(
    folder: Path, manifest: Generation, content: str, passages: Mapping[str, Passage], embedder: Embedder
) -> bool:
    """Whether the published generation is what would be built now, and whole."""
    if content != manifest.content_hash or embedder.id != manifest.embedder:
        return False
    try:
        check_embedder(manifest, embedder)
        check_files(folder / manifest.chroma_folder, manifest)
        index = open_shared(folder, manifest)
        if index is None:
            return False
        check_index(index, manifest, passages, embedder)
    except CollectionError as error:
        _logger.warning("the collection %r is built again: %s", manifest.name, error)
        return False
    return True


class _Vectors:
    """The vectors of passages, read from the store when they are asked for: all at once may not fit into memory."""

    def __init__(self, passages: Sequence[Passage], embedder: Embedder) -> None:
        self._passages, self._embedder = passages, embedder

    def __getitem__(self, part: slice, /) -> Vectors:
        return self.of(self._passages[part])

    def of(self, passages: Iterable[Passage]) -> Vectors:
        """One row a passage."""
        return self._embedder.encode([passage.content for passage in passages])

    def ties(self) -> int:
        """The most passages that share one vector; of each vector eight bytes of a digest are looked at."""
        digests = np.empty(len(self._passages), dtype=np.uint64)
        for start in range(0, len(digests), CHUNK):
            rows = self[start : start + CHUNK]
            own = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
            digests[start : start + len(rows)] = np.frombuffer(b"".join(own), dtype=np.uint64)
        return int(np.unique(digests, return_counts=True)[1].max())


def _embed(passages: Sequence[Passage], embedder: Embedder, progress: Progress | None) -> None:
    """Puts the vectors of all distinct texts into the store, a part at a time."""
    texts = list(dict.fromkeys(passage.content for passage in passages))
    for start in range(0, len(texts), CHUNK):
        embedder.encode(texts[start : start + CHUNK])
        if progress is not None:
            progress(min(start + CHUNK, len(texts)), len(texts))


def _build(
    folder: Path, name: str, number: int, passages: Sequence[Passage], content: str, embedder: Embedder
) -> Generation:
    """Builds, checks and publishes a generation."""
    ids = [passage.id for passage in passages]
    vectors = _Vectors(passages, embedder)
    ties = vectors.ties()
    for attempt in range(1, ATTEMPTS + 1):
        temporary = folder / f"tmp-{number}-{secrets.token_hex(4)}"
        try:
            files = write_index(temporary, ids, vectors, [passage.metadata for passage in passages])
            manifest = Generation(
                name=name,
                generation=number,
                embedder=embedder.id,
                dimension=int(vectors[:1].shape[1]),
                space=SPACE,
                count=len(ids),
                ties=ties,
                content_hash=content,
                passages_sha256="",
                chroma_version=chroma_version(),
                index_files=files,
            )
            lost = _lost(temporary, manifest, passages, vectors)
            if not lost:
                return _publish(folder, temporary, manifest, passages)
            _logger.warning("attempt %d to index %r lost %d passages", attempt, name, len(lost))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    raise CollectionError(
        f"{ATTEMPTS} attempts to build the collection {name!r} gave an index that does not find all of its "
        f"passages; nothing was published; free memory and disk space and run {index_command(name)} again"
    )


def _lost(path: Path, manifest: Generation, passages: Sequence[Passage], vectors: _Vectors) -> list[str]:
    """Passages that the new index does not find by their own vector, judged by exact similarities."""
    by_id = {passage.id: passage for passage in passages}
    tried = list(by_id) if len(by_id) <= SEARCH_ALL else sample(list(by_id), SEARCH_SAMPLE)

    def similarity(own: str, other: str) -> float:
        if other not in by_id:
            return -1.0
        one, two = vectors.of([by_id[own], by_id[other]])
        return float(one @ two)

    index = ChromaIndex(path, manifest.name)
    try:
        check_answers(index, manifest)
        lost = []
        for start in range(0, len(tried), SEARCH_SAMPLE):
            part = tried[start : start + SEARCH_SAMPLE]
            lost.extend(missed(index, part, vectors.of(by_id[id] for id in part), similarity))
        return lost
    finally:
        index.close()


def _publish(folder: Path, temporary: Path, manifest: Generation, passages: Sequence[Passage]) -> Generation:
    """Puts the files of a generation into place, and as the last step points the manifest at them."""
    sha256 = write_passages(folder / manifest.passages_file, passages)
    manifest = manifest.model_copy(update={"passages_sha256": sha256})
    temporary.rename(folder / manifest.chroma_folder)
    (folder / manifest.readers_lock).touch(mode=0o600)
    sync(folder)
    manifest.write(folder / MANIFEST)
    return manifest


def _generations(folder: Path) -> list[int]:
    """Numbers of all generations that have left a file."""
    numbers = [path.stem.partition("-")[2] for path in folder.glob("*-*")]
    return [int(number) for number in numbers if number.isdecimal()]


def _sweep(folder: Path, published: Generation | None) -> None:
    """Removes half-built folders and the generations that nobody reads any more."""
    kept = published.generation if published else None
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
    for path in folder.glob("tmp-*"):
        shutil.rmtree(path, ignore_errors=True)
    if published is None and (folder / MANIFEST).exists():
        return  # the manifest is damaged: nothing goes before its successor is there
    for number in set(_generations(folder)) - {kept}:
        if remove_lock(folder / f"readers-{number}.lock"):
            shutil.rmtree(folder / f"chroma-{number}", ignore_errors=True)
            (folder / f"passages-{number}.jsonl").unlink(missing_ok=True)
