"""Builds a collection: passages in, a checked and published generation out.

Everything is built beside what is published and replaces it in one step. Vectors are stored as they are made,
so a build that was killed goes on where it stopped, and a build of the same passages does nothing.
"""

from __future__ import annotations

import logging
import math
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from querywright.data.documents import OF_DOCUMENTS, Documents, read_documents
from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError
from querywright.files import sync
from querywright.home import home as working_folder
from querywright.models.embedder import Embedder, Progress, TextEmbedder, with_store
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
    published_passages,
    read_manifest,
    read_passages,
    sweep,
    write_passages,
)

SEARCH_ALL = 10_000
SEARCH_SAMPLE = 500
CHECKED_AT_OPENING = 16
LARGEST_INTEGER = 2**63 - 1

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
    progress: Progress | bool | None = None,
) -> IndexReport:
    """Adds passages to a collection, which is made when it is not there.

    A passage replaces the one of its id, and those of a document all that there were of it. Building the same
    passages again does nothing; a damaged index is built again from the passages and vectors that are kept.

    Args:
        name: The collection: 1 to 63 of ``a-z 0-9 _ -``.
        passages: At least one.
        embedder: Embeds their ``content``. Another one than before embeds the whole collection again.
        home: The working folder. Default: ``querywright.home.home()``.
        prune: Whether passages that are not named here are removed. Default False.
        progress: True for a bar, or called with (passages embedded, passages in all) while it works. Default None.

    Raises:
        DataError: When a passage cannot be stored or one id has two contents; all problems at once, before
            anything is done.
        InputError: When the name has another form, or is that of the questions of a collection.
        CollectionError: When another process builds it, or what is published is damaged and passages that are
            not named here would be lost.
    """
    begin = time.monotonic()
    given = checked_passages(passages)
    if name.endswith(QUESTIONS_SUFFIX) and not all(one.metadata.keys() >= OF_QUESTIONS for one in given.values()):
        raise InputError(
            f"a name that ends in {QUESTIONS_SUFFIX} is that of the questions written for a collection, but got "
            f"{name!r}; give the collection another name"
        )
    home = working_folder(home)
    folder = collection_folder(name, home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with shown(progress is True, "comparing with what is there") as bar, building(folder, name):
        mine = None if bar is None else partial(bar, "embedding")
        told: Progress | None = mine if isinstance(progress, bool) else progress
        for path in folder.glob("tmp-*"):  # what a build that was killed has left
            shutil.rmtree(path, ignore_errors=True)
        published, before = _published(folder, given, prune)
        files = {one.metadata["file"] for one in given.values() if one.metadata.keys() >= OF_DOCUMENTS}
        kept = {id: one for id, one in before.items() if not (files and one.metadata.get("file") in files)}
        merged = given if prune else {**kept, **given}
        merged = {id: merged[id] for id in sorted(merged)}
        content, stored, manifest = content_hash(merged.values()), with_store(embedder, home), published
        embedded, cached = stored.n_embedded, 0
        if manifest is None or not _is_current(folder, manifest, content, merged, stored):
            manifest = _build(folder, merged, content, stored, told)
            cached = len({one.content for one in merged.values()}) - stored.n_embedded + embedded
        sweep(folder, manifest)
        return IndexReport(
            name=name,
            count=manifest.count,
            added=len(merged.keys() - before.keys()),
            changed=sum(before[id].digest() != merged[id].digest() for id in merged.keys() & before.keys()),
            removed=len(before.keys() - merged.keys()),
            embedded=stored.n_embedded - embedded,
            cached=cached,
            generation=manifest.number,
            rebuilt=manifest is not published,
            seconds=time.monotonic() - begin,
        )


def read_into(name: str, source: Any, home: Path | None = None, **options: Any) -> Documents:
    """Documents for a collection, see ``read_documents``: files that it holds unchanged are not read again."""
    known: Mapping[str, Passage] = {}
    with suppress(CollectionError):
        _, known = published_passages(collection_folder(name, home), home)
    return read_documents(source, known=known.values(), **options)


def checked_passages(passages: Iterable[Passage]) -> dict[str, Passage]:
    """The passages by id; the same passage twice is one."""
    by_id: dict[str, Passage] = {}
    problems: list[str] = []
    for passage in passages:
        problem = _problem(passage)
        if problem:
            problems.append(f"passage {passage.id!r}: {problem}")
        elif by_id.setdefault(passage.id, passage).digest() != passage.digest():
            problems.append(f"passage {passage.id!r}: two passages with different content have this id")
    if problems:
        raise DataError(list(dict.fromkeys(problems)))
    if not by_id:
        raise DataError("there are no passages to index; give at least one")
    return by_id


def _problem(passage: Passage) -> str | None:
    """What keeps a passage from being stored; types are looked at, because rows come from outside."""
    id: Any = passage.id
    text: Any = passage.text
    if not isinstance(id, str) or not id or "\0" in id:
        return "its id must be a text that is not empty, without NUL"
    if not isinstance(text, str) or not text.strip():
        return "its text is empty"
    for key, value in dict[Any, Any](passage.metadata).items():
        if not isinstance(key, str) or not key or key.startswith(("$", "#", "chroma:")):
            return f"metadata key {key!r} must be a text that does not begin with $, # or chroma:"
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            return f"metadata {key!r} must be a text, a finite number, true or false, but is {value!r}"
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            return f"metadata {key!r} is larger than 64 bits: {value}"
    try:
        passage.digest()
    except UnicodeEncodeError as error:
        return f"it is not valid Unicode ({error.reason})"
    return None


def _published(folder: Path, given: Mapping[str, Passage], prune: bool) -> tuple[Generation | None, dict[str, Passage]]:
    """What is published. Damage is an error only where passages that are not given would be lost."""
    manifest = None
    try:
        manifest = read_manifest(folder)
        return manifest, {} if manifest is None else read_passages(folder / manifest.folder / PASSAGES, manifest)
    except CollectionError as error:
        if not prune and (manifest is None or content_hash(given.values()) != manifest.content_hash):
            raise
        _logger.warning("what is published is replaced: %s", error)
        return None, {}


def _is_current(
    folder: Path, manifest: Generation, content: str, passages: Mapping[str, Passage], embedder: Embedder
) -> bool:
    """Whether the published generation is what would be built now, and whole."""
    if (content, embedder.id, embedder.dimension) != (manifest.content_hash, manifest.embedder, manifest.dimension):
        return False
    try:
        open_index(folder, manifest).check(passages, encoder_of(folder.name, embedder), CHECKED_AT_OPENING)
    except CollectionError as error:
        _logger.warning("the collection %r is built again: %s", manifest.name, error)
        return False
    return True


def _build(
    folder: Path,
    passages: Mapping[str, Passage],
    content: str,
    embedder: Embedder,
    progress: Progress | None,
    neighbours: Sequence[int] = NEIGHBOURS,
) -> Generation:
    """Builds, checks and publishes a generation; where it does not find all passages, with more links between them."""
    name, ordered, encode = folder.name, list(passages.values()), encoder_of(folder.name, embedder)
    numbers = [path.name.partition("-")[2] for path in folder.glob("generation-*")]
    temporary = folder / f"tmp-{secrets.token_hex(4)}"
    temporary.mkdir(mode=0o700)
    try:
        files, ties = write_index(temporary / FOLDER, ordered, encode, progress, neighbours[0])
        index = ChromaIndex(temporary / FOLDER, name)
        try:
            index.check(passages, encode, len(passages) if len(passages) <= SEARCH_ALL else SEARCH_SAMPLE)
        except CollectionError as error:
            if neighbours[1:]:
                return _build(folder, passages, content, embedder, progress, neighbours[1:])
            raise CollectionError(f"what was built is not published: {error}") from error
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
            passages_sha256=write_passages(temporary / PASSAGES, ordered),
            chroma_version=version("chromadb"),
            index_files=files,
        )
        temporary.rename(folder / manifest.folder)
        sync(folder)
        manifest.write(folder / MANIFEST)
        return manifest
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
