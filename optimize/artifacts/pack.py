"""Packed artifacts: an artifact, the collection that it searches and its rewriter in one file, for another machine.

The file is a zip in which nothing is compressed. Its members are those of ``MEMBERS`` and no others: the files of the
artifact, and of its collection the manifest, the passages, and their vectors as raw float32. Chroma's own files are not
in it: the index is built again. It is read as the work of a stranger: passages and vectors are taken as they are, and
only a pinned digest says whose they are. The vectors stay in the collection that is built: the store of the working
folder never takes any of them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.files import file_digest, locked, sync, write_all, writing
from querywright.home import home as working_folder
from querywright.models.embedder import CHUNK, Embedder, Vectors, embedder_of
from querywright.models.rewriters import FILES as REWRITER_FILES
from querywright.models.store import FILE_NAME, Store, open_store
from querywright.optimize.artifacts import files, writers
from querywright.optimize.artifacts.load import check_compiled_on, open_compiled_on
from querywright.optimize.program_state import program_from
from querywright.retrieval import collection as published
from querywright.retrieval.collection import MANIFEST, PASSAGES, Generation, collection_folder
from querywright.retrieval.engines import fingerprint_of
from querywright.retrieval.generated_questions import ANSWERS, RECORDS, questions_name, read_pairs, read_records
from querywright.retrieval.index import build_collection, checked_passages

SUFFIX = ".qw"
VECTORS = "vectors.f32"
_OF_COLLECTION = {MANIFEST: 2**20, PASSAGES: 2**30, VECTORS: 4 * 2**30, RECORDS: 2**30, ANSWERS: 2**30}
MEMBERS = {
    **{f"artifact/{name}": limit for name, limit in files.LIMITS.items()},
    **{f"{where}/{name}": limit for where in ("collection", "questions") for name, limit in _OF_COLLECTION.items()},
    **{f"rewriter/{name}": writers.LARGEST_KEPT for name in REWRITER_FILES},
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
        writer: Name of the rewriter in it, or None.
        built: Collections that were built to unpack it; one that was there already is not among them.
    """

    artifact: str
    size: int
    digest: str
    collection: str | None
    passages: int
    questions: int
    writer: str | None
    built: tuple[str, ...] = ()


def pack(artifact: Path, out: Path, *, home: Path | None = None, writer_lm: Path | None = None) -> PackReport:
    """Write an artifact, its collection and its rewriter into one file; the same ones give the same bytes.

    A rewriter of more than 64 MiB stays out. Vectors are packed as the store has them; the few that it lacks are made
    by the embedder.

    Args:
        artifact: The artifact's folder.
        out: The file, which ends in .qw; an older one is replaced whole or not at all.
        home: The working folder that holds the collection. Default: ``querywright.home.home()``.
        writer_lm: The folder of the artifact's rewriter, where it names one. Default: the copy in the working folder.

    Raises:
        ArtifactError: The artifact is damaged, its rewriter is missing or another, its collection is not the one it
            was compiled on, or the file cannot be written.
        CollectionError: The collection is missing or damaged, or its vectors cannot be had.
        InputError: The file has another name.
    """
    if out.suffix != SUFFIX:
        raise InputError(f"a packed artifact is a file that ends in {SUFFIX}, not {out.name!r}; give another --out")
    read = files.read_artifact(artifact)
    manifest, writer = read.manifest, None
    if manifest.writer is not None and manifest.writer.checksum:
        writer = writers.checked_rewriter(writer_lm or writers.find_rewriter(manifest.writer, home), manifest.writer)
        writer = writer if writers.is_small(writer) else None
    elif writer_lm is not None:
        raise InputError("the artifact names no rewriter; leave writer_lm= out")
    beside = out.absolute().parent
    with writing(repr(out.name)), tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=beside) as temporary:
        staged, made = Path(temporary), Path(temporary) / "packed"
        write_all(staged / "artifact", read.data)
        (staged / "rewriter").mkdir()
        if writer is not None:
            writers.copy_rewriter(writer, staged / "rewriter")
        counts = {where: _stage(staged / where, name, manifest, home) for where, name in _searched(manifest).items()}
        with zipfile.ZipFile(made, "w") as archive:
            for name in MEMBERS:
                if (staged / name).exists():
                    _add(archive, staged / name, name)
        sync(made)
        made.replace(out)
        sync(beside)
    return _report(artifact.resolve().name, out, manifest, counts, writer is not None)


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
    busy = CollectionError("another process is unpacking into this working folder; wait until it is done")
    with writing(repr(out.name)), locked(place / "unpacking.lock", busy, seconds=600):
        for left in place.glob(".unpacking-*"):  # of an unpacking that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place) as temporary:
            staged = Path(temporary)
            _extract(file, staged, digest)
            artifact = files.read_artifact(staged / "artifact")
            program_from(artifact.state)
            manifest = artifact.manifest
            with_rewriter = (staged / "rewriter").exists()
            if with_rewriter and (manifest.writer is None or not manifest.writer.checksum):
                raise ArtifactError("the packed file holds a rewriter, which its artifact does not name; do not use it")
            facts = {where: _facts(staged / where, name, manifest) for where, name in _searched(manifest).items()}
            collections = {where: _read(staged / where, one) for where, one in facts.items()}
            files.check_replaceable(target)
            if manifest.writer is not None and with_rewriter:
                writers.keep_rewriter(staged / "rewriter", place, manifest.writer)
            built = _build(list(collections.values()), manifest, staged, place) if collections else ()
            files.put_artifact(target, artifact.data)
    counts = {where: len(one.passages) for where, one in collections.items()}
    return _report(target.name, file, manifest, counts, with_rewriter, built)


def _report(
    artifact: str, file: Path, manifest: files.ArtifactManifest, counts: Mapping[str, int], with_rewriter: bool,
    built: tuple[str, ...] = (),
) -> PackReport:  # fmt: skip
    size, digest = file.stat().st_size, f"sha256:{file_digest(file)}"
    passages, questions = (counts.get(where, 0) for where in ("collection", "questions"))
    writer = str(manifest.writer) if with_rewriter else None
    return PackReport(artifact, size, digest, manifest.collection, passages, questions, writer, built)


def _searched(manifest: files.ArtifactManifest) -> dict[str, str]:
    """The collections that an artifact needs, by their folder in a packed file; questions come first."""
    if manifest.collection is None:
        return {}
    with_questions = manifest.engine in ("questions", "expanded")
    questions = {"questions": questions_name(manifest.collection)} if with_questions else {}
    return {**questions, "collection": manifest.collection}


def _add(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    """Add a file, with no time and no owner."""
    info = zipfile.ZipInfo(name)
    info.file_size = path.stat().st_size
    if info.file_size > MEMBERS[name]:
        raise ArtifactError(f"{name} would have more than the {MEMBERS[name]} bytes that are read; pack less")
    with path.open("rb") as source, archive.open(info, "w") as member:
        shutil.copyfileobj(source, member)


def _extract(file: Path, staged: Path, digest: str | None) -> None:
    """Write the members of a packed file into a folder."""
    if not file.is_file():
        raise ArtifactError(f"the packed file {file.name!r} cannot be read; give what artifact pack wrote with --out")
    with file.open("rb") as opened:
        found = f"sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()}"
        if digest not in (None, found):
            raise ArtifactError(
                f"the digest of {file.name!r} is {found}, but {digest} is asked for; get the file again from its maker"
            )
        try:
            with zipfile.ZipFile(opened) as archive:
                for info in archive.infolist():
                    _check(info, staged)
                    (staged / info.filename).parent.mkdir(exist_ok=True)
                    with archive.open(info) as member, (staged / info.filename).open("xb") as made:
                        shutil.copyfileobj(member, made)
        except (zipfile.BadZipFile, RuntimeError, ValueError, LookupError, EOFError, OSError, struct.error) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is a place that no file has
                raise
            raise ArtifactError(
                f"{file.name!r} is no packed file, was cut off or changed ({error}); get it again"
            ) from error


def _check(info: zipfile.ZipInfo, staged: Path) -> None:
    name = info.filename
    if name not in MEMBERS or info.compress_type != zipfile.ZIP_STORED or (staged / name).exists():
        raise ArtifactError(
            f"the packed file holds {name[:100]!r}, which is no part of one, or is there twice; do not use it"
        )
    if info.file_size > MEMBERS[name]:
        raise ArtifactError(f"{name} has more than the {MEMBERS[name]} bytes that are read")


def _stage(staged: Path, name: str, manifest: files.ArtifactManifest, home: Path | None) -> int:
    """Write a collection into its folder; gives how many passages it has."""
    source = collection_folder(name, home)
    facts, passages = published.published_passages(source, home)
    store = open_store(home)
    embedder = embedder_of(facts.embedder, store=store) or _stored(facts, store)
    if name == manifest.collection:
        open_compiled_on(manifest, embedder, home)
    staged.mkdir()
    facts.model_copy(update={"number": 1, "index_files": {}}).write(staged / MANIFEST)
    published.write_passages(staged / PASSAGES, passages.values())
    texts = _distinct_texts(passages.values())
    with (staged / VECTORS).open("wb") as file:
        for start in range(0, len(texts), CHUNK):
            vectors = embedder.encode(texts[start : start + CHUNK], side=published.side_of(name))
            file.write(vectors.astype("<f4").tobytes())
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
    """A collection in a packed file: its folder there, what is said of it, its passages, a vector for each text."""

    staged: Path
    facts: Generation
    passages: Mapping[str, Passage]
    vectors: Vectors


def _facts(staged: Path, name: str, manifest: files.ArtifactManifest) -> Generation:
    """What is said of a collection, held against its artifact and the sizes of its files before any of it is read."""
    with _told(staged):
        facts = Generation.from_bytes((staged / MANIFEST).read_bytes())
        with (staged / PASSAGES).open("rb") as file:
            n_lines = sum(part.count(b"\n") for part in iter(partial(file.read, 2**20), b""))
        n_vectors, odd = divmod((staged / VECTORS).stat().st_size, 4 * facts.dimension)
        if facts.name != name or n_lines != facts.count or odd or not 0 < n_vectors <= facts.count:
            raise ValueError("it is not what its artifact names")
    told = fingerprint_of(str(manifest.engine), facts, manifest.where) if name == manifest.collection else None
    if told is not None:
        check_compiled_on(manifest, told)
    return facts


@contextlib.contextmanager
def _told(staged: Path) -> Iterator[None]:
    """Inside the ``with`` block whatever a stranger wrote is damage."""
    try:
        yield
    except Exception as error:
        raise ArtifactError(f"the {staged.name} of the packed file is damaged ({error}); do not use it") from error


def _read(staged: Path, facts: Generation) -> _Collection:
    with _told(staged):
        passages = checked_passages(published.read_passages(staged / PASSAGES, facts).values(), staged)
        vectors = np.frombuffer((staged / VECTORS).read_bytes(), dtype="<f4").reshape(-1, facts.dimension)
        if facts.content_hash != published.content_hash(passages.values()):
            raise ValueError("it is not what its artifact names")
        if staged.name == "questions":
            read_records(staged)
            read_pairs(staged)
    return _Collection(staged, facts, passages, vectors)


def _build(
    collections: Sequence[_Collection], manifest: files.ArtifactManifest, staged: Path, home: Path
) -> tuple[str, ...]:
    """Build what is missing in a folder of its own, and move it when it is whole: questions before their passages."""
    missing = [one.facts.name for one in collections if not _is_there(one.facts, home)]
    with closing(Store(staged / FILE_NAME)) as store:
        for one in collections:  # the collection itself is the last one
            embedder = _stored(one.facts, store)
            try:
                texts, side = _distinct_texts(one.passages.values()), published.side_of(one.facts.name)
                embedder.keep(texts, one.vectors, side=side)
            except InputError as error:
                raise ArtifactError(f"vectors of the packed file are damaged: {error}; do not use it") from error
            if missing:
                folder = collection_folder(one.facts.name, staged)
                folder.mkdir(mode=0o700, parents=True)
                _copy_records(one.staged, folder)
                build_collection(one.facts.name, one.passages.values(), embedder=embedder, home=staged)
        open_compiled_on(manifest, _stored(collections[-1].facts, store), staged if missing else home)
        gc.collect()  # the index that was opened is closed before its folder moves
    for name in missing:
        target = collection_folder(name, home)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        collection_folder(name, staged).rename(target)
        sync(target.parent)
    return tuple(missing)


def _is_there(facts: Generation, home: Path) -> bool:
    """Whether the very same collection is published; another one, or something else of that name, is an error."""
    folder = collection_folder(facts.name, home)
    if not folder.exists() or not any(folder.iterdir()):
        return False
    with contextlib.suppress(CollectionError):
        there = published.read_manifest(folder)
        if there and (there.embedder, there.content_hash) == (facts.embedder, facts.content_hash):
            return True
    raise CollectionError(
        f"the collection {facts.name!r} of the packed file cannot be put in place: a folder of that name holds another "
        "collection, or something else, and it is never replaced; give another working folder (--home)"
    )
