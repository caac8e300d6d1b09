"""Which column holds what, and the checks of single values; problems are kept until the source has ended."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from querywright.data.tables import Row
from querywright.errors import DataError


class Cell(NamedTuple):
    """A value and the column it stood in; None when the row has none."""

    column: str
    value: Any


class Table:
    """The column names of one source and the problems found in it.

    Args:
        guesses: For each of our names, the column names that are tried in order.
        columns: The user's mapping from our names to theirs; it replaces the guesses of that name.
        public: Our names that the user may map.

    Raises:
        DataError: The mapping uses a name that is not ours.
    """

    def __init__(
        self,
        guesses: Mapping[str, tuple[str, ...]],
        columns: Mapping[str, str] | None,
        public: tuple[str, ...],
    ) -> None:
        self.mapped = dict(columns or {})
        unknown = sorted(set(self.mapped) - set(public))
        if unknown:
            raise DataError(f"columns: unknown name {unknown}; the names to map are {list(public)}")
        self.names = {**guesses, **{key: (column,) for key, column in self.mapped.items()}}
        self.problems: list[str] = []
        self._seen: dict[str, None] = {}
        self._absent: dict[str, set[str]] = {}

    def record(self, row: Row) -> Record:
        """The row under this table's column names."""
        self._seen.update(dict.fromkeys(row.values))
        return Record(row, self)

    def absent(self, field: str, place: str) -> None:
        """Note that a row has no value for a name that needs one."""
        problem = f'{place}, column "{self.names[field][0]}": found nothing; expected the {field}'
        self._absent.setdefault(field, set()).add(problem)
        self.problems.append(problem)

    def raise_problems(self, source: str, n_rows: int) -> None:
        """Raise everything that was found.

        Raises:
            DataError: There was a problem, or no row at all.
        """
        if not n_rows and not self.problems:
            raise DataError(f"{source}: found no rows; expected at least one")
        seen = list(self._seen)
        problems: list[str] = []
        replaced: set[str] = set()
        for field, column in self.mapped.items():
            missing = [] if column in seen else [part for part in split_names(column) if part not in seen]
            if missing and n_rows:
                problems.append(f"{source}: no column {missing} for {field!r}; the columns are {seen}")
                replaced |= self._absent.pop(field, set())
        for field, lines in self._absent.items():
            if not any(name in seen for name in self.names[field]):
                tried = " or ".join(self.names[field])
                problems.append(
                    f"{source}: no column for {field!r} (looked for {tried}); the columns are {seen}; "
                    f'name one with columns={{"{field}": ...}}'
                )
                replaced |= lines
        problems += [problem for problem in self.problems if problem not in replaced]
        if problems:
            raise DataError(problems)


class Record:
    """One row: its cells by our names, checked as they are taken.

    Args:
        row: The row.
        table: Its source's columns; gets the problems.
    """

    def __init__(self, row: Row, table: Table) -> None:
        self.place, self.values, self.table = row.place, row.values, table
        self.ok = True

    def complain(self, column: str, found: object, expected: str) -> None:
        """Keep a problem of this row."""
        self.ok = False
        self.table.problems.append(f'{self.place}, column "{column}": found {short(found)}; expected {expected}')

    def cell(self, field: str) -> Cell:
        """The first of the field's columns that has a value in this row."""
        for column in self.table.names[field]:
            if self.values.get(column) is not None:
                return Cell(column, self.values[column])
        return Cell(next(iter(self.table.names[field]), field), None)

    def text(self, value: object, column: str, expected: str) -> str:
        """The value as text without outer whitespace; a problem and "" when it is none or empty."""
        cleaned = value.strip() if isinstance(value, str) else ""
        if not cleaned:
            self.complain(column, value, expected)
        elif "\0" in cleaned:
            self.complain(column, value, f"{expected} without NUL characters")
        elif _has_surrogate(cleaned):
            self.complain(column, value, f"{expected} in valid Unicode (it has half of a surrogate pair)")
        return cleaned

    def name(self, value: object, column: str, expected: str) -> str:
        """The same for ids and short answers, where a whole number is taken as its digits."""
        return self.text(str(value) if is_whole(value) else value, column, expected)

    def required_text(self, field: str) -> str:
        """The text of a field that every row needs."""
        column, value = self.cell(field)
        if value is None:
            self.ok = False
            self.table.absent(field, self.place)
            return ""
        return self.text(value, column, "non-empty text")


def is_whole(value: object) -> bool:
    """Whether the value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object) -> str:
    """The value as it is shown in a message, at most about 60 characters a string."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = 60
    shortener.maxlist = shortener.maxdict = 6
    return shortener.repr(value)


def parse_text_cell(value: object) -> object:
    """A list or object written as JSON in a text cell (CSV), anything else unchanged."""
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def distinct(values: Iterable[str]) -> tuple[str, ...]:
    """The values without repetitions, in order."""
    return tuple(dict.fromkeys(values))


def split_names(column: str) -> list[str]:
    """The single names of ``a,b,c``."""
    return [name.strip() for name in column.split(",")]


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
