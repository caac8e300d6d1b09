"""The answerability matrix: choose the question-passage pairs to judge, and estimate the others.

Rows of the matrix are questions, columns are passages, and a value of 1 means that the passage answers the question.
The number of a cell is its row times the number of passages, plus its column. An estimate is used only if it predicts
held-out judged pairs better than the mean does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from querywright.models.embedder import Vectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Shape = tuple[int, int]

BLOCK_CELLS = 2_000_000
"""Number of cells to compute at a time."""
PLACES = 6
"""Number of decimal places used to compare values, so that rounding errors do not change the order."""
RANKS = (1, 2, 3, 5, 8)
RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
ITERATIONS = 20
REVIVAL = 0.1
FEWEST_JUDGED = 50
HELD_OUT = 0.2
ANSWERED = 0.5
"""Values at or above this threshold count as an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownCells:
    """Distinct cells of a matrix and their values."""

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
    """An estimate of the whole matrix: a mean plus the product of two factor matrices, clipped to the range 0 to 1."""

    rows: Floats
    columns: Floats
    mean: float

    def at(self, cells: Integers) -> Floats:
        """Return the values of cells."""
        rows, columns = np.divmod(cells, len(self.columns))
        values: Floats = np.clip(self.mean + np.einsum("ij,ij->i", self.rows[rows], self.columns[columns]), 0.0, 1.0)
        return values

    def above(self, cut: float, most: int, without: Integers) -> KnownCells:
        """Return up to ``most`` cells with a value of at least ``cut``, highest first, excluding the given cells."""

        def values(part: slice) -> Floats:
            return np.clip(self.mean + self.rows[part] @ self.columns.T, 0.0, 1.0)

        found = _highest(values, (len(self.rows), len(self.columns)), without, most)
        return found[found.values >= cut]


@dataclass(frozen=True, slots=True)
class Validation:
    """How well an estimate predicts judged pairs that were held out.

    Args:
        judged: Number of judged pairs.
        held: Number of pairs that were held out to measure these errors. Different pairs were used to choose rank and
            ridge.
        rank: Rank of the estimate.
        ridge: Weight of the penalty on the estimate's squared factors.
        rmse: Root mean squared error on the held-out pairs.
        base_rmse: The same error if the prediction for every pair is the mean of the judged pairs that were not held
            out.
        used: Whether the estimate was accepted and is used.
        reason: Why the estimate is not used; empty if it is used.
    """

    judged: int
    held: int = 0
    rank: int = 0
    ridge: float = math.nan
    rmse: float = math.nan
    base_rmse: float = math.nan
    used: bool = False
    reason: str = ""


def near_pairs(questions: Vectors, passages: Vectors, without: Integers, most: int) -> KnownCells:
    """Return up to ``most`` cells with their cosine similarities, highest first, excluding the given cells.

    The rows of ``questions`` and ``passages`` are vectors of length 1.

    Source: QB-RAG, arXiv:2407.18044. The paper judges the pairs above a similarity threshold or percentile; we judge a
    fixed number.
    """
    return _highest(lambda part: questions[part] @ passages.T, (len(questions), len(passages)), without, most)


def far_pairs(shape: Shape, without: Integers, count: int, seed: int) -> Integers:
    """Return up to ``count`` distinct cells drawn uniformly at random, excluding the given cells."""
    total = math.prod(shape)
    drawn = np.random.default_rng(seed).choice(total, min(total, count + len(without)), replace=False)
    found: Integers = drawn[~np.isin(drawn, without)]
    return found[:count]


def complete(known: KnownCells, shape: Shape, *, rank: int, ridge: float, seed: int = 0) -> LowRank:
    """Return the matrix of the given rank that best fits the known cells, with a ridge penalty.

    The ridge (above 0) is the weight of the penalty on both squared factors, for cells scaled to a variance of 1.

    Source: alternating least squares with a ridge (Hastie et al., arXiv:1410.2596). If the rank is large enough, it
    minimizes the error plus ridge times the nuclear norm. The first fit uses a large ridge, and each later fit starts
    from the factors of the previous fit.
    """
    *_, found = _path(known, shape, rank, [*(one for one in RIDGES if one > ridge), ridge], seed)
    return found


def _path(known: KnownCells, shape: Shape, rank: int, ridges: Sequence[float], seed: int) -> Iterator[LowRank]:
    """Yield the fit for each ridge, largest ridge first."""
    from scipy.sparse import csr_array

    mean, scale = float(known.values.mean()), float(known.values.std()) or 1.0
    places = np.divmod(known.cells, shape[1])
    cells = csr_array(((known.values - mean) / scale, places), shape=shape)
    is_known = csr_array((np.ones(len(known)), places), shape=shape)
    turned, known_turned = cells.T.tocsr(), is_known.T.tocsr()
    first: Floats = np.random.default_rng(seed).normal(size=(shape[1], rank))
    rows, columns = np.empty(0), first
    for ridge in ridges:
        columns = columns + REVIVAL * first  # so that a direction that a larger ridge set to zero can come back
        for _ in range(ITERATIONS):
            rows = _solved(cells, is_known, columns, ridge)
            columns = _solved(turned, known_turned, rows, ridge)
        yield LowRank(rows * scale, columns, mean)


def _solved(cells: csr_array, known: csr_array, other: Floats, ridge: float) -> Floats:
    """Return the row factor that best fits the known cells for a given column factor."""
    rank = other.shape[1]
    products = (other[:, :, None] * other[:, None, :]).reshape(len(other), -1)
    grams = (known @ products).reshape(-1, rank, rank) + ridge * np.eye(rank)
    solved = np.linalg.solve(grams, (cells @ other)[..., None])[..., 0]
    return np.asarray(solved, dtype=np.float64)


def completed(
    given: KnownCells, judged: KnownCells, shape: Shape, *, far: NDArray[np.bool_], seed: int = 0
) -> tuple[LowRank | None, Validation]:
    """Return an estimate of the matrix (None if it is rejected) and its validation.

    One fifth of the judged pairs is held out to measure the error, and another fifth is used to choose rank and ridge.
    The returned estimate is made from all pairs. The estimate is rejected if its reduction of the squared error on the
    held-out pairs is not clearly above 0, or if it is wrong more often than the mean on the held-out pairs that were
    drawn at random.

    Args:
        given: Cells whose values are known without a judge; they are never held out.
        judged: Judged cells.
        shape: The number of questions and the number of passages.
        far: Whether each judged pair was drawn at random. Such pairs represent the pairs that were not judged.
        seed: Seed for the split and the fit. Default 0.
    """
    if len(judged) < FEWEST_JUDGED:
        reason = f"completing the matrix requires at least {FEWEST_JUDGED} judged pairs, but got {len(judged)}"
        return None, Validation(len(judged), reason=reason)
    order = np.random.default_rng(seed).permutation(len(judged))
    share = round(HELD_OUT * len(judged))
    test, choice, rest = judged[order[:share]], judged[order[share : 2 * share]], judged[order[2 * share :]]
    tried = [
        (float(((found.at(choice.cells) - choice.values) ** 2).mean()), rank, -ridge)
        for rank in RANKS
        if rank <= min(shape)
        for ridge, found in zip(RIDGES, _path(given + rest, shape, rank, RIDGES, seed), strict=True)
    ]
    _, rank, minus = min(tried)  # a tie goes to the smaller rank, then to the larger ridge

    def made(known: KnownCells) -> LowRank:
        return complete(given + known, shape, rank=rank, ridge=-minus, seed=seed)

    seen, answers = judged[order[share:]], test.values >= ANSWERED
    predicted, base = made(seen).at(test.cells), float(seen.values.mean())
    right, base_right = (predicted >= ANSWERED) == answers, answers if base >= ANSWERED else ~answers
    errors, base_errors = (predicted - test.values) ** 2, (base - test.values) ** 2
    saved, distant = base_errors - errors, far[order[:share]]
    reason = ""
    # The lower end of a 95% interval (normal approximation). It treats the held-out pairs as independent.
    if not saved.mean() - 1.96 * saved.std(ddof=1) / math.sqrt(len(saved)) > 0:
        reason = "the completed matrix is not clearly more accurate than the base rate on held-out judged pairs"
    elif right[distant].sum() < base_right[distant].sum():
        reason = "the completed matrix is wrong more often than the base rate on randomly drawn held-out pairs"
    validation = Validation(
        judged=len(judged),
        held=len(test),
        rank=rank,
        ridge=-minus,
        rmse=math.sqrt(errors.mean()),
        base_rmse=math.sqrt(base_errors.mean()),
        used=not reason,
        reason=reason,
    )
    return made(judged) if validation.used else None, validation


def _highest(
    values: Callable[[slice], NDArray[np.floating[Any]]], shape: Shape, without: Integers, most: int
) -> KnownCells:
    """Return the highest cells of a matrix whose rows are computed in blocks."""
    found, without, width = KnownCells(np.empty(0, dtype=np.int64), np.empty(0)), np.sort(without), max(shape[1], 1)
    step = max(1, BLOCK_CELLS // width)
    for start in range(0, shape[0], step):
        block = np.round(values(slice(start, start + step)).ravel().astype(np.float64), PLACES)
        first, last = np.searchsorted(without, [start * width, start * width + len(block)])
        block[without[first:last] - start * width] = -np.inf
        least = found.values[-1] if 0 < most == len(found) else -np.finfo(np.float64).max
        high = np.flatnonzero(block >= least)
        found += KnownCells(start * width + high, np.asarray(block[high], dtype=np.float64))
        found = found[np.lexsort((found.cells, -found.values))[:most]]
    return found
