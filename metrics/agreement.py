"""How far two labellings agree: figures from tables of counts, each with an interval.

Judgements of one question are alike, so the intervals come from resampling questions, not judgements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from querywright.metrics.intervals import RESAMPLES, check_share

if TYPE_CHECKING:
    import numpy as np

FIGURES = {
    "agreement": "agreement",
    "kappa": "Cohen's kappa",
    "linear_kappa": "kappa, linear weights",
    "quadratic_kappa": "kappa, quadratic weights",
    "spearman": "Spearman's rho",
}
"""The figures by name, and how they are called."""

LEAST_DEFINED = 0.9
"""Share of the resamples that must have a value, or there is no interval."""

_CELLS = 2_000_000  # counts held in memory at once


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and how sure it is.

    Args:
        value: NaN where it is undefined.
        low: Lower end of its interval; NaN where there is none.
        high: Upper end of its interval.
        reason: Why there is no value, or no interval; empty when both are there.
    """

    value: float
    low: float
    high: float
    reason: str = ""


def shown(figure: Figure) -> str:
    """A figure as ``.42 [.31, .52]``."""
    if math.isnan(figure.value):
        return "undefined"
    interval = "no interval" if math.isnan(figure.low) else f"{_short(figure.low)}, {_short(figure.high)}"
    return f"{_short(figure.value)} [{interval}]"


def agreement_figures(tables: np.ndarray, *, confidence: float = 0.95, seed: int = 0) -> dict[str, Figure]:
    """The figures of a judge against people, with percentile bootstrap intervals over questions.

    Args:
        tables: A table of counts a question, shape (questions, labels, labels), people in rows.
        confidence: Between 0 and 1. Default 0.95.
        seed: Of the resampling. Default 0.

    Returns:
        By name. Undefined without a judgement; all but the agreement also where people gave only one label, because
        then there is nothing to tell apart (scikit-learn gives 0 there, or NaN with a warning).

    Source: Cohen 1960, doi:10.1177/001316446002000104; weights: Cohen 1968, doi:10.1037/h0026256. Spearman's rho has
    mid-ranks for ties.
    """
    return _with_intervals([tables], confidence, seed)


def paired_difference(
    people: Sequence[str],
    before: Sequence[str | None],
    after: Sequence[str | None],
    questions: Sequence[str],
    labels: Sequence[str],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[dict[str, Figure], int]:
    """How much better one judge agrees with people than another on the cases that both could judge.

    Args:
        people: Label of each case by people.
        before: Labels of one judge, in the same order; None where there is none.
        after: Labels of the other.
        questions: Id of the question of each case.
        labels: All labels, worst first.
        confidence: Between 0 and 1. Default 0.95.
        seed: Of the resampling, which is the same for both. Default 0.

    Returns:
        The differences, after - before, by name, and the number of cases.
    """
    rows = [row for row in zip(people, before, after, questions, strict=True) if None not in row]
    sets = [tables_of([(row[0], str(row[place]), row[3]) for row in rows], labels) for place in (1, 2)]
    return _with_intervals(sets, confidence, seed), len(rows)


def tables_of(read: Sequence[tuple[str, str, str]], labels: Sequence[str]) -> np.ndarray:
    """A table of counts a question, people in rows, from each case's labels by people and judge and its question."""
    import numpy as np

    places = {label: place for place, label in enumerate(labels)}
    rows = {question: row for row, question in enumerate(dict.fromkeys(question for _, _, question in read))}
    tables = np.zeros((len(rows), len(labels), len(labels)))
    for people, judge, question in read:
        tables[rows[question], places[people], places[judge]] += 1
    return tables


def _figures(tables: np.ndarray) -> dict[str, np.ndarray]:
    """Every figure of tables of counts, shape (..., labels, labels); NaN where it is undefined."""
    import numpy as np

    n = tables.sum(axis=(-2, -1))
    people, judge = tables.sum(axis=-1), tables.sum(axis=-2)
    size = tables.shape[-1]
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)
    by_chance = people[..., :, None] * judge[..., None, :]
    several = (people > 0).sum(axis=-1) > 1
    with np.errstate(divide="ignore", invalid="ignore"):

        def kappa(weights: np.ndarray) -> np.ndarray:
            expected = (weights * by_chance).sum(axis=(-2, -1)) / n
            return np.where(several, 1 - (weights * tables).sum(axis=(-2, -1)) / expected, np.nan)

        return {
            "agreement": np.trace(tables, axis1=-2, axis2=-1) / n,
            "kappa": kappa((distance > 0).astype(float)),
            "linear_kappa": kappa(distance),
            "quadratic_kappa": kappa(distance**2),
            "spearman": _spearman(tables, people, judge, n),
        }


def _spearman(tables: np.ndarray, people: np.ndarray, judge: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the mid-ranks, from counts."""
    import numpy as np

    def centred(counts: np.ndarray) -> np.ndarray:
        return counts.cumsum(axis=-1) - counts / 2 - n[..., None] / 2  # mid-rank less the mean rank

    a, b = centred(people), centred(judge)
    together = (tables * a[..., :, None] * b[..., None, :]).sum(axis=(-2, -1))
    spread = np.sqrt((people * a**2).sum(axis=-1) * (judge * b**2).sum(axis=-1))
    return np.where(spread > 0, together / spread, np.nan)


def _with_intervals(sets: Sequence[np.ndarray], confidence: float, seed: int) -> dict[str, Figure]:
    """The figures of a set of tables, or how much greater those of a second one are, with the same draws for both."""
    check_share("confidence", confidence)
    reasons = {name: reason for tables in sets for name, reason in _undefined(tables).items()}
    values = _difference([_figures(tables.sum(axis=0)) for tables in sets])
    drawn = _resampled(sets, seed)
    return {
        name: _figure(float(values[name]), drawn[name], confidence, reasons.get(name, ""), len(sets[0]))
        for name in FIGURES
    }


def _difference(figures: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The figures of the only set, or those of the second less those of the first."""
    first, *second = figures
    return {name: second[0][name] - first[name] for name in FIGURES} if second else first


def _resampled(sets: Sequence[np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """The figures of 10,000 resamples of questions."""
    import numpy as np

    count = len(sets[0])
    if count < 2:
        return dict.fromkeys(FIGURES, np.array([]))
    generator = np.random.default_rng(seed)
    rows = max(1, _CELLS // count)
    parts = []
    for start in range(0, RESAMPLES, rows):
        weights = generator.multinomial(count, np.full(count, 1 / count), size=min(rows, RESAMPLES - start))
        summed = [(weights @ tables.reshape(count, -1)).reshape(-1, *tables.shape[1:]) for tables in sets]
        parts.append(_difference([_figures(tables) for tables in summed]))
    return {name: np.concatenate([part[name] for part in parts]) for name in FIGURES}


def _figure(value: float, drawn: np.ndarray, confidence: float, reason: str, questions: int) -> Figure:
    import numpy as np

    if math.isnan(value):
        return Figure(math.nan, math.nan, math.nan, reason or "undefined")
    if questions < 2:
        return Figure(value, math.nan, math.nan, "one question says nothing about the spread")
    defined = drawn[~np.isnan(drawn)]
    if len(defined) < LEAST_DEFINED * len(drawn):
        return Figure(value, math.nan, math.nan, "undefined in too many resamples: a label is too rare")
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Figure(value, float(low), float(high))


def _undefined(tables: np.ndarray) -> dict[str, str]:
    """Why figures are undefined, by name."""
    total = tables.sum(axis=0)
    if not total.sum():
        return dict.fromkeys(FIGURES, "no judgement could be read")
    if (total.sum(axis=1) > 0).sum() < 2:
        return dict.fromkeys(list(FIGURES)[1:], "people gave one label only")
    if (total.sum(axis=0) > 0).sum() < 2:
        return {"spearman": "the judge gave one label only"}
    return {}


def _short(value: float) -> str:
    """Two digits, without a zero in front of the point, as kappas are printed."""
    rounded = round(value, 2) + 0.0  # no minus in front of a zero
    return f"{rounded:.2f}".replace("0.", ".", 1) if abs(rounded) < 1 else f"{rounded:.2f}"
