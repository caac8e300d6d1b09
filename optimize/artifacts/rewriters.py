"""The rewriter that an artifact was compiled with: named by its digest, kept in the working folder, found again there.

An artifact never says where its rewriter is, as it never says where its collection is. Whoever compiles with a rewriter
keeps a copy of it in the working folder; a packed artifact brings it along.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from pydantic import BaseModel, ConfigDict, Field

from querywright.errors import ArtifactError
from querywright.home import home as working_folder
from querywright.models.lm import resolve_lm
from querywright.programs import RAG
from querywright.retrieval.collection import sync_folder

PREFIX = "rewriter:"
KEPT = "rewriters"
"""The folder of the working folder that holds them, each in a folder by its digest."""

LARGEST_KEPT = 64 * 2**20
"""Bytes of a rewriter that is copied, here and into a packed artifact; an adapter comes nowhere near it."""

CARD = "rewriter.json"
"""The file of a rewriter that names its others."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{8,64}")


class RewriterRef(BaseModel):
    """Names a rewriter.

    Args:
        name: Its name; of another LM that was used as one, the model's.
        checksum: Its digest; empty for another LM, which cannot be found by it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=1000)
    checksum: str = Field(pattern=r"^([0-9a-f]{8,64})?$")

    def __str__(self) -> str:
        return f"{self.name}@{self.checksum}" if self.checksum else self.name


def rewriter_ref(program: RAG) -> RewriterRef | None:
    """Names the rewriter of a program; None where it has none."""
    return None if program.technique.own_lm is None else ref_of(program.technique.own_lm)


def ref_of(lm: Any) -> RewriterRef:
    """Names an LM that is used as a rewriter.

    Args:
        lm: The LM.
    """
    model = str(getattr(lm, "model", type(lm).__name__))
    name, _, digest = model.removeprefix(PREFIX).rpartition("@")
    if model.startswith(PREFIX) and name and _DIGEST.fullmatch(digest):
        return RewriterRef(name=name, checksum=digest)
    return RewriterRef(name=model, checksum="")


def open_rewriter(path: Path, **options: Any) -> dspy.LM:
    """The LM of a rewriter's folder, every byte of which is checked.

    Args:
        path: The folder.
        options: Store, ledger and limits, as ``resolve_lm`` takes them.

    Raises:
        InputError: It is no rewriter, is damaged, or what it runs on is not installed.
    """
    return resolve_lm(f"{PREFIX}{path}", **options)


def keep_rewriter(path: Path, home: Path | None = None) -> Path | None:
    """Copy a rewriter into the working folder, where the programs that are compiled with it find it.

    Args:
        path: The rewriter's folder.
        home: The working folder. Default: ``querywright.home.home()``.

    Returns:
        The copy; None where the rewriter is too large to be copied.

    Raises:
        InputError: It is no rewriter.
        ArtifactError: It cannot be copied.
    """
    ref = ref_of(open_rewriter(path))
    files = rewriter_files(path)
    return None if files is None else put_rewriter(ref, files, home)


def find_rewriter(ref: RewriterRef, home: Path | None = None) -> Path:
    """The copy of a rewriter in the working folder.

    Args:
        ref: Names it.
        home: The working folder. Default: ``querywright.home.home()``.

    Raises:
        ArtifactError: It is not there.
    """
    folder = _kept(ref, home) if ref.checksum else None
    if folder is None or not folder.is_dir():
        raise ArtifactError(
            f"the program was compiled with the rewriter {ref}, which the working folder does not have; give its "
            "folder with rewriter=... (--rewriter), or name the working folder that has it (--home)"
        )
    return folder


def put_rewriter(ref: RewriterRef, files: Mapping[str, bytes], home: Path | None = None) -> Path:
    """Write a rewriter into the working folder, whole or not at all; the very same one that is there stays.

    Args:
        ref: What it must be.
        files: By name.
        home: The working folder. Default: ``querywright.home.home()``.

    Raises:
        InputError: The files are no rewriter.
        ArtifactError: They are another one, or cannot be written.
    """
    folder = _kept(ref, home)
    if folder.is_dir():
        return folder
    temporary = folder.parent / f".new-{secrets.token_hex(6)}" / folder.name
    try:
        temporary.mkdir(mode=0o700, parents=True)
        for name, data in files.items():
            with (temporary / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(temporary)
        found = ref_of(open_rewriter(temporary))
        if found.checksum != ref.checksum:
            raise ArtifactError(f"the rewriter is {found}, but {ref} was named; do not use it")
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was first, with the same bytes
            temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise ArtifactError(
            f"the rewriter {ref} could not be written into the working folder: {error.strerror}; make room, or give "
            "another working folder (--home)"
        ) from error
    finally:
        shutil.rmtree(temporary.parent, ignore_errors=True)
    return folder


def rewriter_files(path: Path) -> dict[str, bytes] | None:
    """The files of a rewriter that was checked, by name; None where they are more than are copied.

    Args:
        path: The rewriter's folder.
    """
    named = json.loads((path / CARD).read_bytes())["files"]
    names = sorted({CARD, *named})
    if sum((path / name).stat().st_size for name in names) > LARGEST_KEPT:
        return None
    return {name: (path / name).read_bytes() for name in names}


def _kept(ref: RewriterRef, home: Path | None) -> Path:
    """Where the working folder has a rewriter; its name is its folder's."""
    return working_folder(home).resolve() / KEPT / ref.checksum / _folder_name(ref.name)


def _folder_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ArtifactError(f"{name[:80]!r} cannot be a rewriter's name; compile again with one of another name")
    return name
