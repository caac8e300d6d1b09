"""Build a collection from passages, check it, and publish it.

A build writes a new generation next to the published generation, and then replaces the published generation in one
step. Vectors are cached as they are computed, so a killed build can resume, and rebuilding with the same passages does
nothing.
"""

from __future__ import annotations

import logging
import math
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError, QuerywrightError
from querywright.files import sync
from querywright.home import home as working_folder
from querywright.models.embedder import CHUNK, Embedder, Progress, TextEmbedder, with_store
from querywright.progress import shown
from querywright.retrieval.chroma_index import FOLDER, NEIGHBOURS, ChromaIndex, open_index, write_index
from querywright.retrieval.collection import (
    MANIFEST,
    OF_QUESTIONS,
    PASSAGES,
    QUESTIONS_SUFFIX,
    Generation,
    building,
    collection_folder,
    content_hash,
    encoder_of,
    load_passages,
    passage_line,
    read_manifest,
    sweep,
    write_passages,
)
from querywright.retrieval.edits import remember_former
from querywright.retrieval.fusion import reading

SEARCH_ALL = 10_000
SEARCH_SAMPLE = 500
CHECKED_AT_OPENING = 16
LARGEST_INTEGER = 2**63 - 1
SHOWN_FILES = 3

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The counts of a build.

    Args:
        name: Name of the collection.
        count: Number of passages now in the collection.
        added: New passages.
        changed: Passages whose text, title, or metadata changed.
        removed: Passages that were removed.
        stayed: Passages from earlier builds that are not among the given passages, but stay in the collection.
        embedded: Texts that were embedded with the model.
        cached: Texts whose vectors came from the cache.
        generation: Number of the published generation.
        rebuilt: Whether a new generation was built; False if nothing changed.
        seconds: Duration of the build.
        notes: Warnings about texts that occur under several ids and, if the collection was rebuilt, about passages that
            are too long for the embedder.
        stayed_files: The document files of the passages that stay.
    """

    name: str
    count: int
    added: int
    changed: int
    removed: int
    stayed: int
    embedded: int
    cached: int
    generation: int
    rebuilt: bool
    seconds: float
    notes: tuple[str, ...] = ()
    stayed_files: tuple[str, ...] = ()

    @property
    def stayed_text(self) -> str:
        """The number of passages that stay, and the first of their files."""
        more = ", ..." if len(self.stayed_files) > SHOWN_FILES else ""
        files = f" from {', '.join(self.stayed_files[:SHOWN_FILES])}{more}" if self.stayed_files else ""
        return f"{self.stayed}{files}"


def build_collection(
    name: str,
    passages: Iterable[Passage],
    *,
    embedder: TextEmbedder,
    home: Path | None = None,
    prune: bool = False,
    progress: Progress | bool | None = None,
) -> IndexReport:
    """Add passages to a collection, creating it if it does not exist.

    A passage replaces the passage with the same id, and the passages of a document replace all passages of the same
    document. Building the same passages again does nothing. A damaged index is rebuilt from the stored passages and
    vectors.

    Args:
        name: Name of the collection: 1 to 63 characters from ``a-z 0-9 _ -``.
        passages: At least one passage.
        embedder: The embedder. If it differs from the previous one, the whole collection is embedded again.
        home: The workspace. Default: ``querywright.home.home()``.
        prune: Whether to remove existing passages that are not in ``passages``. Default False.
        progress: True for a progress bar, or a function that is called with the number of embedded passages and the
            total. Default None.

    Raises:
        DataError: Some passages cannot be stored, or two different passages have the same id; all problems are reported
            at once, and nothing is changed.
        InputError: The name is not valid, or is reserved for a collection's questions.
        CollectionError: Another process is building the collection, or the published collection is damaged and passages
            that are not in ``passages`` would be lost.
    """
    begin = time.monotonic()
    home = working_folder(home)
    given = checked_passages(passages)
    if name.endswith(QUESTIONS_SUFFIX) and not all(one.metadata.keys() >= OF_QUESTIONS for one in given.values()):
        raise InputError(
            f"the collection name {name!r} is reserved: names that end in {QUESTIONS_SUFFIX} are reserved for "
            "generated questions; choose a different name"
        )
    folder = collection_folder(name, home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with shown(progress is True, "comparing with the collection") as bar, building(folder, name):
        mine = None if bar is None else partial(bar, "embedding")
        told: Progress | None = mine if isinstance(progress, bool) else progress
        for path in folder.glob("tmp-*"):  # left by a build that was killed
            shutil.rmtree(path, ignore_errors=True)
        published, before = _published(folder, given, prune)
        files = {one.metadata["file"] for one in given.values() if one.is_of_document}
        stay = {} if prune else {id: one for id, one in before.items() if one.metadata.get("file") not in files}
        merged = dict(sorted({**stay, **given}.items()))
        content, stored, manifest = content_hash(merged.values()), with_store(embedder, home), published
        embedded, cached = stored.n_embedded, 0
        remember_former(folder, before, merged)
        if manifest is None or not _is_current(folder, manifest, content, before, stored):
            manifest, distinct = _build(folder, merged, content, stored, told)
            cached = distinct - stored.n_embedded + embedded
        sweep(folder, manifest)
        there = [id for id in merged if id in before]
        notes: list[str] = []
        if not name.endswith(QUESTIONS_SUFFIX):
            notes += _copies(merged.values())
            if manifest is not published and isinstance(embedder, Embedder):
                notes += longer_notes(merged.values(), embedder)
        return IndexReport(
            name=name,
            count=manifest.count,
            added=len(merged) - len(there),
            changed=sum(id in given and before[id].digest() != given[id].digest() for id in there),
            removed=len(before) - len(there),
            stayed=len(merged) - len(given),
            embedded=stored.n_embedded - embedded,
            cached=cached,
            generation=manifest.number,
            rebuilt=manifest is not published,
            seconds=time.monotonic() - begin,
            notes=tuple(notes),
            stayed_files=tuple(sorted({str(one.metadata["file"]) for one in stay.values() if one.is_of_document})),
        )


def _copies(passages: Iterable[Passage]) -> list[str]:
    """Return a warning with the number of texts that occur under several ids; empty if there are none."""
    first, copies = dict[bytes, str](), dict[bytes, str]()
    for passage in passages:
        text = reading("", passage.text)
        if first.setdefault(text, passage.id) != passage.id:
            copies.setdefault(text, passage.id)
    if not copies:
        return []
    text, copy = next(iter(copies.items()))
    has = "1 text has" if len(copies) == 1 else f"{len(copies)} texts have"
    return [
        f"{has} two or more IDs, such as {first[text]!r} and {copy!r}; a search may return any of these IDs, so index "
        "each text once, or list all its IDs as 'alternatives' in the questions"
    ]


def longer_notes(passages: Iterable[Passage], embedder: Embedder) -> list[str]:
    """Return a warning with the number of passages that are too long for the embedder.

    The result is empty if there are no such passages, or if the embedder cannot be loaded.
    """
    left, count, found, most = iter(passages), 0, list[str](), None
    while part := list(islice(left, CHUNK)):
        try:
            longer, most = embedder.longer([one.content for one in part])
        except QuerywrightError:  # all vectors were cached, so the build did not need the model
            return []
        found += [one.id for one, is_longer in zip(part, longer, strict=True) if is_longer]
        count += len(part)
        if most is None:
            break
    if not found:
        return []
    are = "is" if len(found) == 1 else "are"
    return [
        f"{len(found)} of {count} passages {are} too long for the embedder (limit: {most} tokens), such as "
        f"{found[0]!r}; dense search uses only the beginning of such a passage. Split long passages (for documents, "
        "set a smaller --chunk-size), or use the bm25 or hybrid engine"
    ]


def checked_passages(passages: Iterable[Passage]) -> dict[str, Passage]:
    """Check passages, and return them keyed by id; equal passages count once.

    Raises:
        DataError: Some passages cannot be stored, or two different passages have the same id.
    """
    by_id: dict[str, Passage] = {}
    problems: dict[str, None] = {}
    for passage in passages:
        try:
            _check_storable(passage)
            known = by_id.setdefault(passage.id, passage)
            if known is not passage and known.digest() != passage.digest():
                raise ValueError("two passages with different content have this ID")
        except ValueError as error:
            problems[f"passage {passage.id!r}: {error}"] = None
    if problems:
        raise DataError(list(problems))
    if not by_id:
        raise DataError("there are no passages to index; pass at least one")
    return by_id


def _check_storable(passage: Passage) -> None:
    """Check that a passage can be stored. Types are checked too, because rows come from users.

    Raises:
        ValueError: The passage cannot be stored; the message says why.
    """
    id: Any = passage.id
    text: Any = passage.text
    if not isinstance(id, str) or not id or "\0" in id:
        raise ValueError("its ID must be a non-empty string without NUL characters")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("its text is empty")
    for key, value in dict[Any, Any](passage.metadata).items():
        if not isinstance(key, str) or not key or key.startswith(("$", "#", "chroma:")):
            raise ValueError(f"metadata key {key!r} must be a string that does not start with '$', '#', or 'chroma:'")
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"metadata {key!r} must be a string, a finite number, true, or false, but got {value!r}")
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ValueError(f"metadata {key!r} must fit in 64 bits, but got {value}")
    try:
        passage_line(passage)
    except UnicodeEncodeError as error:
        raise ValueError(f"its content is not valid Unicode ({error.reason})") from error


def _published(
    folder: Path, given: Mapping[str, Passage], prune: bool
) -> tuple[Generation | None, Mapping[str, Passage]]:
    """Return the published generation and its passages. Damage is an error only if passages would be lost."""
    manifest = None
    try:
        manifest = read_manifest(folder)
        return manifest, {} if manifest is None else load_passages(folder / manifest.folder / PASSAGES, manifest)
    except CollectionError as error:
        if not prune and (manifest is None or content_hash(given.values()) != manifest.content_hash):
            raise
        _logger.warning("replacing the published collection: %s", error)
        return None, {}


def _is_current(
    folder: Path, manifest: Generation, content: str, passages: Mapping[str, Passage], embedder: Embedder
) -> bool:
    """Return whether the published generation is complete and identical to the one that would be built."""
    if (content, embedder.id, embedder.dimension) != (manifest.content_hash, manifest.embedder, manifest.dimension):
        return False
    try:
        open_index(folder, manifest).check(passages, encoder_of(folder.name, embedder), CHECKED_AT_OPENING)
    except CollectionError as error:
        _logger.warning("rebuilding the collection %r: %s", manifest.name, error)
        return False
    return True


def _build(
    folder: Path,
    passages: Mapping[str, Passage],
    content: str,
    embedder: Embedder,
    progress: Progress | None,
    neighbours: Sequence[int] = NEIGHBOURS,
) -> tuple[Generation, int]:
    """Build, check, and publish a generation of sorted passages; return it with the number of distinct texts.

    If the check does not find all passages, the index is rebuilt with more links per vector.
    """
    name, encode = folder.name, encoder_of(folder.name, embedder)
    numbers = [path.name.partition("-")[2] for path in folder.glob("generation-*")]
    temporary = folder / f"tmp-{secrets.token_hex(4)}"
    temporary.mkdir(mode=0o700)
    try:
        digest = write_passages(temporary / PASSAGES, passages.values())
        files, ties = write_index(temporary / FOLDER, passages, encode, progress, neighbours[0])
        index = ChromaIndex(temporary / FOLDER, name)
        try:
            index.check(passages, encode, len(passages) if len(passages) <= SEARCH_ALL else SEARCH_SAMPLE)
        except CollectionError as error:
            if neighbours[1:]:
                return _build(folder, passages, content, embedder, progress, neighbours[1:])
            raise CollectionError(f"the new index was not published: {error}") from error
        finally:
            index.close()
        manifest = Generation(
            name=name,
            number=1 + max((int(one) for one in numbers if one.isdecimal()), default=0),
            embedder=embedder.id,
            dimension=embedder.dimension,
            count=len(passages),
            ties=ties,
            content_hash=content,
            passages_sha256=digest,
            chroma_version=version("chromadb"),
            index_files=files,
        )
        temporary.rename(folder / manifest.folder)
        sync(folder)
        manifest.write(folder / MANIFEST)
        return manifest, len({one.content for one in passages.values()})
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
