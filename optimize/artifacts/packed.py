"""The form of a packed artifact: one zip file, read as the work of a stranger.

Its members are those named here and no others: ``pack.json``, which binds each other one by SHA-256 and size, the files
of the artifact, and of its collection the passages as JSON lines and their vectors as raw float32. Chroma's own files
are not in it: the index is built again from passages and vectors. The files of the rewriter that the artifact names are
in it where they are small. The file ends in the SHA-256 of all before.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from querywright.errors import ArtifactError
from querywright.models.rewriters import FILES, MANIFEST
from querywright.optimize.artifacts.folders import LIMITS, OPTIONAL
from querywright.optimize.artifacts.rewriters import LARGEST_KEPT
from querywright.optimize.artifacts.signatures import check_signed

FORMAT = 2
"""The form of a packed file that holds a rewriter; without one it has the form before it."""
PLAIN_FORMAT = 1

FACTS = "pack.json"
PACK_SIGNATURE = "pack-signature.json"
IN_ARTIFACT = "artifact/"
PASSAGES, VECTORS, RECORDS, ANSWERS = "passages.jsonl", "vectors.f32", "records.jsonl", "answers.jsonl"
IN_COLLECTION, IN_QUESTIONS, IN_REWRITER = "collection/", "questions/", "rewriter/"

_NUMBERS_IN = (VECTORS, ".safetensors", ".gguf")
_LINES = 2**30
_NUMBERS = 4 * 2**30
MEMBERS: Mapping[str, int] = {
    FACTS: 2**20,
    PACK_SIGNATURE: OPTIONAL["signature.json"],
    **{f"{IN_ARTIFACT}{name}": limit for name, limit in {**LIMITS, **OPTIONAL}.items()},
    f"{IN_COLLECTION}{PASSAGES}": _LINES,
    f"{IN_COLLECTION}{VECTORS}": _NUMBERS,
    f"{IN_QUESTIONS}{PASSAGES}": _LINES,
    f"{IN_QUESTIONS}{VECTORS}": _NUMBERS,
    f"{IN_QUESTIONS}{RECORDS}": _LINES,
    f"{IN_QUESTIONS}{ANSWERS}": _LINES,
    **{f"{IN_REWRITER}{name}": LARGEST_KEPT for name in FILES},
}
"""Every member that there can be, and bytes of each that are read at most."""

LARGEST = 8 * 2**30
"""Bytes of all members together, and of the file, that are read at most."""

LONGEST_LINE = 16 * 2**20
"""Bytes of a line of passages, its end included, that are read at most."""

RATIO = 200
"""So many times its compressed bytes a member larger than ``PIECE`` may have at most; texts come nowhere near it."""

PIECE = 2**20
_AT_ONCE = 4 * 2**20
_SEAL = b"sha256:"
_SEALED = len(_SEAL) + 64
_MODE = stat.S_IFREG | 0o600
_DAY = (1980, 1, 1, 0, 0, 0)


class FileFacts(BaseModel):
    """What a member must be."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class CollectionFacts(BaseModel):
    """A collection in a packed file.

    Args:
        name: Its name.
        embedder: Id of the embedder that made the vectors.
        dimension: Numbers in a vector.
        vectors: Vectors, one a distinct text of the passages, in their order.
        count: Passages.
        content_hash: SHA-256 over the sorted digests of the passages.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    embedder: str = Field(min_length=1, max_length=1000)
    dimension: int = Field(ge=1, le=65_536)
    vectors: int = Field(ge=1)
    count: int = Field(ge=1)
    content_hash: str


class PackFacts(BaseModel):
    """``pack.json``: what is in a packed file.

    Args:
        format: Version of the form.
        collection: The collection that the artifact searches; None where it needs none of ours.
        questions: The questions that were written for it, where the artifact searches them.
        files: Every other member but the signature of this one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    format: int
    collection: CollectionFacts | None
    questions: CollectionFacts | None
    files: dict[str, FileFacts]


class Packed:
    """A packed file that is open, every byte of it checked.

    Args:
        archive: The zip file.
        facts: What is in it.
    """

    def __init__(self, archive: zipfile.ZipFile, facts: PackFacts) -> None:
        self._archive = archive
        self.facts = facts

    def __contains__(self, member: object) -> bool:
        return member in self.facts.files

    def held(self, where: str) -> dict[str, bytes]:
        """The members of a folder that are small enough to be read at once, by the names that they have in it."""
        return {name.removeprefix(where): self.read(name) for name in self.facts.files if name.startswith(where)}

    def read(self, member: str) -> bytes:
        """A member that is small enough to be read at once."""
        return b"".join(self.pieces(member))

    def lines(self, member: str) -> Iterator[bytes]:
        """The lines of a member, each with its end.

        Raises:
            ArtifactError: One is longer than lines are, or they are not what ``pack.json`` names.
        """
        begun, size = list[bytes](), 0
        for piece in self.pieces(member):
            for part in io.BytesIO(piece):
                begun.append(part)
                size += len(part)
                check_line(member, size)
                if part.endswith(b"\n"):
                    yield b"".join(begun)
                    begun, size = [], 0
        if begun:
            yield b"".join(begun)

    def pieces(self, member: str, size: int = PIECE) -> Iterator[bytes]:
        """The bytes of a member, so many at a time.

        Raises:
            ArtifactError: They are not those that ``pack.json`` names.
        """
        facts, digest, total = self.facts.files[member], hashlib.sha256(), 0
        with _reading(), self._archive.open(member) as file:
            while piece := _full(file, min(size, facts.size - total + 1)):
                total += len(piece)
                digest.update(piece)
                if total > facts.size:
                    break
                yield piece
        if (total, digest.hexdigest()) != (facts.size, facts.sha256):
            raise ArtifactError(f"{member} of the packed file is not what {FACTS} says; get the file again")


@contextlib.contextmanager
def open_packed(path: Path, public_key: Path | None = None) -> Iterator[Packed]:
    """Open a packed file and check every byte of it before anything is made of it.

    Args:
        path: The file.
        public_key: Key file of whoever must have signed all that is in it. Default None: a signature is not looked at.

    Raises:
        ArtifactError: It is missing, damaged, too large, holds what a packed file cannot hold, or is not signed by that
            key.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ArtifactError(
            f"the packed file {path.name!r} cannot be read: {error.strerror}; give what artifact pack wrote with --out"
        ) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ArtifactError(f"{path.name!r} is no file; give what artifact pack wrote with --out")
    with open(descriptor, "rb") as file:
        if status.st_size > LARGEST:
            raise ArtifactError(f"{path.name!r} has more than the {LARGEST} bytes that are read")
        _check_seal(file, path.name, status.st_size)
        with _reading():
            archive = zipfile.ZipFile(_Guarded(file, status.st_size))
        with archive:
            with _reading():
                members = _members(archive)
                packed = Packed(archive, _facts(archive, members, public_key))
                _check_members(packed, members)
            yield packed


class PackWriter:
    """Writes a packed file; the same members in the same order give the same bytes.

    Args:
        path: The file, not there yet.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb+")
        self._archive = zipfile.ZipFile(self._file, "w")
        self._files: dict[str, FileFacts] = {}

    def add(self, member: str, pieces: Iterator[bytes], size: int | None = None) -> None:
        """Write a member.

        Args:
            member: Its name, one of ``MEMBERS``.
            pieces: Its bytes.
            size: How many there will be, where it is known. Default None.

        Raises:
            ArtifactError: It has more bytes than are read, or more than its compressed ones could honestly be.
        """
        info = zipfile.ZipInfo(member, _DAY)
        info.create_system, info.external_attr = 3, _MODE << 16
        info.compress_type = zipfile.ZIP_STORED if member.endswith(_NUMBERS_IN) else zipfile.ZIP_DEFLATED
        digest, total, limit = hashlib.sha256(), 0, MEMBERS[member]
        if size is not None:
            info.file_size = size
        with self._archive.open(info, "w", force_zip64=size is None and limit >= _LINES) as file:
            for piece in pieces:
                total += len(piece)
                digest.update(piece)
                if total > limit:
                    raise ArtifactError(
                        f"{member} would have more than the {limit} bytes that are read; pack a smaller collection"
                    )
                file.write(piece)
        _check_ratio(info)
        if member not in (FACTS, PACK_SIGNATURE):
            self._files[member] = FileFacts(sha256=digest.hexdigest(), size=total)

    def facts(self, collection: CollectionFacts | None, questions: CollectionFacts | None) -> bytes:
        """``pack.json`` for what was written."""
        files = dict(sorted(self._files.items()))
        number = FORMAT if any(name.startswith(IN_REWRITER) for name in files) else PLAIN_FORMAT
        return _pretty(PackFacts(format=number, collection=collection, questions=questions, files=files))

    def seal(self) -> None:
        """Write the end of the file, and see to it that all of it is on the disk."""
        self._archive.comment = bytes(_SEALED)
        self._archive.close()
        self._file.seek(0)
        digest = _digest(self._file, self._file.seek(0, os.SEEK_END) - _SEALED)
        self._file.seek(-_SEALED, os.SEEK_END)
        self._file.write(digest)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, whole or not."""
        with contextlib.suppress(ValueError, OSError):
            self._archive.close()
        self._file.close()


class _Guarded(io.RawIOBase):
    """A file of which no great piece is read at once: what a zip file says of its own sizes is not believed."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        wanted = max(0, self._size - self._file.tell()) if size < 0 else size
        if wanted > _AT_ONCE:
            raise zipfile.BadZipFile("its directory is too large")
        return self._file.read(wanted)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Turns what zipfile says of a damaged file into our error."""
    try:
        yield
    except (
        zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError,
    ) as error:  # fmt: skip
        raise ArtifactError(f"the packed file is damaged ({error}); get it again") from error


def _check_seal(file: IO[bytes], name: str, size: int) -> None:
    if size > _SEALED:
        expected = _digest(file, size - _SEALED)
        file.seek(size - _SEALED)
        if file.read() == expected:
            return
    raise ArtifactError(f"{name!r} is no packed file, was cut off or changed (its SHA-256 does not fit); get it again")


def _digest(file: IO[bytes], size: int) -> bytes:
    digest, left = hashlib.sha256(), size
    file.seek(0)
    while left and (piece := file.read(min(PIECE, left))):
        digest.update(piece)
        left -= len(piece)
    return _SEAL + digest.hexdigest().encode()


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by name, each of a form that we write."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.orig_filename
        if name not in MEMBERS or name != info.filename:
            raise ArtifactError(f"the packed file holds {name[:100]!r}, which is no part of one; do not use it")
        if name in found:
            raise ArtifactError(f"the packed file holds {name} twice; do not use it")
        if info.external_attr >> 16 != _MODE or info.flag_bits & 1:
            raise ArtifactError(f"{name} of the packed file is a link, locked, or no plain file; do not use it")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArtifactError(f"{name} of the packed file is compressed in a way that is not read; do not use it")
        if info.file_size > MEMBERS[name]:
            raise ArtifactError(f"{name} of the packed file has more than the {MEMBERS[name]} bytes that are read")
        _check_ratio(info)
        found[name] = info
    if sum(info.file_size for info in found.values()) > LARGEST:
        raise ArtifactError(f"the packed file holds more than the {LARGEST} bytes that are read")
    return found


def check_line(member: str, size: int) -> None:
    """Raise when a line of a member has more bytes than are read.

    Raises:
        ArtifactError: It has.
    """
    if size > LONGEST_LINE:
        raise ArtifactError(
            f"{member} of the packed file has a line of more than the {LONGEST_LINE} bytes that are read; cut the "
            "passage into smaller ones, or do not use the file"
        )


def _check_ratio(info: zipfile.ZipInfo) -> None:
    if info.file_size > max(PIECE, RATIO * info.compress_size):
        raise ArtifactError(
            f"{info.filename} of the packed file has more than {RATIO} times its compressed bytes, which is not read; "
            "leave out passages that repeat others, or do not use the file"
        )


def _facts(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], public_key: Path | None) -> PackFacts:
    def small(name: str) -> bytes:
        with archive.open(name) as file:
            return _full(file, MEMBERS[name] + 1)

    if FACTS not in members:
        raise ArtifactError(f"the packed file has no {FACTS}; get it again")
    data = small(FACTS)
    if public_key is not None:
        check_signed(data, small(PACK_SIGNATURE) if PACK_SIGNATURE in members else None, public_key)
    try:
        content: Any = json.loads(data)
        if isinstance(content, dict) and content.get("format") not in (PLAIN_FORMAT, FORMAT):
            raise ArtifactError(
                f"the packed file has format {content.get('format')!r:.20}, this version of querywright reads "
                f"{PLAIN_FORMAT} and {FORMAT}; pack the artifact again with this version, or install the one that "
                "packed it"
            )
        facts = PackFacts.model_validate(content)
        if _pretty(facts) != data:
            raise ValueError("other bytes")
    except (ValidationError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{FACTS} of the packed file is damaged; get the file again") from error
    return facts


def _check_members(packed: Packed, members: Mapping[str, zipfile.ZipInfo]) -> None:
    """Every member is one that belongs there, and has the bytes it must have."""
    facts = packed.facts
    needed = {f"{IN_ARTIFACT}{name}" for name in LIMITS}
    optional = {f"{IN_ARTIFACT}{name}" for name in OPTIONAL}
    if facts.collection is not None:
        needed |= {f"{IN_COLLECTION}{PASSAGES}", f"{IN_COLLECTION}{VECTORS}"}
    if facts.questions is not None:
        needed |= {f"{IN_QUESTIONS}{name}" for name in (PASSAGES, VECTORS, RECORDS)}
        optional |= {f"{IN_QUESTIONS}{ANSWERS}"}
    if facts.format == FORMAT:
        needed |= {f"{IN_REWRITER}{MANIFEST}"}
        optional |= {f"{IN_REWRITER}{name}" for name in FILES}
        if sum(one.size for name, one in facts.files.items() if name.startswith(IN_REWRITER)) > LARGEST_KEPT:
            raise ArtifactError(f"the rewriter of the packed file has more than the {LARGEST_KEPT} bytes that are read")
    named = set(facts.files)
    if not (needed <= named <= needed | optional) or named != set(members) - {FACTS, PACK_SIGNATURE}:
        raise ArtifactError(f"the packed file does not hold what its {FACTS} says; get it again")
    for name, one in facts.files.items():
        if one.size != members[name].file_size:
            raise ArtifactError(f"{name} of the packed file is not what {FACTS} says; get the file again")
        for _ in packed.pieces(name):
            pass


def _full(file: IO[bytes], size: int) -> bytes:
    """So many bytes, or those that are left."""
    parts = []
    while size > 0 and (part := file.read(min(PIECE, size))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _pretty(facts: PackFacts) -> bytes:
    return (json.dumps(facts.model_dump(), ensure_ascii=False, indent=2) + "\n").encode()
