"""Graded relevance as labels: BEIR's judgements joined to the queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from querywright.data.rows import short
from querywright.data.tables import Row
from querywright.data.types import Label

COLUMNS = ("query-id", "corpus-id", "score")


def label_of(grade: int, positive: Collection[int]) -> Label:
    """The label that a grade of relevance stands for.

    Where a set has several positive grades, the lowest means that a passage is about the matter, and those above
    it that it answers: the lowest is USEFUL, the others are ENTAILED. Where it has one positive grade alone, its
    judges said no more than that the passage answers, and it is ENTAILED. 0 and less, which TREC has for spam, is
    NOT_USEFUL.

    Args:
        grade: Any whole number.
        positive: The positive grades of the set.
    """
    if grade <= 0:
        return Label.NOT_USEFUL
    return Label.USEFUL if len(set(positive)) > 1 and grade <= min(positive) else Label.ENTAILED


def judged_rows(queries: Iterable[Row], judgements: Iterable[Row], problems: list[str]) -> Iterator[Row]:
    """The queries that are judged, as rows with ``id``, ``question`` and ``evidence``.

    Args:
        queries: Rows with ``_id`` and ``text``; further columns stay.
        judgements: Rows with ``query-id``, ``corpus-id`` and ``score``.
        problems: Gets a line for each judgement that cannot be used.
    """
    grades, places = _grades(judgements, problems)
    positive = {grade for found in grades.values() for grade in found.values() if grade > 0}
    for row in queries:
        query = str(row.values.get("_id"))
        judged = grades.get(query)
        if judged is not None:
            places.pop(query, None)
            evidence = {key: label_of(grade, positive) for key, grade in judged.items()}
            yield Row(row.place, {"question": row.values.get("text"), **row.values, "evidence": evidence})
    for query, place in places.items():
        problems.append(f'{place}, column "query-id": found {query!r}; expected the _id of a query')


def _grades(judgements: Iterable[Row], problems: list[str]) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Grades by query and passage, and the place where each query first stands."""
    grades: dict[str, dict[str, int]] = {}
    places: dict[str, str] = {}
    for place, values in judgements:
        missing = [column for column in COLUMNS if column not in values]
        if missing:
            problems.append(
                f"{place}: no column {missing}; the columns are {short(list(values))}; judgements need a first line "
                f"with {', '.join(COLUMNS)}"
            )
            return grades, places
        query, passage, score = (values[column] for column in COLUMNS)
        grade = _whole(score)
        if query is None or passage is None or grade is None:
            found = {column: values[column] for column in COLUMNS}
            problems.append(f"{place}: found {short(found)}; expected two ids and a whole number")
            continue
        places.setdefault(str(query), place)
        if grades.setdefault(str(query), {}).setdefault(str(passage), grade) != grade:
            problems.append(
                f'{place}, column "score": found {grade}; expected {grades[str(query)][str(passage)]}, as another '
                "line says for the same query and passage"
            )
    return grades, places


def _whole(value: object) -> int | None:
    """The whole number, also where it is written as text or as 1.0."""
    try:
        number = float(str(value))
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None
