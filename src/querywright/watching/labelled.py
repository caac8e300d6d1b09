"""Exchange traffic and labels of it become questions that compile, evaluate and study take.

A label names an exchange (``id``) and says at least one of

* ``answer``: the right answer; for a question with options the text of one, or its letter,
* ``evidence``: the passages that help: ids, or an object of id and label, as in a file of questions,
* ``feedback``: ``up`` (the answer given was right) or ``down`` (it was not); also yes/no, true/false, 1/0.

Labels of one question are one question: further right answers of a short-answer question are aliases, evidence is
united.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from querywright.answer_text import words
from querywright.data.reading import QUESTION_COLUMNS, derived_id
from querywright.data.rows import Record, Table, read_answer, read_evidence, read_options
from querywright.data.tables import Row, file_rows, format_of
from querywright.data.types import Label, Question
from querywright.errors import DataError, InputError
from querywright.files import write_file
from querywright.optimize.artifacts.watchers import Exchange
from querywright.watching.traffic import HASHED

FEEDBACK = {
    **dict.fromkeys(("up", "yes", "true", "1", "+1", "👍"), True),
    **dict.fromkeys(("down", "no", "false", "0", "-1", "👎"), False),
}
COLUMNS = {
    **{name: QUESTION_COLUMNS[name] for name in ("answer", "answer_idx", "answers", "aliases", "evidence")},
    "id": ("id", "exchange", "exchange_id"),
    "feedback": ("feedback", "thumb", "thumbs", "rating"),
    "options": ("options",),
}


@dataclass(frozen=True, slots=True)
class Labelled:
    """Questions with labels, and what could not become one.

    Args:
        questions: One for each question that was labelled, in the order of the traffic.
        left_out: A line for each question or label that was left out, with the reason.
        labels: Labels read.
        merged: Labels beyond the first of their question.
    """

    questions: tuple[Question, ...]
    left_out: tuple[str, ...]
    labels: int
    merged: int


@dataclass(slots=True)
class _Gathered:
    """What is said of one question; answers by what is left of them without case and spaces, each with who says so."""

    recorded: Exchange
    labels: int = 0
    right: dict[str, tuple[str, str]] = field(default_factory=dict)
    wrong: dict[str, tuple[str, str]] = field(default_factory=dict)
    evidence: dict[str, Label] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)

    def add(self, one: Exchange, answers: Sequence[str], evidence: dict[str, Label], feedback: bool | None) -> None:
        self.labels += 1
        said = [(answer, self.right) for answer in answers]
        if feedback is not None and one.answer is not None:
            said.append((one.answer, self.right if feedback else self.wrong))
        for answer, known in said:
            known.setdefault(" ".join(words(answer)) or answer, (answer, one.id))
        for passage, label in evidence.items():
            if self.evidence.setdefault(passage, label) != label:
                self.conflicts.append(f"the passage {passage!r} is {self.evidence[passage]} and {label} ({one.id})")

    def problems(self) -> list[str]:
        """What cannot be true together, or that too little is known."""
        found = list(self.conflicts)
        if self.recorded.options and len(self.right) > 1:
            said = " and ".join(f"{answer!r} ({id})" for answer, id in self.right.values())
            found.append(f"the right answer is {said}")
        for key, (answer, id) in self.wrong.items():
            if key in self.right:
                found.append(f"{answer!r} is right ({self.right[key][1]}) and wrong ({id})")
        if not found and not self.right and not self.evidence:
            found.append("nothing but a wrong answer is known; label the right one, or passages that help")
        return found

    def question(self) -> Question:
        text, options = self.recorded.question.strip(), self.recorded.options
        answers = [answer for answer, _ in self.right.values()]
        first, others = answers[0] if answers else None, tuple(answers[1:])
        history = self.recorded.history
        id = derived_id(text, options, history)
        return Question(id, text, options, first, others, dict(self.evidence), history=history)


def labelled_questions(traffic: Sequence[Exchange], labels: str | Path) -> Labelled:
    """The recorded questions that are labelled.

    A question whose labels contradict each other is left out and named, and so is one of which nothing is known but
    that an answer was wrong, one whose text was not kept, and a label of an exchange that is not in the traffic.

    Args:
        traffic: What was recorded.
        labels: A .jsonl, .json, .csv or .tsv file, one label a row.

    Raises:
        DataError: The file cannot be read, or a label is none; all of them are named.
    """
    path, by_id = Path(labels), {one.id: one for one in traffic}
    if not path.is_file() or not format_of(path.name)[0]:
        raise DataError(f"{path.name}: labels are a .jsonl, .json, .csv or .tsv file that is there, one label a row")
    table, gathered, left_out = Table(COLUMNS, None, ()), dict[tuple[str, ...], _Gathered](), list[str]()
    rows = list(file_rows(path, path.name, table.problems))
    for row in rows:
        name = _id(table.record(row))
        if name is not None and name not in by_id:
            left_out.append(f"{row.place}: there is no exchange {name!r} in the traffic")
        elif name is not None:
            _add(gathered, by_id[name], table, row, left_out)
    table.raise_problems(os.fspath(labels), len(rows))
    place = {one.key: number for number, one in reversed(list(enumerate(traffic)))}
    known = [gathered[key] for key in sorted(gathered, key=place.__getitem__)]
    wrong = [one.problems() for one in known]
    left_out += [
        f"{one.recorded.question[:60]!r}: {'; '.join(bad)}" for one, bad in zip(known, wrong, strict=True) if bad
    ]
    questions = tuple(one.question() for one, bad in zip(known, wrong, strict=True) if not bad)
    return Labelled(questions, tuple(left_out), len(rows), sum(one.labels - 1 for one in known))


def write_questions(path: str | Path, questions: Sequence[Question]) -> None:
    """Write questions as JSON lines, whole or not at all, readable by their owner only.

    They have no ids, so that files of them can be put together: reading them unites what asks the same.

    Args:
        path: The file; one that is there is replaced.
        questions: What is written.

    Raises:
        InputError: The file cannot be written.
    """
    target = Path(path).resolve()
    told = ({key: value for key, value in one.to_json().items() if key != "id"} for one in questions)
    try:
        text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in told)
        if target.exists() and not target.is_file():  # such as /dev/stdout
            target.write_text(text, encoding="utf-8")
        else:
            write_file(target, text)
    except OSError as error:
        raise InputError(f"{target.name!r} could not be written: {error.strerror}; give another file") from error


def _id(record: Record) -> str | None:
    column, value = record.cell("id")
    if value is None:
        record.complain(column, None, "the id of a recorded exchange")
        return None
    return record.name(value, column, "the id of a recorded exchange") or None


def _add(
    gathered: dict[tuple[str, ...], _Gathered], one: Exchange, table: Table, row: Row, left_out: list[str]
) -> None:
    """Take what a row says of a recorded question."""
    # The options are those that were recorded: a letter, or the text of one, is understood as in a file of questions.
    record = table.record(Row(row.place, {**row.values, "options": list(one.options)}))
    answer = read_answer(record, read_options(record))
    evidence = read_evidence(record)
    column, told = record.cell("feedback")
    feedback = FEEDBACK.get(str(told).strip().lower())
    if told is not None and feedback is None:
        record.complain(column, told, f"one of {', '.join(FEEDBACK)}")
    answers = [] if answer.text is None else [answer.text, *answer.aliases]
    # Whether the recorded answer could be the right one.
    says = bool(one.answer) and not one.declined and (not one.options or one.answer in one.options)
    if not record.ok:
        return
    if not answers and not evidence and feedback is None:
        record.complain("answer", None, "an answer, evidence or feedback")
    elif one.question.startswith(HASHED):
        left_out.append(f"{row.place}: the text of {one.id!r} was not kept, so nothing can be learnt from it")
    elif feedback and not answers and not evidence and not says:
        left_out.append(f"{row.place}: {one.id!r} gave no answer that could be the right one, whatever its feedback")
    else:
        gathered.setdefault(one.key, _Gathered(one)).add(one, answers, evidence, feedback if says else None)
