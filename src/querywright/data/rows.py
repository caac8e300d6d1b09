"""Find the columns in a source's rows, check their values, and read options, answers, and evidence.

Errors in the data are collected until the end of the source, then reported together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date
from string import ascii_uppercase
from typing import Any, NamedTuple, TypeGuard

from querywright.answer_text import bare_label, find_choice, fold
from querywright.data.cells import MISSING, bare_list, parse_cell, short
from querywright.data.tables import Row
from querywright.data.types import Label, Scalar, turns_of
from querywright.errors import DataError

INDEX_COLUMNS = ("answer_idx", "answer_letter", "answer_index", "answerKey")
SHOWN_COLUMNS = 20
"""Maximum number of a source's columns that an error message lists."""
_OPTIONS = "2 to 26 distinct, non-empty strings"
_QUOTES = frozenset("'\"")
_LISTS = ("options", "answers", "aliases", "evidence", "alternatives")
"""Fields whose cell may contain a list without quotes."""
_OPTION_PARTS = ("label", "key", "letter", "option"), ("text", "value")


class Cell(NamedTuple):
    """A column and its value (None if the row has no value)."""

    column: str
    value: Any


class Options(NamedTuple):
    """The options' letters and texts, and whether the letters come from the data."""

    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    lettered: bool = False


class Answer(NamedTuple):
    """The right answer (None if unknown) and other right answers."""

    text: str | None = None
    aliases: tuple[str, ...] = ()


class Table:
    """A source's column names, and the errors found in it.

    Args:
        guesses: Column names to look for, by field.
        columns: The user's column names, by field, which override the guesses. Default none.

    Raises:
        DataError: ``columns`` has an unknown field.
    """

    def __init__(self, guesses: Mapping[str, tuple[str, ...]], columns: Mapping[str, str] | None = None) -> None:
        self.mapped = dict(columns or {})
        unknown = sorted(set(self.mapped) - set(guesses))
        if unknown:
            raise DataError(f"unknown names in columns: {unknown}; known names: {list(guesses)}")
        self.names = {**guesses, **{key: (column,) for key, column in self.mapped.items()}}
        self.problems: list[str] = []
        self.absent: dict[str, list[str]] = {}
        self.seen: dict[str, None] = {}
        """The columns in the rows so far, in order."""

    def record(self, row: Row) -> Record:
        """Return a row as a record in this table."""
        self.seen.update(dict.fromkeys(row.values))
        return Record(row, self)

    def unread(self) -> list[str]:
        """Return the columns that no field was read from."""
        named = [column for names in self.names.values() for column in names]
        return [name for name in self.seen if name not in {part for one in named for part in (one, *split_names(one))}]

    def raise_problems(self, source: str, n_rows: int) -> None:
        """Raise all errors together. A column that is missing from every row is reported once, not for each row."""
        if not n_rows and not self.problems:
            raise DataError(f"{source}: found no rows; expected at least one")
        nowhere = {field: line for field in (*self.mapped, *self.absent) if (line := self._nowhere(field))}
        told = {line for field in nowhere for line in self.absent.get(field, ())}
        lines = [f"{source}: {line}" for line in nowhere.values()] if n_rows else []
        lines += [line for line in self.problems if line not in told]
        if lines:
            raise DataError(lines)

    def _nowhere(self, field: str) -> str:
        """Return the error for a field whose column is missing from every row; "" if any row has it."""
        seen = self.seen
        columns = f"{list(seen)[:SHOWN_COLUMNS]}" + f" and {len(seen) - SHOWN_COLUMNS} more" * (
            len(seen) > SHOWN_COLUMNS
        )
        if field in self.mapped:
            column = self.mapped[field]
            missing = [] if column in seen else [part for part in split_names(column) if part not in seen]
            return f"no column {missing} for {field!r}; the columns are {columns}" if missing else ""
        if any(name in seen for name in self.names[field]):
            return ""
        return (
            f"no column for {field!r} (looked for {' or '.join(self.names[field])}); the columns are {columns}. "
            f'Choose one with columns={{"{field}": ...}}'
        )


class Record:
    """A row whose cells are checked when they are read. Errors are recorded in the row's table."""

    def __init__(self, row: Row, table: Table) -> None:
        self.place, self.values, self.table = row.place, row.values, table
        self.ok = True

    def complain(self, column: str, found: object, expected: str) -> None:
        """Add an error in this row."""
        self.ok = False
        self.table.problems.append(f'{self.place}, column "{column}": found {short(found)}; expected {expected}')

    def cell(self, field: str) -> Cell:
        """Return the cell in the first of a field's columns that has a value in this row."""
        for column in self.table.names[field]:
            if self.values.get(column) is not None:
                return Cell(column, self.values[column])
        return Cell(next(iter(self.table.names[field]), field), None)

    def parsed(self, field: str) -> Cell:
        """Return a field's cell, with a list or object in its text parsed. If parsing fails, add an error and return
        the value None.

        An answer such as "None" or "(3, 4)" stays a string.
        """
        column, value = self.cell(field)
        if isinstance(value, str) and field in ("answer", "answers"):
            if value.strip()[:1] in ("(", "{") and not _QUOTES & {*value}:
                return Cell(column, value)
        elif isinstance(value, str) and value.strip() in MISSING:
            return Cell(column, None)
        try:
            parsed = parse_cell(value)
            return Cell(column, bare_list(parsed) if field in _LISTS else parsed)
        except DataError as error:
            self.ok = False
            self.table.problems.append(f'{self.place}, column "{column}": {error}')
            return Cell(column, None)

    def text(self, value: object, column: str, expected: str) -> str:
        """Return a string without outer whitespace; if it is empty or not a string, add an error and return ""."""
        cleaned = value.strip() if isinstance(value, str) else ""
        if not cleaned:
            self.complain(column, value, expected)
        elif "\0" in cleaned:
            self.complain(column, value, f"{expected} without NUL characters")
        elif any("\ud800" <= sign <= "\udfff" for sign in cleaned):
            self.complain(column, value, f"{expected} in valid Unicode (found an unpaired surrogate)")
        return cleaned

    def name(self, value: object, column: str, expected: str = "a non-empty string or an integer") -> str:
        """Return an id or a short answer as a string. An integer is converted to a string."""
        return self.text(str(value) if is_whole(value) else value, column, expected)

    def required_text(self, field: str) -> str:
        """Return a required field's text."""
        column, value = self.cell(field)
        if value is not None:
            return self.text(value, column, "a non-empty string")
        problem = f'{self.place}, column "{self.table.names[field][0]}": found nothing; expected the {field}'
        self.ok = False
        self.table.problems.append(problem)
        self.table.absent.setdefault(field, []).append(problem)
        return ""


def read_options(record: Record) -> Options | None:
    """Return a row's options, which may be empty; None if there is an error."""
    column, value, several = _options_cell(record)
    if value is None:
        return Options()
    named = _named_options(value)
    if named is None:
        record.complain(
            column,
            value,
            f"a list of {_OPTIONS}, a list of objects with a key and a value, or an object that maps letters to "
            "strings",
        )
        return None
    if not named:
        return Options()
    was_ok, record.ok = record.ok, True
    texts = [record.text(text, column, f"a non-empty string for option {label}") for label, text in named]
    sound, record.ok = record.ok, record.ok and was_ok
    if not sound:
        return None
    labels = [label for label, _ in named]
    if len(texts) < 2 or len(set(texts)) < len(texts) or len(set(labels)) < len(labels):
        record.complain(column, texts, _OPTIONS)
        return None
    return Options(tuple(labels), tuple(texts), several or _lettered(value) or isinstance(value, dict))


def _named_options(value: object) -> list[tuple[str, object]] | None:
    """Return pairs of a letter and a text, or None if the value is not a form of options."""
    if isinstance(value, dict) and (names := _pair_of(value)) and all(isinstance(one, list) for one in value.values()):
        labels, texts = (value[name] for name in names)
        return list(zip(map(_letter, labels), texts, strict=True)) if len(labels) == len(texts) else None
    if isinstance(value, dict):
        return [(_letter(label), text) for label, text in value.items() if text is not None]
    if _lettered(value):
        return [(_letter(one[names[0]]), one[names[1]]) for one in value if (names := _pair_of(one))]
    if isinstance(value, list) and len(value) <= len(ascii_uppercase):
        return list(zip(ascii_uppercase, value, strict=False))
    return None


def _lettered(value: object) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether a value is a list of objects with a letter and a text."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and _pair_of(one) for one in value)


def _letter(label: object) -> str:
    return str(label).strip()


def _pair_of(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return an object's keys for the letter and the text; None if the object does not have such keys."""
    letters, texts = ([name for name in names if name in value] for names in _OPTION_PARTS)
    return (letters[0], texts[0]) if len(value) == 2 and letters and texts else None


def _options_cell(record: Record) -> tuple[str, Any, bool]:
    """Return the column, the value, and whether there are several columns (a mapped ``a,b,c``, or A, B, C ...)."""
    column, value = record.parsed("options")
    if value is not None:
        return column, value, False
    mapped = record.table.mapped.get("options")
    if mapped is not None:
        names = split_names(mapped)
    elif "A" in record.values and "B" in record.values:
        count = next((n for n, letter in enumerate(ascii_uppercase) if letter not in record.values), 26)
        names = list(ascii_uppercase[:count])
    else:
        return column, None, False
    texts = [record.values.get(name) for name in names]
    while texts and texts[-1] is None:
        texts.pop()
    return ",".join(names), texts or None, True


def read_answer(record: Record, options: Options | None) -> Answer:
    """Return a row's answer, checked against the options."""
    index, given, several = record.cell("answer_idx"), _given(record, options), record.parsed("answers")
    aliases = _texts(record, record.parsed("aliases"))
    if given.value is None:
        given = several
    else:
        aliases += _texts(record, several)
    if isinstance(given.value, (list, dict)):
        texts = _texts(record, given)
        given, aliases = Cell(given.column, texts[0] if texts else None), [*texts[1:], *aliases]
    if options is None or not record.ok:
        return Answer()
    text = None
    if options.texts:
        text = _choose(record, options, index, given)
    elif given.value is not None:
        text = record.name(given.value, given.column, "a non-empty string (omit the answer if it is unknown)")
    elif index.value is not None:
        record.complain(index.column, index.value, "options for this index, but the row has no options")
    return Answer(text, tuple(alias for alias in distinct(aliases) if alias != text))


def _given(record: Record, options: Options | None) -> Cell:
    """Return the cell with the answer. A string that equals an option is not parsed as a list."""
    written = record.cell("answer")
    is_option = options is not None and isinstance(written.value, str) and written.value.strip() in options.texts
    return written if is_option else record.parsed("answer")


def _texts(record: Record, cell: Cell) -> list[str]:
    """Return a list of strings from a string, a list, or SQuAD's ``{"text": [...], "answer_start": [...]}``."""
    column, value = cell
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
    listed = value if isinstance(value, list) else [] if value is None else [value]
    return [record.name(item, column, "a non-empty string or a list of non-empty strings") for item in listed]


def _choose(record: Record, options: Options, index: Cell, given: Cell) -> str | None:
    """Return the text of the option that the index and the answer name; None if neither is given, or on error."""
    texts, labels = options.texts, options.labels
    place = None
    if index.value is not None:
        place = _by_label(options, index.value)
        if place is None:
            expected = f"one of {', '.join(labels)}, or a position from 0 to {len(texts) - 1}"
            record.complain(index.column, index.value, expected)
            return None
    if given.value is None:
        return None if place is None else texts[place]
    found = _by_value(options, given.value)
    if not found:
        expected = f"one of the options {list(texts)}, its letter, or its position from 0"
    elif place is not None and place not in found:
        expected = f"{texts[place]!r}, the option that {index.column}={index.value!r} refers to"
    elif place is None and len(found) > 1:
        expected = (
            f"one option, but this value is the text of option {labels[found[0]]} and the letter or position of option "
            f"{labels[found[1]]}; put letters and positions into a column named answer_idx"
        )
    else:
        return texts[found[0] if place is None else place]
    record.complain(given.column, given.value, expected)
    return None


def _by_label(options: Options, value: object) -> int | None:
    """Return the position of the option that a label or a position from 0 refers to; None if there is none."""
    if not isinstance(value, str) and not is_whole(value):
        return None
    name, *labels = (fold(bare_label(str(one))) for one in (value, *options.labels))
    if labels.count(name) == 1:
        return labels.index(name)
    return int(name) if name.isdecimal() and len(name) < 3 and int(name) < len(labels) else None


def _by_value(options: Options, value: object) -> list[int]:
    """Return the positions that an answer may refer to: by its text, then by its letter.

    If the options are a plain list without letters, a string that equals an option refers only to that option.
    """
    by_text = find_choice(value, options.texts)
    found = [by_text]
    if len(bare_label(str(value))) <= 3 and (by_text is None or options.lettered or is_whole(value)):
        found.append(_by_label(options, value))
    return [place for place in dict.fromkeys(found) if place is not None]


def read_evidence(record: Record) -> dict[str, Label]:
    """Return the labels, keyed by passage id. Ids without a label count as ENTAILED."""
    column, value = record.parsed("evidence")
    if value is None:
        return {}
    if isinstance(value, str) and value.strip()[:1] + value.strip()[-1:] in ("[]", "{}"):
        record.complain(column, value, "a passage ID or a JSON list of passage IDs")
        return {}
    if not isinstance(value, dict):
        ids = value if isinstance(value, list) else [value]
        return dict.fromkeys(
            (record.name(id, column, "a passage ID or a list of passage IDs") for id in ids), Label.ENTAILED
        )
    evidence, labels = {}, list(Label)
    for key, label in value.items():
        place = find_choice(label, labels)
        if place is not None:
            evidence[record.name(key, column, "a non-empty passage ID")] = labels[place]
        elif label is not None:
            record.complain(column, {key: label}, f"one of the labels {', '.join(Label)}")
    return evidence


def read_assessors(record: Record, evidence: Mapping[str, Label]) -> dict[str, tuple[str, ...]]:
    """Return each label's assessors, keyed by passage id; empty if the row names none."""
    column, value = record.parsed("assessors")
    expected = "an object that maps passage IDs in the evidence to a name or a list of names"
    if value is not None and not isinstance(value, dict):
        record.complain(column, value, expected)
        return {}
    found = {}
    for key, names in (value or {}).items():
        listed = names if isinstance(names, list) else [names]
        if key not in evidence or not listed:
            record.complain(column, {key: names}, expected)
        found[str(key)] = tuple(record.name(name, column, expected) for name in listed)
    return found


def read_alternatives(record: Record, evidence: Mapping[str, Label]) -> tuple[tuple[str, ...], ...]:
    """Return groups of passage ids, where any one passage in a group is enough; empty if the row has none."""
    column, value = record.parsed("alternatives")
    expected = "a list of lists of passage IDs from the evidence"
    if value is not None and not (isinstance(value, list) and all(isinstance(group, list) for group in value)):
        record.complain(column, value, expected)
        return ()
    groups = tuple(distinct(record.name(id, column, expected) for id in group) for group in value or ())
    if unknown := [id for group in groups for id in group if id not in evidence]:
        record.complain(column, unknown, expected)
    return groups


def read_jointly(record: Record) -> bool:
    """Return whether the answer needs all the evidence together; False if the row does not say."""
    column, value = record.cell("jointly")
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if value is not None and not isinstance(value, bool):
        record.complain(column, value, "true or false")
    return value is True


def read_history(record: Record) -> tuple[str, ...]:
    """Return the turns of the conversation before a question."""
    column, value = record.parsed("history")
    try:
        return tuple(record.text(turn, column, "a non-empty turn") for turn in turns_of(value))
    except DataError:
        record.complain(column, value, "a string or a list of turns (strings, or objects with role and content)")
        return ()


def read_metadata(record: Record) -> dict[str, Scalar]:
    """Return the metadata as flat values. Missing values are left out, and dates become ISO 8601 strings.

    If the user mapped columns to the metadata, their values are keyed by column name.
    """
    column, value = record.parsed("metadata")
    named = [name for name in split_names(record.table.mapped.get("metadata", "")) if name in record.values]
    if named and not isinstance(value, dict):
        value = {name: record.values[name] for name in named}
    if value is not None and not isinstance(value, dict):
        record.complain(column, value, "an object whose values are strings, numbers, or Booleans")
        return {}
    metadata: dict[str, Scalar] = {}
    for key, item in (value or {}).items():
        name = record.text(key, column, "a non-empty key")
        if isinstance(item, str):
            metadata[name] = record.text(item, column, f"a non-empty string for {name!r}") if item.strip() else ""
        elif isinstance(item, date):
            metadata[name] = item.isoformat()
        elif isinstance(item, int) or (isinstance(item, float) and math.isfinite(item)):
            metadata[name] = item
        elif item is not None:
            record.complain(column, {key: item}, "a string, a finite number, a Boolean, or a date for each key")
    return metadata


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number. True and False do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def distinct(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values without duplicates, in order."""
    return tuple(dict.fromkeys(values))


def split_names(column: str) -> list[str]:
    """Return the names in a string such as ``a,b,c``."""
    return [name.strip() for name in column.split(",")]
