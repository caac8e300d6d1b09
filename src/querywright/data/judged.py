"""Read cases that people labeled, so that a judge's labels can be compared with the people's labels.

A file has one case per row: ``question``, ``label``, and the judge's inputs, which are ``passage`` (a string) or
``passages`` (a list of strings), ``response`` (the answer to judge), and ``point``. ``id`` (the question's),
``options``, ``history``, and ``answer`` (the right answer) are optional, as in question files. So are ``second_label``
(a second person's label) and ``arms`` (a name or a list: the systems that found the passage or gave the answer).

A folder contains passages with ids (``corpus.jsonl``) and questions (``questions.jsonl``). Each question row has either
``judged``, an object that maps passage ids to labels, or ``passage`` (an id) and ``label``.

In a label file (from ``querywright judge label``), only rows with a person's label are read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from querywright.answer_text import find_choice
from querywright.data.labels import GRADES
from querywright.data.reading import QUESTION_COLUMNS, asked_in, check_limit, read_passages
from querywright.data.rows import Cell, Record, Table
from querywright.data.sources import iterate_rows
from querywright.data.tables import Row
from querywright.data.types import PERSON, Passage, Question
from querywright.errors import DataError

_OWN = ("passage", "passages", "response", "point", "label", "judged", "second_label", "arms")
_COLUMNS = {**QUESTION_COLUMNS, **{name: (name,) for name in _OWN}}


@dataclass(frozen=True, slots=True)
class Case:
    """A judge's inputs. Each judge reads only the parts that it needs.

    Args:
        question: The question, with its options and right answer if they are known.
        passages: The passages; only one if the judge judges single passages. Default none.
        response: The answer to judge. Default None.
        point: A point that an answer should make. Default None.
    """

    question: Question
    passages: tuple[Passage, ...] = ()
    response: str | None = None
    point: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """A case with a person's label.

    Args:
        case: The case.
        label: The label.
        second: A second person's label. Default None.
        arms: The systems that found the passage or gave the answer. Default: unknown.
    """

    case: Case
    label: str
    second: str | None = None
    arms: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return the SHA-256 of the judge's inputs and the label, as hex."""
        case = self.case
        question: list[Any] = [case.question.question, list(case.question.options), case.question.answer]
        question += [list(case.question.history)] if case.question.history else []
        data = [question, [passage.content for passage in case.passages], case.response, case.point, self.label]
        return hashlib.sha256(json.dumps(data, ensure_ascii=False).encode()).hexdigest()


def read_judged(
    source: str | os.PathLike[str],
    labels: Mapping[str, str],
    *,
    needs: Collection[str] = ("passage",),
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
    per_question: int | None = None,
) -> list[JudgedCase]:
    """Return the judged cases in a file or folder. If any case has an error, raise all errors at once.

    Args:
        source: A file of cases, or a folder of passages and questions; see the module docstring.
        labels: The judge's labels, keyed by the spellings that people use, in uppercase with underscores for spaces: a
            word, a grade, TRUE, or FALSE.
        needs: Parts that each case must have: ``passage``, ``passages``, ``response``, ``point``. Default ``passage``.
        columns: Mapping from our column names to the names in the file. Default: the names in the module docstring.
        limit: Maximum number of questions to read, 1 or more. Default: all.
        per_question: Maximum number of cases per question; see ``sampled``. Default: all.

    Raises:
        DataError: All errors, each with its file, line, column, value, and expected value.
    """
    table = Table(_COLUMNS, columns)
    check_limit(limit)
    corpus: dict[str, Passage] | None = None
    if os.path.isdir(os.path.expanduser(source)):
        corpus = {passage.id: passage for passage in read_passages(source)}
    found: list[JudgedCase] = []
    n_rows = 0
    for row in iterate_rows(source, kind="questions", split=None, problems=table.problems):
        n_rows += 1
        values = _persons(row.values)
        found += [] if values is None else _cases(table.record(Row(row.place, values)), labels, needs, corpus)
    table.raise_problems(os.fspath(source), n_rows)
    if not found:
        raise DataError(
            f"{source}: no label comes from a person; correct a label, or set its 'by' to {PERSON} if you agree with it"
        )
    kept = set(list(dict.fromkeys(one.case.question.id for one in found))[:limit])
    return sampled([one for one in found if one.case.question.id in kept], per_question)


def sampled(judged: Sequence[JudgedCase], per_question: int | None) -> list[JudgedCase]:
    """Return at most ``per_question`` cases per question, in their original order.

    The cases chosen are those whose inputs have the smallest SHA-256. The choice does not depend on the labels or on
    other cases, so the share of each label changes only by chance.
    """
    check_limit(per_question)
    places: dict[str, list[tuple[str, int]]] = {}
    for place, one in enumerate(judged):
        places.setdefault(one.case.question.id, []).append((JudgedCase(one.case, "").digest(), place))
    chosen = {place for found in places.values() for _, place in sorted(found)[:per_question]}
    return [judged[place] for place in sorted(chosen)]


def judged_hash(judged: Iterable[JudgedCase]) -> str:
    """Return the SHA-256 of the cases, as hex, regardless of their order."""
    return hashlib.sha256("\n".join(sorted(one.digest() for one in judged)).encode()).hexdigest()


def _persons(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a row unchanged, or convert a label file's row to a case; None if no person labeled that row."""
    if not {"question_id", "passage_id", "text", "label", "judged", "by"} <= values.keys():
        return values
    label, by = values["label"], str(values["by"] or PERSON)
    if label is None or (by != PERSON and label == values["judged"]):
        return None
    kept = {name: values.get(name) for name in ("question", "options", "answer", "history")}
    label = GRADES[int(label)] if str(label) in ("0", "1", "2") else label
    return {
        **kept,
        "id": values["question_id"],
        "passage": values["text"],
        "passage_title": values.get("title"),
        "label": label,
    }


def _cases(
    record: Record, labels: Mapping[str, str], needs: Collection[str], corpus: Mapping[str, Passage] | None
) -> list[JudgedCase]:
    question, _ = asked_in(record)
    response = record.required_text("response") if "response" in needs else None
    point = record.required_text("point") if "point" in needs else None

    def case(passages: tuple[Passage, ...], label: Cell) -> JudgedCase:
        (beside, second), (column, arms) = record.parsed("second_label"), record.parsed("arms")
        return JudgedCase(
            Case(question, passages, response, point),
            _label(record, *label, labels),
            None if second is None else _label(record, beside, second, labels),
            tuple(record.name(arm, column) for arm in (arms if isinstance(arms, list) else [arms]) if arm is not None),
        )

    cases = []
    column, judged = record.parsed("judged")
    if judged is None or corpus is None:
        label = record.cell("label")
        if label.value is None:
            record.required_text("label")
        else:
            cases.append(case(_passages(record, needs, corpus), label))
    elif not isinstance(judged, dict):
        record.complain(column, judged, "an object that maps passage IDs to labels")
    else:
        cases += [case(_of_corpus(record, column, [k], corpus), Cell(column, v)) for k, v in judged.items()]
    return cases if record.ok else []


def _passages(record: Record, needs: Collection[str], corpus: Mapping[str, Passage] | None) -> tuple[Passage, ...]:
    column, listed = record.parsed("passages")
    if "passage" in needs:
        column, listed = record.cell("passage").column, [record.required_text("passage")]
    elif "passages" not in needs:
        return ()
    elif not isinstance(listed, list) or not listed:
        record.complain(column, listed, "a non-empty list of strings")
        return ()
    texts = [record.text(text, column, "a non-empty string") if record.ok else "" for text in listed]
    if corpus is not None:
        return _of_corpus(record, column, [text for text in texts if text], corpus)
    title = str(record.values.get("passage_title") or "")
    return tuple(Passage(str(place), text, title) for place, text in enumerate(texts))


def _of_corpus(record: Record, column: str, ids: Sequence[str], corpus: Mapping[str, Passage]) -> tuple[Passage, ...]:
    for id in ids:
        if id not in corpus:
            record.complain(column, id, "the ID of a passage in the folder")
    return tuple(corpus[id] for id in ids if id in corpus)


def _label(record: Record, column: str, given: object, labels: Mapping[str, str]) -> str:
    place = find_choice(given, list(labels))
    if place is None:
        record.complain(column, given, f"one of the labels {', '.join(labels)}")
        return ""
    return [*labels.values()][place]
