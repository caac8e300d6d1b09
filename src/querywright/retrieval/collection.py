"""A collection on disk: which generation is published, its passages, and who may build or remove one.

``collections/<name>/`` holds ``manifest.json``, which names one generation: the folder ``generation-N`` with
``passages.jsonl`` (the truth) and ``chroma/`` (built from it, can be deleted). Replacing the manifest publishes it.
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
from querywright.shared import Shared

MANIFEST = "manifest.json"
PASSAGES = "passages.jsonl"
QUESTIONS_SUFFIX = "-questions"
"""Ends the name of a collection of written questions, and of no other."""
OF_QUESTIONS = frozenset({"passage", "digest", "label"})
"""Keys of a question's metadata: the passage that it was written for."""
LONGEST_NAME = 63
NAME_PATTERN = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{LONGEST_NAME - 1}}}")
REOPENINGS = 5


class Generation(Checksummed):
    """The manifest: what a published generation is.

    Args:
        name: The collection.
        number: Number of the generation, from 1.
        embedder: Id of the embedder whose vectors are in it.
        dimension: Numbers in a vector.
        count: Passages.
        ties: The most passages that share one vector, 1 when all are distinct.
        content_hash: SHA-256 over the sorted digests of the passages.
        passages_sha256: SHA-256 of the file with the passages.
        chroma_version: Version of chromadb that built the index.
        index_files: SHA-256 of each file of the index that reading leaves alone, by its path in the generation.
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
        """Name of the generation's folder, which is also the lock that its readers share."""
        return f"generation-{self.number}"


class CollectionPassages(Shared):
    """The passages of a collection as it was opened; a copy is the same object, a pickle opens the collection anew.

    A subclass sets ``name`` and ``_passages``, which has them by id in the order of their ids.
    """

    name: str
    _made: tuple[tuple[Any, ...], dict[str, Any]]
    _passages: Mapping[str, Passage]

    def passages(self) -> Iterator[Passage]:
        """All passages of the collection, by id."""
        return iter(self._passages.values())

    def get(self, ids: Sequence[str]) -> list[Passage]:
        """The passages of some ids, in their order.

        Raises:
            InputError: When an id is not in the collection; the message names all of them.
        """
        return picked(self.name, self._passages, ids)

    def __contains__(self, id: object) -> bool:
        return id in self._passages

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Note what it is made with, for a pickle."""
        made = super().__new__(cls)
        made._made = (args, {name: value for name, value in options.items() if name != "progress"})
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        args, options = self._made
        return partial(type(self), *args, **options), ()


def picked(name: str, passages: Mapping[str, Passage], ids: Sequence[str]) -> list[Passage]:
    """Of a collection's passages those of some ids, in their order; ``InputError`` names the ids that are missing."""
    unknown = [id for id in ids if id not in passages]
    if unknown:
        raise InputError(f"not in the collection {name!r}: {', '.join(map(repr, unknown[:20]))}")
    return [passages[id] for id in ids]


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


def no_collection(name: str, home: Path | None = None) -> CollectionError:
    """What is said of a collection that is not in the working folder: which folder that is, and one that has it."""
    folder, here = working_folder(home).resolve(), Path.cwd()
    homes = (place / ".querywright" for place in (here, *here.parents))
    other = next((one for one in homes if one != folder and (one / "collections" / name).is_dir()), None)
    remedy = (
        f"there is one in {str(other)!r}: name that folder (home=)" if other else f"build it: {index_command(name)}"
    )
    known = ", ".join(list_collections(home)) or "none"
    return CollectionError(f"there is no collection {name!r} in {str(folder)!r} (known: {known}); {remedy}")


def list_collections(home: Path | None = None) -> list[str]:
    """Names of the published collections, sorted."""
    folder = working_folder(home) / "collections"
    return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))


def content_hash(passages: Iterable[Passage]) -> str:
    """SHA-256 over the sorted digests of passages, one a line: the same set has the same hash in any order."""
    digests = np.sort(np.fromiter((passage.digest().encode() for passage in passages), dtype="S64"))
    return hashlib.sha256(b"\n".join(digests)).hexdigest()


def read_manifest(folder: Path) -> Generation | None:
    """The manifest of a collection, or None when there is none."""
    try:
        return Generation.read(folder / MANIFEST)
    except ValueError as error:
        raise CollectionError(
            f"the manifest of the collection {folder.name!r} is damaged ({error}); build it again from all "
            f"its passages: {index_command(folder.name, prune=True)}"
        ) from error


def check_embedder(manifest: Generation, embedder: TextEmbedder) -> None:
    """Raise ``CollectionError`` when an embedder is another than the one that a collection was built with."""
    if manifest.embedder != embedder.id:
        raise CollectionError(
            f"the collection {manifest.name!r} was built with the embedder {manifest.embedder!r}, but the "
            f"one given is {embedder.id!r}; give that one, or build it again: {index_command(manifest.name)}"
        )
    if manifest.dimension != embedder.dimension:
        raise CollectionError(
            f"the collection {manifest.name!r} has vectors of {manifest.dimension} numbers, the embedder "
            f"{embedder.id!r} makes {embedder.dimension}; run {index_command(manifest.name)}"
        )


def side_of(name: str) -> Side:
    """The side on which a collection's passages are embedded: questions are compared with queries, as their like."""
    return "query" if name.endswith(QUESTIONS_SUFFIX) else "document"


def encoder_of(name: str, embedder: Embedder) -> Callable[[Sequence[str]], Vectors]:
    """What makes the vectors of a collection's passages."""
    return partial(embedder.encode, side=side_of(name))


def hold_published(folder: Path, home: Path | None = None) -> tuple[Generation, ExitStack]:
    """The published generation of a collection's folder, which is not removed until the stack is closed.

    Raises:
        CollectionError: When there is no such collection, or its manifest is damaged or its generation missing.
    """
    for _ in range(REOPENINGS):
        manifest = read_manifest(folder)
        if manifest is None:
            raise no_collection(folder.name, home)
        place = folder / manifest.folder
        with suppress(FileNotFoundError), ExitStack() as held:  # a builder has removed it since: there is a newer one
            descriptor = open_lock(place, make=False)
            held.callback(os.close, descriptor)
            if take_lock(descriptor, shared=True) and os.path.samestat(os.fstat(descriptor), place.stat()):
                return manifest, held.pop_all()
    raise CollectionError(
        f"the generation of the collection {folder.name!r} is missing; build it again from all its passages: "
        f"{index_command(folder.name, prune=True)}"
    )


def published_passages(folder: Path, home: Path | None = None) -> tuple[Generation, dict[str, Passage]]:
    """The published generation of a collection's folder and its passages by id, in the order of their ids."""
    manifest, held = hold_published(folder, home)
    with held:
        return manifest, load_passages(folder / manifest.folder / PASSAGES, manifest)


def passage_line(passage: Passage) -> bytes:
    """A passage as a line of a file."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text, "metadata": dict(passage.metadata)}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def passage_of(line: bytes) -> Passage:
    """The passage of a line that ``passage_line`` gave."""
    row = json.loads(line)
    return Passage(row["id"], row["text"], row["title"], {sys.intern(key): one for key, one in row["metadata"].items()})


def write_passages(path: Path, passages: Iterable[Passage]) -> str:
    """Writes passages as JSON lines; gives the SHA-256 of the file."""
    return write_file(path, map(passage_line, passages))


def load_passages(path: Path, manifest: Generation) -> dict[str, Passage]:
    """Return the passages of a generation by id, in the order of their ids."""
    state = "missing"
    with suppress(FileNotFoundError):
        if file_digest(path) == manifest.passages_sha256:
            with path.open("rb") as file:
                return {one.id: one for one in map(passage_of, file)}
        state = "damaged"
    raise CollectionError(
        f"{path.name} of the collection {manifest.name!r} is {state}; build it again from all its passages: "
        f"{index_command(manifest.name, prune=True)}"
    )


@contextmanager
def building(folder: Path, name: str, lock: str = "building.lock") -> Iterator[None]:
    """Holds the right to build a collection in its folder, or with another lock to write the questions of one.

    A folder in which nothing was left but the lock is removed in the end.
    """
    busy = f"the collection {name!r} is being built by another process; wait until it is done and try again"
    with locked(folder / lock, CollectionError(busy)):
        try:
            yield
        finally:
            if folder.is_dir() and [one.name for one in folder.iterdir()] == [lock]:
                shutil.rmtree(folder, ignore_errors=True)


def delete_collection(name: str, home: Path | None = None) -> None:
    """Removes a collection, and the questions that were written for it; vectors and answers in the store stay.

    Raises:
        CollectionError: There is no such collection, or it is being built or searched; then all of it stays.
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
                        f"the collection {one.name!r} is being searched; end that, and delete it then"
                    )
        for one in there:
            (one / MANIFEST).unlink(missing_ok=True)  # from here on there is none
            shutil.rmtree(one)


def sweep(folder: Path, published: Generation) -> None:
    """Removes the generations that are not published and that nobody reads any more."""
    for path in folder.glob("generation-*"):
        if path.name != published.folder:
            descriptor = open_lock(path, make=False)
            if take_lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)
