"""Places that commands were given to write to, checked before anything is spent."""

from __future__ import annotations

import os
from pathlib import Path

from querywright.errors import InputError


def check_folder(target: Path, option: str, mark: str = "manifest.json", what: str = "artifact") -> None:
    """Raise when a folder could not be written there; one that holds anything is ours, which its mark tells."""
    if target.is_dir():
        if not (target / mark).is_file() and any(target.iterdir()):
            raise InputError(f"{target.name!r} exists and is no {what}; give another folder with {option}")
    elif target.exists() or target.is_symlink():
        raise InputError(f"{target.name!r} is a file, but {what} needs a folder; give another {option}")
    check_place(target, option)


def check_file(target: Path, option: str, *, parents: bool = False) -> None:
    """Raise when a file could not be written there; its folder must be there unless parents are made."""
    if target.is_dir():
        raise InputError(f"{target.name!r} is a folder; give a file with {option}")
    if not parents and not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {os.fspath(target.parent)!r} for {option} {target.name}; make it first")
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"{target.name!r} cannot be written; give another file with {option}")
    if target.is_file() or not target.exists():  # a device or a pipe has no room of its own
        check_place(target, option)


def check_place(target: Path, option: str) -> None:
    """Raise when nothing can be written beside a file or folder, or in the nearest folder above that is there."""
    folder = next(one for one in target.absolute().parents if one.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise InputError(
            f"{target.name!r} cannot be written into {folder.name or os.fspath(folder)!r}; give another place with "
            f"{option}, or make it writable. Nothing was asked yet"
        )
