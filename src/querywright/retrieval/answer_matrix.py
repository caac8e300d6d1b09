"""The matrix of which passages answer which questions: pairs to judge, and its completion as one of low rank.

A cell is the row of its question times the number of passages, plus the row of its passage. A matrix of m by n of rank
r is fixed by r (m + n - r) numbers; fewer cells than that cannot give it back, whatever the method. Whether enough are
known is not asked in theory but seen on judged pairs that are held out: where the completion does not predict them
better than their mean does, it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from querywright.errors import InputError
from querywright.models.embedder import Vectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Shape = tuple[int, int]

BLOCK_CELLS = 2_000_000
"""Cells that are looked at at a time."""
PLACES = 6
"""Places to which values are compared: what differs less is equal, so that rounding in the last bit orders nothing."""
RANKS = (1, 2, 3, 5, 8)
RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
ITERATIONS = 20
REVIVAL = 0.1
FEWEST_JUDGED = 50
HELD_OUT = 0.2
ANSWERED = 0.5
"""The least value that is an answer where values are made yes or no."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownCells:
    """Known cells of a matrix, each once, and their values."""

    cells: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, chosen: Integers | NDArray[np.bool_]) -> KnownCells:
        return KnownCells(self.cells[chosen], self.values[chosen])

    def __add__(self, other: KnownCells) -> KnownCells:
        return KnownCells(np.concatenate([self.cells, other.cells]), np.concatenate([self.values, other.values]))


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A completed matrix: the mean and the product of two factors, held within 0 and 1."""

    rows: Floats
    columns: Floats
    mean: float

    def at(self, cells: Integers) -> Floats:
        """The values of some cells."""
        rows, columns = np.divmod(cells, len(self.columns))
        values: Floats = np.clip(self.mean + np.einsum("ij,ij->i", self.rows[rows], self.columns[columns]), 0.0, 1.0)
        return values

    def above(self, cut: float, most: int, without: Integers) -> KnownCells:
        """The cells of at least a value but for some, at most so many, highest first, equal ones in their order."""

        def values(part: slice) -> Floats:
            return np.clip(self.mean + self.rows[part] @ self.columns.T, 0.0, 1.0)

        return _highest(values, (len(self.rows), len(self.columns)), without, most, cut)[0]


@dataclass(frozen=True, slots=True)
class Validation:
    """What a completion is worth on judged pairs that it was not made from.

    Args:
        judged: Judged pairs in all.
        held: How many of them were held out for these figures; rank and ridge were chosen on others.
        rank: Of the completion.
        ridge: Weight of the squares of its factors.
        rmse: Root of the mean squared error of the held-out values.
        base_rmse: The same for the base rate: the mean of the judged pairs that were not held out.
        accuracy: Share of the held-out pairs on the right side of 0.5.
        base_accuracy: The same for the base rate.
        auc: Chance that an answer is placed above what is none; NaN where the held-out pairs are all one or the other.
        gain_low: Lower end of the 95 % interval of the mean of squared errors that the completion saves, by the normal
            approximation; it takes the held-out pairs for independent, although some share a question or a passage.
        used: Whether the completion may be used.
        reason: Why not; empty where it may.
    """

    judged: int
    held: int = 0
    rank: int = 0
    ridge: float = math.nan
    rmse: float = math.nan
    base_rmse: float = math.nan
    accuracy: float = math.nan
    base_accuracy: float = math.nan
    auc: float = math.nan
    gain_low: float = math.nan
    used: bool = False
    reason: str = ""


def near_pairs(
    questions: Vectors,
    passages: Vectors,
    without: Integers,
    *,
    threshold: float | None = None,
    percentile: float | None = None,
    most: int,
) -> tuple[KnownCells, int]:
    """The cells of at most ``most`` pairs of similar question and passage; their rows are vectors of length 1.

    The least similarity is a ``threshold``, or a ``percentile`` of all pairs but those of the cells in ``without``.

    Returns:
        Cells and cosine similarities, highest first, and how many the threshold or percentile admits.

    Raises:
        InputError: When both threshold and percentile are given, or a number is out of range.

    Source: QB-RAG, arXiv:2407.18044, which judges pairs above a similarity threshold or percentile. The cap is ours.
    """
    if threshold is not None and percentile is not None:
        raise InputError("give either a threshold or a percentile of similarity, and not both")
    if most < 1 or not -1 <= (threshold or 0) <= 1 or not 0 <= (percentile or 0) < 100:
        raise InputError(
            "similar pairs need most of 1 or more and a threshold from -1 to 1 or a percentile from 0 to below 100, "
            f"but got {most}, {threshold} and {percentile}"
        )
    shape, floor = (len(questions), len(passages)), -1.0 if threshold is None else threshold
    above = round((math.prod(shape) - len(without)) * (1 - (percentile or 0) / 100))
    found, reached = _highest(lambda part: questions[part] @ passages.T, shape, without, min(most, above), floor)
    return found, above if threshold is None else reached


def far_pairs(shape: Shape, without: Integers, count: int, seed: int) -> Integers:
    """At most ``count`` cells drawn at random, each as likely as any other, whatever others are left out."""
    total = math.prod(shape)
    count, size = min(count, total - len(np.unique(without))), 2 * count
    while True:
        random = np.random.default_rng(seed)
        drawn = random.permutation(total) if total <= BLOCK_CELLS else random.integers(total, size=size)
        distinct = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        found: Integers = distinct[~np.isin(distinct, without)]
        if len(found) >= count:
            return found[:count]
        size *= 2


def complete(known: KnownCells, shape: Shape, *, rank: int, ridge: float, seed: int = 0) -> LowRank:
    """The matrix of a rank that comes nearest to the known cells, with a ridge.

    The ridge, above 0, is the weight of the squares of both factors, for cells scaled to a variance of 1.

    Source: alternating least squares with a ridge (Hastie et al., arXiv:1410.2596), which for a rank that is large
    enough minimises the error plus ridge times the nuclear norm. Begun with large ridges, whose factors begin the next.
    """
    *_, found = _path(known, shape, rank, [*(one for one in RIDGES if one > ridge), ridge], seed)
    return found


def _path(known: KnownCells, shape: Shape, rank: int, ridges: Sequence[float], seed: int) -> Iterator[LowRank]:
    """The completion for each ridge, largest first; the factors of one are where the next begins."""
    from scipy.sparse import csr_array

    mean, scale = float(known.values.mean()), float(known.values.std()) or 1.0
    places = np.divmod(known.cells, shape[1])
    cells = csr_array(((known.values - mean) / scale, places), shape=shape)
    is_known = csr_array((np.ones(len(known)), places), shape=shape)
    turned, known_turned = cells.T.tocsr(), is_known.T.tocsr()
    first: Floats = np.random.default_rng(seed).normal(size=(shape[1], rank))
    rows, columns = np.empty(0), first
    for ridge in ridges:
        columns = columns + REVIVAL * first  # a direction that a larger ridge put out can come back
        for _ in range(ITERATIONS):
            rows = _solved(cells, is_known, columns, ridge)
            columns = _solved(turned, known_turned, rows, ridge)
        yield LowRank(rows * scale, columns, mean)


def _solved(cells: csr_array, known: csr_array, other: Floats, ridge: float) -> Floats:
    """The factor of the rows that fits their known cells best, given that of the columns."""
    rank = other.shape[1]
    products = (other[:, :, None] * other[:, None, :]).reshape(len(other), -1)
    grams = (known @ products).reshape(-1, rank, rank) + ridge * np.eye(rank)
    solved = np.linalg.solve(grams, (cells @ other)[..., None])[..., 0]
    return np.asarray(solved, dtype=np.float64)


def completed(
    given: KnownCells, judged: KnownCells, shape: Shape, *, far: NDArray[np.bool_], seed: int = 0
) -> tuple[LowRank | None, Validation]:
    """A completion, None where it is refused, and what it is worth on judged pairs it was not made from.

    A fifth of the judged pairs is held out for the figures and another fifth chooses rank and ridge; what is used in
    the end is made from all. ``given`` cells are known without a judge and never held out. It is refused where the mean
    of squared errors that it saves on the held-out pairs is not clearly above 0, or where it is more often wrong than
    the base rate among the ``far`` ones, which were drawn at random and stand for the pairs that nobody judged.
    """
    from sklearn.metrics import roc_auc_score

    if len(judged) < FEWEST_JUDGED:
        few = f"{len(judged)} judged pairs are too few to choose and to validate a completion; {FEWEST_JUDGED} are"
        return None, Validation(len(judged), reason=f"{few} needed")
    order = np.random.default_rng(seed).permutation(len(judged))
    share = round(HELD_OUT * len(judged))
    test, choice, rest = judged[order[:share]], judged[order[share : 2 * share]], judged[order[2 * share :]]
    tried = [
        (float(((found.at(choice.cells) - choice.values) ** 2).mean()), rank, -ridge)
        for rank in RANKS
        if rank <= min(shape)
        for ridge, found in zip(RIDGES, _path(given + rest, shape, rank, RIDGES, seed), strict=True)
    ]
    _, rank, minus = min(tried)  # of equal ones the smaller rank, the larger ridge

    def made(known: KnownCells) -> LowRank:
        return complete(given + known, shape, rank=rank, ridge=-minus, seed=seed)

    seen, answers = judged[order[share:]], test.values >= ANSWERED
    predicted, base = made(seen).at(test.cells), float(seen.values.mean())
    right, base_right = (predicted >= ANSWERED) == answers, answers if base >= ANSWERED else ~answers
    errors, base_errors = (predicted - test.values) ** 2, (base - test.values) ** 2
    saved, distant = base_errors - errors, far[order[:share]]
    gain_low = float(saved.mean() - 1.96 * saved.std(ddof=1) / math.sqrt(len(saved)))
    reason = ""
    if not gain_low > 0:
        reason = "it does not clearly beat the base rate on held-out judged pairs"
    elif right[distant].sum() < base_right[distant].sum():
        reason = "among held-out pairs drawn at random it is more often wrong than the base rate"
    worth = Validation(
        judged=len(judged),
        held=len(test),
        rank=rank,
        ridge=-minus,
        rmse=math.sqrt(errors.mean()),
        base_rmse=math.sqrt(base_errors.mean()),
        accuracy=float(right.mean()),
        base_accuracy=float(base_right.mean()),
        auc=float(roc_auc_score(answers, predicted)) if 0 < answers.sum() < len(answers) else math.nan,
        gain_low=gain_low,
        used=not reason,
        reason=reason,
    )
    return made(judged) if worth.used else None, worth


def _highest(
    values: Callable[[slice], NDArray[np.floating[Any]]], shape: Shape, without: Integers, most: int, floor: float
) -> tuple[KnownCells, int]:
    """The highest cells of a matrix whose rows are made some at a time, and how many reach the floor."""
    found, reached, least = KnownCells(np.empty(0, dtype=np.int64), np.empty(0)), 0, floor
    without, width = np.sort(without), max(shape[1], 1)
    step = max(1, BLOCK_CELLS // width)
    for start in range(0, shape[0], step):
        block = np.round(values(slice(start, start + step)).ravel().astype(np.float64), PLACES)
        first, last = np.searchsorted(without, [start * width, start * width + len(block)])
        block[without[first:last] - start * width] = -np.inf
        reached += int((block >= floor).sum())
        high = np.flatnonzero(block >= least)
        found += KnownCells(start * width + high, np.asarray(block[high], dtype=np.float64))
        found = found[np.lexsort((found.cells, -found.values))[:most]]
        if 0 < most == len(found):
            least = max(least, float(found.values[-1]))
    return found, reached
