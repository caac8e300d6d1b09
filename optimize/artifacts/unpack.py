"""Unpacking: the artifact's folder and its collection out of one file, all of it checked first, nothing embedded.

Whatever the file says is data of a stranger until its key is checked: passages and vectors are taken as they are, and
only a signature says whose they are. The collection is built in a folder of its own and moved when it is whole. The
vectors stay in that collection: the store of the working folder, which every search asks, never takes any of them.
"""

from __future__ import annotations

import gc
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, DataError, InputError
from querywright.files import locked, sync, write_file
from querywright.home import home as working_folder
from querywright.models.embedder import CHUNK, Embedder
from querywright.models.rewriters import MANIFEST as REWRITER
from querywright.models.store import FILE_NAME, Store
from querywright.optimize.artifacts.files import ArtifactManifest, checked_artifact
from querywright.optimize.artifacts.folders import LIMITS, OPTIONAL, check_replaceable, replace_folder
from querywright.optimize.artifacts.pack import (
    WITH_QUESTIONS,
    distinct_texts,
    stored_embedder,
)
from querywright.optimize.artifacts.packed import (
    ANSWERS,
    IN_ARTIFACT,
    IN_COLLECTION,
    IN_QUESTIONS,
    IN_REWRITER,
    PASSAGES,
    PIECE,
    RECORDS,
    VECTORS,
    CollectionFacts,
    Packed,
    open_packed,
)
from querywright.optimize.artifacts.rewriters import put_rewriter
from querywright.optimize.artifacts.searched import check_named, open_searched
from querywright.optimize.program_state import program_from
from querywright.retrieval.answer_pairs import ANSWERS as STORED_ANSWERS
from querywright.retrieval.answer_pairs import read_pairs
from querywright.retrieval.collection import (
    NAME_PATTERN,
    collection_folder,
    content_hash,
    read_manifest,
)
from querywright.retrieval.engines import LEXICAL
from querywright.retrieval.index import build_collection
from querywright.retrieval.passages import checked_passages
from querywright.retrieval.question_records import RECORDS as STORED_RECORDS
from querywright.retrieval.question_records import questions_name, read_records

_PREFIX = ".unpacking-"


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """What was unpacked.

    Args:
        artifact: Name of the artifact's folder.
        collection: Name of its collection, or None.
        passages: Passages in it.
        questions: Written questions for it.
        built: Collections that were built; one that was there already is not among them.
        rewriter: Name of its rewriter, which the working folder has now, or None where it has none or a large one.
    """

    artifact: str
    collection: str | None
    passages: int
    questions: int
    built: tuple[str, ...]
    rewriter: str | None = None


def unpack(file: Path, out: Path, *, home: Path | None = None, public_key: Path | None = None) -> UnpackReport:
    """Make the artifact of a packed file, build its collection and keep its rewriter; nothing is embedded again.

    The artifact's folder appears last, whole: whoever sees it can load it.

    Args:
        file: What ``pack`` wrote.
        out: The artifact's folder; an older artifact there is replaced.
        home: The working folder of the collection. Default: ``querywright.home.home()``.
        public_key: Key file of whoever must have signed all that is in it. Default None: no signature is looked at.

    Raises:
        ArtifactError: The file is damaged, holds what it may not, is not signed by that key, or its collection is not
            the artifact's; or the folder holds other files.
        CollectionError: There is another collection of that name.
    """
    target = out.resolve()
    with open_packed(file, public_key) as packed:
        files = {
            name: packed.read(f"{IN_ARTIFACT}{name}")
            for name in (*LIMITS, *OPTIONAL)
            if f"{IN_ARTIFACT}{name}" in packed
        }
        artifact = checked_artifact(files)
        program_from(artifact.state)
        _check_facts(packed, artifact.manifest)
        rewriting = packed.held(IN_REWRITER)
        try:
            check_replaceable(target)
            if rewriting:
                assert artifact.manifest.rewriter is not None
                put_rewriter(artifact.manifest.rewriter, rewriting, home)
            built = _build(packed, artifact.manifest, working_folder(home).resolve())
            replace_folder(target, files)
        except OSError as error:
            raise ArtifactError(
                f"{out.name!r} could not be written: {error.strerror}; give another --out, or make room"
            ) from error
    facts = packed.facts
    return UnpackReport(
        artifact=target.name,
        collection=None if facts.collection is None else facts.collection.name,
        passages=0 if facts.collection is None else facts.collection.count,
        questions=0 if facts.questions is None else facts.questions.count,
        built=built,
        rewriter=str(artifact.manifest.rewriter) if rewriting else None,
    )


def _check_facts(packed: Packed, manifest: ArtifactManifest) -> None:
    """The collections in the file are those that the artifact names."""
    check_named(manifest)
    if manifest.rewriter is None and f"{IN_REWRITER}{REWRITER}" in packed:
        raise ArtifactError("the packed file holds a rewriter, which its artifact does not name; do not use it")
    collection, questions, name = packed.facts.collection, packed.facts.questions, manifest.collection
    if name is not None and not NAME_PATTERN.fullmatch(name):
        raise ArtifactError(f"manifest.json: {name!r} cannot be a collection's name; do not use the file")
    if (None if collection is None else collection.name) != name:
        raise ArtifactError("the packed file holds another collection than its artifact names; do not use it")
    wanted = questions_name(name) if name is not None and manifest.engine in WITH_QUESTIONS else None
    if (None if questions is None else questions.name) != wanted:
        raise ArtifactError("the packed file holds other questions than its artifact names; do not use it")
    if collection is not None and manifest.engine not in LEXICAL and collection.embedder != manifest.embedder:
        raise ArtifactError("the collection of the packed file has another embedder than its artifact; do not use it")
    if wanted is not None and not NAME_PATTERN.fullmatch(wanted):
        raise ArtifactError(f"manifest.json: {wanted!r} cannot be a collection's name; do not use the file")
    for one, where in ((collection, IN_COLLECTION), (questions, IN_QUESTIONS)):
        if one is not None and packed.facts.files[f"{where}{VECTORS}"].size != one.vectors * one.dimension * 4:
            raise ArtifactError(f"{where}{VECTORS} of the packed file has not the shape it declares; do not use it")


def _build(packed: Packed, manifest: ArtifactManifest, home: Path) -> tuple[str, ...]:
    """Build what is missing, questions first, so that a collection that is there has them."""
    given = [
        (facts, where)
        for facts, where in ((packed.facts.questions, IN_QUESTIONS), (packed.facts.collection, IN_COLLECTION))
        if facts is not None
    ]
    if not given:
        return ()
    busy = ArtifactError("another process has been unpacking into this working folder for ten minutes; end it first")
    with locked(home / "unpacking.lock", busy, seconds=600):
        _sweep(home)
        missing = [facts for facts, _ in given if not _is_there(facts, packed, home)]
        passages = {facts.name: _passages(packed, facts, where) for facts, where in given}
        with _workshop(home) as workshop, closing(Store(workshop / FILE_NAME)) as store:
            for facts, where in given:
                _keep_vectors(packed, facts, where, passages[facts.name], store)
            if not missing:
                _check_built(manifest, packed, home, store)
                return ()
            for facts, where in given:
                _make(packed, facts, where, passages[facts.name], workshop, store)
            _check_built(manifest, packed, workshop, store)
            for facts in missing:
                _move(workshop, home, facts.name)
    return tuple(facts.name for facts in missing)


def _is_there(facts: CollectionFacts, packed: Packed, home: Path) -> bool:
    """Whether the very same collection is published.

    Raises:
        CollectionError: Another one is, or a folder of that name holds something.
    """
    folder = collection_folder(facts.name, home)
    try:
        published = read_manifest(folder)
    except CollectionError:
        published = None
    if published is None:
        if folder.exists() and any(folder.iterdir()):
            raise _other(facts, "a folder of that name holds something else, or a collection that was never finished")
        return False
    if (published.embedder, published.content_hash) != (facts.embedder, facts.content_hash):
        raise _other(facts, "the working folder has another collection of that name")
    if packed.facts.questions is facts:
        stored = folder / STORED_ANSWERS
        same = packed.read(f"{IN_QUESTIONS}{ANSWERS}") if f"{IN_QUESTIONS}{ANSWERS}" in packed else None
        if (stored.read_bytes() if stored.exists() else None) != same:
            raise _other(facts, "the questions of that name have other stored answers (questions fill)")
    return True


def _other(facts: CollectionFacts, what: str) -> CollectionError:
    return CollectionError(
        f"the collection {facts.name!r} of the packed file cannot be put in place: {what}, and it is never replaced; "
        "give another working folder (--home)"
    )


def _passages(packed: Packed, facts: CollectionFacts, where: str) -> dict[str, Passage]:
    member = f"{where}{PASSAGES}"
    try:
        given = [_passage(line) for line in packed.lines(member)]
        passages = checked_passages(given)
    except (ValueError, KeyError, TypeError, RecursionError, DataError) as error:
        raise ArtifactError(f"{member} of the packed file is damaged ({error}); do not use it") from error
    found = (len(given), len(passages), len(distinct_texts(given)), content_hash(passages.values()))
    if found != (facts.count, facts.count, facts.vectors, facts.content_hash):
        raise ArtifactError(f"{member} of the packed file holds other passages than it declares; do not use it")
    return passages


def _passage(line: bytes) -> Passage:
    row: dict[str, Any] = json.loads(line)
    if set(row) != {"id", "title", "text", "metadata"}:
        raise ValueError("a line is no passage")
    if not (isinstance(row["title"], str) and isinstance(row["metadata"], dict)):
        raise TypeError("a title must be a text and metadata an object")
    return Passage(row["id"], row["text"], row["title"], row["metadata"])


def _keep_vectors(
    packed: Packed, facts: CollectionFacts, where: str, passages: Mapping[str, Passage], store: Store
) -> None:
    """Put the vectors into a store of their own, from which the index is built."""
    embedder, texts, done = _embedder(facts, store), distinct_texts(passages.values()), 0
    size = 4 * facts.dimension
    for piece in packed.pieces(f"{where}{VECTORS}", max(1, min(CHUNK, PIECE // size)) * size):
        rows = np.frombuffer(piece, dtype="<f4").reshape(-1, facts.dimension)
        try:
            embedder.keep(texts[done : done + len(rows)], rows)
        except InputError as error:
            raise ArtifactError(f"{where}{VECTORS} of the packed file is damaged: {error}; do not use it") from error
        done += len(rows)


def _make(
    packed: Packed, facts: CollectionFacts, where: str, passages: Mapping[str, Passage], workshop: Path, store: Store
) -> None:
    folder = collection_folder(facts.name, workshop)
    folder.mkdir(mode=0o700, parents=True)
    if where == IN_QUESTIONS:
        write_file(folder / STORED_RECORDS, packed.pieces(f"{where}{RECORDS}"))
        if f"{where}{ANSWERS}" in packed:
            write_file(folder / STORED_ANSWERS, packed.pieces(f"{where}{ANSWERS}"))
        try:
            read_records(folder)
            read_pairs(folder)
        except CollectionError as error:
            raise ArtifactError(f"the questions of the packed file are damaged: {error}; do not use it") from error
    build_collection(facts.name, passages.values(), embedder=_embedder(facts, store), home=workshop)


def _check_built(manifest: ArtifactManifest, packed: Packed, home: Path, store: Store) -> None:
    """What was built is what the artifact was compiled on."""
    assert packed.facts.collection is not None
    open_searched(manifest, None if manifest.engine in LEXICAL else _embedder(packed.facts.collection, store), home)
    gc.collect()  # the index that was opened is closed before its folder moves


def _embedder(facts: CollectionFacts, store: Store) -> Embedder:
    return stored_embedder(facts.embedder, facts.dimension, store, facts.name)


def _move(workshop: Path, home: Path, name: str) -> None:
    """Put a collection in place, from one moment to the next; what came there meanwhile stays."""
    target = collection_folder(name, home)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        collection_folder(name, workshop).rename(target)
    except OSError as error:
        raise CollectionError(
            f"the collection {name!r} could not be put in place: {error.strerror}; unpack again, or give another "
            "working folder (--home)"
        ) from error
    sync(target.parent)


@contextmanager
def _workshop(home: Path) -> Iterator[Path]:
    """A working folder of its own inside the other one, gone at the end."""
    folder = home / f"{_PREFIX}{secrets.token_hex(6)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(home: Path) -> None:
    """Remove what an unpacking that was killed left."""
    for left in home.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
