"""Intervals of a mean over questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

RESAMPLES = 10_000
_CELLS = 2_000_000  # resampled values held in memory at once


def wilson_interval(share: float, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share of n questions.

    At 95 per cent and shares from .1 to .9 it covers 93 to 97 from 60 questions on, 92 to 98 of 20; 95 on average.

    Args:
        share: Share of questions that are 1, in [0, 1]: a whole number of them.
        n: Questions, 1 or more.
        confidence: Between 0 and 1. Default 0.95.

    Returns:
        (low, high), within [0, 1].

    Raises:
        ValueError: An argument is outside its range.

    Source: Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """
    check_share("confidence", confidence)
    if n < 1 or not 0 <= share <= 1:
        raise ValueError(f"share must lie in [0, 1] and n be 1 or more, but got share={share}, n={n}")
    from scipy.stats import binomtest

    found = binomtest(round(share * n), n).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def bootstrap_interval(values: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Expanded percentile bootstrap interval of the mean, from 10,000 resamples.

    The plain one is too narrow for few values: it forgets that their spread was estimated. This one takes the
    percentiles at Phi(-+ t sqrt(n / (n - 1))), t Student's with n - 1 degrees of freedom; for many values they are
    the same. Like the plain one it never leaves the range of the values. At 95 per cent it covers 93 to 97 from 20
    values on (uniform, F1, recall, differences); from 40 on also where four values in five are 0, 91 of 20.

    Args:
        values: One value a question, without NaN. Values that are all equal give an interval without width.
        confidence: Between 0 and 1. Default 0.95.
        seed: Of the resampling. Default 0.

    Returns:
        (low, high); NaN with fewer than two values, which say nothing about spread.

    Raises:
        ValueError: confidence is not between 0 and 1.

    Source: Hesterberg 2015, doi:10.1080/00031305.2015.1089789; the plain one is Efron 1979,
    doi:10.1214/aos/1176344552.
    """
    check_share("confidence", confidence)
    if len(values) < 2:
        return math.nan, math.nan
    import numpy as np
    from scipy.special import stdtrit

    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    rows = max(1, _CELLS // len(data))
    means = [
        data[generator.integers(0, len(data), size=(min(rows, RESAMPLES - start), len(data)))].mean(axis=1)
        for start in range(0, RESAMPLES, rows)
    ]
    n = len(data)
    tail = NormalDist().cdf(float(stdtrit(n - 1, (1 - confidence) / 2)) * math.sqrt(n / (n - 1)))
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def check_share(name: str, value: float) -> None:
    """Refuse a value that does not lie strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, but got {value}")
