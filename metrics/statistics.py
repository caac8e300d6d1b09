"""How sure are the numbers: means with intervals, paired tests, and what a test could have shown at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from querywright.metrics.intervals import bootstrap_interval, check_share, wilson_interval
from querywright.metrics.power import minimum_detectable, questions_needed, sign_test

_DIGITS = 12  # differences are rounded to this, so that 0.1 + 0.2 and 0.3 tie


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and how sure it is.

    Args:
        value: The mean of the scored values; NaN without any.
        low: Lower end of the interval; NaN where there is no interval.
        high: Upper end of the interval.
        n: Values that were scored.
        unscored: Values that were NaN and are left out.
    """

    value: float
    low: float
    high: float
    n: int
    unscored: int


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two arms on the same questions, ``a`` against ``b``.

    Args:
        wins: Questions on which a is better.
        losses: Questions on which b is better.
        ties: Questions on which both are equal.
        n: Questions scored for both; wins + losses + ties.
        unscored: Questions left out because a or b could not be scored.
        p_two_sided: Probability of a difference at least as large, either way, if there were none.
        p_one_sided: The same for a being better only.
        difference: Mean of a - b; NaN without questions.
        low: Lower end of its interval; NaN with fewer than two questions.
        high: Upper end of its interval.
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


def mean_with_interval(values: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Mean:
    """The mean with its interval: Wilson's for 0/1 values, else the bootstrap's (`bootstrap_interval`).

    Args:
        values: One value a question; NaN is left out and counted.
        confidence: Of the interval, between 0 and 1. Default 0.95.
        seed: Of the resampling. Default 0.

    Returns:
        The mean; its interval is NaN for no value, and for a single one that is neither 0 nor 1.

    Raises:
        ValueError: confidence is not between 0 and 1, or a value is infinite.
    """
    check_share("confidence", confidence)
    _check_finite(values)
    scored = [float(value) for value in values if not math.isnan(value)]
    n, unscored = len(scored), len(values) - len(scored)
    if not scored:
        return Mean(math.nan, math.nan, math.nan, 0, unscored)
    value = math.fsum(scored) / n
    if _binary(scored):
        low, high = wilson_interval(value, n, confidence=confidence)
    else:
        low, high = bootstrap_interval(scored, confidence=confidence, seed=seed)
    return Mean(value, low, high, n, unscored)


def paired_exact_test(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> PairedTest:
    """Is ``a`` better than ``b`` on the same questions?

    0/1 values: the exact binomial test on the questions where the two differ (exact McNemar); one-sided
    p = P[Bin(wins + losses, 1/2) >= wins], two-sided twice the smaller tail, at most 1. Other values:
    Wilcoxon's signed-rank test on the differences that are not 0, exact for up to 13 of them and, without
    ties, up to 50. Without any difference p is 1. The interval of the mean difference is `bootstrap_interval` of
    the differences: questions are resampled, the same for both arms.

    Args:
        a: One value a question.
        b: The values of the other arm, in the same order of questions.
        confidence: Of the interval, between 0 and 1. Default 0.95.
        seed: Of the resampling. Default 0.

    Raises:
        ValueError: The lists differ in length, a value is infinite, or confidence is not between 0 and 1.

    Source: QB-RAG, arXiv:2407.18044, tests one-sided only; the two-sided value is added so that losses show.
    """
    check_share("confidence", confidence)
    if len(a) != len(b):
        raise ValueError(f"a and b must score the same questions, but have {len(a)} and {len(b)} values")
    _check_finite(a)
    _check_finite(b)
    pairs = [(float(x), float(y)) for x, y in zip(a, b, strict=True) if not (math.isnan(x) or math.isnan(y))]
    differences = [round(x - y, _DIGITS) for x, y in pairs]
    n = len(pairs)
    wins, losses = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    if _binary([value for pair in pairs for value in pair]):
        two, one = sign_test(wins, losses)
        method = "exact binomial"
    else:
        two, one = _wilcoxon([value for value in differences if value])
        method = "Wilcoxon signed-rank"
    low, high = bootstrap_interval(differences, confidence=confidence, seed=seed)
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
        method=method,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for testing several arms, in the order given.

    The i-th smallest of m is multiplied by m - i + 1, made no smaller than the one before it and no larger
    than 1. NaN (an arm that was not tested) stays NaN and does not count in m.

    Raises:
        ValueError: A value is outside [0, 1].

    Source: Holm 1979, Scandinavian Journal of Statistics 6(2), 65-70.
    """
    wrong = [p for p in p_values if p < 0 or p > 1]
    if wrong:
        raise ValueError(f"a p-value must lie in [0, 1], but got {wrong[0]}")
    adjusted = [math.nan] * len(p_values)
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    largest = 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(test: PairedTest, *, a: str, b: str, alpha: float = 0.05, tests: int = 1) -> str:
    """What the test shows, as one English sentence.

    Args:
        test: The comparison of a with b. For several arms put Holm's value into ``p_two_sided`` first.
        a: Name of the first arm.
        b: Name of the second arm.
        alpha: Level of the two-sided test. Default 0.05.
        tests: Comparisons that are corrected together. What could have been shown is told for the strictest of
            them, at alpha / tests. Default 1.

    Returns:
        That a beats b, is worse, or that no difference was shown, which could have been, and, for 0/1 values, about
        how many questions could show the one that was seen (`questions_needed`).
    """
    left_out = f"; {_plural(test.unscored, 'question')} left out as unscored" if test.unscored else ""
    if test.n == 0:
        return f"{a} and {b} cannot be compared: no question was scored for both{left_out}"
    facts = (
        f"{_plural(test.wins, 'win')}, {_plural(test.losses, 'loss')}, {_plural(test.ties, 'tie')} "
        f"({p_value(test.p_two_sided, alpha)}{_mean_difference(test)})"
    )
    significant = test.p_two_sided < alpha
    if significant and test.p_one_sided < 0.5 and test.difference > 0:
        return f"{a} beats {b}: {facts}{left_out}"
    if significant and test.p_one_sided > 0.5 and test.difference < 0:
        return f"{a} is worse than {b}: {facts}{left_out}"
    strict = alpha / tests
    fewest = minimum_detectable(test.n, alpha=strict)
    questions = _plural(test.n, "question")
    possible = (
        f"with {questions} no difference could have been shown"
        if fewest is None
        else f"with {questions} only a lead of at least {_plural(fewest, 'win')} to 0 could have been shown"
    )
    return f"no difference shown between {a} and {b}: {facts}; {possible}{_more_questions(test, strict)}{left_out}"


def _check_finite(values: Sequence[float]) -> None:
    if any(math.isinf(value) for value in values):
        raise ValueError("a value is infinite; what cannot be scored is NaN")


def _binary(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)


def _wilcoxon(differences: Sequence[float]) -> tuple[float, float]:
    """(two-sided, one-sided) p; the differences hold no 0, so that scipy stays exact for few of them."""
    if not differences:
        return 1.0, 1.0
    from scipy.stats import wilcoxon

    two: Any = wilcoxon(differences, alternative="two-sided")
    one: Any = wilcoxon(differences, alternative="greater")
    return float(two.pvalue), float(one.pvalue)


def _plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def p_value(p: float, alpha: float) -> str:
    """P as papers print it, with one more digit where rounding would make it equal to alpha.

    Args:
        p: In [0, 1].
        alpha: Level of the test.
    """
    if p < 0.001:
        return "p < .001"
    if p > 0.9995:
        return "p = 1.0"
    digits = 4 if round(p, 3) == alpha else 3
    return f"p = {p:.{digits}f}".replace("0.", ".", 1)


def _more_questions(test: PairedTest, alpha: float) -> str:
    """The number of questions that could show the difference, to two digits; the test's rates are no more exact."""
    if test.method != "exact binomial":
        return ""
    needed = questions_needed(test.wins, test.losses, test.n, alpha=alpha)
    if needed is None or needed <= test.n:
        return ""
    return f"; at these rates about {int(float(f'{needed:.2g}')):,} questions could show it"


def _mean_difference(test: PairedTest) -> str:
    """The mean difference, where wins and losses alone do not tell it."""
    if test.method == "exact binomial":
        return ""
    return f"; mean difference {test.difference:+.3f}, from {test.low:+.3f} to {test.high:+.3f}"
