"""What commands check and work out before anything is spent: names, numbers and places that were given."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.show import note
from querywright.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from querywright.data.types import Question
    from querywright.retrieval.rerank import CrossEncoderReranker

PROBE_BYTES = 1 << 20


def check_engine(engine: str) -> str:
    """The engine of that name; raise when there is none."""
    from querywright.retrieval.engines import check_engine as check

    return check(engine)


def engine_for(technique: str, named: str | None) -> str | None:
    """The engine that a technique searches with.

    Args:
        technique: Its name.
        named: The engine that was named for it; None when none was.

    Returns:
        The technique's own, else the named one; None when there is neither.

    Raises:
        InputError: The technique has another engine of its own.
    """
    from querywright.programs import technique_class

    own = technique_class(technique).ENGINE
    if own is not None and named not in (None, own):
        raise InputError(f"{technique} searches with the engine {own}, not with {named}; leave the engine out")
    return own or named


def check_reranker(technique: str, reranker: str | None) -> None:
    """Raise when a reranker is named that the technique would not ask, or that there cannot be."""
    from querywright.programs import technique_class

    reranks = technique_class(technique).USES_RERANKER
    if reranker is None:
        return
    if not reranks:
        raise InputError(f"{technique} does not rerank; leave --reranker out, or use a technique that does")
    from querywright.retrieval.rerank import resolve_reranker

    resolve_reranker(reranker)


def open_reranker(name: str | None) -> CrossEncoderReranker | None:
    """Load the reranker of that name, if one is named, so that a missing model is told before anything is spent."""
    if name is None:
        return None
    from querywright.retrieval.rerank import resolve_reranker

    reranker = resolve_reranker(name)
    reranker.load()
    return reranker


def check_rewriter(technique: str, rewriter: Path | None) -> None:
    """Raise when a rewriter is named that the technique would not ask, or that is no folder of one."""
    if rewriter is None:
        return
    from querywright.programs import check_takes_rewriter, technique_class

    check_takes_rewriter(technique_class(technique))
    from querywright.models.rewriters import read_rewriter

    read_rewriter(rewriter)


def note_unlearnt(rewriter: Path | None, techniques: Iterable[str]) -> None:
    """Say, in one line, which techniques ask a rewriter that did not learn their prompts.

    Args:
        rewriter: Its folder; nothing is said without one.
        techniques: Names of those that ask it; one that writes nothing asks nobody, and is left out.
    """
    if rewriter is None:
        return
    from querywright.models.rewriters import read_rewriter
    from querywright.programs import takes_rewriter, technique_class

    found = read_rewriter(rewriter)
    strange = sorted({name for name in techniques if takes_rewriter(technique_class(name))} - set(found.techniques))
    if strange:
        note(
            f"the rewriter {found.name} learnt the prompts of {', '.join(found.techniques)}, and not of "
            f"{', '.join(strange)}: measure it there before you rely on it (querywright rewriter evaluate)"
        )


def knob_values(technique: str, given: Mapping[str, str], *, strict: bool = True) -> dict[str, Any]:
    """Knob options in the types of a technique.

    Args:
        technique: Its name.
        given: Texts by knob.
        strict: Refuse a knob that the technique does not have; otherwise leave it out.
    """
    from querywright.programs import technique_class
    from querywright.programs.hyperparameters import Knobs

    knobs = Knobs(technique_class(technique).KNOBS)
    return {name: knobs.knob(name).parse(text) for name, text in given.items() if strict or name in knobs}


def check_reader(reader: str) -> None:
    """Raise when there is no such reader."""
    from querywright.programs import READERS

    known = ["auto", *READERS, "none"]
    if reader not in known:
        raise InputError(f"unknown reader {reader!r}; the readers are: {', '.join(known)}")


def reader_for(questions: Sequence[Question], reader: str) -> str | None:
    """The reader of that name; ``auto`` chooses between options where every question has them."""
    if reader == "none":
        return None
    if reader != "auto":
        return reader
    return "multiple_choice" if all(question.options for question in questions) else "short_answer"


def of_grounded(reader: str | None) -> list[str]:
    """What must be known of closed book where it has this reader."""
    from querywright.programs import READERS

    if reader is None or not READERS[reader].GROUNDED:
        return []
    return [f"the reader {reader} declines where it has no passages: closed book tells nothing of the LM"]


def check_folder(target: Path, option: str) -> None:
    """Raise when an artifact could not be written there, before anything is spent.

    Args:
        target: The artifact's folder; it need not be there.
        option: The option that named it.
    """
    if target.is_dir():
        if not (target / "manifest.json").is_file() and any(target.iterdir()):
            raise ArtifactError(f"{target.name!r} exists and is no artifact; give another folder with {option}")
    elif target.exists() or target.is_symlink():
        raise ArtifactError(f"{target.name!r} is a file, but an artifact is a folder; give another {option}")
    check_place(target.absolute().parent, target.name, option)


def check_results(target: Path, option: str) -> None:
    """Raise when results could not be written there, before anything is spent.

    Args:
        target: The folder; it need not be there. One that holds anything holds earlier results.
        option: The option that named it.
    """
    from querywright.cli.results import SUMMARY

    if target.is_dir():
        if not (target / SUMMARY).is_file() and any(target.iterdir()):
            raise InputError(f"{target.name!r} holds files that are no results; give another folder with {option}")
        check_place(target.absolute(), target.name, option)
    elif target.exists() or target.is_symlink():
        raise InputError(f"{target.name!r} is a file, but results are a folder; give another {option}")
    else:
        check_place(target.absolute().parent, target.name, option)


def check_file(target: Path, option: str, *, parents: bool = False) -> None:
    """Raise when a file could not be written there, before anything is spent.

    Args:
        target: The file; it need not be there.
        option: The option that named it.
        parents: Whether its folder is made when it is missing. Default False.
    """
    if target.is_dir():
        raise InputError(f"{target.name!r} is a folder; give a file with {option}")
    if not parents and not target.absolute().parent.is_dir():
        raise InputError(f"there is no folder {os.fspath(target.parent)!r} for {option} {target.name}; make it first")
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(f"{target.name!r} cannot be written; give another file with {option}")
    if target.is_file() or not target.exists():  # a device or a pipe has no room of its own
        check_place(target.absolute().parent, target.name, option)


def check_place(folder: Path, name: str, option: str) -> None:
    """Raise when a megabyte cannot be written into the folder, or into the nearest one above it that is there.

    Args:
        folder: The folder.
        name: What is to be written into it.
        option: The option that named it.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{name!r} cannot be written into {folder.name or os.fspath(folder)!r}: {error.strerror}; "
            f"give another place with {option}, or make it writable or make room. Nothing was asked yet"
        ) from error
