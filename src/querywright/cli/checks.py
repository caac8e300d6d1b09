"""Check the files and folders that a command writes, before it calls an LM."""

from __future__ import annotations

import os
from pathlib import Path

from querywright.errors import InputError


def check_folder(target: Path, option: str, mark: str = "manifest.json") -> None:
    """Raise an error if a folder cannot be written to, or has files but not ``mark``, which identifies its kind."""
    if os.path.isdir(target):
        if not (target / mark).is_file() and any(target.iterdir()):
            raise InputError(
                f"the folder {target.name!r} contains other files; choose a different folder with {option}"
            )
    elif os.path.lexists(target):
        raise InputError(f"{option} must be a folder, but {target.name!r} is a file; choose a different path")
    check_place(target, option)


def check_file(target: Path, option: str, *, parents: bool = False) -> None:
    """Raise an error if a file cannot be written. The file's folder must exist, unless ``parents`` is true."""
    if os.path.isdir(target):
        raise InputError(f"{option} must be a file, but {target.name!r} is a folder; choose a different path")
    if not parents and not os.path.isdir(target.absolute().parent):
        raise InputError(
            f"cannot write {option} {target.name}: the folder {os.fspath(target.parent)!r} does not exist; create the "
            "folder first"
        )
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise InputError(
            f"cannot write to {target.name!r}; make the file writable, or choose a different file with {option}"
        )
    if os.path.isfile(target) or not os.path.exists(target):  # not for a device or a pipe
        check_place(target, option)


def check_place(target: Path, option: str) -> None:
    """Raise an error if the nearest existing folder above a file or folder is not writable."""
    folder = next(one for one in target.absolute().parents if os.path.exists(one))
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(
            f"cannot write {target.name!r} to {folder.name or os.fspath(folder)!r}; make the folder writable, or "
            f"choose a different path with {option}. No LM has been called yet"
        )
