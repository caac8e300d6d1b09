"""A folder that is replaced whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from querywright.errors import ArtifactError


def replace_whole(target: Path, fill: Callable[[Path], None], *, check: Callable[[Path], None]) -> None:
    """Fill a folder beside the target, then put it in its place; what stood there is gone.

    Args:
        target: The folder; its parent is made when missing.
        fill: Writes the files into an empty folder. Where it raises, what stood there stays. It is called when no
            other writer can come in between.
        check: Raises where something would be lost with the target.

    Raises:
        OSError: It could not be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_writer(target.parent):
        _put_right(target)
        check(target)
        made = target.with_name(f".{target.name}.new-{secrets.token_hex(6)}")
        try:
            made.mkdir()
            fill(made)
            for file in made.iterdir():
                _sync(file)
            _sync(made)
            _swap(made, target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def place_of(target: Path) -> Path:
    """Where the folder is: in its place, or aside where a writer that was killed left it."""
    return target if target.exists() or not aside(target).is_dir() else aside(target)


def check_replaceable(target: Path, known: Collection[str], mark: str) -> None:
    """Check that nothing is lost where a folder is put in the place of another.

    Args:
        target: The folder, there or not.
        known: Names of the files that may be replaced.
        mark: The file without which a folder that is not empty is none of ours.

    Raises:
        ArtifactError: Something would be lost.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ArtifactError(f"{target.name!r} is a file or a link, but a rewriter is a folder; give another folder")
    present = {entry.name for entry in target.iterdir()} if target.exists() else set()
    others = sorted(present - set(known)) or (sorted(present) if mark not in present else [])
    if others:
        raise ArtifactError(
            f"{target.name!r} holds files that are not of a rewriter, such as {others[0]!r}; they would be lost. "
            "Give another folder"
        )


def _swap(made: Path, target: Path) -> None:
    replaced = target.exists()
    if replaced:
        target.rename(aside(target))
    try:
        made.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if replaced:
            aside(target).rename(target)
        raise
    shutil.rmtree(aside(target), ignore_errors=True)


def _put_right(target: Path) -> None:
    """Put right what writers that were killed left behind."""
    if aside(target).is_dir():
        if target.exists():
            shutil.rmtree(aside(target), ignore_errors=True)
        else:
            aside(target).rename(target)
    for left in target.parent.glob(f".{target.name}.new-*"):
        shutil.rmtree(left, ignore_errors=True)


def aside(target: Path) -> Path:
    """Where a folder stands while another is put in its place."""
    return target.with_name(f".{target.name}.old")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """One writer at a time in a folder; the lock ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
