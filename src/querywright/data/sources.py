"""Read the rows of a source: rows in Python, the packaged sample, a dataset, a folder, or a file.

In a folder, questions are in a file named ``questions``, ``queries``, or ``qa``, and passages are in ``corpus``,
``passages``, ``cards``, ``documents``, or ``docs``, each with the suffix of a supported format. If each split has its
own file, the split follows the name (``qa_test.parquet``). A folder that contains a file ``qrels``, or a subfolder
``qrels`` with a file per split (``qrels/test.tsv``), is a BEIR folder: only its judged questions are read, with their
labels.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from querywright.data.cells import plain, short
from querywright.data.hub import RECIPES, dataset_rows
from querywright.data.tables import SUFFIXES, Kind, Row, file_rows, format_of
from querywright.data.types import Label, Passage, Question
from querywright.errors import DataError

SAMPLES: dict[str, dict[Kind, str]] = {
    "sample": {"questions": "questions.jsonl", "passages": "cards.jsonl"},
    "sample-hard": {"questions": "questions-hard.jsonl", "passages": "cards.jsonl"},
    "handbook": {"questions": "handbook-questions.jsonl", "passages": "handbook-corpus.jsonl"},
}
"""Files in the packaged sets, by source name."""
PACKAGED = "packaged:"
"""A prefix that names a packaged set even if there is a file or folder with its name."""

HUB_PREFIX = "hf:"
KNOWN_SOURCES = (
    "a .jsonl, .json, .csv, .tsv, or .parquet file (optionally gzipped, except Parquet), a folder with such files, "
    f"{', '.join(map(repr, SAMPLES))}, or hf:NAME[:CONFIG] for a dataset on the Hugging Face Hub (short names: "
    f"{', '.join(RECIPES)})"
)
ROWS = "a list of dicts or of dspy.Example, Question, or Passage objects, a DataFrame, or a datasets.Dataset"

STEMS: dict[Kind, tuple[str, ...]] = {
    "questions": ("questions", "queries", "qa"),
    "passages": ("corpus", "passages", "cards", "documents", "docs"),
}
QRELS = "qrels"
QRELS_COLUMNS = ("query-id", "corpus-id", "score")

Source = str | os.PathLike[str] | Iterable[Any] | Mapping[str, Any]
"""A source of questions or passages. A DataFrame or a ``datasets.Dataset`` also counts as rows."""


def name_of(source: Source) -> str:
    """Return a source's name for use in messages."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the given rows"


def packaged_set(source: object) -> Mapping[Kind, str] | None:
    """Return the files of a packaged set; None if the source is something else, such as a ``Path`` with the same name.

    Raises:
        DataError: The source also names a file or folder in the current directory.
    """
    if not isinstance(source, str) or (name := source.removeprefix(PACKAGED)) not in SAMPLES:
        return None
    if name == source and os.path.exists(source):
        raise DataError(
            f"{source!r} is a packaged set, and also a file or folder here; for yours, write "
            f"{os.path.join(os.curdir, source)}; for the packaged set, write {PACKAGED}{source}"
        )
    return SAMPLES[name]


def iterate_rows(source: Source, *, kind: Kind, split: str | None, problems: list[str]) -> Iterator[Row]:
    """Yield a source's rows without interpreting them.

    If a row cannot be read, an error is added to ``problems``, and reading continues.

    Raises:
        DataError: The source does not exist, has an unknown format, or does not have the split.
    """
    name = name_of(source)
    is_path = isinstance(source, str | os.PathLike)
    path = Path(name).expanduser()
    sample = packaged_set(source)
    dataset = _dataset_name(source) if isinstance(source, str) and sample is None else None
    if dataset is not None:
        yield from dataset_rows(*dataset, kind=kind, split=split)
        return
    if is_path and sample is None and source != "" and os.path.isdir(path):
        if holds_files(path) or not any(format_of(one.name)[0] or one.suffix == ".arrow" for one in path.rglob("*")):
            yield from folder_rows(path, name, kind=kind, split=split, problems=problems)
        else:
            yield from dataset_rows(str(path), None, kind=kind, split=split)
        return
    if isinstance(source, Mapping):  # such as a datasets.DatasetDict
        split = next(iter(source)) if split is None and len(source) == 1 else split
        if split is None or split not in source:
            raise DataError(
                f"split must be one of the keys of the data ({', '.join(map(str, source))}), but got {split!r}; set "
                f"split=, or pass one part, such as data[{str(next(iter(source), 'test'))!r}], or a list of rows"
            )
        source, split = source[split], None
    if split is not None:
        raise DataError(f"split={split!r}: only datasets have splits, but {name} is not a dataset; omit split=")
    if not is_path:
        yield from _given_rows(source, problems)
    elif sample is not None:
        with resources.as_file(resources.files("querywright.data.sample") / sample[kind]) as file:
            yield from _checked_file(file, f"sample/{sample[kind]}", kind, problems)
    else:
        yield from _checked_file(path, name, kind, problems)


def _checked_file(path: Path, name: str, kind: Kind, problems: list[str]) -> Iterator[Row]:
    documents = "; or, for a collection, documents (such as .md, .rst, .html, or .pdf files) or a folder with them"
    known = KNOWN_SOURCES + (documents if kind == "passages" else "")
    if not os.path.isfile(path):
        raise DataError(f"{name}: no such file or folder; pass {known}")
    if not format_of(path.name)[0]:
        raise DataError(f"{name}: unknown format; pass {known}")
    return file_rows(path, name, problems)


def _given_rows(rows: Any, problems: list[str]) -> Iterator[Row]:
    if hasattr(rows, "iterrows"):  # iterating over a DataFrame yields its columns
        rows = rows.to_dict("records")
    if not isinstance(rows, Iterable):
        raise DataError(f"found {type(rows).__name__}; expected {ROWS}, or {KNOWN_SOURCES}")
    for number, row in enumerate(rows, start=1):
        values = asdict(row) if isinstance(row, Question | Passage) else row
        if hasattr(values, "items"):
            yield Row(f"row {number}", {key: plain(value) for key, value in values.items()})
        else:
            problems.append(
                f"row {number}: found {type(row).__name__}; expected a dict, a dspy.Example, a Question, or a Passage"
            )


def _dataset_name(source: str) -> tuple[str, str | None] | None:
    """Return the name and configuration if the source names a dataset; otherwise None."""
    is_named = source.startswith(HUB_PREFIX)
    looks_like_file = format_of(source)[0] or source[:1] in "./~" or source.endswith("/") or os.path.exists(source)
    if not is_named and ("/" not in source or looks_like_file):
        return None
    dataset, _, config = source.removeprefix(HUB_PREFIX).partition(":")
    if not dataset:
        raise DataError(
            f"{source!r} does not name a dataset; use hf:NAME or hf:NAME:CONFIG (short names: {', '.join(RECIPES)})"
        )
    return dataset, config or None


def holds_files(folder: Path, *kinds: Kind) -> bool:
    """Return whether a folder has a file named like questions or passages, or like one of the given kinds."""
    return any(_named(folder, STEMS[kind]) for kind in kinds or STEMS)


def folder_rows(folder: Path, name: str, *, kind: Kind, split: str | None, problems: list[str]) -> Iterator[Row]:
    """Yield the rows of one kind from a folder for which :func:`holds_files` is true."""
    judgements: dict[Path, str] = {}
    if kind == "questions" and (folder / QRELS).is_dir():
        judgements = {path: path.name.split(".")[0] for path in _files(folder / QRELS)}
    elif kind == "questions":
        judgements = _named(folder, (QRELS,))
    files = _named(folder, STEMS[kind])
    if not files:
        there = sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir())[:12]
        raise DataError(
            f"{name}: this folder has no file with {kind}; found {there}. Name the file {' or '.join(STEMS[kind])}, "
            f"with one of the suffixes {', '.join(SUFFIXES)}, or pass the path of a file"
        )

    def rows(path: Path) -> Iterator[Row]:
        return file_rows(path, f"{name.rstrip('/')}/{path.relative_to(folder)}", problems)

    if judgements:
        queries, judged = _choose(files, name, kind, None), _choose(judgements, name, QRELS, split)
        yield from _judged_rows(rows(queries), rows(judged), problems)
    else:
        yield from rows(_choose(files, name, kind, split))


def label_of(grade: int, positive: Collection[int]) -> Label:
    """Return the label for a relevance grade.

    If a dataset has several positive grades, a passage with the lowest one is about the topic (USEFUL), and a passage
    with a higher one has the answer (ENTAILED). If it has only one positive grade, that grade means ENTAILED. 0 and
    negative grades (spam in TREC) mean NOT_USEFUL.
    """
    if grade <= 0:
        return Label.NOT_USEFUL
    return Label.USEFUL if len(set(positive)) > 1 and grade <= min(positive) else Label.ENTAILED


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and format_of(path.name)[0])
    except OSError as error:
        raise DataError(
            f"cannot read the folder {folder} ({error.strerror}); make it readable or pass a different folder"
        ) from error


def _named(folder: Path, stems: tuple[str, ...]) -> dict[Path, str]:
    """Return the files that have one of these names, with the split that follows each name."""
    found = {}
    for path in _files(folder):
        stem = path.name.lower().removesuffix(".gz").rpartition(".")[0]
        for name in stems:
            if stem == name or (stem.startswith(name) and stem[len(name)] in "_-."):
                found[path] = stem[len(name) + 1 :]
    return found


def _choose(files: dict[Path, str], name: str, kind: str, split: str | None) -> Path:
    """Return the only file, or the file for the split."""
    names = ", ".join(path.name for path in files)
    if split is not None and not any(files.values()):
        raise DataError(f"split={split!r}: the {kind} in {name} have no splits ({names}); omit split=")
    chosen = [path for path, part in files.items() if split in (None, part)]
    if len(chosen) == 1:
        return chosen[0]
    splits = sorted(part for part in files.values() if part)
    remedy = f"choose a split with split=: {splits}" if splits else "pass the path of one file"
    found = f"more than one file with {kind}" if chosen else f"no file with {kind} for the split {split!r}"
    raise DataError(f"{name}: {found} in this folder ({names}); {remedy}")


def _judged_rows(queries: Iterable[Row], judgements: Iterable[Row], problems: list[str]) -> Iterator[Row]:
    """Yield the judged queries as rows with ``question``, ``evidence``, and their other columns."""
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
    """Return the grades by query and passage, and the place where each query first occurs."""
    grades: dict[str, dict[str, int]] = {}
    places: dict[str, str] = {}
    for place, values in judgements:
        missing = [column for column in QRELS_COLUMNS if column not in values]
        if missing:
            problems.append(
                f"{place}: no column {missing}; the columns are {short(list(values))}. The first line of a judgment "
                f"file must contain {', '.join(QRELS_COLUMNS)}"
            )
            break
        query, passage, score = (values[column] for column in QRELS_COLUMNS)
        try:
            number = float(str(score))  # grades may be strings, or 1.0
            grade = int(number) if number.is_integer() else None
        except ValueError:
            grade = None
        if query is None or passage is None or grade is None:
            found = {column: values[column] for column in QRELS_COLUMNS}
            problems.append(f"{place}: found {short(found)}; expected two IDs and an integer")
            continue
        places.setdefault(str(query), place)
        known = grades.setdefault(str(query), {}).setdefault(str(passage), grade)
        if known != grade:
            problems.append(
                f'{place}, column "score": found {grade}; expected {known}, the score for the same query and '
                "passage in an earlier line"
            )
    return grades, places
