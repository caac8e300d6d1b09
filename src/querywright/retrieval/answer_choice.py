"""Which pairs of question and passage a judge reads: the most similar ones, and some of the others.

All similarities are computed, a block of questions at a time, and only the highest are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from querywright.errors import InputError
from querywright.models.embedder import Vectors

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

BLOCK_CELLS = 2_000_000
"""Similarities held at a time."""
PLACES = 6
"""Places to which values are compared: what differs less is equal, so that rounding in the last bit orders nothing."""


class Highest:
    """The highest of any number of values, of which at most twice as many as are kept lie in memory.

    Args:
        most: How many are kept, 0 or more.
        floor: Values below it are not kept.
    """

    def __init__(self, most: int, floor: float) -> None:
        self._most = most
        self._floor = floor
        self._cells = np.empty(0, dtype=np.int64)
        self._values = np.empty(0)

    def add(self, start: int, values: NDArray[np.floating[Any]]) -> None:
        """Considers the values of a run of cells.

        Args:
            start: Number of the first cell.
            values: A value a cell; infinitely low ones are never kept.
        """
        floor = self._floor - 10.0**-PLACES  # before rounding
        if self._most and np.count_nonzero(values >= floor) > self._most:
            floor = float(np.partition(values, -self._most)[-self._most]) - 10.0**-PLACES
        found = np.flatnonzero(values >= floor)
        rounded = np.round(values[found].astype(np.float64), PLACES)
        high = rounded >= self._floor
        self._cells = np.concatenate([self._cells, start + found[high]])
        self._values = np.concatenate([self._values, rounded[high]])
        if len(self._cells) > 2 * self._most:
            self._cut()

    def best(self) -> tuple[Integers, Floats]:
        """Cells and values, highest first, equal ones in order of their cells."""
        self._cut()
        return self._cells, self._values

    def _cut(self) -> None:
        order = np.lexsort((self._cells, -self._values))[: self._most]
        self._cells, self._values = self._cells[order], self._values[order]
        if self._most and len(order) == self._most:
            self._floor = float(self._values[-1])


@dataclass(frozen=True, slots=True, eq=False)
class NearPairs:
    """Pairs of question and passage, the most similar first.

    Args:
        questions: Row of each one's question.
        passages: Row of each one's passage.
        similarities: Cosine similarity of each, rounded to six places.
        eligible: How many the threshold or the percentile admits; more than there are here where they were too many.
    """

    questions: Integers
    passages: Integers
    similarities: Floats
    eligible: int


def near_pairs(
    questions: Vectors,
    passages: Vectors,
    own: Integers,
    *,
    threshold: float | None = None,
    percentile: float | None = None,
    most: int,
) -> NearPairs:
    """The pairs of similar question and passage, those left out for whose passage the question was written.

    Memory: ``BLOCK_CELLS`` similarities and ``2 * most`` pairs beside the vectors, however many pairs there are.

    Args:
        questions: A row of length 1 a question; equal similarities are ordered by row of question, then of passage.
        passages: A row of length 1 a passage.
        own: Row of the passage for which each question was written; -1 where it is none of these.
        threshold: The least similarity, -1 to 1. Default None.
        percentile: Only the pairs above this percentile of all, 0 to 100 (excluded). Default None.
        most: At most so many, 1 or more.

    Raises:
        InputError: When not just one of threshold and percentile is given, or a number is out of range.

    Source: QB-RAG, arXiv:2407.18044, which judges pairs above a similarity threshold or percentile. The cap is ours.
    """
    if (threshold is None) == (percentile is None):
        raise InputError("give either a threshold or a percentile of similarity, and not both")
    if most < 1:
        raise InputError(f"most must be 1 or more, but got {most}")
    total = len(questions) * len(passages) - int((own >= 0).sum())
    if percentile is not None:
        if not 0 <= percentile < 100:
            raise InputError(f"a percentile is from 0 to below 100, but got {percentile}")
        eligible = round(total * (1 - percentile / 100))
        highest = Highest(min(most, eligible), -1.0)
    else:
        assert threshold is not None
        if not -1 <= threshold <= 1:
            raise InputError(f"a cosine similarity is from -1 to 1, but got the threshold {threshold}")
        eligible = 0
        highest = Highest(most, threshold)
    width = len(passages)
    for start, stop in blocks(len(questions), width):
        similarities = questions[start:stop] @ passages.T
        written = np.flatnonzero(own[start:stop] >= 0)
        similarities[written, own[start:stop][written]] = -np.inf
        if threshold is not None:
            eligible += int((np.round(similarities, PLACES) >= threshold).sum())
        highest.add(start * width, similarities.ravel())
    cells, values = highest.best()
    return NearPairs(cells // max(width, 1), cells % max(width, 1), values, eligible)


def far_pairs(shape: tuple[int, int], taken: Integers, count: int, seed: int) -> Integers:
    """Cells drawn at random from all that are not taken, each as likely as any other.

    Args:
        shape: Questions and passages.
        taken: Cells that are not drawn: row of the question times the number of passages, plus row of the passage.
        count: How many; fewer where fewer are left.
        seed: Of the drawing.

    Returns:
        Distinct cells in the order in which they were drawn.
    """
    total = shape[0] * shape[1]
    taken = np.unique(taken)
    count = min(count, total - len(taken))
    random = np.random.default_rng(seed)
    if total <= 4 * (len(taken) + count):
        return random.permutation(np.setdiff1d(np.arange(total), taken))[:count]
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        both = np.concatenate([drawn, random.integers(total, size=2 * count)])
        distinct = both[np.sort(np.unique(both, return_index=True)[1])]
        drawn = distinct[~np.isin(distinct, taken)]
    return drawn[:count]


def blocks(rows: int, width: int) -> list[tuple[int, int]]:
    """Start and end of blocks of rows, each of at most ``BLOCK_CELLS`` cells."""
    step = max(1, BLOCK_CELLS // max(width, 1))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]
