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
        stayed: Passages that were in it, were not given now, and are in it still.
        embedded: Texts that the model embedded.
        cached: Texts whose vectors were in the store.
        generation: Number of the published generation.
        rebuilt: Whether a new generation was built; False when nothing was to do.
        seconds: How long it took.
        notes: Texts that have several ids and, if it was rebuilt, passages that are longer than the embedder reads.
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
    home = working_folder(home)
    given = checked_passages(passages)
    if name.endswith(QUESTIONS_SUFFIX) and not all(one.metadata.keys() >= OF_QUESTIONS for one in given.values()):
        raise InputError(
            f"a name that ends in {QUESTIONS_SUFFIX} is that of the questions written for a collection, but got "
            f"{name!r}; give the collection another name"
        )
    folder = collection_folder(name, home)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with shown(progress is True, "comparing with what is there") as bar, building(folder, name):
        mine = None if bar is None else partial(bar, "embedding")
        told: Progress | None = mine if isinstance(progress, bool) else progress
        for path in folder.glob("tmp-*"):  # what a build that was killed has left
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
        )


def _copies(passages: Iterable[Passage]) -> list[str]:
    """Count the texts that several passages have."""
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
        f"{has} two or more ids, such as {first[text]!r} and {copy!r}: a search may find any of them, so index each "
        "text once, or label all its ids"
    ]


def longer_notes(passages: Iterable[Passage], embedder: Embedder) -> list[str]:
    """Count the passages that are longer than the embedder reads; empty if there are none, or it cannot be loaded."""
    left, count, found, most = iter(passages), 0, list[str](), None
    while part := list(islice(left, CHUNK)):
        try:
            longer, most = embedder.longer([one.content for one in part])
        except QuerywrightError:  # all vectors were in the store, so the build does without the model
            return []
        found += [one.id for one, is_longer in zip(part, longer, strict=True) if is_longer]
        count += len(part)
        if most is None:
            break
    if not found:
        return []
    are = "is" if len(found) == 1 else "are"
    return [
        f"{len(found)} of {count} passages {are} longer than the embedder reads ({most} tokens), such as {found[0]!r}: "
        "dense search sees only the beginning. Split them (documents: a smaller --chunk-size), or search with the "
        "engine bm25 or hybrid"
    ]


def checked_passages(passages: Iterable[Passage]) -> dict[str, Passage]:
    """Return the passages by id; the same passage twice is one."""
    by_id: dict[str, Passage] = {}
    problems: dict[str, None] = {}
    for passage in passages:
        try:
            _check_storable(passage)
            known = by_id.setdefault(passage.id, passage)
            if known is not passage and known.digest() != passage.digest():
                raise ValueError("two passages with different content have this id")
        except ValueError as error:
            problems[f"passage {passage.id!r}: {error}"] = None
    if problems:
        raise DataError(list(problems))
    if not by_id:
        raise DataError("there are no passages to index; give at least one")
    return by_id


def _check_storable(passage: Passage) -> None:
    """Refuse a passage that cannot be stored; types are checked too, because rows come from outside.

    Raises:
        ValueError: What keeps it from being stored.
    """
    id: Any = passage.id
    text: Any = passage.text
    if not isinstance(id, str) or not id or "\0" in id:
        raise ValueError("its id must be a text that is not empty, without NUL")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("its text is empty")
    for key, value in dict[Any, Any](passage.metadata).items():
        if not isinstance(key, str) or not key or key.startswith(("$", "#", "chroma:")):
            raise ValueError(f"metadata key {key!r} must be a text that does not begin with $, # or chroma:")
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"metadata {key!r} must be a text, a finite number, true or false, but is {value!r}")
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ValueError(f"metadata {key!r} is larger than 64 bits: {value}")
    try:
        passage_line(passage)
    except UnicodeEncodeError as error:
        raise ValueError(f"it is not valid Unicode ({error.reason})") from error


def _published(
    folder: Path, given: Mapping[str, Passage], prune: bool
) -> tuple[Generation | None, Mapping[str, Passage]]:
    """What is published. Damage is an error only where passages that are not given would be lost."""
    manifest = None
    try:
        manifest = read_manifest(folder)
        return manifest, {} if manifest is None else load_passages(folder / manifest.folder / PASSAGES, manifest)
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
) -> tuple[Generation, int]:
    """Builds, checks and publishes a generation of sorted passages; gives it, and how many distinct texts there are.

    Where it does not find all passages, it is built with more links between them.
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
