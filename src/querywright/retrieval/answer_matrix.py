"""A partly known matrix of answerability, completed as one of low rank, and held against judgements it has not seen.

A matrix of m by n of rank r is fixed by r (m + n - r) numbers; fewer cells than that cannot give it back, whatever the
method. Whether enough are known is not asked in theory but seen on judged pairs that are held out: where the
completion does not predict them better than their mean does, it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from querywright.errors import InputError
from querywright.retrieval.answer_choice import Floats, Highest, Integers, blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

RANKS = (1, 2, 3, 5, 8)
RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
ITERATIONS = 200
TOLERANCE = 1e-4
REVIVAL = 0.1
FEWEST_JUDGED = 50
HELD_OUT = 0.2
ANSWERED = 0.5
"""The least value that is an answer where values are made yes or no."""

_BLOCK_ROWS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Known cells of a matrix, each once.

    Args:
        rows: Row of each cell.
        columns: Column of each cell.
        values: Value of each cell.
    """

    rows: Integers
    columns: Integers
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, chosen: Integers | NDArray[np.bool_]) -> Cells:
        return Cells(self.rows[chosen], self.columns[chosen], self.values[chosen])

    def __add__(self, other: Cells) -> Cells:
        pairs = ((self.rows, other.rows), (self.columns, other.columns))
        rows, columns = (np.concatenate(pair) for pair in pairs)
        return Cells(rows, columns, np.concatenate([self.values, other.values]))


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A completed matrix as a mean and two factors.

    Args:
        rows: A row of numbers a row of the matrix.
        columns: A row of numbers a column of the matrix.
        mean: What is added to their products.
        bounds: Values outside are set to the nearer one. Default: none.
    """

    rows: Floats
    columns: Floats
    mean: float
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def at(self, rows: Integers, columns: Integers) -> Floats:
        """The values of some cells."""
        products: Floats = np.einsum("ij,ij->i", self.rows[rows], self.columns[columns])
        return np.clip(self.mean + products, *self.bounds)

    def above(self, cut: float, most: int, known: Integers) -> Cells:
        """The cells of at least a value, highest first, equal ones in order of row and column.

        Memory: a block of the matrix at a time.

        Args:
            cut: The least value.
            most: At most so many.
            known: Cells that are left out: row times the number of columns, plus column.
        """
        width = len(self.columns)
        highest = Highest(most, cut)
        known = np.sort(known)
        for start, stop in blocks(len(self.rows), width):
            values = np.clip(self.mean + self.rows[start:stop] @ self.columns.T, *self.bounds).ravel()
            first, last = np.searchsorted(known, [start * width, stop * width])
            values[known[first:last] - start * width] = -np.inf
            highest.add(start * width, values)
        cells, found = highest.best()
        return Cells(cells // max(width, 1), cells % max(width, 1), found)


@dataclass(frozen=True, slots=True)
class Validation:
    """What a completion is worth on judged pairs that it was not made from.

    Args:
        judged: Judged pairs in all.
        held: How many of them were held out for these figures; rank and ridge were chosen on others.
        rank: Rank that was chosen; 0 where nothing was.
        ridge: Ridge that was chosen.
        rmse: Root mean square error on the held-out pairs.
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


def complete(
    known: Cells,
    shape: tuple[int, int],
    *,
    rank: int,
    ridge: float,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> LowRank:
    """The matrix of a rank that comes nearest to the known cells, with a ridge.

    Args:
        known: At least one cell.
        shape: Rows and columns.
        rank: 1 or more.
        ridge: Weight of the squares of both factors, above 0, for cells scaled to a variance of 1.
        seed: Of the first factors. Default 0.
        bounds: As ``LowRank`` has them. Default: none.

    Raises:
        InputError: When no cell is known, or rank or ridge is out of range.

    Source: alternating least squares with a ridge (Hastie et al., arXiv:1410.2596), which for a rank that is large
    enough minimises the error plus ridge times the nuclear norm. Begun with large ridges, whose factors begin the next.
    """
    if not len(known) or rank < 1 or not ridge > 0:
        raise InputError(
            f"completion needs a known cell, a rank of 1 or more and a ridge above 0, but got {len(known)}, {rank}, "
            f"{ridge}"
        )
    path = (*(one for one in RIDGES if one > ridge), ridge)
    *_, (_, found) = _along(known, shape, rank, path, seed)
    return replace(found, bounds=bounds)


def completed(
    given: Cells,
    judged: Cells,
    shape: tuple[int, int],
    *,
    far: NDArray[np.bool_] | None = None,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[LowRank | None, Validation]:
    """A completion whose rank and ridge were chosen, and whose worth was seen, on judged pairs it was not made from.

    A fifth of the judged pairs is held out for the figures and another fifth for the choice; what is used in the end
    is made from all. It is refused where the mean of squared errors that it saves on the held-out pairs is not clearly
    above 0, or where it is more often wrong than the base rate among the far ones, which stand for the pairs that
    nobody judged.

    Args:
        given: Cells that are known without a judge, such as questions with their own passage; none is held out.
        judged: Cells that were judged; none of them in ``given``.
        shape: Rows and columns.
        far: Which of the judged were drawn at random from the whole matrix. Default: none.
        seed: Of the split and the first factors. Default 0.
        bounds: As ``LowRank`` has them. Default: none.

    Returns:
        The completion, None where it is refused, and what it was worth.
    """
    if len(judged) < FEWEST_JUDGED:
        reason = (
            f"{len(judged)} judged pairs are too few to choose and to validate a completion; {FEWEST_JUDGED} are needed"
        )
        return None, Validation(len(judged), reason=reason)
    order = np.random.default_rng(seed).permutation(len(judged))
    share = round(HELD_OUT * len(judged))
    test, choice, rest = order[:share], order[share : 2 * share], order[2 * share :]
    rank, ridge = _chosen(given + judged[rest], judged[choice], shape, seed, bounds)
    seen = judged[order[share:]]
    made = complete(given + seen, shape, rank=rank, ridge=ridge, seed=seed, bounds=bounds)
    distant = np.zeros(len(judged), dtype=bool) if far is None else far
    found = _validated(made, judged[test], float(seen.values.mean()), distant[test])
    found = replace(found, judged=len(judged), rank=rank, ridge=ridge)
    if not found.used:
        return None, found
    return complete(given + judged, shape, rank=rank, ridge=ridge, seed=seed, bounds=bounds), found


def _validated(made: LowRank, held: Cells, base: float, far: NDArray[np.bool_]) -> Validation:
    predicted = made.at(held.rows, held.columns)
    errors, base_errors = (predicted - held.values) ** 2, (base - held.values) ** 2
    saved = base_errors - errors
    gain_low = float(saved.mean() - 1.96 * saved.std(ddof=1) / math.sqrt(len(saved)))
    truth = held.values >= ANSWERED
    right = (predicted >= ANSWERED) == truth
    base_right = truth if base >= ANSWERED else ~truth
    reason = ""
    if not gain_low > 0:
        reason = "it does not clearly beat the base rate on held-out judged pairs"
    elif right[far].sum() < base_right[far].sum():
        reason = "among held-out pairs drawn at random it is more often wrong than the base rate"
    return Validation(
        judged=len(held),
        held=len(held),
        rmse=math.sqrt(errors.mean()),
        base_rmse=math.sqrt(base_errors.mean()),
        accuracy=float(right.mean()),
        base_accuracy=float(base_right.mean()),
        auc=_auc(predicted, truth),
        gain_low=gain_low,
        used=not reason,
        reason=reason,
    )


def _auc(predicted: Floats, truth: NDArray[np.bool_]) -> float:
    from scipy.stats import rankdata

    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return math.nan
    above = float(rankdata(predicted)[truth].sum()) - positive * (positive + 1) / 2
    return above / (positive * negative)


def _chosen(
    known: Cells, held: Cells, shape: tuple[int, int], seed: int, bounds: tuple[float, float]
) -> tuple[int, float]:
    """The rank and ridge with the least error on held-out cells; of equal ones the smaller rank, the larger ridge."""
    tried: list[tuple[float, int, float]] = []
    for rank in (one for one in RANKS if one <= min(shape)):
        for ridge, found in _along(known, shape, rank, RIDGES, seed):
            predicted = replace(found, bounds=bounds).at(held.rows, held.columns)
            tried.append((float(((predicted - held.values) ** 2).mean()), rank, -ridge))
    _, rank, minus = min(tried)
    return rank, -minus


def _along(
    known: Cells, shape: tuple[int, int], rank: int, ridges: Sequence[float], seed: int
) -> Iterator[tuple[float, LowRank]]:
    """The completion for each ridge, largest first; the factors of one are where the next begins."""
    from scipy.sparse import csr_array

    mean, scale = float(known.values.mean()), float(known.values.std()) or 1.0
    centred = (known.values - mean) / scale
    place = (known.rows, known.columns)
    cells, known_cells = csr_array((centred, place), shape=shape), csr_array((np.ones(len(known)), place), shape=shape)
    turned, known_turned = cells.T.tocsr(), known_cells.T.tocsr()
    first: Floats = np.random.default_rng(seed).normal(size=(shape[1], rank))
    columns = first
    for ridge in ridges:
        columns = columns + REVIVAL * first  # a direction that a larger ridge put out can come back
        rows = _solved(cells, known_cells, columns, ridge)
        last = math.inf
        for _ in range(ITERATIONS):
            columns = _solved(turned, known_turned, rows, ridge)
            rows = _solved(cells, known_cells, columns, ridge)
            left = centred - np.einsum("ij,ij->i", rows[known.rows], columns[known.columns])
            loss = float(left @ left + ridge * ((rows**2).sum() + (columns**2).sum()))
            if last - loss <= TOLERANCE * loss:
                break
            last = loss
        yield ridge, LowRank(rows * scale, columns, mean)


def _solved(cells: csr_array, known: csr_array, other: Floats, ridge: float) -> Floats:
    """The factor of the rows that fits their known cells best, given that of the columns."""
    rank = other.shape[1]
    products = (other[:, :, None] * other[:, None, :]).reshape(len(other), -1)
    found = np.empty((cells.shape[0], rank))
    for start in range(0, len(found), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        grams = (known[part] @ products).reshape(-1, rank, rank) + ridge * np.eye(rank)
        found[part] = np.linalg.solve(grams, (cells[part] @ other)[..., None])[..., 0]
    return found
