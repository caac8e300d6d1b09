"""Packed artifacts: an artifact, the collection that it searches and its rewriter in one file, for another machine.

The file is a plain tar, so that its size is that of what is in it; its last 71 bytes are the SHA-256 of all before.
Its members are those of ``MEMBERS`` and no others: the files of the artifact, and of its collection the manifest, the
passages, and their vectors as raw float32. Chroma's own files are not in it: the index is built again. It is read as
the work of a stranger: passages and vectors are taken as they are, and only a pinned digest says whose they are. The
vectors stay in the collection that is built: the store of the working folder never takes any of them.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, DataError, InputError
from querywright.files import file_digest, locked, sync
from querywright.home import home as working_folder
from querywright.models.embedder import CHUNK, Embedder, embedder_of
from querywright.models.rewriters import FILES as REWRITER_FILES
from querywright.models.store import FILE_NAME, Store, open_store
from querywright.optimize.artifacts.files import (
    LIMITS,
    ArtifactManifest,
    artifact_files,
    check_replaceable,
    checked_artifact,
    write_files,
)
from querywright.optimize.artifacts.load import check_named, open_compiled_on
from querywright.optimize.artifacts.rewriters import LARGEST_KEPT, kept_files, put_rewriter
from querywright.optimize.artifacts.sealed_tar import SEALED, extract, opened_tar, write_tar
from querywright.optimize.program_state import program_from
from querywright.retrieval.collection import (
    MANIFEST,
    PASSAGES,
    Generation,
    collection_folder,
    content_hash,
    published_passages,
    read_manifest,
    read_passages,
    write_passages,
)
from querywright.retrieval.generated_questions import ANSWERS, RECORDS, questions_name, read_pairs, read_records
from querywright.retrieval.index import build_collection, checked_passages

SUFFIX = ".qw"
VECTORS = "vectors.f32"
_OF_COLLECTION = {MANIFEST: 2**20, PASSAGES: 2**30, VECTORS: 4 * 2**30, RECORDS: 2**30, ANSWERS: 2**30}
MEMBERS = {
    **{f"artifact/{name}": limit for name, limit in LIMITS.items()},
    **{f"{where}/{name}": limit for where in ("collection", "questions") for name, limit in _OF_COLLECTION.items()},
    **{f"rewriter/{name}": LARGEST_KEPT for name in REWRITER_FILES},
}
"""Every member that there can be, and bytes of each that are read at most."""


@dataclass(frozen=True, slots=True)
class PackReport:
    """What is in a packed file.

    Args:
        artifact: Name of the artifact's folder.
        size: The file's bytes.
        digest: Its SHA-256, ``sha256:...``, as ``unpack`` may be asked for.
        collection: Name of the collection in it, or None.
        passages: Passages in it.
        questions: Written questions in it.
        rewriter: Name of the rewriter in it, or None.
        built: Collections that were built to unpack it; one that was there already is not among them.
    """

    artifact: str
    size: int
    digest: str
    collection: str | None
    passages: int
    questions: int
    rewriter: str | None
    built: tuple[str, ...] = ()


def pack(artifact: Path, out: Path, *, home: Path | None = None, rewriter: Path | None = None) -> PackReport:
    """Write an artifact, its collection and its rewriter into one file; the same ones give the same bytes.

    A rewriter of more than 64 MiB stays out. Vectors are packed as the store has them; the few that it lacks are made
    by the embedder.

    Args:
        artifact: The artifact's folder.
        out: The file, which ends in .qw; an older one is replaced whole or not at all.
        home: The working folder that holds the collection. Default: ``querywright.home.home()``.
        rewriter: The folder of the artifact's rewriter, where it names one. Default: the copy in the working folder.

    Raises:
        ArtifactError: The artifact is damaged, its rewriter is missing or another, its collection is not the one it
            was compiled on, or the file cannot be written.
        CollectionError: The collection is missing or damaged, or its vectors cannot be had.
        InputError: The file has another name.
    """
    if out.suffix != SUFFIX:
        raise InputError(f"a packed artifact is a file that ends in {SUFFIX}, not {out.name!r}; give another --out")
    files = artifact_files(artifact)
    manifest = checked_artifact(files).manifest
    if manifest.rewriter is None and rewriter is not None:
        raise InputError("the artifact names no rewriter; leave --rewriter out")
    rewriting = None if manifest.rewriter is None else kept_files(manifest.rewriter, rewriter, home)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as folder:
            staged = Path(folder)
            for where, parts in (("artifact", files), ("rewriter", rewriting or {})):
                (staged / where).mkdir()
                for name, data in parts.items():
                    (staged / where / name).write_bytes(data)
            counts = {
                where: _stage(staged / where, name, manifest, home) for where, name in _searched(manifest).items()
            }
            write_tar(staged, staged / "packed", MEMBERS)
            (staged / "packed").replace(out)
        sync(out.absolute().parent)
    except OSError as error:
        raise ArtifactError(
            f"{out.name!r} could not be written: {error.strerror}; give another --out, or make room"
        ) from error
    digest = f"sha256:{file_digest(out)}"
    return _report(artifact.resolve().name, out.stat().st_size, digest, manifest, counts, rewriting is not None)


def unpack(file: Path, out: Path, *, home: Path | None = None, digest: str | None = None) -> PackReport:
    """Make the artifact of a packed file, build its collection and keep its rewriter; nothing is embedded again.

    The artifact's folder appears last, whole: whoever sees it can load it.

    Args:
        file: What ``pack`` wrote.
        out: The artifact's folder; an older artifact there is replaced.
        home: The working folder of the collection. Default: ``querywright.home.home()``.
        digest: The SHA-256 that the file must have, ``sha256:...``. Default: any.

    Raises:
        ArtifactError: The file is damaged, holds what it may not, has another digest, or its collection is not the
            artifact's; or the folder holds other files.
        CollectionError: There is another collection of that name.
    """
    target, place = out.resolve(), working_folder(home).resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=".unpacking-") as folder:
            staged = Path(folder)
            with opened_tar(file, digest) as (opened, size, found):
                extract(opened, size, staged, MEMBERS)
            files = artifact_files(staged / "artifact")
            artifact = checked_artifact(files)
            program_from(artifact.state)
            manifest = artifact.manifest
            rewriting = {path.name: path.read_bytes() for path in (staged / "rewriter").glob("*")}
            if rewriting and manifest.rewriter is None:
                raise ArtifactError("the packed file holds a rewriter, which its artifact does not name; do not use it")
            collections = {where: _read(staged / where, name) for where, name in _searched(manifest).items()}
            check_replaceable(target)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if manifest.rewriter is not None and rewriting:
                put_rewriter(manifest.rewriter, rewriting, place)
            busy = CollectionError("another process is unpacking into this working folder; wait until it is done")
            with locked(place / "unpacking.lock", busy, seconds=600):
                built = _build(collections, manifest, place) if collections else ()
            write_files(target, files)
    except OSError as error:
        raise ArtifactError(
            f"{out.name!r} could not be written: {error.strerror}; give another --out, or make room"
        ) from error
    counts = {where: len(one.passages) for where, one in collections.items()}
    return _report(target.name, size + SEALED, found, manifest, counts, bool(rewriting), built)


def _report(
    artifact: str, size: int, digest: str, manifest: ArtifactManifest, counts: Mapping[str, int], with_rewriter: bool,
    built: tuple[str, ...] = (),
) -> PackReport:  # fmt: skip
    passages, questions = (counts.get(where, 0) for where in ("collection", "questions"))
    rewriter = str(manifest.rewriter) if with_rewriter else None
    return PackReport(artifact, size, digest, manifest.collection, passages, questions, rewriter, built)


def _searched(manifest: ArtifactManifest) -> dict[str, str]:
    """The collections that an artifact needs, by their folder in a packed file; questions come first."""
    check_named(manifest)
    if manifest.collection is None:
        return {}
    with_questions = manifest.engine in ("questions", "expanded")
    questions = {"questions": questions_name(manifest.collection)} if with_questions else {}
    return {**questions, "collection": manifest.collection}


def _stage(staged: Path, name: str, manifest: ArtifactManifest, home: Path | None) -> int:
    """Write a collection into its folder; gives how many passages it has."""
    source = collection_folder(name, home)
    published, passages = published_passages(source, home)
    store = open_store(home)
    embedder = embedder_of(published.embedder, store=store) or _stored(published, store)
    if name == manifest.collection:
        open_compiled_on(manifest, embedder, home)
    staged.mkdir()
    published.model_copy(update={"number": 1, "index_files": {}}).write(staged / MANIFEST)
    write_passages(staged / PASSAGES, passages.values())
    texts = _distinct_texts(passages.values())
    with (staged / VECTORS).open("wb") as file:
        for start in range(0, len(texts), CHUNK):
            file.write(embedder.encode(texts[start : start + CHUNK]).astype("<f4").tobytes())
    _copy_records(source, staged)
    return len(passages)


def _copy_records(source: Path, target: Path) -> None:
    """Put what was written of a collection beside it."""
    for records in (RECORDS, ANSWERS):
        if (source / records).exists():
            shutil.copyfile(source / records, target / records)


def _stored(facts: Generation, store: Store) -> Embedder:
    """What an embedder has made, without the embedder."""

    def missing() -> object:
        raise CollectionError(
            f"the store of the working folder lacks vectors of {facts.embedder!r} for the collection {facts.name!r}; "
            "index its passages again, with that embedder, in a new working folder (--home)"
        )

    return Embedder(facts.embedder, missing, dimension=facts.dimension, store=store)


def _distinct_texts(passages: Iterable[Passage]) -> list[str]:
    """What of some passages is embedded, each text once, in their order."""
    return list(dict.fromkeys(passage.content for passage in passages))


@dataclass(frozen=True, slots=True)
class _Collection:
    """A collection that was taken out of a packed file: its folder there, what is said of it, and its passages."""

    staged: Path
    facts: Generation
    passages: Mapping[str, Passage]

    def embedder(self, store: Store) -> Embedder:
        """What its embedder has made, put into a store of its own."""
        embedder, texts = _stored(self.facts, store), _distinct_texts(self.passages.values())
        rows = np.fromfile(self.staged / VECTORS, dtype="<f4").reshape(-1, self.facts.dimension)
        try:
            embedder.keep(texts, rows)
        except InputError as error:
            raise ArtifactError(f"vectors of the packed file are damaged: {error}; do not use it") from error
        return embedder


def _read(staged: Path, name: str) -> _Collection:
    try:
        facts = Generation.from_bytes((staged / MANIFEST).read_bytes())
        passages = checked_passages(read_passages(staged / PASSAGES, facts).values())
        rows, odd = divmod((staged / VECTORS).stat().st_size, 4 * facts.dimension)
        if staged.name == "questions":
            read_records(staged)
            read_pairs(staged)
    except (
        ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, OSError, DataError,
        CollectionError,
    ) as error:  # fmt: skip
        raise ArtifactError(f"the {staged.name} of the packed file is damaged ({error}); do not use it") from error
    texts = len(_distinct_texts(passages.values()))
    if facts.name != name or facts.content_hash != content_hash(passages.values()) or odd or rows != texts:
        raise ArtifactError(
            f"the {staged.name} of the packed file is not what its artifact names, or has not a vector for each text; "
            "do not use it"
        )
    return _Collection(staged, facts, passages)


def _build(collections: Mapping[str, _Collection], manifest: ArtifactManifest, home: Path) -> tuple[str, ...]:
    """Build what is missing in a folder of its own, and move it when it is whole: questions before their passages."""
    for left in home.glob(".unpacking-*"):  # of an unpacking that was killed
        shutil.rmtree(left, ignore_errors=True)
    missing = [one.facts.name for one in collections.values() if not _is_there(one.facts, home)]
    workshop = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=home))
    try:
        with closing(Store(workshop / FILE_NAME)) as store:
            embedder = None
            for one in collections.values():  # the collection itself is the last one
                embedder = one.embedder(store)
                if missing:
                    folder = collection_folder(one.facts.name, workshop)
                    folder.mkdir(mode=0o700, parents=True)
                    _copy_records(one.staged, folder)
                    build_collection(one.facts.name, one.passages.values(), embedder=embedder, home=workshop)
            open_compiled_on(manifest, embedder, workshop if missing else home)
            gc.collect()  # the index that was opened is closed before its folder moves
        for name in missing:
            target = collection_folder(name, home)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            collection_folder(name, workshop).rename(target)
            sync(target.parent)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return tuple(missing)


def _is_there(facts: Generation, home: Path) -> bool:
    """Whether the very same collection is published; another one, or something else of that name, is an error."""
    folder = collection_folder(facts.name, home)
    if not folder.exists() or not any(folder.iterdir()):
        return False
    with contextlib.suppress(CollectionError):
        published = read_manifest(folder)
        if published is not None and (published.embedder, published.content_hash) == (
            facts.embedder,
            facts.content_hash,
        ):
            return True
    raise CollectionError(
        f"the collection {facts.name!r} of the packed file cannot be put in place: a folder of that name holds another "
        "collection, or something else, and it is never replaced; give another working folder (--home)"
    )
