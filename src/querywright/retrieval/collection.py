"""A collection on disk: its published generation, its passages, and the locks for building and deleting it.

The folder ``collections/<name>/`` contains ``manifest.json``, which names the published generation. A generation is a
folder ``generation-N`` with ``passages.jsonl`` and ``chroma/``. The index in ``chroma/`` is built from the passages and
can be deleted. Replacing the manifest publishes a different generation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from querywright.checksummed import Checksummed
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import file_digest, locked, open_lock, take_lock, write_file
from querywright.home import home as working_folder
from querywright.models.embedder import Embedder, Side, TextEmbedder, Vectors
from querywright.models.usage import call_context
from querywright.shared import Shared

MANIFEST = "manifest.json"
PASSAGES = "passages.jsonl"
QUESTIONS_SUFFIX = "-questions"
"""Suffix of the names of collections that contain generated questions. No other collection's name may end with it."""
OF_QUESTIONS = frozenset({"passage", "digest", "label"})
"""Metadata keys of a generated question. They identify the passage that it was generated for."""
LONGEST_NAME = 63
_ENGINE = "; choose the engine separately (engine=...; in a study, retrievers: {NAME: COLLECTION@ENGINE})"
NAME_PATTERN = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{LONGEST_NAME - 1}}}")
REOPENINGS = 5


class Generation(Checksummed):
    """The manifest of a published generation.

    Args:
        name: Name of the collection.
        number: Number of the generation, starting at 1.
        embedder: Id of the embedder that the vectors come from.
        dimension: Dimension of the vectors.
        count: Number of passages.
        ties: Size of the largest group of passages with equal vectors; 1 if all vectors are distinct.
        content_hash: SHA-256 of the sorted digests of the passages.
        passages_sha256: SHA-256 of the passages file.
        chroma_version: Version of chromadb that the index was built with.
        index_files: SHA-256 of each index file that stays the same when the index is read, keyed by its path in the
            generation.
    """

    name: str
    number: int
    embedder: str
    dimension: int
    count: int
    ties: int
    content_hash: str
    passages_sha256: str
    chroma_version: str
    index_files: dict[str, str]

    @property
    def folder(self) -> str:
        """The name of the generation's folder. Readers share a lock on this folder."""
        return f"generation-{self.number}"


class CollectionPassages(Shared):
    """Base class for open collections, with their passages. A copy is the same object; unpickling reopens it.

    A subclass sets ``name``, ``folder``, which is the collection's folder, ``manifest``, and ``_passages``, a mapping
    of ids to passages, sorted by id.
    """

    name: str
    folder: Path
    manifest: Generation
    _made: tuple[tuple[Any, ...], dict[str, Any]]
    _passages: Mapping[str, Passage]

    def passages(self) -> Iterator[Passage]:
        """Return all passages of the collection, in the order of their ids."""
        return iter(self._passages.values())

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages with the given ids, in the given order.

        Raises:
            InputError: Some ids are not in the collection; the message names them.
        """
        return picked(self.name, self._passages, ids)

    @property
    def is_rebuilt(self) -> bool:
        """Whether the collection was rebuilt with different passages or a different embedder since it was opened."""
        with suppress(CollectionError):
            now = read_manifest(self.folder)
            own = self.manifest
            return now is not None and (now.content_hash, now.embedder) != (own.content_hash, own.embedder)
        return False

    def _record_search(self) -> None:
        """Add the collection to every open ledger in this context, unless it contains generated questions."""
        if not self.name.endswith(QUESTIONS_SUFFIX):
            for ledger in call_context().meters:
                ledger.searched.add(self)

    def __contains__(self, id: object) -> bool:
        return id in self._passages

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Create the object, and remember its arguments for pickling."""
        made = super().__new__(cls)
        made._made = (args, {name: value for name, value in options.items() if name != "progress"})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        args, options = self._made
        return partial(type(self), *args, **options), ()


def picked(name: str, passages: Mapping[str, Passage], ids: Sequence[str]) -> list[Passage]:
    """Return the passages with the given ids, in the given order; ``InputError`` names the missing ids."""
    unknown = [id for id in ids if id not in passages]
    if unknown:
        raise InputError(f"IDs that are not in the collection {name!r}: {', '.join(map(repr, unknown[:20]))}")
    return [passages[id] for id in ids]


def collection_folder(name: str, home: Path | None = None) -> Path:
    """Return the folder of a collection, whether or not it exists.

    Args:
        name: 1 to 63 characters from ``a-z 0-9 _ -``, starting with a letter or digit.
        home: The workspace. Default: ``querywright.home.home()``.

    Raises:
        InputError: The name is not valid.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"the collection name {name!r} is not valid; use 1 to {LONGEST_NAME} characters from a-z, 0-9, _, and -, "
            "and start with a letter or digit" + _ENGINE * ("@" in name)
        )
    return working_folder(home).resolve() / "collections" / name


def index_command(name: str, *, prune: bool = False) -> str:
    """Return the command that rebuilds a collection, for use in messages."""
    if name.endswith(QUESTIONS_SUFFIX):
        return f"querywright questions build {name.removesuffix(QUESTIONS_SUFFIX)}"
    return f"querywright index {name} SOURCE{' --prune' if prune else ''}"


def no_collection(name: str, home: Path | None = None) -> CollectionError:
    """Return the error for a missing collection. It names the workspace, and a nearby one with that collection."""
    folder, here = working_folder(home).resolve(), Path.cwd()
    homes = (place / ".querywright" for place in (here, *here.parents))
    other = next((one for one in homes if one != folder and (one / "collections" / name).is_dir()), None)
    remedy = f"build the collection with {index_command(name)}"
    if other:
        remedy = f"set home= to the workspace {str(other)!r}, where this collection exists"
    known = ", ".join(list_collections(home)) or "none"
    return CollectionError(f"there is no collection {name!r} in {str(folder)!r} (known: {known}); {remedy}")


def list_collections(home: Path | None = None) -> list[str]:
    """Return the sorted names of the published collections."""
    folder = working_folder(home) / "collections"
    return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))


def content_hash(passages: Iterable[Passage]) -> str:
    """Return the SHA-256 of the passages' sorted digests, which does not depend on the passages' order."""
    digests = np.sort(np.fromiter((passage.digest().encode() for passage in passages), dtype="S64"))
    return hashlib.sha256(b"\n".join(digests)).hexdigest()


def read_manifest(folder: Path) -> Generation | None:
    """Return a collection's manifest; None if there is none."""
    try:
        return Generation.read(folder / MANIFEST)
    except ValueError as error:
        raise CollectionError(
            f"the manifest of the collection {folder.name!r} is damaged ({error}); rebuild the collection from all "
            f"its passages: {index_command(folder.name, prune=True)}"
        ) from error


def check_embedder(manifest: Generation, embedder: TextEmbedder) -> None:
    """Raise ``CollectionError`` if a collection was built with a different embedder."""
    if manifest.embedder != embedder.id:
        raise CollectionError(
            f"the collection {manifest.name!r} was built with the embedder {manifest.embedder!r}, but got "
            f"{embedder.id!r}; use the same embedder, or rebuild the collection: {index_command(manifest.name)}"
        )
    if manifest.dimension != embedder.dimension:
        raise CollectionError(
            f"the vectors of the collection {manifest.name!r} have {manifest.dimension} dimensions, but the embedder "
            f"{embedder.id!r} makes vectors with {embedder.dimension} dimensions; run {index_command(manifest.name)}"
        )


def side_of(name: str) -> Side:
    """Return a collection's embedding side: ``query`` for questions, because queries are compared with them."""
    return "query" if name.endswith(QUESTIONS_SUFFIX) else "document"


def encoder_of(name: str, embedder: Embedder) -> Callable[[Sequence[str]], Vectors]:
    """Return the function that embeds a collection's passages."""
    return partial(embedder.encode, side=side_of(name))


def hold_published(folder: Path, home: Path | None = None) -> tuple[Generation, ExitStack]:
    """Return a collection's published generation, and a stack that protects it from removal until the stack is closed.

    Raises:
        CollectionError: There is no such collection, its manifest is damaged, or its generation is missing.
    """
    for _ in range(REOPENINGS):
        manifest = read_manifest(folder)
        if manifest is None:
            raise no_collection(folder.name, home)
        place = folder / manifest.folder
        with suppress(FileNotFoundError), ExitStack() as held:  # a build has replaced and removed it in the meantime
            descriptor = open_lock(place, make=False)
            held.callback(os.close, descriptor)
            if take_lock(descriptor, shared=True) and os.path.samestat(os.fstat(descriptor), place.stat()):
                return manifest, held.pop_all()
    raise CollectionError(
        f"the files of the collection {folder.name!r} are missing; rebuild the collection from all its "
        f"passages: {index_command(folder.name, prune=True)}"
    )


def published_passages(folder: Path, home: Path | None = None) -> tuple[Generation, dict[str, Passage]]:
    """Return a collection's published generation, and its passages keyed and sorted by id."""
    manifest, held = hold_published(folder, home)
    with held:
        return manifest, load_passages(folder / manifest.folder / PASSAGES, manifest)


def passage_line(passage: Passage) -> bytes:
    """Return a passage as one line of JSON."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text, "metadata": dict(passage.metadata)}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def passage_of(line: bytes) -> Passage:
    """Return the passage from a line written by ``passage_line``."""
    row = json.loads(line)
    return Passage(row["id"], row["text"], row["title"], {sys.intern(key): one for key, one in row["metadata"].items()})


def write_passages(path: Path, passages: Iterable[Passage]) -> str:
    """Write passages as JSON lines, and return the SHA-256 of the file."""
    return write_file(path, map(passage_line, passages))


def load_passages(path: Path, manifest: Generation) -> dict[str, Passage]:
    """Return a generation's passages, keyed and sorted by id."""
    state = "missing"
    with suppress(FileNotFoundError):
        if file_digest(path) == manifest.passages_sha256:
            with path.open("rb") as file:
                return {one.id: one for one in map(passage_of, file)}
        state = "damaged"
    raise CollectionError(
        f"{path.name} of the collection {manifest.name!r} is {state}; rebuild the collection from all its passages: "
        f"{index_command(manifest.name, prune=True)}"
    )


@contextmanager
def building(folder: Path, name: str, lock: str = "building.lock") -> Iterator[None]:
    """Hold the lock for building a collection, or another lock in its folder.

    The folder is removed at the end if it contains only the lock.
    """
    busy = f"the collection {name!r} is being built by another process; wait until that build finishes, and try again"
    with locked(folder / lock, CollectionError(busy)):
        try:
            yield
        finally:
            if folder.is_dir() and [one.name for one in folder.iterdir()] == [lock]:
                shutil.rmtree(folder, ignore_errors=True)


def delete_collection(name: str, home: Path | None = None) -> None:
    """Delete a collection and its questions; cached vectors and answers stay in the store.

    Raises:
        CollectionError: There is no such collection, or it is being built or searched; in that case, nothing is
            deleted.
    """
    folder = collection_folder(name, home)
    if not folder.is_dir():
        raise no_collection(folder.name, home)
    questions = folder.with_name(f"{name}{QUESTIONS_SUFFIX}")
    there = [one for one in (folder, questions) if one.is_dir()]
    with ExitStack() as held:
        for one in there:
            for lock in sorted(one.glob("*.lock")):
                held.enter_context(building(one, one.name, lock.name))
            for place in sorted(one.glob("generation-*")):
                held.callback(os.close, descriptor := open_lock(place, make=False))
                if not take_lock(descriptor):
                    raise CollectionError(
                        f"the collection {one.name!r} is being searched; stop the search, and then delete the "
                        "collection"
                    )
        for one in there:
            (one / MANIFEST).unlink(missing_ok=True)  # without a manifest, the collection no longer exists
            shutil.rmtree(one)


def sweep(folder: Path, published: Generation) -> None:
    """Remove the generations that are not published and have no readers."""
    for path in folder.glob("generation-*"):
        if path.name != published.folder:
            descriptor = open_lock(path, make=False)
            if take_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)
