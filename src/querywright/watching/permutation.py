"""Two samples that may come from one: permutation tests, which need no assumption but that, and are exact with ties.

The labels of the pooled values are drawn anew; the p-value is how often a statistic is then as large as it was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.bool_]
Floats = NDArray[np.float64]
Statistic = Callable[[Labels], Floats]
"""From labels, one row a draw (True: the value is of the first sample), the statistic of each row."""

MOST_DRAWS = 4_999
FAR_DRAWS = 1_999
ENOUGH = 50
_CELLS = 2_000_000  # labels held in memory at once


def permutation_p(
    statistic: Statistic, first: int, second: int, *, cells: int = 1, seed: int = 0, most: int = MOST_DRAWS
) -> float:
    """How often a statistic is as large as the one seen, when labels are drawn at random.

    Drawing ends once 50 draws were as large, which decides nothing that matters and saves nearly all of them where
    nothing is to be seen; the p-value is exact all the same.

    Args:
        statistic: Large where the samples differ.
        first: Values of the first sample, which stand first.
        second: Values of the second.
        cells: Numbers that the statistic holds in memory for each label. Default 1.
        seed: Of the draws. Default 0.
        most: Draws at most. Default 4,999.

    Source: Besag and Clifford 1991, Biometrika 78(2), 301-304.
    """
    observed = np.arange(first + second) < first
    seen = float(statistic(observed[None, :])[0]) - 1e-12
    generator = np.random.default_rng(seed)
    size = max(1, _CELLS // ((first + second) * cells))
    drawn, as_large = 0, 0
    while drawn < most:
        rows = min(size, most - drawn, max(drawn, 2 * ENOUGH))
        labels = generator.permuted(np.broadcast_to(observed, (rows, len(observed))), axis=1)
        hits = np.flatnonzero(statistic(labels) >= seen)
        if as_large + len(hits) >= ENOUGH:
            return ENOUGH / (drawn + int(hits[ENOUGH - as_large - 1]) + 1)
        as_large, drawn = as_large + len(hits), drawn + rows
    return (as_large + 1) / (most + 1)


def anderson_darling(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> float:
    """P-value of the two-sample Anderson-Darling test: differences of place, spread and tails all count.

    Args:
        first: Values without NaN.
        second: Values without NaN.
        seed: Of the draws.

    Source: Scholz and Stephens 1987, Journal of the American Statistical Association 82(399), 918-924.
    """
    values = np.asarray([*first, *second], dtype=np.float64)
    order = np.argsort(values, kind="stable")
    ordered, n, n_first = values[order], len(values), len(first)
    ends = np.append(np.flatnonzero(np.diff(ordered)), n - 1)  # the last place of each value
    if len(ends) == 1:
        return math.nan
    below = ends[:-1] + 1.0
    weights = np.diff(ends, prepend=-1)[:-1] / (below * (n - below))

    def statistic(labels: Labels) -> Floats:
        found = np.cumsum(labels[:, order], axis=1, dtype=np.int32)[:, ends[:-1]]
        made: Floats = ((n * found - n_first * below) ** 2 @ weights).astype(np.float64)
        return made

    return permutation_p(statistic, n_first, len(second), cells=2, seed=seed)


def same_shares(first: Sequence[int], second: Sequence[int], *, seed: int = 0) -> float:
    """P-value of a chi-squared test that the values of both samples are the same shares of each.

    Args:
        first: Values, each a small whole number.
        second: The same.
        seed: Of the draws.
    """
    kinds, places = np.unique(np.asarray([*first, *second]), return_inverse=True)
    if len(kinds) == 1:
        return math.nan
    of_kind = np.eye(len(kinds))[places]
    total = of_kind.sum(axis=0)

    def statistic(labels: Labels) -> Floats:
        found = labels.astype(np.float64) @ of_kind
        made: Floats = ((found / len(first) - (total - found) / len(second)) ** 2 / total).sum(axis=1)
        return made

    return permutation_p(statistic, len(first), len(second), seed=seed)


class FarTest:
    """How many vectors are farther from every reference vector than nearly all of these are from one another.

    The distance that counts is that to the nearest reference vector other than itself; far is what is farther than all
    but a share of the reference vectors are.

    Args:
        vectors: Rows of length 1.
        reference: Rows of length 1, at least two.
        share: Share of the reference vectors that count as far. Default 0.05.
    """

    def __init__(self, vectors: NDArray[np.float32], reference: NDArray[np.float32], *, share: float = 0.05) -> None:
        self._n, self._n_reference = len(vectors), len(reference)
        pooled = np.concatenate([reference, vectors])
        self._nearness = nearness = pooled @ pooled.T
        np.fill_diagonal(nearness, -np.inf)
        total = len(pooled)
        # Of so many neighbours one is a reference vector in nearly every draw; where none is, all are looked at.
        kept = min(total - 1, math.ceil(20 * total / self._n_reference))
        self._order = np.argsort(-nearness, axis=1)[:, :kept]
        self._nearest = np.take_along_axis(nearness, self._order, axis=1)
        self._cut = math.floor(share * self._n_reference)

    @property
    def reference_share(self) -> float:
        """Share of the reference vectors that are far from the others."""
        return self._cut / self._n_reference

    @property
    def far(self) -> int:
        """Vectors that are far."""
        return round(float(self._shares(self._observed()[None, :])[0]) * self._n)

    def p(self, *, seed: int = 0) -> float:
        """P-value of so many being far, or more, when vectors and reference come from one source."""
        return permutation_p(
            self._shares, self._n_reference, self._n, cells=self._order.shape[1], seed=seed, most=FAR_DRAWS
        )

    def _observed(self) -> Labels:
        return np.arange(self._n_reference + self._n) < self._n_reference

    def _shares(self, labels: Labels) -> Floats:
        """Share of the other vectors that are far, where the labels say which are the reference."""
        rows = len(labels)
        kept = labels[:, self._order]
        near = self._nearest[np.arange(labels.shape[1]), kept.argmax(axis=2)]
        none: Labels = ~np.logical_or.reduce(kept, axis=2)
        for draw in np.flatnonzero(none.any(axis=1)):
            near[draw, none[draw]] = self._nearness[np.ix_(none[draw], labels[draw])].max(axis=1)
        inside = np.sort(near[labels].reshape(rows, self._n_reference), axis=1)
        outside = near[~labels].reshape(rows, self._n)
        made: Floats = (outside < inside[:, self._cut][:, None]).mean(axis=1)
        return made
