"""Packing: an artifact and the collection that it searches in one file, for another machine."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.files import sync
from querywright.models.embedder import CHUNK, Embedder, Vectors, embedder_of
from querywright.models.store import Store, open_store
from querywright.optimize.artifacts.files import ArtifactManifest, artifact_files, checked_artifact
from querywright.optimize.artifacts.packed import (
    ANSWERS,
    FACTS,
    IN_ARTIFACT,
    IN_COLLECTION,
    IN_QUESTIONS,
    IN_REWRITER,
    PACK_SIGNATURE,
    PASSAGES,
    RECORDS,
    VECTORS,
    CollectionFacts,
    PackWriter,
    check_line,
)
from querywright.optimize.artifacts.rewriters import checked_rewriter, find_rewriter, rewriter_files
from querywright.optimize.artifacts.searched import check_named, open_searched
from querywright.optimize.artifacts.signatures import private_key, signature_of
from querywright.retrieval.answer_pairs import ANSWERS as STORED_ANSWERS
from querywright.retrieval.answer_pairs import read_pairs
from querywright.retrieval.collection import Generation, collection_folder, published_passages
from querywright.retrieval.engines import LEXICAL, Engine
from querywright.retrieval.question_records import RECORDS as STORED_RECORDS
from querywright.retrieval.question_records import questions_folder, read_records

SUFFIX = ".qw"
WITH_QUESTIONS: frozenset[Engine] = frozenset({"questions", "expanded"})
"""Engines that search the questions that were written for passages."""


@dataclass(frozen=True, slots=True)
class PackReport:
    """What was packed.

    Args:
        file: Name of the file.
        size: Its bytes.
        collection: Name of the collection in it, or None.
        passages: Passages in it.
        questions: Written questions in it.
        signed: Whether all of it is signed.
        rewriter: Name of the rewriter in it, or None.
    """

    file: str
    size: int
    collection: str | None
    passages: int
    questions: int
    signed: bool
    rewriter: str | None = None


def pack(
    artifact: Path,
    out: Path,
    *,
    home: Path | None = None,
    key: Path | None = None,
    rewriter: Path | None = None,
) -> PackReport:
    """Write an artifact, its collection and its rewriter into one file; the same ones give the same bytes.

    A signature of the artifact goes along. A rewriter of more than 64 MiB stays out. Vectors are packed as the store
    has them; the few that it lacks are made by the embedder.

    Args:
        artifact: The artifact's folder.
        out: The file, which ends in .qw; an older one is replaced whole or not at all.
        home: The working folder that holds the collection. Default: ``querywright.home.home()``.
        key: A private key file that signs all that is packed, vectors included. Default None.
        rewriter: The folder of the artifact's rewriter, where it names one. Default: the copy in the working folder.

    Raises:
        ArtifactError: The artifact is damaged, its rewriter is missing or another, its collection is not the one it
            was compiled on, or the file cannot be written.
        CollectionError: The collection is missing or damaged, or its vectors cannot be had.
        InputError: The file has another name, or the key cannot be used.
    """
    if out.suffix != SUFFIX:
        raise InputError(f"a packed artifact is a file that ends in {SUFFIX}, not {out.name!r}; give another --out")
    if key is not None:
        private_key(key)
    files = artifact_files(artifact)
    manifest = checked_artifact(files).manifest
    rewriting = _rewriter(manifest, rewriter, home)
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(6)}.tmp")
    try:
        writer = PackWriter(temporary)
        try:
            for name, data in sorted(files.items()):
                writer.add(f"{IN_ARTIFACT}{name}", iter([data]), len(data))
            for name, data in (rewriting or {}).items():
                writer.add(f"{IN_REWRITER}{name}", iter([data]), len(data))
            collection, questions = _collections(writer, manifest, home)
            facts = writer.facts(collection, questions)
            writer.add(FACTS, iter([facts]), len(facts))
            if key is not None:
                signature = signature_of(facts, key)
                writer.add(PACK_SIGNATURE, iter([signature]), len(signature))
            writer.seal()
        finally:
            writer.close()
        size = temporary.stat().st_size
        os.replace(temporary, out)
        sync(out.absolute().parent)
    except OSError as error:
        raise ArtifactError(
            f"{out.name!r} could not be written: {error.strerror}; give another --out, or make room"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return PackReport(
        file=out.name,
        size=size,
        collection=None if collection is None else collection.name,
        passages=0 if collection is None else collection.count,
        questions=0 if questions is None else questions.count,
        signed=key is not None,
        rewriter=None if rewriting is None else str(manifest.rewriter),
    )


def _rewriter(manifest: ArtifactManifest, given: Path | None, home: Path | None) -> dict[str, bytes] | None:
    """The files of the artifact's rewriter; None where it has none, or one that is too large."""
    if manifest.rewriter is None:
        if given is not None:
            raise InputError("the artifact names no rewriter; leave --rewriter out")
        return None
    folder = find_rewriter(manifest.rewriter, home) if given is None else given
    return rewriter_files(checked_rewriter(folder, manifest.rewriter))


def _collections(
    writer: PackWriter, manifest: ArtifactManifest, home: Path | None
) -> tuple[CollectionFacts | None, CollectionFacts | None]:
    check_named(manifest)
    if manifest.collection is None or manifest.engine is None:
        return None, None
    folder = collection_folder(manifest.collection, home)
    published, passages = published_passages(folder, home)
    embedder = _packing(published, home)
    open_searched(manifest, None if manifest.engine in LEXICAL else embedder, home)
    collection = _add(writer, IN_COLLECTION, published, passages, embedder)
    questions = None
    if manifest.engine in WITH_QUESTIONS:
        own = questions_folder(manifest.collection, home)
        written, texts = published_passages(own, home)
        questions = _add(writer, IN_QUESTIONS, written, texts, _packing(written, home))
        read_records(own)
        writer.add(f"{IN_QUESTIONS}{RECORDS}", iter([(own / STORED_RECORDS).read_bytes()]))
        if (own / STORED_ANSWERS).exists():
            read_pairs(own)
            writer.add(f"{IN_QUESTIONS}{ANSWERS}", iter([(own / STORED_ANSWERS).read_bytes()]))
    open_searched(manifest, None if manifest.engine in LEXICAL else embedder, home)
    return collection, questions


class _Model:
    """An embedder in the form of a model, looked for when a vector is missing."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def encode(self, texts: Sequence[str], **_: object) -> Vectors:
        return self._embedder.encode(texts)


def _packing(published: Generation, home: Path | None) -> Embedder:
    """What the embedder of a collection has made, and the embedder for what the store lacks."""

    def load() -> _Model:
        found = embedder_of(published.embedder, store=open_store(home))
        if found is None:
            raise lacking(published.embedder, published.name)
        return _Model(found)

    return Embedder(published.embedder, load, dimension=published.dimension, store=open_store(home))


def _add(
    writer: PackWriter, where: str, published: Generation, passages: Mapping[str, Passage], embedder: Embedder
) -> CollectionFacts:
    texts = distinct_texts(passages.values())
    writer.add(f"{where}{PASSAGES}", _lines(passages.values()))
    writer.add(f"{where}{VECTORS}", _rows(texts, embedder), len(texts) * published.dimension * 4)
    return CollectionFacts(
        name=published.name,
        embedder=published.embedder,
        dimension=published.dimension,
        vectors=len(texts),
        count=published.count,
        content_hash=published.content_hash,
    )


def distinct_texts(passages: Iterable[Passage]) -> list[str]:
    """What of some passages is embedded, each text once, in their order."""
    return list(dict.fromkeys(passage.content for passage in passages))


def _lines(passages: Iterable[Passage]) -> Iterator[bytes]:
    for one in passages:
        row = {"id": one.id, "title": one.title, "text": one.text, "metadata": dict(one.metadata)}
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        check_line(PASSAGES, len(line))
        yield line


def _rows(texts: list[str], embedder: Embedder) -> Iterator[bytes]:
    for start in range(0, len(texts), CHUNK):
        yield embedder.encode(texts[start : start + CHUNK]).astype("<f4").tobytes()


def stored_embedder(identifier: str, dimension: int, store: Store, collection: str) -> Embedder:
    """What an embedder has made, without the embedder.

    Args:
        identifier: Its id.
        dimension: Numbers in a vector.
        store: Holds what it has made.
        collection: What is searched, for the message of the error that a missing vector raises.
    """

    def missing() -> object:
        raise lacking(identifier, collection)

    return Embedder(identifier, missing, dimension=dimension, store=store)


def lacking(identifier: str, collection: str) -> CollectionError:
    """The error where vectors are neither in the store nor to be had from their embedder."""
    return CollectionError(
        f"the store of the working folder lacks vectors of {identifier!r} for the collection {collection!r}; index its "
        "passages again, with that embedder, in a new working folder (--home)"
    )
