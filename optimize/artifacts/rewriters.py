"""The rewriter that an artifact was compiled with: named by its checksum, kept in the working folder, found there.

An artifact never says where its rewriter is, as it never says where its collection is. Whoever compiles with a rewriter
keeps a copy of it in the working folder; a packed artifact brings it along.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from pydantic import BaseModel, ConfigDict, Field

from querywright.errors import ArtifactError
from querywright.files import replace_folder
from querywright.home import home as working_folder
from querywright.models.lm import resolve_lm
from querywright.models.rewriter_bases import KEPT
from querywright.models.rewriters import MANIFEST, Rewriter, read_rewriter
from querywright.programs import RAG

PREFIX = "rewriter:"
LARGEST_KEPT = 64 * 2**20
"""Bytes of a rewriter that is copied, here and into a packed artifact; an adapter comes nowhere near it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{8,64}")


class RewriterRef(BaseModel):
    """Names a rewriter.

    Args:
        name: Its name; of another LM that was used as one, the model's.
        checksum: Its checksum; empty for another LM, which cannot be found by it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=1000)
    checksum: str = Field(pattern=r"^([0-9a-f]{8,64})?$")

    def __str__(self) -> str:
        return f"{self.name}@{self.checksum[:12]}" if self.checksum else self.name


def rewriter_ref(program: RAG) -> RewriterRef | None:
    """Names the rewriter of a program; None where it has none."""
    return None if program.technique.own_lm is None else ref_of(program.technique.own_lm)


def ref_of(lm: Any) -> RewriterRef:
    """Names an LM that is used as a rewriter."""
    model = str(getattr(lm, "model", type(lm).__name__))
    folder = _folder_of(lm)
    if folder is not None:
        found = read_rewriter(folder)
        if found.identity != model:
            raise ArtifactError(
                f"the rewriter {model} was replaced by {found.identity} since it was opened; open it again"
            )
        return _ref(found)
    name, _, digest = model.removeprefix(PREFIX).rpartition("@")
    if model.startswith(PREFIX) and name and _DIGEST.fullmatch(digest):
        return RewriterRef(name=name, checksum=digest)
    return RewriterRef(name=model, checksum="")


def open_rewriter(path: Path, **options: Any) -> dspy.LM:
    """The LM of a rewriter's folder, every byte of which is checked."""
    return resolve_lm(f"{PREFIX}{path}", **options)


def keep_rewriter(path: Path, home: Path | None = None) -> Path | None:
    """Copy a rewriter into the working folder, where the programs that are compiled with it find it.

    Args:
        path: The rewriter's folder.
        home: The working folder. Default: ``querywright.home.home()``.

    Returns:
        The copy; None where the rewriter is too large to be copied.

    Raises:
        ArtifactError: It is no rewriter, or cannot be copied.
    """
    found = read_rewriter(path)
    files = rewriter_files(found)
    return None if files is None else put_rewriter(_ref(found), files, home)


def find_rewriter(ref: RewriterRef, home: Path | None = None) -> Path:
    """The copy of a rewriter in the working folder, every byte of it checked.

    Args:
        ref: Names it.
        home: The working folder. Default: ``querywright.home.home()``.

    Raises:
        ArtifactError: It is not there, or damaged.
    """
    folder = _kept(ref, home) if ref.checksum else None
    if folder is None or not folder.is_dir():
        raise ArtifactError(
            f"the program was compiled with the rewriter {ref}, which the working folder does not have; give its "
            "folder with rewriter=... (--rewriter), or name the working folder that has it (--home)"
        )
    checked_rewriter(folder, ref)
    return folder


def put_rewriter(ref: RewriterRef, files: Mapping[str, bytes], home: Path | None = None) -> Path:
    """Write a rewriter into the working folder, whole or not at all; the very same one that is there stays."""
    folder = _kept(ref, home)

    def fill(made: Path) -> None:
        for name, data in files.items():
            (made / name).write_bytes(data)
        checked_rewriter(made, ref)

    try:
        if not _is_whole(folder, ref):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_folder(folder, fill)
    except OSError as error:
        raise ArtifactError(
            f"the rewriter {ref} could not be written into the working folder: {error.strerror}; make room, or give "
            "another working folder (--home)"
        ) from error
    return folder


def kept_files(ref: RewriterRef, given: Path | None = None, home: Path | None = None) -> dict[str, bytes] | None:
    """The files of a rewriter by name, for a packed artifact; None where they are more than are copied."""
    return rewriter_files(checked_rewriter(find_rewriter(ref, home) if given is None else given, ref))


def rewriter_files(rewriter: Rewriter) -> dict[str, bytes] | None:
    """The files of a rewriter by name; None where they are more than are copied."""
    paths = [rewriter.path / name for name in sorted({MANIFEST, *rewriter.files})]
    if sum(path.stat().st_size for path in paths) > LARGEST_KEPT:
        return None
    return {path.name: path.read_bytes() for path in paths}


def checked_rewriter(folder: Path, ref: RewriterRef) -> Rewriter:
    """The rewriter in a folder, every byte of it checked."""
    found = read_rewriter(folder)
    if found.checksum != ref.checksum:
        raise ArtifactError(f"the rewriter in {folder.name!r} is {_ref(found)}, but {ref} was named; give that one")
    return found


def _ref(rewriter: Rewriter) -> RewriterRef:
    return RewriterRef(name=rewriter.name, checksum=rewriter.checksum)


def _folder_of(lm: Any) -> Path | None:
    """The folder of a rewriter's LM; None for any other LM."""
    inner = getattr(getattr(lm, "engine", None), "inner", None)
    rewriter, adapter = getattr(inner, "rewriter", None), getattr(inner, "adapter", None)
    if isinstance(rewriter, Rewriter):
        return rewriter.path
    return None if adapter is None else Path(adapter.path).parent


def _is_whole(folder: Path, ref: RewriterRef) -> bool:
    with contextlib.suppress(ArtifactError, OSError):
        checked_rewriter(folder, ref)
        return True
    return False


def _kept(ref: RewriterRef, home: Path | None) -> Path:
    """Where the working folder has a rewriter, or would have it; its name is its folder's."""
    if not _NAME.fullmatch(ref.name):
        raise ArtifactError(
            f"{ref.name[:80]!r} cannot be a rewriter's name, which has letters, digits, '.', '-' and '_'; rename its "
            "folder"
        )
    return working_folder(home).resolve() / KEPT / ref.checksum / ref.name
