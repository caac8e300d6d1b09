"""Results by slice: questions with the same value in a column, with or without options, or known to the LM or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.statistics import holm, p_value, verdict
from querywright.optimize.evaluate import Evaluation, mean_json
from querywright.optimize.results import PairedComparison, in_words
from querywright.optimize.significance import ALPHA, is_shown
from querywright.optimize.tables import percent

KNOWN = "known"
"""The slice by whether the LM answers a question correctly without passages: ``yes`` or ``no``."""

OPTIONS = "options"
"""The slice by whether a question has options: ``yes`` or ``no``."""

NO_VALUE = "(none)"
"""The value for questions whose column is empty, or on which closed book could not be scored."""

MOST_VALUES = 20


@dataclass(frozen=True, slots=True)
class SliceResult:
    """Results on the questions of one slice.

    Args:
        column: Name of the column, ``options``, or ``known``.
        value: The column's value.
        arms: The programs' results on these questions.
        comparisons: Each program compared with the baseline on these questions. The p-values are Holm-corrected over
            all programs and values of the column, within a metric.
    """

    column: str
    value: str
    arms: tuple[Evaluation, ...]
    comparisons: tuple[PairedComparison, ...]

    @property
    def n(self) -> int:
        """The number of questions."""
        return len(self.arms[0].rows)

    def to_json(self) -> dict[str, Any]:
        """Return the results as a JSON object; NaN becomes null."""
        means = [{"arm": one.name, "metrics": {m: mean_json(one.mean(m)) for m in one.metrics}} for one in self.arms]
        compared = [one.to_json() for one in self.comparisons]
        return {"column": self.column, "value": self.value, "n": self.n, "arms": means, "comparisons": compared}


def slice_results(
    arms: Sequence[Evaluation],
    questions: Sequence[Question],
    columns: Sequence[str],
    *,
    baseline: str,
    closed_book: Evaluation | None = None,
    metric: str = "accuracy",
) -> tuple[SliceResult, ...]:
    """Return the results by slice.

    Args:
        arms: Results of the programs, on these questions.
        questions: The questions, with their ``slices``.
        columns: Columns of the questions to group by; ``options`` groups by whether a question has options, and
            ``known`` by whether the LM knows the answer.
        baseline: Name of the program that the others are compared with.
        closed_book: Results of the reader without passages on these questions, for ``known``. Closed book is left out
            of the ``known`` slices, because it defines them.
        metric: The metric that decides ``known``: an answer is right if its value is 1.0. Default accuracy.

    Raises:
        InputError: ``known`` is requested without closed book, or a column has too many values.
    """
    return tuple(
        found
        for column in columns
        for found in _by_column(
            [one for one in arms if column != KNOWN or one is not closed_book or one.name == baseline],
            column,
            _values(questions, column, closed_book, metric),
            baseline,
        )
    )


def columns_of(slices: Sequence[str]) -> list[str]:
    """Return the slices that are question columns."""
    if isinstance(slices, str):
        raise InputError(f"slices must be a list of columns, but got {slices!r}; pass slices=[{slices!r}]")
    return [name for name in slices if name not in (KNOWN, OPTIONS)]


def check_known(columns: Sequence[str], metrics: Sequence[str], *, has_closed_book: bool) -> None:
    """Raise ``InputError`` if the slice ``known`` is requested but cannot be made."""
    if KNOWN in columns and not has_closed_book:
        raise InputError(
            "the slice 'known' requires a program that answers without passages; add closed_book to the programs, and "
            "add a reader"
        )
    if KNOWN in columns and not metrics:
        raise InputError("the slice 'known' requires the accuracy or exact_match metric; add one of them")


def slice_rows(slices: Sequence[SliceResult]) -> list[dict[str, str]]:
    """Return one human-readable row per slice, program, and metric; a slice is shown with its number of questions."""
    rows = []
    for one in slices:
        tests = {(held.arm, held.metric): held.test for held in one.comparisons}
        for arm in one.arms:
            for metric in arm.metrics:
                test = tests.get((arm.name, metric))
                rows.append(
                    {
                        "slice": f"{one.column} = {one.value} ({one.n})",
                        "arm": arm.name,
                        "metric": metric,
                        "mean": percent(arm.mean(metric)),
                        "won : lost": "-" if test is None else f"{test.wins} : {test.losses}",
                        "p": "-"
                        if test is None
                        else p_value(test.p_two_sided, ALPHA).removeprefix("p ").removeprefix("= "),
                    }
                )
    return rows


def known_sentence(comparisons: Sequence[PairedComparison], slices: Sequence[SliceResult]) -> str:
    """Return a sentence about gains that are shown only on questions that the LM knows; empty without such gains."""
    parts = {one.value: one.comparisons for one in slices if one.column == KNOWN}
    sides = [{(one.arm, one.metric): one.test for one in parts.get(value, ())} for value in ("yes", "no")]
    said = []
    for one in comparisons:
        known, unknown = (side.get((one.arm, one.metric)) for side in sides)
        if known is None or unknown is None or not is_shown(one.test, gain=True):
            continue
        if is_shown(known, gain=True) and not is_shown(unknown, gain=True):
            said.append(
                f"{one.arm} is better in {one.metric} only on questions that the LM answers without passages "
                f"({known.wins} won, {known.losses} lost of {known.n}; on the others {unknown.wins} won, "
                f"{unknown.losses} lost of {unknown.n})"
            )
    return "; ".join(said)


def _values(
    questions: Sequence[Question], column: str, closed_book: Evaluation | None, metric: str
) -> Mapping[str, list[int]]:
    """Return the positions of the questions by the value of a column, sorted by value."""
    if column == KNOWN:
        check_known([KNOWN], [metric], has_closed_book=closed_book is not None)
        assert closed_book is not None
        right = dict(zip((row.id for row in closed_book.rows), closed_book.values(metric), strict=True))
        scores = [right.get(one.id, math.nan) for one in questions]
        named = [NO_VALUE if math.isnan(score) else "yes" if score == 1.0 else "no" for score in scores]
    elif column == OPTIONS:
        named = ["yes" if one.options else "no" for one in questions]
    else:
        named = [one.slices.get(column, NO_VALUE) for one in questions]
    found: dict[str, list[int]] = {}
    for place, value in enumerate(named):
        found.setdefault(value, []).append(place)
    if len(found) > MOST_VALUES:
        raise InputError(
            f"a slice must have at most {MOST_VALUES} different values, but the column {column!r} has {len(found)} in "
            f"{len(questions)} questions; use a column with fewer values"
        )
    return dict(
        sorted(found.items(), key=lambda item: (item[0] == NO_VALUE, column != KNOWN and item[0], -len(item[0])))
    )


def _by_column(
    arms: Sequence[Evaluation], column: str, values: Mapping[str, Sequence[int]], baseline: str
) -> list[SliceResult]:
    """Return the results for each value of one column."""
    parts = {
        value: {one.name: replace(one, rows=tuple(one.rows[place] for place in places)) for one in arms}
        for value, places in values.items()
    }
    held: dict[str, list[PairedComparison]] = {value: [] for value in parts}
    for metric in next(one for one in arms if one.name == baseline).metrics:
        tests = [
            (value, name, one.against(part[baseline], metric))
            for value, part in parts.items()
            for name, one in part.items()
            if name != baseline and metric in one.metrics
        ]
        corrected = holm([test.p_two_sided for *_, test in tests])
        for (value, name, raw), p in zip(tests, corrected, strict=True):
            test = replace(raw, p_two_sided=p)
            said = verdict(test, a=in_words(name), b=in_words(baseline), alpha=ALPHA, tests=len(tests))
            sentence = f"{column} = {value}: {metric}: {said}"
            held[value].append(PairedComparison(f"slices by {column}", metric, name, baseline, test, sentence))
    return [SliceResult(column, value, tuple(part.values()), tuple(held[value])) for value, part in parts.items()]
