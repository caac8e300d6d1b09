"""Read and write passage labels in files that people can correct.

Each row is a label: ``question_id``, ``passage_id``, ``label``, and ``by`` (``person``, or a judge and its LM).
``judged`` keeps the judge's label; if ``label`` is different, a person has changed the label, so it counts as the
person's. ``question``, ``options``, ``answer``, ``title``, ``text``, and ``reason`` are for people to read. A row
without a label is unjudged, and a label with an empty ``by`` counts as a person's. A label may be a grade: 0
NOT_USEFUL, 1 USEFUL, 2 ENTAILED.

The file format is JSON lines or CSV. Columns that people add are kept.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from querywright.answer_text import find_choice
from querywright.data.cells import short
from querywright.data.rows import Record, Table, read_options
from querywright.data.sources import Source, iterate_rows, name_of
from querywright.data.types import PERSON, Label, Question
from querywright.errors import DataError, InputError
from querywright.files import write_file

FORMS = (".jsonl", ".csv")
GRADES = (Label.NOT_USEFUL, Label.USEFUL, Label.ENTAILED)
_COLUMNS: dict[str, tuple[str, ...]] = {
    "question_id": ("question_id", "query-id", "qid", "query_id"),
    "passage_id": ("passage_id", "corpus-id", "docid", "doc_id"),
    "label": ("label", "score", "relevance", "grade"),
    **{name: (name,) for name in ("question", "options", "answer", "title", "text", "judged", "by", "reason")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageLabel:
    """An assessor's label for a passage and a question. The fields are the columns of a label file, in this order.

    Args:
        question: The question's text. Like ``options``, ``answer``, ``title``, and ``text``, this field is only for
            people to read.
        label: The label; None if the passage is unjudged.
        by: ``person``, or the name of a judge and its LM; empty if the passage is unjudged.
        reason: The judge's reason; empty if there is none.
        judged: The judge's label; None if no judge was used.
        question_id: The question's id.
        passage_id: The passage's id.
        further: Values in columns that people added, by column name.
    """

    question: str = ""
    options: tuple[str, ...] = ()
    answer: str | None = None
    title: str = ""
    text: str = ""
    label: Label | None = None
    by: str = ""
    reason: str = ""
    judged: Label | None = None
    question_id: str
    passage_id: str
    further: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> dict[str, Any]:
        """The values by column name, with the added columns last."""
        return {**{one: getattr(self, one) for one in COLUMNS}, **self.further}

    @property
    def key(self) -> tuple[str, str]:
        """The question's id and the passage's id."""
        return self.question_id, self.passage_id


COLUMNS = tuple(one.name for one in fields(PassageLabel) if one.name != "further")


def read_labels(source: Source) -> list[PassageLabel]:
    """Return the labels in a file or in rows, one per question and passage. A person's label overrides a judge's.

    Args:
        source: A file (see the module docstring) or rows: dicts or a DataFrame.

    Raises:
        DataError: All errors, each with its file, line, column, value, and expected value.
    """
    table = Table(_COLUMNS)
    found: dict[tuple[str, str], list[tuple[Record, PassageLabel]]] = defaultdict(list)
    n_rows = 0
    for row in iterate_rows(source, kind="questions", split=None, problems=table.problems):
        n_rows += 1
        record = table.record(row)
        one = _label(record)
        if record.ok:
            found[one.key].append((record, one))
    labels = []
    for given in found.values():
        said = [each for each in given if each[1].label is not None]
        (at, first), *others = [each for each in said if each[1].by == PERSON] or said or given
        labels.append(first)
        for record, one in others:
            if one.label != first.label:
                expected = f"{first.label}, the label in {at.place}; remove one of the two rows"
                record.complain(record.cell("label").column, one.label, expected)
    table.raise_problems(name_of(source), n_rows)
    return labels


def write_labels(path: Path, labels: Iterable[PassageLabel]) -> None:
    """Write labels to a ``.jsonl`` or ``.csv`` file. If writing fails, an existing file is left unchanged.

    Raises:
        InputError: The file's suffix is not supported.
        OSError: The file cannot be written.
    """
    labels, form = list(labels), check_form(path)
    if form == ".jsonl":
        write_file(path, "".join(json.dumps(one.row, ensure_ascii=False) + "\n" for one in labels))
    else:
        text = io.StringIO()
        columns = dict.fromkeys([*COLUMNS, *(name for one in labels for name in one.further)])
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        for one in labels:
            options = json.dumps(one.options, ensure_ascii=False) if one.options else ""
            writer.writerow({**one.row, "options": options})
        write_file(path, text.getvalue())


def check_form(path: Path) -> str:
    """Return a label file's suffix.

    Raises:
        InputError: The suffix is not a supported label format.
    """
    if path.suffix.lower() not in FORMS:
        raise InputError(f"a label file's name must end in {' or '.join(FORMS)}, but got {path.name!r}")
    return path.suffix.lower()


def with_labels(questions: Sequence[Question], labels: Iterable[PassageLabel]) -> list[Question]:
    """Return the questions with these labels as their evidence, and with each label's assessor.

    A person's label overrides a judge's. If both labels come from the same kind of assessor, the label passed here
    overrides the label that the question already has.

    Args:
        questions: The labeled questions, and any others. A question that has no label in ``labels`` is unchanged.
        labels: Labels from ``read_labels``.

    Raises:
        DataError: The labels belong to different questions.
    """
    given: dict[str, list[PassageLabel]] = defaultdict(list)
    for one in labels:
        if one.label is not None:
            given[one.question_id].append(one)
    if given and not any(question.id in given for question in questions):
        raise DataError(
            f"the labels are for different questions: none of the labeled question IDs {short(list(given))} is in "
            f"the data (questions: {len(questions)}); pass the labeled questions, or label the questions in the data"
        )
    return [_united(question, given[question.id]) if question.id in given else question for question in questions]


def assessors_of(questions: Iterable[Question]) -> dict[str, int]:
    """Return the number of labels per assessor; empty if no question names its assessors."""
    questions = list(questions)
    if not any(question.assessors for question in questions):
        return {}
    given = (names for one in questions for names in (one.assessors.get(key, (PERSON,)) for key in one.evidence))
    return dict(sorted(Counter(name for names in given for name in names).items()))


def evidence_by(questions: Iterable[Question]) -> str:
    """Return a phrase that gives the source of the labels, and the assessors if they are known."""
    questions = list(questions)
    by = ", ".join(f"{name} ({count})" for name, count in assessors_of(questions).items())
    several = sum(bool(question.alternatives) for question in questions)
    either = f" (questions with alternative passages: {several}; any one alternative is enough)" if several else ""
    return "usefulness from labelled evidence" + either + (f", by {by}" if by else "")


def _united(question: Question, labels: Iterable[PassageLabel]) -> Question:
    evidence = dict(question.evidence)
    assessors = {key: question.assessors.get(key, (PERSON,)) for key in evidence}
    for one in labels:
        if one.label is not None and (one.by == PERSON or PERSON not in assessors.get(one.passage_id, ())):
            evidence[one.passage_id], assessors[one.passage_id] = one.label, (one.by,)
    return replace(question, evidence=evidence, assessors=assessors)


def _label(record: Record) -> PassageLabel:
    ids = {}
    for name in ("question_id", "passage_id"):
        column, value = record.cell(name)
        ids[name] = record.required_text(name) if value is None else record.name(value, column)
    label, judged = (_read_label(record, name) for name in ("label", "judged"))
    options = read_options(record)
    shown = {name: str(record.cell(name).value or "") for name in ("question", "title", "text", "by", "reason")}
    if label is not None and (judged not in (None, label) or not shown["by"].strip()):
        shown["by"] = PERSON
    answer = record.cell("answer").value
    known = {column for columns in _COLUMNS.values() for column in columns}
    return PassageLabel(
        **ids, **shown, label=label, judged=judged, options=options.texts if options else (),
        answer=None if answer is None else str(answer),
        further={name: value for name, value in record.values.items() if name not in known},
    )  # fmt: skip


def _read_label(record: Record, field: str) -> Label | None:
    column, value = record.cell(field)
    place = find_choice(value, (*GRADES, *range(len(GRADES))))
    if place is None and str("" if value is None else value).strip():
        record.complain(column, value, f"one of the labels {', '.join(GRADES)}, or one of the grades 0, 1, 2")
    return None if place is None else GRADES[place % len(GRADES)]
