"""A collection on disk: what is in it, which generation is published, and how files get there whole.

``collections/<name>/`` holds ``manifest.json``, which points at one generation: ``passages-N.jsonl`` (the
truth) and ``chroma-N/`` (built from it, can be deleted). Replacing the manifest publishes a generation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from querywright.checksummed import Checksummed
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import locked, open_lock, take_lock, write_file
from querywright.home import home as working_folder

SPACE = "cosine"
MANIFEST = "manifest.json"
QUESTIONS_SUFFIX = "-questions"
"""Ends the name of a collection of written questions, and of no other."""
LONGEST_NAME = 63
NAME_PATTERN = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{LONGEST_NAME - 1}}}")
REOPENINGS = 5

T = TypeVar("T")


class Generation(Checksummed):
    """What a published generation is.

    Args:
        name: The collection.
        generation: Number of the generation, from 1.
        embedder: Id of the embedder whose vectors are in it.
        dimension: Numbers in a vector.
        space: Distance of Chroma's index.
        count: Passages.
        ties: The most passages that share one vector, 1 when all are distinct.
        content_hash: SHA-256 over the sorted digests of the passages.
        passages_sha256: SHA-256 of the passages file.
        chroma_version: Version of chromadb that built the index.
        index_files: SHA-256 of each file of the index that reading leaves alone.
    """

    name: str
    generation: int
    embedder: str
    dimension: int
    space: str
    count: int
    ties: int
    content_hash: str
    passages_sha256: str
    chroma_version: str
    index_files: dict[str, str]

    @property
    def passages_file(self) -> str:
        """Name of the file with the passages."""
        return f"passages-{self.generation}.jsonl"

    @property
    def chroma_folder(self) -> str:
        """Name of the folder with Chroma's index."""
        return f"chroma-{self.generation}"

    @property
    def readers_lock(self) -> str:
        """Name of the lock file that readers of the generation share."""
        return f"readers-{self.generation}.lock"


def collection_folder(name: str, home: Path | None = None) -> Path:
    """The folder of a collection, whether it exists or not.

    Args:
        name: 1 to 63 of ``a-z 0-9 _ -``, the first a letter or digit.
        home: The working folder. Default: ``querywright.home.home()``.

    Raises:
        InputError: When the name has another form.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise InputError(
            f"a collection's name is 1 to {LONGEST_NAME} of a-z, 0-9, _ and -, beginning with a letter or digit, but "
            f"got {name!r}"
        )
    return working_folder(home).resolve() / "collections" / name


def index_command(name: str, *, prune: bool = False) -> str:
    """The command that builds a collection again, for messages."""
    if name.endswith(QUESTIONS_SUFFIX):
        return f"querywright questions build {name.removesuffix(QUESTIONS_SUFFIX)}"
    return f"querywright index {name} SOURCE{' --prune' if prune else ''}"


def list_collections(home: Path | None = None) -> list[str]:
    """Names of the published collections, sorted."""
    folder = working_folder(home) / "collections"
    return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))


def content_hash(passages: Iterable[Passage]) -> str:
    """SHA-256 over the sorted digests of passages: the same set has the same hash in any order."""
    return hashlib.sha256("\n".join(sorted(passage.digest() for passage in passages)).encode()).hexdigest()


def read_manifest(folder: Path) -> Generation | None:
    """The manifest of a collection, or None when there is none.

    Raises:
        CollectionError: When it is damaged or edited.
    """
    try:
        return Generation.read(folder / MANIFEST)
    except ValueError as error:
        raise CollectionError(
            f"the manifest of the collection {folder.name!r} is damaged ({error}); build it again from all "
            f"its passages: {index_command(folder.name, prune=True)}"
        ) from error


def open_published(folder: Path, home: Path | None, use: Callable[[Generation], T | None]) -> T:
    """What is made of the published generation; looks again when a builder replaces it in between.

    Args:
        folder: The collection's.
        home: The working folder, whose collections are named where there is none of this name.
        use: Gives None when the generation is gone.

    Raises:
        CollectionError: When there is no such collection, or its generation stays away.
    """
    for _ in range(REOPENINGS):
        manifest = read_manifest(folder)
        if manifest is None:
            known = ", ".join(list_collections(home)) or "none"
            raise CollectionError(
                f"there is no collection {folder.name!r} (known: {known}); build it: {index_command(folder.name)}"
            )
        made = use(manifest)
        if made is not None:
            return made
    raise CollectionError(
        f"the readers' lock of the collection {folder.name!r} is missing; run {index_command(folder.name)}"
    )


def published_passages(folder: Path, home: Path | None = None) -> tuple[Generation, dict[str, Passage]]:
    """The published generation and its passages by id, in the order of their ids.

    Args:
        folder: The collection's.
        home: The working folder, whose collections are named where there is none of this name.

    Raises:
        CollectionError: When there is no such collection, or it is damaged.
    """

    def read(manifest: Generation) -> tuple[Generation, dict[str, Passage]] | None:
        descriptor = share_generation(folder / manifest.readers_lock)
        if descriptor is None:
            return None
        try:
            return manifest, read_passages(folder, manifest)
        finally:
            os.close(descriptor)

    return open_published(folder, home, read)


def write_passages(path: Path, passages: Iterable[Passage]) -> str:
    """Writes passages as JSON lines.

    Returns:
        SHA-256 of the file.
    """
    rows = (
        {"id": passage.id, "title": passage.title, "text": passage.text, "metadata": dict(passage.metadata)}
        for passage in passages
    )
    return write_file(path, (json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))


def read_passages(folder: Path, manifest: Generation) -> dict[str, Passage]:
    """The passages of a published generation by id, in the order of their ids.

    Raises:
        CollectionError: When the file is missing or is not the one that was published.
    """
    path = folder / manifest.passages_file
    state = "missing"
    with suppress(FileNotFoundError), path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == manifest.passages_sha256:
            file.seek(0)
            return {passage.id: passage for passage in map(_passage, file)}
        state = "damaged" if file.tell() else "missing"
    raise CollectionError(
        f"{path.name} of the collection {folder.name!r} is {state}; build it again from all its passages: "
        f"{index_command(folder.name, prune=True)}"
    )


def _passage(line: bytes) -> Passage:
    row = json.loads(line)
    return Passage(row["id"], row["text"], row["title"], {sys.intern(key): one for key, one in row["metadata"].items()})


@contextmanager
def building(folder: Path, name: str, lock: str = "building.lock") -> Iterator[None]:
    """Holds the right to build a collection, or to write the questions of one.

    Args:
        folder: The collection's, there already.
        name: What is built, for the message.
        lock: Name of the lock file. Default: that of whoever builds.

    Raises:
        CollectionError: At once, when another process or thread holds it.
    """
    busy = f"the collection {name!r} is being built by another process; wait until it is done and try again"
    with locked(folder / lock, CollectionError(busy)):
        yield


def share_generation(path: Path) -> int | None:
    """Takes part in reading a generation, which keeps it from being removed.

    Args:
        path: The generation's lock file.

    Returns:
        A descriptor to be closed by ``os.close`` at the end, or None when the generation is gone.
    """
    try:
        descriptor = open_lock(path, make=False)
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):
        if take_lock(descriptor, shared=True) and os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    os.close(descriptor)
    return None


def remove_lock(path: Path) -> bool:
    """Whether nobody reads the generation of this lock file; it is then deleted, so that nobody can."""
    try:
        descriptor = open_lock(path, make=False)
    except FileNotFoundError:
        return True
    try:
        free = take_lock(descriptor)
        if free:
            path.unlink(missing_ok=True)
        return free
    finally:
        os.close(descriptor)
