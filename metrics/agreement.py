"""Measure how far two labelings agree: agreement figures from tables of counts, each with an interval.

Judgments of the same question are correlated, so the intervals come from resampling questions, not judgments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from querywright.metrics.statistics import RESAMPLES

if TYPE_CHECKING:
    import numpy as np

FIGURES = {
    "agreement": "agreement",
    "kappa": "Cohen's kappa",
    "linear_kappa": "kappa, linear weights",
    "quadratic_kappa": "kappa, quadratic weights",
    "spearman": "Spearman's rho",
    "pearson": "Pearson's r",
}
"""The usual name of each figure."""

CONFIDENCE = 0.95
LEAST_DEFINED = 0.9
"""Minimum share of resamples in which a figure must be defined to have an interval."""

_CELLS = 2_000_000  # counts held in memory at once
_FEWER = 2_000  # number of resamples if each is computed separately


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its interval.

    Args:
        value: The value; NaN if it is undefined.
        low: Lower end of the 95% interval; NaN without an interval.
        high: Upper end of the interval.
        reason: Why there is no value or no interval; empty if both exist.
    """

    value: float
    low: float
    high: float
    reason: str = ""


def shown(figure: Figure) -> str:
    """Format a figure as ``.42 [.31, .52]``: two decimals without a leading zero, the usual format for kappas."""

    def short(value: float) -> str:
        return f"{round(value, 2) + 0.0:.2f}".replace("0.", ".", 1)  # avoids "-.00"

    if math.isnan(figure.value):
        return "undefined"
    interval = "no interval" if math.isnan(figure.low) else f"{short(figure.low)}, {short(figure.high)}"
    return f"{short(figure.value)} [{interval}]"


def agreement_figures(tables: np.ndarray, other: np.ndarray | None = None, *, seed: int = 0) -> dict[str, Figure]:
    """Return a judge's agreement with people, as figures with percentile bootstrap intervals over questions.

    Args:
        tables: One table of counts per question, shape (questions, labels, labels), with people's labels in rows.
        other: Tables for a second judge on the same questions. If given, the result is the second judge's figures minus
            the first's, with the same resamples for both. Default None.
        seed: Random seed for the resampling. Default 0.

    Returns:
        The figures by name. Without judgments, they are undefined. If people used only one label, all figures except
        the agreement are undefined, because these figures need at least two different labels (scikit-learn returns 0,
        or NaN with a warning).

    Source: Cohen 1960, doi:10.1177/001316446002000104; weights: Cohen 1968, doi:10.1037/h0026256. Spearman's rho uses
    mid-ranks for ties.
    """
    import numpy as np

    sets = [tables] if other is None else [tables, other]
    count = len(tables)
    reasons = {name: reason for one in sets for name, reason in _undefined(one.sum(axis=0)).items()}

    def measured(weights: np.ndarray) -> np.ndarray:
        """Return the figures, or their differences, with these weights for the questions: shape (figures, ...)."""
        found = [_figures(np.tensordot(weights, one, axes=1)) for one in sets]
        return found[-1] - found[0] if len(found) > 1 else found[0]

    values = measured(np.ones((1, count)))[:, 0]
    generator, rows = np.random.default_rng(seed), max(1, _CELLS // max(1, count))
    draws = [
        measured(generator.multinomial(count, np.full(count, 1 / count), size=min(rows, RESAMPLES - start)))
        for start in range(0, RESAMPLES if count > 1 else 0, rows)
    ]
    drawn = np.concatenate(draws, axis=1) if draws else np.full((len(FIGURES), 0), np.nan)
    return {
        name: _figure(float(value), resampled, reasons.get(name, ""))
        for name, value, resampled in zip(FIGURES, values, drawn, strict=True)
    }


def resampled_figure(statistic: Callable[[np.ndarray], float], count: int, reason: str, *, seed: int = 0) -> Figure:
    """Return a figure with its percentile bootstrap interval over questions, from 2,000 resamples.

    Args:
        statistic: Function that returns the figure for questions given by their indices; NaN if it is undefined.
        count: Number of questions.
        reason: The reason to report if the figure for all questions is undefined.
        seed: Random seed for the resampling. Default 0.
    """
    import numpy as np

    value, generator = statistic(np.arange(count)), np.random.default_rng(seed)
    draws = _FEWER if count > 1 and not math.isnan(value) else 0
    drawn = np.array([statistic(generator.integers(0, count, count)) for _ in range(draws)])
    return _figure(value, drawn, reason)


def paired_difference(
    people: Sequence[str],
    before: Sequence[str | None],
    after: Sequence[str | None],
    questions: Sequence[str],
    labels: Sequence[str],
    *,
    seed: int = 0,
) -> tuple[dict[str, Figure], int]:
    """Return how much better one judge agrees with people than another, on the cases that both could judge.

    Args:
        people: People's label for each case.
        before: The first judge's labels, in the same order; None for a missing label.
        after: The second judge's labels, in the same order.
        questions: Question id for each case.
        labels: All labels, worst first.
        seed: Random seed for the resampling, which is the same for both judges. Default 0.

    Returns:
        The differences, after minus before, by name, and the number of cases.
    """
    rows = [row for row in zip(people, before, after, questions, strict=True) if None not in row]
    sets = [tables_of([(row[0], str(row[place]), row[3]) for row in rows], labels) for place in (1, 2)]
    return agreement_figures(*sets, seed=seed), len(rows)


def tables_of(read: Sequence[tuple[str, str, str]], labels: Sequence[str]) -> np.ndarray:
    """Return one table of counts per question, with people's labels in rows.

    Each case in ``read`` consists of people's label, the judge's label, and the question.
    """
    import numpy as np

    places = {label: place for place, label in enumerate(labels)}
    rows = {question: row for row, question in enumerate(dict.fromkeys(question for _, _, question in read))}
    tables = np.zeros((len(rows), len(labels), len(labels)))
    for people, judge, question in read:
        tables[rows[question], places[people], places[judge]] += 1
    return tables


def _figures(tables: np.ndarray) -> np.ndarray:
    """Return every figure for tables of counts with the shape (draws, labels, labels).

    The figures are in the order of ``FIGURES``; NaN means undefined.
    """
    import numpy as np

    n = tables.sum(axis=(1, 2))
    people, judge = tables.sum(axis=2), tables.sum(axis=1)
    size = tables.shape[-1]
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)
    by_chance = people[:, :, None] * judge[:, None, :]
    several = (people > 0).sum(axis=1) > 1
    ranks = [counts.cumsum(axis=1) - counts / 2 for counts in (people, judge)]  # mid-ranks
    numbers = [np.broadcast_to(np.arange(size), people.shape)] * 2
    with np.errstate(divide="ignore", invalid="ignore"):

        def kappa(weights: np.ndarray) -> np.ndarray:
            expected = (weights * by_chance).sum(axis=(1, 2)) / n
            return np.where(several, 1 - (weights * tables).sum(axis=(1, 2)) / expected, np.nan)

        def correlation(values: Sequence[np.ndarray]) -> np.ndarray:
            sides = zip(values, (people, judge), strict=True)
            a, b = (value - (counts * value).sum(axis=1, keepdims=True) / n[:, None] for value, counts in sides)
            spread = np.sqrt((people * a**2).sum(axis=1) * (judge * b**2).sum(axis=1))
            return np.where(spread > 0, (tables * a[:, :, None] * b[:, None, :]).sum(axis=(1, 2)) / spread, np.nan)

        agreement = np.trace(tables, axis1=1, axis2=2) / n
        kappas = [kappa(weights) for weights in ((distance > 0).astype(float), distance, distance**2)]
        return np.array([agreement, *kappas, correlation(ranks), correlation(numbers)])


def _figure(value: float, drawn: np.ndarray, reason: str) -> Figure:
    import numpy as np

    if math.isnan(value):
        return Figure(math.nan, math.nan, math.nan, reason or "undefined")
    if not len(drawn):
        return Figure(value, math.nan, math.nan, "one question is too few for an interval")
    defined = drawn[~np.isnan(drawn)]
    if len(defined) < LEAST_DEFINED * len(drawn):
        return Figure(value, math.nan, math.nan, "undefined in too many resamples because a label is too rare")
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Figure(value, float(low), float(high))


def _undefined(total: np.ndarray) -> dict[str, str]:
    """Return the reason for each undefined figure of a table."""
    if not total.sum():
        return dict.fromkeys(FIGURES, "no judgment could be read")
    if (total.sum(axis=1) > 0).sum() < 2:
        return dict.fromkeys(list(FIGURES)[1:], "people used only one label")
    one_label = (total.sum(axis=0) > 0).sum() < 2
    return dict.fromkeys(("spearman", "pearson"), "the judge used only one label") if one_label else {}
