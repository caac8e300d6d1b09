from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.metrics.power import minimum_detectable, questions_needed, sign_test


def test_minimum_detectable():
    assert minimum_detectable(60) == 6
    assert minimum_detectable(6) == 6
    assert minimum_detectable(5) is None
    assert minimum_detectable(60, alpha=0.01) == 8
    assert minimum_detectable(60, losses=4) == 13
    assert minimum_detectable(16, losses=4) is None
    with pytest.raises(ValueError, match="n=-1"):
        minimum_detectable(-1)
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1, but got 5"):
        minimum_detectable(60, alpha=5)


@given(st.integers(0, 12))
@settings(deadline=None)
def test_minimum_detectable_is_the_border_of_the_test(losses):
    wins = minimum_detectable(200, losses=losses)
    assert wins is not None
    assert sign_test(wins, losses)[0] < 0.05
    assert sign_test(wins - 1, losses)[0] >= 0.05


def power_by_counting(size, win, loss, alpha=0.05):
    """Probability of a significant lead, summed over every number of wins and losses."""
    total = 0.0
    for wins in range(size + 1):
        for losses in range(min(wins, size - wins + 1)):
            if sign_test(wins, losses)[0] < alpha:
                ties = size - wins - losses
                ways = math.comb(size, wins) * math.comb(size - wins, losses)
                total += ways * win**wins * loss**losses * (1 - win - loss) ** ties
    return total


@pytest.mark.parametrize(("wins", "losses", "n"), [(5, 0, 20), (8, 2, 20), (20, 10, 40), (6, 0, 6)])
def test_questions_needed_is_where_the_power_is_reached(wins, losses, n):
    needed = questions_needed(wins, losses, n)
    assert needed is not None
    assert power_by_counting(needed, wins / n, losses / n) >= 0.8
    assert power_by_counting(needed - 1, wins / n, losses / n) < 0.8
    assert questions_needed(losses, wins, n) == needed


def test_questions_needed_holds_in_a_simulation():
    from scipy.stats import binomtest

    needed = questions_needed(9, 3, 60)
    assert needed is not None
    draws = np.random.default_rng(5).multinomial(needed, [9 / 60, 3 / 60, 48 / 60], size=4_000)
    outcomes, counts = np.unique(draws[:, :2], axis=0, return_counts=True)
    shown = [wins > losses and binomtest(wins, wins + losses).pvalue < 0.05 for wins, losses in outcomes]
    assert counts[shown].sum() / 4_000 == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("wins", "losses", "n"), [(5, 4, 60), (55, 45, 100), (1, 0, 1000), (12, 8, 400)])
def test_questions_needed_is_near_connors_closed_form(wins, losses, n):
    # The normal test needs no allowance for whole numbers, so it asks for a little less.
    differing, lead = (wins + losses) / n, abs(wins - losses) / n
    closed = (1.959964 * math.sqrt(differing) + 0.841621 * math.sqrt(differing - lead**2)) ** 2 / lead**2
    needed = questions_needed(wins, losses, n)
    assert needed is not None
    assert closed < needed < 1.08 * closed + 12


def test_more_power_and_a_stricter_level_need_more():
    usual = questions_needed(9, 3, 60)
    assert usual is not None
    assert questions_needed(9, 3, 60, power=0.9) > usual  # type: ignore[operator]
    assert questions_needed(9, 3, 60, alpha=0.01) > usual  # type: ignore[operator]


def test_no_number_of_questions_would_do():
    assert questions_needed(4, 4, 60) is None
    assert questions_needed(0, 0, 0) is None
    assert questions_needed(101, 100, 1000) is None  # more than a million


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ((-1, 2, 5), {}, "wins=-1, losses=2, n=5"),
        ((3, 3, 5), {}, "wins=3, losses=3, n=5"),
        ((3, 1, 5), {"alpha": 0}, "alpha must lie between 0 and 1"),
        ((3, 1, 5), {"power": 1}, "power must lie between 0 and 1"),
    ],
)
def test_counts_that_cannot_be(counts, options, message):
    with pytest.raises(ValueError, match=message):
        questions_needed(*counts, **options)
