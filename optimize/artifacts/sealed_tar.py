"""A plain tar that ends in its SHA-256: members by name, each with a limit; read as the work of a stranger."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from querywright.errors import ArtifactError
from querywright.files import file_digest, sync

_BLOCK = 512
_PIECE = 2**20
_SEAL = b"sha256:"
SEALED = len(_SEAL) + 64


def write_tar(staged: Path, made: Path, members: Mapping[str, int]) -> None:
    """Write the tar of all members that are staged, and its SHA-256; the same ones give the same bytes."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        return info.replace(mtime=0, mode=0o600, uid=0, gid=0, uname="", gname="", deep=False)

    with tarfile.open(made, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, limit in members.items():
            if (staged / name).exists():
                if (staged / name).stat().st_size > limit:
                    raise ArtifactError(f"{name} would have more than the {limit} bytes that are read; pack less")
                archive.add(staged / name, name, filter=plain)
    seal = _SEAL + file_digest(made).encode()
    with made.open("ab") as file:
        file.write(seal)
    sync(made)


@contextmanager
def opened_tar(path: Path, digest: str | None) -> Iterator[tuple[IO[bytes], int, str]]:
    """A packed file of which every byte is as it was written, the size of its tar, and its digest."""
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
        size, hashed = status.st_size - SEALED, hashlib.sha256()
        for piece in _pieces(file, size):
            hashed.update(piece)
        seal = file.read(SEALED)
        if seal != _SEAL + hashed.hexdigest().encode():
            raise ArtifactError(
                f"{path.name!r} is no packed file, was cut off or changed (its SHA-256 does not fit); get it again"
            )
        hashed.update(seal)
        found = f"sha256:{hashed.hexdigest()}"
        if digest not in (None, found):
            raise ArtifactError(
                f"the digest of {path.name!r} is {found}, but {digest} is asked for; get the file again from its maker"
            )
        file.seek(0)
        yield file, size, found


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """So many bytes of a file, or those that there are."""
    while size > 0 and (piece := file.read(min(_PIECE, size))):
        size -= len(piece)
        yield piece


def extract(file: IO[bytes], size: int, staged: Path, members: Mapping[str, int]) -> None:
    """Write the members of a tar, each a plain file of ``members``, into a folder."""
    while (header := file.read(_BLOCK)) != bytes(_BLOCK):
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.TarError, ValueError) as error:
            raise ArtifactError(f"the packed file is damaged ({error}); get it again") from error
        if info.name not in members or info.type != tarfile.REGTYPE:
            raise ArtifactError(f"the packed file holds {info.name[:100]!r}, which is no part of one; do not use it")
        if info.size > members[info.name]:
            raise ArtifactError(f"{info.name} has more than the {members[info.name]} bytes that are read")
        if info.size > size - file.tell() or (staged / info.name).exists():
            raise ArtifactError(f"the packed file is damaged, or holds {info.name} twice; do not use it")
        (staged / info.name).parent.mkdir(exist_ok=True)
        with (staged / info.name).open("xb") as member:
            member.writelines(_pieces(file, info.size))
        file.seek(-info.size % _BLOCK, os.SEEK_CUR)
