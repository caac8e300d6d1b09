"""Folders that hold questions or passages: which of their files does, and BEIR's relevance judgements.

Questions are in the file ``questions``, ``queries`` or ``qa``; passages in ``corpus``, ``passages``, ``cards``,
``documents`` or ``docs``; each with the suffix of a known format. Where there is one file a split, the split
follows the name (``qa_test.parquet``). A file ``qrels`` or a folder ``qrels`` with one file a split
(``qrels/test.tsv``) makes it a BEIR folder: its questions are those that are judged, with their labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from querywright.data.qrels import judged_rows
from querywright.data.tables import SUFFIXES, Kind, Row, file_rows, format_of
from querywright.errors import DataError

STEMS: dict[Kind, tuple[str, ...]] = {
    "questions": ("questions", "queries", "qa"),
    "passages": ("corpus", "passages", "cards", "documents", "docs"),
}
QRELS = "qrels"


def holds_files(folder: Path) -> bool:
    """Whether a file in the folder has one of the names of questions or passages."""
    return any(_named(folder, stems) for stems in STEMS.values())


def folder_rows(folder: Path, name: str, *, kind: Kind, split: str | None, problems: list[str]) -> Iterator[Row]:
    """The rows of the file in the folder that holds what is wanted.

    Args:
        folder: A folder for which :func:`holds_files` is true.
        name: What it is called in places and messages.
        kind: What is wanted.
        split: Which of several files or judgements. Default None: the only one.
        problems: Gets a line for each row that cannot be read.

    Raises:
        DataError: There is no such file, or more than one.
    """
    judgements = _judgements(folder) if kind == "questions" else {}
    files = _named(folder, STEMS[kind])
    if not files:
        raise DataError(
            f"{name}: no file of {kind} in this folder, which would be named {' or '.join(STEMS[kind])} with "
            f"{', '.join(SUFFIXES)}; found {_contents(folder)}; give a folder that has one, or the path of the "
            "file itself"
        )
    if not judgements:
        path = _choose(files, name, kind, split)
        yield from file_rows(path, f"{name.rstrip('/')}/{path.name}", problems)
        return
    queries = _choose(files, name, kind, None)
    chosen = _choose(judgements, name, QRELS, split)
    place = name.rstrip("/")
    yield from judged_rows(
        file_rows(queries, f"{place}/{queries.name}", problems),
        file_rows(chosen, f"{place}/{chosen.relative_to(folder)}", problems),
        problems,
    )


def _judgements(folder: Path) -> dict[Path, str]:
    """The files of relevance judgements and their splits."""
    if (folder / QRELS).is_dir():
        return {path: path.name.split(".")[0] for path in _files(folder / QRELS)}
    return _named(folder, (QRELS,))


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and format_of(path.name)[0])
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); make it readable or give another") from error


def _named(folder: Path, stems: tuple[str, ...]) -> dict[Path, str]:
    """The files of one of these names, and what stands behind the name: the split."""
    found = {}
    for path in _files(folder):
        stem = path.name.lower().removesuffix(".gz").rpartition(".")[0]
        for name in stems:
            if stem == name or (stem.startswith(name) and stem[len(name)] in "_-."):
                found[path] = stem[len(name) + 1 :]
    return found


def _choose(files: dict[Path, str], name: str, kind: str, split: str | None) -> Path:
    """The only file, or the one of the split."""
    if split is not None and not any(files.values()):
        raise DataError(f"split={split!r}: {name} has one file of {kind}, {_names(files)}; leave split out")
    chosen = [path for path, part in files.items() if split in (None, part)]
    if len(chosen) == 1:
        return chosen[0]
    splits = sorted(part for part in files.values() if part)
    remedy = f"name a split with split= or --split: {splits}" if splits else "give the path of one of them"
    count = "several files" if chosen else f"no file of the split {split!r} among the files"
    raise DataError(f"{name}: {count} of {kind} in this folder, {_names(files)}; {remedy}")


def _names(files: dict[Path, str]) -> str:
    return ", ".join(path.name for path in files)


def _contents(folder: Path) -> list[str]:
    return sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())[:12]
