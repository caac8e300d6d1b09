"""What a paired test could have shown, and how many questions it would take."""

from __future__ import annotations

import math
from bisect import bisect_left

from querywright.metrics.intervals import check_share

MOST_QUESTIONS = 1_000_000
_TAIL = 1e-10  # of the number of differences, left out when power is summed up


def sign_test(wins: int, losses: int) -> tuple[float, float]:
    """(two-sided, one-sided) p of the exact sign test, in whole numbers up to the last division.

    One-sided p = P[Bin(wins + losses, 1/2) >= wins]; two-sided twice the smaller tail, at most 1.
    """
    n = wins + losses
    ways = math.comb(n, wins)
    at_least, term = ways, ways
    for count in range(wins, n):
        term = term * (n - count) // (count + 1)
        at_least += term
    at_most = 2**n - at_least + ways
    return min(1.0, 2 * min(at_least, at_most) / 2**n), at_least / 2**n


def minimum_detectable(n: int, *, losses: int = 0, alpha: float = 0.05) -> int | None:
    """The fewest wins that could have been significant: smallest w with two-sided p(w wins, losses) < alpha.

    With the default of no loss this is the smallest difference that n questions can tell from chance: 6 wins
    to 0 at alpha = 0.05, whatever n, so a lead below 6/n cannot be shown. Wilcoxon's test needs 6 differences
    of one sign as well.

    Args:
        n: Questions scored for both arms, 0 or more.
        losses: Losses that stand against the wins, 0 or more. Default 0.
        alpha: Level of the two-sided test, between 0 and 1. Default 0.05.

    Returns:
        The number of wins, or None if n questions cannot show any difference.

    Raises:
        ValueError: n or losses is negative, or alpha is not between 0 and 1.
    """
    if n < 0 or losses < 0:
        raise ValueError(f"n and losses must be 0 or more, but got n={n}, losses={losses}")
    check_share("alpha", alpha)
    candidates = range(losses + 1, n - losses + 1)  # p falls with every further win
    place = bisect_left(candidates, True, key=lambda wins: sign_test(wins, losses)[0] < alpha)
    return candidates[place] if place < len(candidates) else None


def questions_needed(wins: int, losses: int, n: int, *, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """How many questions could carry the difference that was seen.

    The smallest number at which the exact two-sided test (exact McNemar) has p < alpha, in the direction seen,
    with probability ``power``, if questions were won and lost at the rates wins / n and losses / n. The power is
    summed over all numbers of differences, no approximation. It rises with the number of questions but for small
    steps back, so take it as "about". The rates are themselves estimates: with few differences the true number may
    be several times smaller or larger. One test is meant, without Holm's correction.

    Args:
        wins: Questions on which the first arm was better.
        losses: Questions on which the other was.
        n: Questions scored for both, with ties.
        alpha: Level of the two-sided test, between 0 and 1. Default 0.05.
        power: Between 0 and 1. Default 0.8.

    Returns:
        The number of questions; None if wins equal losses, or if a million would not do.

    Raises:
        ValueError: A count is negative, wins + losses exceed n, or a share is not between 0 and 1.

    Source: exact power of McNemar's test over all numbers of differences, Duffy 1984, Biometrics 40, 1005-1015;
    the closed form of Connor 1987, Biometrics 43, 207-211, is near to it.
    """
    if min(wins, losses) < 0 or wins + losses > n:
        raise ValueError(
            f"wins and losses must be 0 or more and together n at most, but got wins={wins}, losses={losses}, n={n}"
        )
    check_share("alpha", alpha)
    check_share("power", power)
    if wins == losses:
        return None
    differing, share = (wins + losses) / n, max(wins, losses) / (wins + losses)
    sizes = range(1, MOST_QUESTIONS + 1)
    place = bisect_left(sizes, True, key=lambda size: _power(size, differing, share, alpha) >= power)
    return sizes[place] if place < len(sizes) else None


def _power(size: int, differing: float, share: float, alpha: float) -> float:
    """Probability that the exact test on so many questions finds the better arm better."""
    import numpy as np
    from scipy.stats import binom

    counts = np.arange(binom.ppf(_TAIL, size, differing), binom.isf(_TAIL, size, differing) + 1)
    most_lost_to_chance = binom.isf(np.nextafter(alpha / 2, 0), counts, 0.5)  # one win more is significant
    found = binom.sf(most_lost_to_chance, counts, share)
    return float(np.dot(binom.pmf(counts, size, differing), found))
