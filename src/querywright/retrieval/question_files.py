"""The questions of a collection as a Parquet file that people can edit: out as they are, back in checked as a whole.

A row is a question: ``passage`` (id), ``question``, ``label`` and ``reason``. The rows of a passage are all of its
questions, about the passage as it is now: a row that is gone is a question removed, a row that is new is a question
added. A passage without any row keeps its questions. A new question without a
label, or one whose label was cleared, is ``complete``: a person vouches for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from querywright.data.rows import Record, Table
from querywright.data.tables import file_rows
from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.files import write_file
from querywright.models.embedder import Progress, TextEmbedder
from querywright.retrieval.collection import building, check_embedder, collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    IMPORTED,
    LOCK,
    NONE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    build_command,
    publish_questions,
    questions_folder,
    questions_name,
    read_records,
)

SUFFIX = ".parquet"
COLUMNS = ("passage", "question", "label", "reason")
LABELS = (COMPLETE, PARTIAL, NONE)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did.

    Args:
        questions: Questions in the file.
        edited: Passages whose questions were edited.
        kept: Questions in the index now.
        ignored: Columns of the file that were not read.
    """

    questions: int
    edited: int
    kept: int
    ignored: tuple[str, ...]


class _Row(NamedTuple):
    """A row as it was read."""

    place: str
    question: WrittenQuestion


def export_questions(collection: str, path: Path, home: Path | None = None) -> int:
    """Write all questions that were written for a collection, kept or not, in order of passages.

    The file ends in .parquet, and an older one is replaced; gives the number of questions in it.
    """
    import pandas as pd

    check_parquet_name(path)
    rows = [
        (record.passage, question.text, question.label, question.reason)
        for _, record in sorted(read_records(questions_folder(collection, home)).items())
        for question in record.questions
    ]
    if not rows:
        raise CollectionError(
            f"no questions were written for the collection {collection!r}; there is nothing to export"
        )
    write_file(path, pd.DataFrame(rows, columns=COLUMNS, dtype="string").to_parquet(index=False))
    return len(rows)


def import_questions(
    collection: str,
    path: Path,
    *,
    embedder: TextEmbedder,
    home: Path | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Make the questions of a file those of its passages, and publish them.

    Everything is checked before anything is changed. What was not edited stays as it is, to the byte.

    Args:
        collection: Name of the collection whose passages the questions are about.
        path: A Parquet file as ``export_questions`` writes it; ``label`` and ``reason`` may be missing.
        embedder: Embeds the kept questions; the one that the collection was built with.
        home: The working folder. Default: ``querywright.home.home()``.
        progress: Called with (texts embedded, texts in all). Default None.

    Raises:
        DataError: What is wrong with the file, all of it at once.
        CollectionError: There is no such collection, it was built with another embedder, none of the questions would
            be kept, or another process changes them.
        InputError: The file has another name or is not there.
    """
    check_parquet_name(path)
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; write one: querywright questions export {collection}")
    manifest, passages = published_passages(collection_folder(collection, home), home)
    check_embedder(manifest, embedder)
    folder = questions_folder(collection, home)
    given, table, n_rows = _read(path)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with building(folder, questions_name(collection), LOCK):
        before = read_records(folder)
        edited = {}
        for id, rows in sorted(given.items()):
            record = _edited(id, rows, before.get(id), passages.get(id), collection, table.problems)
            if record != before.get(id):
                edited[id] = record
        table.raise_problems(path.name, n_rows)
        records = [record for _, record in sorted({**before, **edited}.items())]
        index = publish_questions(collection, records, embedder=embedder, home=home, progress=progress)
    return ImportReport(
        questions=n_rows,
        edited=len(edited),
        kept=index.count,
        ignored=tuple(name for name in table.seen if name not in COLUMNS and not name.startswith("__index")),
    )


def check_parquet_name(path: Path) -> None:
    """Raise ``InputError`` when a file of questions cannot have this name: it does not end in .parquet."""
    if path.suffix != SUFFIX:
        raise InputError(f"questions are kept as Parquet; give a name that ends in {SUFFIX}, not {path.name!r}")


def _read(path: Path) -> tuple[Mapping[str, list[_Row]], Table, int]:
    """The rows by passage, in their order, what was found wrong with them, and how many there are."""
    given: defaultdict[str, list[_Row]] = defaultdict(list)
    table = Table({name: (name,) for name in COLUMNS})
    n_rows = 0
    for n_rows, row in enumerate(file_rows(path, path.name, table.problems), start=1):  # noqa: B007
        record = table.record(row)
        record.required_text("passage")
        text = " ".join(record.required_text("question").split())
        label, reason = (_text(record, name) for name in COLUMNS[2:])
        if label.strip() not in ("", *LABELS):
            record.complain("label", label, f"one of {', '.join(LABELS)}, or nothing")
        if record.ok:
            given[row.values["passage"]].append(_Row(row.place, WrittenQuestion(text, label.strip(), reason)))
    return given, table, n_rows


def _text(record: Record, name: str) -> str:
    """A text that may be missing; pandas writes NaN for one that is."""
    value = record.cell(name).value
    if value is None or value != value:
        return ""
    if not isinstance(value, str):
        record.complain(name, value, "a text")
    return str(value)


def _edited(
    id: str,
    rows: Sequence[_Row],
    old: PassageRecord | None,
    passage: Passage | None,
    collection: str,
    problems: list[str],
) -> PassageRecord:
    """The record of a passage whose rows are these; the old one where nothing was edited."""
    current, found = "" if passage is None else passage.text_digest(), [row.question for row in rows]
    if old is not None and sorted(found, key=repr) == sorted(old.questions, key=repr):
        return old
    if not current:
        problems.append(f"{rows[0].place}: there is no passage {id!r} in the collection")
    elif old is not None and old.digest != current:
        problems.append(
            f"{rows[0].place}: the passage {id!r} was changed after its questions were written; run "
            f"{build_command(collection)} first and export them again"
        )
    seen: dict[str, str] = {}
    for row in rows:
        first = seen.setdefault(row.question.text.casefold(), row.place)
        if first != row.place:
            problems.append(f"{row.place}: the question {row.question.text!r} is asked in {first} already")
    old = old or PassageRecord(id, current, IMPORTED, ())
    # What the judge left without a label stays without one; what a person did, is vouched for.
    unread = {question.text for question in old.questions if not question.label}
    vouched = (one if one.label or one.text in unread else replace(one, label=COMPLETE) for one in found)
    return replace(old, digest=current, settings=IMPORTED, questions=tuple(vouched))
