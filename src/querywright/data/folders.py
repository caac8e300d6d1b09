"""Folders that hold questions or passages: which of their files does, and BEIR's judgements as labels.

Questions are in the file ``questions``, ``queries`` or ``qa``; passages in ``corpus``, ``passages``, ``cards``,
``documents`` or ``docs``; each with the suffix of a known format. Where there is one file a split, the split
follows the name (``qa_test.parquet``). A file ``qrels`` or a folder ``qrels`` with one file a split
(``qrels/test.tsv``) makes it a BEIR folder: its questions are those that are judged, with their labels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from querywright.data.cells import short
from querywright.data.tables import SUFFIXES, Kind, Row, file_rows, format_of
from querywright.data.types import Label
from querywright.errors import DataError

STEMS: dict[Kind, tuple[str, ...]] = {
    "questions": ("questions", "queries", "qa"),
    "passages": ("corpus", "passages", "cards", "documents", "docs"),
}
QRELS = "qrels"
QRELS_COLUMNS = ("query-id", "corpus-id", "score")


def holds_files(folder: Path, *kinds: Kind) -> bool:
    """Whether a file in the folder has one of the names of questions or passages, or of one of the kinds given."""
    return any(_named(folder, STEMS[kind]) for kind in kinds or STEMS)


def folder_rows(folder: Path, name: str, *, kind: Kind, split: str | None, problems: list[str]) -> Iterator[Row]:
    """The rows of the file in the folder, for which :func:`holds_files` is true, that holds what is wanted."""
    judgements: dict[Path, str] = {}
    if kind == "questions" and (folder / QRELS).is_dir():
        judgements = {path: path.name.split(".")[0] for path in _files(folder / QRELS)}
    elif kind == "questions":
        judgements = _named(folder, (QRELS,))
    files = _named(folder, STEMS[kind])
    if not files:
        there = sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())[:12]
        raise DataError(
            f"{name}: no file of {kind} in this folder, which would be named {' or '.join(STEMS[kind])} with "
            f"{', '.join(SUFFIXES)}; found {there}; give a folder that has one, or the path of the file itself"
        )

    def rows(path: Path) -> Iterator[Row]:
        return file_rows(path, f"{name.rstrip('/')}/{path.relative_to(folder)}", problems)

    if judgements:
        queries, judged = _choose(files, name, kind, None), _choose(judgements, name, QRELS, split)
        yield from _judged_rows(rows(queries), rows(judged), problems)
    else:
        yield from rows(_choose(files, name, kind, split))


def label_of(grade: int, positive: Collection[int]) -> Label:
    """The label that a grade of relevance stands for.

    Where a set has several positive grades, the lowest means that a passage is about the matter, and those above
    it that it answers: the lowest is USEFUL, the others are ENTAILED. Where it has one positive grade alone, its
    judges said no more than that the passage answers, and it is ENTAILED. 0 and less, which TREC has for spam, is
    NOT_USEFUL.
    """
    if grade <= 0:
        return Label.NOT_USEFUL
    return Label.USEFUL if len(set(positive)) > 1 and grade <= min(positive) else Label.ENTAILED


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
    names = ", ".join(path.name for path in files)
    if split is not None and not any(files.values()):
        raise DataError(f"split={split!r}: {name} has one file of {kind}, {names}; leave split out")
    chosen = [path for path, part in files.items() if split in (None, part)]
    if len(chosen) == 1:
        return chosen[0]
    splits = sorted(part for part in files.values() if part)
    remedy = f"name a split with split=: {splits}" if splits else "give the path of one of them"
    count = "several files" if chosen else f"no file of the split {split!r} among the files"
    raise DataError(f"{name}: {count} of {kind} in this folder, {names}; {remedy}")


def _judged_rows(queries: Iterable[Row], judgements: Iterable[Row], problems: list[str]) -> Iterator[Row]:
    """The queries that are judged, as rows with ``id``, ``question`` and ``evidence``; further columns stay."""
    grades, places = _grades(judgements, problems)
    positive = {grade for found in grades.values() for grade in found.values() if grade > 0}
    for row in queries:
        query = str(row.values.get("_id"))
        if query in grades:
            places.pop(query, None)
            evidence = {key: label_of(grade, positive) for key, grade in grades[query].items()}
            yield Row(row.place, {"question": row.values.get("text"), **row.values, "evidence": evidence})
    for query, place in places.items():
        problems.append(f'{place}, column "query-id": found {query!r}; expected the _id of a query')


def _grades(judgements: Iterable[Row], problems: list[str]) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Grades by query and passage, and the place where each query first stands."""
    grades: dict[str, dict[str, int]] = {}
    places: dict[str, str] = {}
    for place, values in judgements:
        missing = [column for column in QRELS_COLUMNS if column not in values]
        if missing:
            problems.append(
                f"{place}: no column {missing}; the columns are {short(list(values))}; judgements need a first line "
                f"with {', '.join(QRELS_COLUMNS)}"
            )
            break
        query, passage, score = (values[column] for column in QRELS_COLUMNS)
        try:
            number = float(str(score))  # also where it is written as text or as 1.0
            grade = int(number) if number.is_integer() else None
        except ValueError:
            grade = None
        if query is None or passage is None or grade is None:
            found = {column: values[column] for column in QRELS_COLUMNS}
            problems.append(f"{place}: found {short(found)}; expected two ids and a whole number")
            continue
        places.setdefault(str(query), place)
        known = grades.setdefault(str(query), {}).setdefault(str(passage), grade)
        if known != grade:
            problems.append(
                f'{place}, column "score": found {grade}; expected {known}, as another line says for the same query '
                "and passage"
            )
    return grades, places
