"""Means with intervals, paired tests, and the smallest differences that a test could have detected."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RESAMPLES = 10_000
MOST_QUESTIONS = 1_000_000
POWER = 0.8
_CELLS = 2_000_000  # resampled values held in memory at once
_TAIL = 1e-10  # probability mass that the sum for the power leaves out
_DIGITS = 12  # decimals to which differences are rounded, so that 0.1 + 0.2 and 0.3 tie


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its interval.

    Args:
        value: The mean of the scored values; NaN if there are none.
        low: Lower end of the interval; NaN without an interval.
        high: Upper end of the interval.
        n: Number of scored values.
        unscored: Number of NaN values, which are left out.
    """

    value: float
    low: float
    high: float
    n: int
    unscored: int


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The results of two programs on the same questions, ``a`` compared with ``b``.

    Args:
        wins: Number of questions on which a is better.
        losses: Number of questions on which b is better.
        ties: Number of questions on which both are equal.
        n: Number of questions scored for both: wins + losses + ties.
        unscored: Number of questions left out because a or b could not be scored.
        p_two_sided: Probability of a difference at least this large, in either direction, if there is no true
            difference.
        p_one_sided: The same probability, but only for differences in favor of a.
        difference: Mean of a - b; NaN without questions.
        low: Lower end of the difference's interval; NaN with fewer than two questions.
        high: Upper end of that interval.
        method: "exact binomial" for 0/1 values, else "Wilcoxon signed-rank".
    """

    wins: int
    losses: int
    ties: int
    n: int
    unscored: int
    p_two_sided: float
    p_one_sided: float
    difference: float
    low: float
    high: float
    method: str


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95% interval for a share of n questions.

    For shares from .1 to .9, its coverage is 93% to 97% with 60 questions or more, and 92% to 98% with 20 questions. On
    average, it is 95%.

    Args:
        share: Share of questions with the value 1, in [0, 1]; share * n must be a whole number.
        n: Number of questions, 1 or more.

    Returns:
        (low, high), within [0, 1].

    Source: Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """
    from scipy.stats import binomtest

    low, high = binomtest(round(share * n), n).proportion_ci(method="wilson")
    return float(low), float(high)


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Return the expanded percentile bootstrap interval of the mean at 95%, from 10,000 resamples.

    With few values, the plain interval is too narrow, because it ignores that their spread is itself an estimate. This
    interval uses the percentiles at Phi(-+ t sqrt(n / (n - 1))), where t is from Student's distribution with n - 1
    degrees of freedom. With many values, the two intervals are the same. Like the plain interval, it never extends
    beyond the range of the values. Its coverage is 93% to 97% with 20 or more values (uniform, F1, recall,
    differences). If four in five values are 0, it takes 40 values to reach this coverage (with 20, it is 91%).

    Args:
        values: One value per question, without NaN. If all values are equal, the interval has zero width.
        seed: Random seed for the resampling. Default 0.

    Returns:
        (low, high); NaN with fewer than two values, which say nothing about spread.

    Source: Hesterberg 2015, doi:10.1080/00031305.2015.1089789; the plain interval is from Efron 1979,
    doi:10.1214/aos/1176344552.
    """
    n = len(values)
    if n < 2:
        return math.nan, math.nan
    import numpy as np
    from scipy.stats import bootstrap, norm, t

    tail = float(norm.cdf(t.ppf(0.025, n - 1) * math.sqrt(n / (n - 1))))
    low, high = bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, batch=max(1, _CELLS // n), confidence_level=1 - 2 * tail,
        method="percentile", rng=seed,
    ).confidence_interval  # fmt: skip
    return float(low), float(high)


@functools.lru_cache(maxsize=2048)
def _resampled(values: tuple[float, ...], seed: int) -> tuple[float, float]:
    """Return the bootstrap interval, cached because tables, files, and the progress display all need it."""
    return bootstrap_interval(values, seed=seed)


def mean_with_interval(values: Sequence[float], *, seed: int = 0) -> Mean:
    """Return the mean with its 95% interval.

    The interval is Wilson's for 0/1 values, else the bootstrap interval (`bootstrap_interval`).

    Args:
        values: One value per question; NaN is left out and counted.
        seed: Random seed for the resampling. Default 0.

    Returns:
        The mean. Its interval is NaN if there are no values, or only one value that is neither 0 nor 1.

    Raises:
        ValueError: A value is infinite.
    """
    _check_finite(values)
    scored = [float(value) for value in values if not math.isnan(value)]
    n, unscored = len(scored), len(values) - len(scored)
    if not scored:
        return Mean(math.nan, math.nan, math.nan, 0, unscored)
    value = math.fsum(scored) / n
    low, high = wilson_interval(value, n) if _binary(scored) else _resampled(tuple(scored), seed)
    return Mean(value, low, high, n, unscored)


def paired_exact_test(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> PairedTest:
    """Run a paired test of whether ``a`` is better than ``b`` on the same questions.

    0/1 values get the exact binomial test on the questions on which the two differ (exact McNemar): the one-sided p is
    P[Bin(wins + losses, 1/2) >= wins], and the two-sided p is twice the smaller tail, at most 1. Other values get
    Wilcoxon's signed-rank test on the nonzero differences, which is exact for up to 13 differences and, without ties,
    for up to 50. If there are no differences, p is 1. The interval for the mean difference is `bootstrap_interval` of
    the differences, so each resample has the same questions for both programs.

    Args:
        a: The first program's values, one per question.
        b: The second program's values, in the same order of questions.
        seed: Random seed for the resampling. Default 0.

    Raises:
        ValueError: The lists differ in length, or a value is infinite.

    Source: QB-RAG, arXiv:2407.18044, uses only one-sided tests; we add the two-sided p-value to show losses.
    """
    if len(a) != len(b):
        raise ValueError(f"a and b must score the same questions, but have {len(a)} and {len(b)} values")
    _check_finite([*a, *b])
    pairs = [(float(x), float(y)) for x, y in zip(a, b, strict=True) if not (math.isnan(x) or math.isnan(y))]
    differences = [round(x - y, _DIGITS) for x, y in pairs]
    n = len(pairs)
    wins, losses = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    binary = _binary([value for pair in pairs for value in pair])
    two, one = _sign_test(wins, losses) if binary else _wilcoxon([value for value in differences if value])
    low, high = bootstrap_interval(differences, seed=seed)
    return PairedTest(
        wins=wins,
        losses=losses,
        ties=n - wins - losses,
        n=n,
        unscored=len(a) - n,
        p_two_sided=two,
        p_one_sided=one,
        difference=math.fsum(differences) / n if n else math.nan,
        low=low,
        high=high,
        method="exact binomial" if binary else "Wilcoxon signed-rank",
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for several tests, in the order given.

    The i-th smallest of m p-values is multiplied by m - i + 1, then raised to the previous adjusted value if it is
    smaller, and limited to 1. NaN (no test) stays NaN and does not count toward m.

    Source: Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.
    """
    adjusted = [math.nan] * len(p_values)
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def minimum_detectable(n: int, *, alpha: float = 0.05) -> int | None:
    """Return the fewest wins, with no loss, that can be significant: the smallest w with two-sided p(w to 0) < alpha.

    This is the smallest difference that n questions can distinguish from chance. At alpha = 0.05, it is 6 wins to 0
    regardless of n, so a lead below 6/n cannot be shown. Wilcoxon's test also needs 6 differences with the same sign.

    Args:
        n: Number of questions scored for both programs, 0 or more.
        alpha: Level of the two-sided test, between 0 and 1. Default 0.05.

    Returns:
        The number of wins, or None if n questions cannot show any difference.
    """
    return next((wins for wins in range(1, n + 1) if 2 * 0.5**wins < alpha), None)


def questions_needed(wins: int, losses: int, n: int, *, alpha: float = 0.05) -> int | None:
    """Return about how many questions are needed to show the observed difference.

    This is the smallest number of questions at which the exact two-sided McNemar test has 80% power to reach p < alpha
    in the observed direction, assuming win and loss rates of wins / n and losses / n. The power is summed over all
    possible numbers of differences, without approximation. It rises with the number of questions, but not quite
    steadily, so treat the result as approximate. The rates are themselves estimates: with few differences, the true
    number may be several times smaller or larger. The result applies to a single test, without Holm's correction.

    Args:
        wins: Number of questions on which the first program was better.
        losses: Number of questions on which the second program was better.
        n: Number of questions scored for both, including ties.
        alpha: Level of the two-sided test, between 0 and 1. Default 0.05.

    Returns:
        The number of questions; None if wins equal losses, or if a million is not enough.

    Source: exact power of McNemar's test over all numbers of differences, Duffy 1984, Biometrics 40, 1005-1015. The
    closed form in Connor 1987, Biometrics 43, 207-211, is close to it.
    """
    if wins == losses:
        return None
    differing, share = (wins + losses) / n, max(wins, losses) / (wins + losses)
    sizes = range(1, MOST_QUESTIONS + 1)
    place = bisect_left(sizes, True, key=lambda size: _power(size, differing, share, alpha) >= POWER)
    return sizes[place] if place < len(sizes) else None


def verdict(test: PairedTest, *, a: str, b: str, alpha: float = 0.05, tests: int = 1) -> str:
    """Return the result of the test as one English sentence.

    Args:
        test: The comparison of a with b. For several programs, first put the Holm-adjusted value into ``p_two_sided``.
        a: Name of the first program.
        b: Name of the second program.
        alpha: Level of the two-sided test. Default 0.05.
        tests: Number of comparisons that are corrected together. The difference that could have been shown is computed
            for the strictest test, at alpha / tests. Default 1.

    Returns:
        A sentence that says that a beats b, that a is worse, or that no difference was shown. In the last case, it also
        says which difference could have been shown and, for 0/1 values, about how many questions could show the
        observed difference (`questions_needed`).
    """
    exact = test.method == "exact binomial"
    left_out = f"; omitted {_plural(test.unscored, 'unscored question')}" if test.unscored else ""
    if test.n == 0:
        return f"{a} and {b} cannot be compared: no question was scored for both{left_out}"
    # Wins and losses alone do not show a difference of graded values.
    mean = "" if exact else f"; mean difference {test.difference:+.3f}, from {test.low:+.3f} to {test.high:+.3f}"
    facts = (
        f"{_plural(test.wins, 'win')}, {_plural(test.losses, 'loss')}, {_plural(test.ties, 'tie')} "
        f"({p_value(test.p_two_sided, alpha)}{mean})"
    )
    if test.p_two_sided < alpha and test.p_one_sided < 0.5 and test.difference > 0:
        return f"{a} beats {b}: {facts}{left_out}"
    if test.p_two_sided < alpha and test.p_one_sided > 0.5 and test.difference < 0:
        return f"{a} is worse than {b}: {facts}{left_out}"
    fewest = minimum_detectable(test.n, alpha=alpha / tests)
    lead = "no difference" if fewest is None else f"only a lead of at least {_plural(fewest, 'win')} to 0"
    possible = f"With {_plural(test.n, 'question')}, {lead} could have been detected"
    needed = questions_needed(test.wins, test.losses, test.n, alpha=alpha / tests) if exact else None
    if needed is not None and needed > test.n:  # two digits, because the rates are not more precise
        possible += (
            f". At these rates, it would take about {int(float(f'{needed:.2g}')):,} questions to detect the difference"
        )
    return f"no difference shown between {a} and {b}: {facts}{left_out}. {possible}"


def p_value(p: float, alpha: float) -> str:
    """Format p the way papers do, with one more digit if rounding would make it equal to alpha.

    Args:
        p: The p-value, in [0, 1].
        alpha: Level of the test.
    """
    if p < 0.001:
        return "p < .001"
    if p > 0.9995:
        return "p = 1.0"
    digits = 4 if round(p, 3) == alpha else 3
    return f"p = {p:.{digits}f}".replace("0.", ".", 1)


def _sign_test(wins: int, losses: int) -> tuple[float, float]:
    """Return the two-sided and the one-sided p-value of the exact sign test."""
    if not wins + losses:
        return 1.0, 1.0
    from scipy.stats import binomtest

    two, one = (binomtest(wins, wins + losses, alternative=side).pvalue for side in ("two-sided", "greater"))
    return float(two), float(one)


def _wilcoxon(differences: Sequence[float]) -> tuple[float, float]:
    """Return the two-sided and the one-sided p-value.

    The differences must not contain 0, so that scipy stays exact if there are few of them.
    """
    if not differences:
        return 1.0, 1.0
    from scipy.stats import wilcoxon

    two: Any = wilcoxon(differences, alternative="two-sided")
    one: Any = wilcoxon(differences, alternative="greater")
    return float(two.pvalue), float(one.pvalue)


def _power(size: int, differing: float, share: float, alpha: float) -> float:
    """Return the probability that the exact test on ``size`` questions shows that the better program is better."""
    import numpy as np
    from scipy.stats import binom

    counts = np.arange(binom.ppf(_TAIL, size, differing), binom.isf(_TAIL, size, differing) + 1)
    most_lost_to_chance = binom.isf(np.nextafter(alpha / 2, 0), counts, 0.5)  # one more win is significant
    found = binom.sf(most_lost_to_chance, counts, share)
    return float(np.dot(binom.pmf(counts, size, differing), found))


def _check_finite(values: Sequence[float]) -> None:
    if any(math.isinf(value) for value in values):
        raise ValueError(
            "values must be finite or NaN, but one is infinite; use NaN for a question that cannot be scored"
        )


def _binary(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def _plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"
