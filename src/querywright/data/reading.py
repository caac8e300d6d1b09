"""Read questions and passages from files and datasets, and check all of them before a run costs anything.

A field that is not in ``columns`` is read from the first of its columns in ``QUESTION_COLUMNS`` or ``PASSAGE_COLUMNS``
that has a value:

* ``id``: If a question has no id, it gets the first 16 hex digits of the SHA-256 of its question, options, and history,
  so that the id stays the same when rows move.
* ``options``: A list of strings or of ``{"key": ..., "value": ...}`` objects, an object that maps letters to texts, or
  ``{"text": [...], "label": [...]}``; or columns A, B, C ... ``columns`` may name several columns, as in
  ``"opa,opb,opc"``. An empty list means that there are no options.
* ``answer``: The option's text, compared exactly and then ignoring case; otherwise, its letter or its position from 0.
  An answer that is one option's text and a different option's letter is an error. ``answer_idx`` is a letter or a
  position, and must agree with ``answer``. ``answers`` is a list of the answer and its aliases.
* ``evidence``: An object that maps passage ids to labels, or a list of passage ids (or one id), which count as
  ENTAILED; in multi-hop datasets, all of them are needed. ``assessors``: The assessors of each label, by passage id.
  ``alternatives``: Lists of passage ids in the evidence; any one passage in a list is enough.
* ``history``: The conversation before the question: a list of turns, each a string or an object with ``role`` and
  ``content``; or a string with one turn per line.
* ``metadata`` (for passages): An object whose values are strings, numbers, booleans, or dates. ``columns`` may name
  columns with such values, as in ``"topic,year"``.

Text cells (CSV, TSV) contain lists and objects as JSON, or as pandas and NumPy print them
(:mod:`querywright.data.cells`). An empty cell is a missing value. Other columns are ignored; for passages, a warning
lists them. Leading and trailing whitespace is removed; otherwise, values are unchanged. Rows whose columns mean
something different (HotpotQA, Ragas, ...) are converted first; see :mod:`querywright.data.forms`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from querywright.data.cells import short
from querywright.data.documents import names_documents, read_documents
from querywright.data.forms import shaped
from querywright.data.labels import GRADES, read_labels, with_labels
from querywright.data.rows import (
    INDEX_COLUMNS,
    Record,
    Table,
    distinct,
    read_alternatives,
    read_answer,
    read_assessors,
    read_evidence,
    read_history,
    read_jointly,
    read_metadata,
    read_options,
    split_names,
)
from querywright.data.sources import PACKAGED, Source, iterate_rows, name_of
from querywright.data.tables import Kind, Row
from querywright.data.types import Passage, Question
from querywright.errors import DataError

logger = logging.getLogger(__name__)

SHOWN_UNREAD = 3
QUESTION_COLUMNS = {
    "id": ("id", "_id", "qid", "question_id"),
    "question": ("question", "query", "user_input"),
    "options": ("options", "choices"),
    "answer": ("answer", "ground_truth", "ground_truth_answer", "reference"),
    "answer_idx": INDEX_COLUMNS,
    "answers": (
        *("answers", "golden_answers", "generation_gt", "possible_answers", "correct_answers", "ground_truths"),
    ),
    "aliases": ("aliases",),
    "evidence": (
        *("evidence", "gold", "gold_ids", "gold_titles", "relevant", "relevant_doc_ids", "retrieval_gt"),
        *("supporting_facts", "reference_context_ids", "correct_answer_document_ids", "expected_ids"),
    ),
    "jointly": ("jointly",),
    "assessors": ("assessors",),
    "history": ("history", "chat_history"),
    "alternatives": ("alternatives",),
}
PASSAGE_COLUMNS = {
    "id": ("id", "_id", "doc_id", "docid", "pid", "passage_id"),
    "text": ("text", "content", "contents", "body"),
    "title": ("title",),
    "metadata": ("metadata",),
}


def read_questions(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    split: str | None = None,
    multiple_choice: bool | str = False,
    labels: Source | None = None,
    slices: Sequence[str] = (),
) -> list[Question]:
    """Return the questions in a file or dataset. If any row has an error, raise all errors at once.

    Rows without an id that have the same question and options are merged into one question with all their evidence and
    short answers. An id that occurs twice in the data is an error.

    Args:
        source: Path of a .jsonl, .json, .csv, .tsv (each optionally .gz), or .parquet file, or of a folder that
            contains such files (see :mod:`querywright.data.sources`) or a dataset; ``sample``; ``hf:NAME[:CONFIG]`` or
            a name with a slash for a dataset on the Hugging Face Hub, where NAME may be a key of
            :data:`querywright.data.hub.RECIPES`; or rows, each a dict or a ``dspy.Example``.
        columns: Mapping from our column names (the keys of ``QUESTION_COLUMNS``) to the names in the data. Default: the
            names in the module docstring.
        limit: Maximum number of rows to read, not counting empty rows, 1 or more. Default: all.
        split: Split of a dataset or folder to read. Required if there are several.
        multiple_choice: Whether a question without options is an error; or a string that says what needs the options,
            for the message. Default False.
        labels: A file of passage labels, or its rows, which become the questions' evidence; see
            :mod:`querywright.data.labels`. Default none.
        slices: Additional columns by which to break down results; each question's ``slices`` contains their values.
            Default none.

    Returns:
        The questions in the order of their first rows.

    Raises:
        DataError: All errors, each with its file, line, column, value, and expected value.
    """
    if labels is not None:
        read = read_questions(
            source, columns=columns, limit=limit, split=split, multiple_choice=multiple_choice, slices=slices
        )
        given = read_labels(labels)
        if all(one.label is None for one in given):
            raise DataError(
                f"all {len(given)} labels in {name_of(labels)} are empty; fill in the column 'label' with "
                f"{', '.join(GRADES[:-1])}, or {GRADES[-1]}"
            )
        return with_labels(read, given)
    if isinstance(source, list | tuple) and source and all(isinstance(one, Question) for one in source):
        return _checked_before(source[: check_limit(limit)], multiple_choice, slices)
    table = Table(QUESTION_COLUMNS, columns)
    if "answer" in table.mapped and "answer_idx" not in table.mapped:
        kind = "answer_idx" if table.mapped["answer"] in INDEX_COLUMNS else "answer"
        table.names |= {"answer": (), "answer_idx": (), "answers": (), kind: (table.mapped["answer"],)}
    found: dict[str, tuple[str, bool, Question]] = {}
    n_rows = 0
    for record in _records(source, "questions", table, limit, split, slices):
        n_rows += 1
        question, named = _question(record, multiple_choice, slices)
        if record.ok:
            _add_question(found, question, named, record)
    missing = [name for name in slices if n_rows and name not in table.seen]
    table.problems += [f"no column {name!r} to slice by; the columns are {[*table.seen]}" for name in missing]
    table.raise_problems(name_of(source), n_rows)
    if len(found) < n_rows:
        logger.info("%s: merged rows that repeat an earlier question: %d", name_of(source), n_rows - len(found))
    return [question for _, _, question in found.values()]


def read_passages(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    split: str | None = None,
) -> list[Passage]:
    """Return the passages in a file or dataset. If any row has an error, raise all errors at once.

    Identical rows are read as one passage. Two different passages with the same id are an error.

    Args:
        source: As in :func:`read_questions`. Documents also work; see
            :func:`querywright.data.documents.read_documents`, which also takes passage sizes.
        columns: Mapping from our column names (id, text, title, metadata) to the names in the data. Default: the names
            in the module docstring.
        limit: Maximum number of rows to read, not counting empty rows, 1 or more. Default: all.
        split: Split of a dataset or folder to read. Required if there are several.

    Returns:
        The passages in the order of their first rows.

    Raises:
        DataError: All errors, each with its file, line, column, value, and expected value.
    """
    if names_documents(source):
        if columns or split:
            raise DataError(f"{source}: documents have neither columns nor splits; omit columns= and split=")
        return read_documents(source).passages[: check_limit(limit)]
    if isinstance(source, list | tuple) and source and all(isinstance(one, Passage) for one in source):
        return list(source[: check_limit(limit)])
    table = Table(PASSAGE_COLUMNS, columns)
    found: dict[str, tuple[str, Passage]] = {}
    n_rows = 0
    for record in _records(source, "passages", table, limit, split):
        n_rows += 1
        passage = _passage(record)
        if not record.ok:
            continue
        place, first = found.setdefault(passage.id, (record.place, passage))
        if first != passage:
            record.complain(
                record.cell("id").column, passage.id, f"a unique ID; {place} has the same ID but different content"
            )
    table.raise_problems(name_of(source), n_rows)
    if unread := table.unread():
        logger.warning(
            "%s: ignored columns %s; to filter on them, read them as metadata: columns={'metadata': '%s'} (on the "
            "command line: --column metadata=%s)",
            name_of(source), short(unread), *[",".join(unread[:SHOWN_UNREAD])] * 2,
        )  # fmt: skip
    return [passage for _, passage in found.values()]


class Sample(NamedTuple):
    """The packaged sample: passages, and questions about them."""

    passages: list[Passage]
    questions: list[Question]


def load_sample(*, hard: bool = False) -> Sample:
    """Read and check the packaged sample.

    Args:
        hard: Whether to read the 60 hard questions (``questions-hard.jsonl``) instead of the 240 other questions.
            Default False.

    Raises:
        DataError: A file is missing or has an error, or evidence refers to a card that does not exist.
    """
    name = f"{PACKAGED}{'sample-hard' if hard else 'sample'}"
    passages, questions = read_passages(name), read_questions(name, multiple_choice=True)
    if problems := check_evidence(questions, [passage.id for passage in passages]):
        raise DataError(problems)
    return Sample(passages, questions)


def check_evidence(
    questions: Iterable[Question], passage_ids: Collection[str], reported: Collection[str] = (), kind: str = "labeled"
) -> list[str]:
    """Return a message for each question whose evidence refers to passages that are not in a collection.

    Args:
        questions: Labeled questions.
        passage_ids: Ids of the passages in the collection.
        reported: Ids of missing passages to leave out. Default none.
        kind: What the evidence contains, for the messages: ``labeled`` or ``helpful`` passages. Default ``labeled``.
    """
    known, left_out = set(passage_ids), set(reported)
    lines = []
    for question in questions:
        missing = [id for id in question.evidence if id not in known and id not in left_out]
        if missing:
            lines.append(
                f"question {question.in_words}: {kind} passages that are not in the collection: {short(missing)} "
                f"({len(missing)} of {len(question.evidence)} {kind}; passages in the collection: {len(known)})"
            )
    return lines


def check_labels(questions: Iterable[Question], passage_ids: Collection[str]) -> None:
    """Reject labels that have assessors if none of them is for a passage in the collection.

    Args:
        questions: Labeled questions.
        passage_ids: Ids of the passages in the collection.

    Raises:
        DataError: The labels belong to a different collection.
    """
    labelled = [question for question in questions if question.assessors]
    if not {key for question in labelled for key in question.evidence}.isdisjoint(passage_ids):
        return
    if lines := check_evidence(labelled, passage_ids):
        remedy = "search that collection, or label passages in this one"
        raise DataError([f"the labels are for a different collection; {remedy}", *lines])


def check_limit(limit: int | None) -> int | None:
    """Check a limit, and return it.

    Raises:
        DataError: The limit is less than 1.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit must be 1 or more, or None for all rows, but got {limit}")
    return limit


def _records(
    source: Source, kind: Kind, table: Table, limit: int | None, split: str | None, slices: Sequence[str] = ()
) -> Iterator[Record]:
    """Yield a source's questions or passages as records. Those without text or an answer are counted, not yielded."""
    rows = iterate_rows(source, kind=kind, split=split, problems=table.problems)
    columns = [*slices, *(part for column in table.mapped.values() for part in (column, *split_names(column)))]
    left_out, n_useful, limit = 0, 0, check_limit(limit)
    for row in rows:
        try:
            parts = shaped(row.values, kind)
        except DataError as error:
            table.problems.append(f"{row.place}, {error}")
            parts = []
        mapped = {column: row.values[column] for column in columns if column in row.values}
        for values in parts:
            if values is not None:
                yield table.record(Row(row.place, {**mapped, **values}))
        left_out += parts.count(None)
        n_useful += any(values is not None for values in parts)
        if n_useful == limit:
            break
    if left_out and not n_useful:
        table.problems.append(f"{name_of(source)}: all {kind} lack a text or an answer (rows: {left_out})")
    elif left_out:
        logger.warning("%s: ignored %s without a text or an answer: %d", name_of(source), kind, left_out)


def asked_in(record: Record) -> tuple[Question, bool]:
    """Return the question in a row without its evidence, and whether the row has an id."""
    text = record.required_text("question")
    if text.startswith(("[{", "[HumanMessage(")):
        record.complain(
            record.cell("question").column,
            text,
            "a single question; put the earlier turns of the conversation into history",
        )
    options = read_options(record)
    answer = read_answer(record, options)
    texts = options.texts if options else ()
    column, given = record.cell("id")
    history = read_history(record)
    id = derived_id(text, texts, history) if given is None else record.name(given, column)
    return Question(id, text, texts, answer.text, answer.aliases, history=history), given is not None


def _question(record: Record, multiple_choice: bool | str, slices: Sequence[str]) -> tuple[Question, bool]:
    """Return the question in a row, and whether the row has an id."""
    asked, named = asked_in(record)
    evidence = read_evidence(record)
    if multiple_choice and not asked.options and record.ok:
        record.complain(record.cell("options").column, None, f"options ({_needed(multiple_choice)})")
    jointly, assessors = read_jointly(record), read_assessors(record, evidence)
    alternatives = read_alternatives(record, evidence)
    labelled = replace(
        asked, evidence=evidence, jointly=jointly, assessors=assessors, alternatives=alternatives,
        slices=_slices(record, slices),
    )  # fmt: skip
    return labelled, named


def _slices(record: Record, names: Sequence[str]) -> dict[str, str]:
    """Return the values in the columns that results are broken down by, without empty values."""
    found = {}
    for name in names:
        value = record.values.get(name)
        if isinstance(value, (str, int, float)):
            found[name] = " ".join(str(value).split())
        elif value is not None:
            record.complain(name, value, "a string, a number, true, or false")
    return {name: value for name, value in found.items() if value}


def _needed(multiple_choice: bool | str) -> str:
    """Return the reason why options are needed."""
    return f"required for {'multiple_choice=True' if multiple_choice is True else multiple_choice}"


def derived_id(question: str, options: tuple[str, ...], history: tuple[str, ...] = ()) -> str:
    """Return an id for a question that has none in the data."""
    data = json.dumps([question, *options, *([history] if history else ())], ensure_ascii=False)
    return hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()[:16]


def _checked_before(questions: Sequence[Any], multiple_choice: bool | str, slices: Sequence[str]) -> list[Question]:
    """Check ``Question`` objects passed instead of rows, and return them."""
    missing = [name for name in slices if not any(name in one.slices for one in questions)]
    if missing:
        known = sorted({name for one in questions for name in one.slices})
        raise DataError(
            f"no question has the slice {missing[0]!r}; the slices are {known}. Set slices with Question(slices=...)"
        )
    bare = [one.id for one in questions if not one.options]
    if multiple_choice and bare:
        raise DataError([f"question {id!r} has no options ({_needed(multiple_choice)})" for id in bare])
    return list(questions)


def _add_question(
    found: dict[str, tuple[str, bool, Question]], question: Question, named: bool, record: Record
) -> None:
    """Add a question, or merge it with an equal question if neither has an id in the data."""
    if question.id not in found:
        found[question.id] = (record.place, named, question)
        return
    place, first_named, first = found[question.id]
    column = record.cell("id").column
    if named or first_named:
        record.complain(column, question.id, f"a unique ID; {place} has the same ID")
        return
    if first.options and None not in (first.answer, question.answer) and first.answer != question.answer:
        record.complain("answer", question.answer, f"{first.answer!r}, the answer to the same question in {place}")
        return
    differing = [key for key, label in question.evidence.items() if first.evidence.get(key, label) != label]
    if differing:
        record.complain("evidence", differing, f"the labels for the same question in {place}")
        return
    answers = distinct([*first.answers, *question.answers])
    united = replace(
        first,
        answer=answers[0] if answers else None,
        aliases=answers[1:],
        evidence={**first.evidence, **question.evidence},
        jointly=first.jointly or question.jointly,
        assessors={**first.assessors, **question.assessors},
        alternatives=tuple(dict.fromkeys((*first.alternatives, *question.alternatives))),
    )
    found[question.id] = (place, named, united)


def _passage(record: Record) -> Passage:
    column, given = record.cell("id")
    id = record.required_text("id") if given is None else record.name(given, column)
    text = record.required_text("text")
    column, given = record.cell("title")
    title = "" if given in (None, "") else record.text(given, column, "a string")
    return Passage(id, text, title, read_metadata(record))
