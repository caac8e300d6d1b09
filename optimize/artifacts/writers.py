"""The LM that writes for an artifact: its name and, for a trained rewriter, a checksum.

An artifact never stores the location of its rewriter or its collection. A compilation that uses a rewriter keeps a copy
of the rewriter in the workspace.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from querywright.errors import ArtifactError
from querywright.files import replace_folder, writing
from querywright.home import home as working_folder
from querywright.models.rewriters import KEPT, MANIFEST, Rewriter, read_rewriter, rewriter_of

LARGEST_KEPT = 64 * 2**20
"""Maximum size in bytes of a rewriter to copy; an adapter is much smaller."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class WriterRef(BaseModel):
    """Identifies an LM that writes.

    Args:
        name: Name of a rewriter, or of the model of any other LM.
        checksum: Checksum of a rewriter; empty for any other LM.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=1000)
    checksum: str = Field(pattern=r"^([0-9a-f]{8,64})?$")

    def __str__(self) -> str:
        return f"{self.name}@{self.checksum[:12]}" if self.checksum else self.name


def ref_of(lm: Any) -> WriterRef:
    """Return a reference to an LM that writes, with the checksum that was computed when the LM was opened."""
    rewriter = rewriter_of(lm)
    return WriterRef(name=str(lm.model), checksum="") if rewriter is None else _ref(rewriter)


def keep_rewriter(path: Path, home: Path | None = None) -> Path | None:
    """Copy a rewriter into the workspace, where programs compiled with it can find it.

    Args:
        path: Folder of the rewriter.
        home: The workspace. Default: ``querywright.home.home()``.

    Returns:
        The copy; None if the rewriter is too large to be copied.

    Raises:
        ArtifactError: The folder does not contain a rewriter or cannot be copied.
    """
    found = read_rewriter(path)
    if sum((found.path / name).stat().st_size for name in found.files) > LARGEST_KEPT:
        return None
    ref = _ref(found)
    folder = _kept(ref, home)

    def copy(made: Path) -> None:
        for name in (MANIFEST, *found.files):
            shutil.copyfile(found.path / name, made / name)
        checked_rewriter(made, ref)

    with contextlib.suppress(ArtifactError, OSError):
        checked_rewriter(folder, ref)
        return folder
    with writing(f"the rewriter {ref}", "nothing in the workspace was changed", "workspace (--home)"):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_folder(folder, copy)
    return folder


def find_rewriter(ref: WriterRef, home: Path | None = None) -> Path:
    """Return the workspace's copy of a rewriter after checking every byte of it.

    Args:
        ref: The reference.
        home: The workspace. Default: ``querywright.home.home()``.

    Raises:
        ArtifactError: The copy is missing or damaged.
    """
    folder = _kept(ref, home)
    if not folder.is_dir():
        raise ArtifactError(
            f"the program was compiled with the rewriter {ref}, but {ref} is not in this workspace; pass the "
            "rewriter's folder as writer_lm=..., or a workspace that contains the rewriter as home=..."
        )
    checked_rewriter(folder, ref)
    return folder


def checked_rewriter(folder: Path, ref: WriterRef) -> Rewriter:
    """Return the rewriter in a folder after checking every byte of it."""
    found = read_rewriter(folder)
    if found.checksum != ref.checksum:
        raise ArtifactError(
            f"the program requires the rewriter {ref}, but {folder.name!r} contains {_ref(found)}; pass the folder of "
            f"{ref}"
        )
    return found


def _ref(rewriter: Rewriter) -> WriterRef:
    return WriterRef(name=rewriter.name, checksum=rewriter.checksum)


def _kept(ref: WriterRef, home: Path | None) -> Path:
    """Return the folder of a rewriter in the workspace; the folder's name is the rewriter's name."""
    if not _NAME.fullmatch(ref.name):
        raise ArtifactError(
            "a rewriter's name must contain only letters, digits, '.', '-', and '_', but got "
            f"{ref.name[:80]!r}; rename the rewriter's folder"
        )
    return working_folder(home).resolve() / KEPT / ref.checksum / ref.name
