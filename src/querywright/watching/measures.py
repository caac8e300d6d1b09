"""What is compared of two sets of traffic: one value a question, a difference with its interval, and a test."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from querywright.metrics.statistics import wilson_interval
from querywright.models.embedder import Vectors
from querywright.optimize.artifacts.watchers import Exchange

LEAST = 30
"""Questions that a side needs at least: fewer say too little of a distribution."""
MOST_EMBEDDED = 500
"""Questions of a side that are embedded; the test of more would take minutes and show no more that matters."""
CONFIDENCE = 0.95
DRAWS = 999
"""Draws of a permutation test: the smallest p-value is 0.001, which seven tests at once leave below 0.05."""
FAR = 0.05
"""Share of the reference that counts as far."""

Places = NDArray[np.int64]
Embed = Callable[[Sequence[str]], Vectors]


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that was compared, traffic against reference.

    Args:
        name: What was measured.
        kind: ``score`` (a mean) or ``share`` (of questions).
        n: Questions of the traffic that have it.
        n_reference: Questions of the reference that have it.
        value: Of the traffic; NaN without questions.
        reference: Of the reference.
        low: Lower end of the difference's 95 % interval; NaN where there is none.
        high: Upper end.
        effect: Size of the difference beside the spread: Cliff's delta of scores, in [-1, 1]; Cohen's h of shares.
        p: Probability of such a difference if there were none; NaN where it was not tested.
        method: The test.
        note: Why it was not tested.
        p_holm: The same, corrected for all that was tested.
    """

    name: str
    kind: str
    n: int
    n_reference: int
    value: float = math.nan
    reference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    effect: float = math.nan
    p: float = math.nan
    method: str = ""
    note: str = ""
    p_holm: float = math.nan

    @property
    def difference(self) -> float:
        """The traffic's value less that of the reference."""
        return self.value - self.reference


def scores(name: str, traffic: Sequence[float], reference: Sequence[float], *, seed: int = 0) -> Measure:
    """Two samples of numbers: means, Welch's interval, the Anderson-Darling test by permutation."""
    n, m = len(traffic), len(reference)
    if not n or not m:
        return Measure(name, "score", n, m, note="one side has none")
    value, other = fmean(traffic), fmean(reference)
    if min(n, m) < LEAST:
        return Measure(name, "score", n, m, value, other, note=_too_few(n, m))
    if len({*traffic, *reference}) == 1:
        return Measure(name, "score", n, m, value, other, 0.0, 0.0, 0.0, note="all of them are equal")
    from scipy import stats

    with warnings.catch_warnings():  # where all of one side are equal
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = stats.ttest_ind(traffic, reference, equal_var=False).confidence_interval(CONFIDENCE)
    drawn = stats.PermutationMethod(n_resamples=DRAWS, rng=np.random.default_rng(seed))
    found: Any = stats.anderson_ksamp([traffic, reference], variant="right", method=drawn)
    # Cliff's delta: how much more often a value of the traffic is the larger one of a pair.
    delta = 2 * float(stats.mannwhitneyu(traffic, reference).statistic) / (n * m) - 1
    p = float(found.pvalue)
    return Measure(name, "score", n, m, value, other, float(low), float(high), delta, p, "Anderson-Darling")


def shares(name: str, traffic: Sequence[bool], reference: Sequence[bool]) -> Measure:
    """Two samples of yes and no: shares, Newcombe's interval, Fisher's exact test."""
    n, m, hits, others = len(traffic), len(reference), sum(traffic), sum(reference)
    if not n or not m:
        return Measure(name, "share", n, m, note="one side has none")
    value, other = hits / n, others / m
    if min(n, m) < LEAST:
        return Measure(name, "share", n, m, value, other, note=_too_few(n, m))
    low, high = newcombe(value, n, other, m)
    if hits + others in (0, n + m):
        note = f"it is {'every' if hits else 'no'} question of both"
        return Measure(name, "share", n, m, value, other, low, high, 0.0, method="Fisher", note=note)
    from scipy.stats import fisher_exact

    exact: Any = fisher_exact(np.array([[hits, n - hits], [others, m - others]]))
    p = min(1.0, float(exact.pvalue))
    return Measure(name, "share", n, m, value, other, low, high, _cohen(value, other), p, "Fisher")


def options(traffic: Sequence[Exchange], reference: Sequence[Exchange], *, seed: int = 0) -> Measure | None:
    """Which place among its options the answer has: a chi-squared test over drawn tables of the same margins.

    What is shown is the place whose share differs most, with an interval that is wide enough for all of them. None
    where no question has options.
    """
    ours, theirs = _places(traffic), _places(reference)
    n, m, name = len(ours), len(theirs), "answer's place"
    if not ours or not theirs:
        return None
    if min(n, m) < LEAST:
        return Measure(name, "share", n, m, note=_too_few(n, m))
    places = sorted({*ours, *theirs})
    most = max(places, key=lambda place: abs(ours.count(place) / n - theirs.count(place) / m))
    value, other = ours.count(most) / n, theirs.count(most) / m
    name = "answer: no option" if most < 0 else f"answer: option {most + 1}"
    low, high = newcombe(value, n, other, m, confidence=1 - (1 - CONFIDENCE) / len(places))
    if len(places) == 1:
        return Measure(name, "share", n, m, value, other, low, high, 0.0, note="all of them are equal")
    from scipy.stats import MonteCarloMethod, chi2_contingency

    table = np.array([[side.count(place) for place in places] for side in (ours, theirs)])
    drawn = MonteCarloMethod(n_resamples=DRAWS, rng=np.random.default_rng(seed))
    p = float(chi2_contingency(table, correction=False, method=drawn).pvalue)
    return Measure(name, "share", n, m, value, other, low, high, _cohen(value, other), p, "chi-squared")


def far(traffic: Sequence[str], reference: Sequence[str], embed: Embed, *, seed: int = 0) -> Measure:
    """Questions that are farther from every question of the reference than 95 % of these are from one another.

    The test draws anew which of all the vectors are the reference, one-sided.
    """
    name, n, m = "far questions", len(traffic), len(reference)
    if min(n, m) < LEAST:
        return Measure(name, "share", n, m, note=_too_few(n, m))
    generator = np.random.default_rng(seed)
    ours, theirs = (_sample(texts, generator) for texts in (traffic, reference))
    vectors = _normed(embed([*ours, *theirs]))
    near = vectors @ vectors.T
    np.fill_diagonal(near, -np.inf)
    n, m = len(ours), len(theirs)
    cut = math.floor(FAR * m)

    def share(mine: Places, given: Places) -> float:
        """Of the vectors at some places, those that are farther than the cut from all at other places."""
        inside = np.sort(near[np.ix_(given, given)].max(axis=1))
        return float((near[np.ix_(mine, given)].max(axis=1) < inside[cut]).mean())

    from scipy.stats import permutation_test

    sides = (np.arange(n), np.arange(n, n + m))
    drawn = permutation_test(
        sides, share, vectorized=False, n_resamples=DRAWS, alternative="greater", rng=np.random.default_rng(seed)
    )
    value, other = float(drawn.statistic), cut / m
    low, high = newcombe(value, n, other, m)
    p = float(drawn.pvalue)
    return Measure(name, "share", n, m, value, other, low, high, _cohen(value, other), p, "permutation, one-sided")


def newcombe(a: float, n: int, b: float, m: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Interval of the difference a - b of two shares, from Wilson's intervals of each.

    Args:
        a: Share of n.
        n: 1 or more.
        b: Share of m.
        m: 1 or more.
        confidence: Between 0 and 1. Default 0.95.

    Source: Newcombe 1998, Statistics in Medicine 17(8), 873-890, method 10.
    """
    (low_a, high_a), (low_b, high_b) = (wilson_interval(s, k, confidence=confidence) for s, k in ((a, n), (b, m)))
    return a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)


def detectable(n: int, m: int, *, alpha: float, power: float = 0.8) -> float:
    """The shift of a mean, in standard deviations, that is found with this power."""
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) * math.sqrt(1 / n + 1 / m)


def _too_few(n: int, m: int) -> str:
    side, count = ("the traffic", n) if n < LEAST else ("the reference", m)
    return f"too few: {side} has {count}, {LEAST} are needed"


def _cohen(a: float, b: float) -> float:
    return 2 * math.asin(math.sqrt(a)) - 2 * math.asin(math.sqrt(b))


def _places(traffic: Sequence[Exchange]) -> list[int]:
    read = (one for one in traffic if one.error is None and one.options and one.answer is not None)
    return [one.options.index(one.answer) if one.answer in one.options else -1 for one in read]


def _sample(texts: Sequence[str], generator: np.random.Generator) -> list[str]:
    if len(texts) <= MOST_EMBEDDED:
        return list(texts)
    chosen = generator.choice(len(texts), MOST_EMBEDDED, replace=False)
    return [texts[int(place)] for place in np.sort(chosen)]


def _normed(vectors: Vectors) -> Vectors:
    rows = np.asarray(vectors, dtype=np.float32)
    made: Vectors = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return made
