"""Intervals, paired tests and what they could have shown: held against scipy, exact sums and cases worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from querywright.metrics.statistics import (
    Mean,
    bootstrap_interval,
    holm,
    mean_with_interval,
    minimum_detectable,
    paired_exact_test,
    questions_needed,
    verdict,
    wilson_interval,
)

NAN = math.nan


def arms(wins, losses, ties):
    """0/1 values of two arms with these outcomes."""
    return [1.0] * wins + [0.0] * losses + [1.0] * ties, [0.0] * wins + [1.0] * losses + [1.0] * ties


def test_mean_leaves_nan_out_and_counts_it():
    mean = mean_with_interval([1, NAN, 0, 1, NAN, 1])
    assert (mean.value, mean.n, mean.unscored) == (0.75, 4, 2)
    assert (mean.low, mean.high) == wilson_interval(0.75, 4)
    for values in ([], [NAN, NAN]):
        mean = mean_with_interval(values)
        assert (mean.n, mean.unscored) == (0, len(values))
        assert all(math.isnan(value) for value in (mean.value, mean.low, mean.high))


def test_intervals_are_seeded():
    values = list(np.random.default_rng(3).beta(2, 5, size=80))
    for call in (bootstrap_interval, mean_with_interval, lambda one, **seed: paired_exact_test(one, one[::-1], **seed)):
        assert call(values) == call(values, seed=0) != call(values, seed=1)


def f1_like(rng, size):
    """Token F1 as readers get it: a third wrong, a third right, the rest between. Mean 0.475."""
    kind = rng.random(size)
    return np.where(kind < 0.35, 0.0, np.where(kind < 0.65, 1.0, rng.beta(2, 2, size)))


def test_bootstrap_covers_the_mean_of_twenty_values(monkeypatch):
    # The plain bootstrap covers 93.4 per cent of these. Fewer resamples are enough to count hits.
    monkeypatch.setattr("querywright.metrics.statistics.RESAMPLES", 1_000)
    rng = np.random.default_rng(12)
    intervals = [bootstrap_interval(list(values), seed=seed) for seed, values in enumerate(f1_like(rng, (1_000, 20)))]
    assert np.mean([low <= 0.475 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.01)


def test_a_single_graded_value_has_no_interval():
    mean = mean_with_interval([0.4])
    assert (mean.value, math.isnan(mean.low)) == (0.4, True)
    assert mean_with_interval([1.0]) == Mean(1.0, wilson_interval(1.0, 1)[0], 1.0, 1, 0)
    assert mean_with_interval([0.0]) == Mean(0.0, 0.0, wilson_interval(0.0, 1)[1], 1, 0)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="but one is infinite; use NaN for a question"):
        mean_with_interval([1.0, math.inf])
    for values, message in (([-math.inf], "one is infinite"), ([1, 0], "have 1 and 2 values")):
        with pytest.raises(ValueError, match=message):
            paired_exact_test([1.0], values)


@pytest.mark.parametrize(
    ("wins", "losses", "one_sided"),
    [(12, 4, 0.0384063720703125), (0, 0, 1.0), (0, 1, 1.0), (6, 0, 1 / 64)],
)
def test_exact_values(wins, losses, one_sided):
    test = paired_exact_test(*arms(wins, losses, 5))
    assert test.p_one_sided == pytest.approx(one_sided, rel=1e-12)
    assert (test.wins, test.losses, test.ties, test.n) == (wins, losses, 5, wins + losses + 5)
    assert test.difference == pytest.approx((wins - losses) / test.n)
    assert test.method == "exact binomial"


def test_pairs_without_both_values_are_left_out():
    test = paired_exact_test([1, NAN, 1, 0, NAN], [0, 1, NAN, 0, NAN])
    assert (test.wins, test.losses, test.ties, test.n, test.unscored) == (1, 0, 1, 2, 3)
    nothing = paired_exact_test([NAN], [1.0])
    assert (nothing.n, nothing.p_two_sided, math.isnan(nothing.difference)) == (0, 1.0, True)
    assert verdict(nothing, a="HyDE", b="plain") == (
        "HyDE and plain cannot be compared: no question was scored for both; omitted 1 unscored question"
    )


def test_wilcoxon_by_hand():
    # Ranks 1 to 4, only the smallest is a loss: rank sums 9 and 1. Two of the 16 sign patterns reach 9.
    test = paired_exact_test([0.1, 0.5, 0.7, 0.9], [0.2, 0.3, 0.4, 0.5])
    assert (test.p_one_sided, test.p_two_sided, test.method) == (2 / 16, 4 / 16, "Wilcoxon signed-rank")


def test_values_that_are_all_equal_few_or_alone():
    for value in (0.5, 1.0):
        test = paired_exact_test([value] * 9, [value] * 9)
        assert (test.ties, test.p_two_sided, test.p_one_sided, test.low, test.high) == (9, 1.0, 1.0, 0.0, 0.0)
    alone = paired_exact_test([0.75], [0.5])
    assert (alone.n, alone.p_two_sided, alone.p_one_sided, math.isnan(alone.low)) == (1, 1.0, 0.5, True)
    assert "With 1 question, no difference could have been detected" in verdict(alone, a="A", b="B")
    few = paired_exact_test([0.5] * 5 + [0.3] * 60, [0.4] * 5 + [0.3] * 60)
    assert (few.wins, few.ties, few.p_two_sided) == (5, 60, 2 / 2**5)  # ties do not make them significant
    noise = paired_exact_test([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (noise.ties, noise.p_two_sided, noise.low, noise.high) == (2, 1.0, 0.0, 0.0)


def test_interval_is_of_the_paired_difference():
    base = np.random.default_rng(4).random(100)
    steady = paired_exact_test(list(base + 0.1), list(base))
    assert (steady.low, steady.high) == pytest.approx((0.1, 0.1))  # the spread between questions cancels


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.0, 1.0]) == [0.0, 1.0]
    adjusted = holm([NAN, 0.02, 0.01])
    assert math.isnan(adjusted[0])
    assert adjusted[1:] == [0.02, 0.02]


def test_minimum_detectable():
    assert [minimum_detectable(n) for n in (60, 6, 5)] == [6, 6, None]
    assert [minimum_detectable(60, alpha=alpha) for alpha in (0.01, 2 * 0.5**6)] == [8, 7]  # .03125 is no less


def power_by_counting(size, win, loss, alpha=0.05):
    """Probability of a significant lead, summed over every number of wins and losses."""
    total = 0.0
    for wins in range(size + 1):
        for losses in range(min(wins, size - wins + 1)):
            if 2 * sum(math.comb(wins + losses, k) for k in range(losses + 1)) / 2 ** (wins + losses) < alpha:
                ways = math.comb(size, wins) * math.comb(size - wins, losses)
                total += ways * win**wins * loss**losses * (1 - win - loss) ** (size - wins - losses)
    return total


@pytest.mark.parametrize(
    ("wins", "losses", "n", "alpha"), [(5, 0, 20, 0.05), (8, 2, 20, 0.05), (5, 0, 5, 0.05), (5, 0, 20, 2 * 0.5**6)]
)
def test_questions_needed_is_where_the_power_is_reached(wins, losses, n, alpha):
    needed = questions_needed(wins, losses, n, alpha=alpha)
    assert power_by_counting(needed, wins / n, losses / n, alpha) >= 0.8
    assert power_by_counting(needed - 1, wins / n, losses / n, alpha) < 0.8
    assert questions_needed(losses, wins, n, alpha=alpha) == needed


def test_more_questions_are_needed_for_more_and_no_number_would_always_do():
    assert questions_needed(8, 2, 20, alpha=0.01) > questions_needed(8, 2, 20)
    assert questions_needed(4, 4, 60) is questions_needed(0, 0, 0) is None
    assert questions_needed(101, 100, 1000) is None  # more than a million


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ((12, 3, 45), "A beats B: 12 wins, 3 losses, 45 ties (p = .035)"),
        ((3, 12, 45), "A is worse than B: 3 wins, 12 losses, 45 ties (p = .035)"),
        ((30, 1, 0), "A beats B: 30 wins, 1 loss, 0 ties (p < .001)"),
        (
            (5, 4, 51),
            "no difference shown between A and B: 5 wins, 4 losses, 51 ties (p = 1.0). With 60 questions, only a lead "
            "of at least 6 wins to 0 could have been detected. At these rates, it would take about 4,300 questions to "
            "detect the difference",
        ),
        (
            (1, 1, 1),
            "no difference shown between A and B: 1 win, 1 loss, 1 tie (p = 1.0). With 3 questions, no difference "
            "could have been detected",
        ),
    ],
)
def test_verdicts(outcomes, said):
    a, b = arms(*outcomes)
    assert verdict(paired_exact_test(a, b), a="A", b="B") == said
    missing = paired_exact_test([*a, NAN, NAN], [*b, 1, 0])
    facts, dot, rest = said.partition(". With")
    assert verdict(missing, a="A", b="B") == f"{facts}; omitted 2 unscored questions{dot}{rest}"


def test_verdict_follows_the_corrected_value():
    test = replace(paired_exact_test(*arms(12, 3, 45)), p_two_sided=0.07)
    assert verdict(test, a="A", b="B").startswith("no difference shown between A and B: 12 wins, 3 losses")
    for p, said in ((0.0496, "p = .0496"), (0.05, "p = .0500"), (0.001, "p = .001"), (0.0009, "p < .001")):
        near = verdict(replace(test, p_two_sided=p), a="A", b="B")  # not ".050", which would look like no difference
        assert (f"({said})" in near, near.startswith("A beats B")) == (True, p < 0.05)
        worse = verdict(replace(paired_exact_test(*arms(3, 12, 45)), p_two_sided=p), a="A", b="B")
        assert worse.startswith("A is worse than B") == (p < 0.05)
    enough = replace(paired_exact_test(*arms(30, 5, 25)), p_two_sided=0.2)  # only the correction stands against it
    assert "it would take" not in verdict(enough, a="A", b="B")
    test = replace(paired_exact_test(*arms(7, 0, 33)), p_two_sided=5 * 0.5**6)  # p = .078 after Holm over five
    said = verdict(test, a="A", b="B", tests=5)
    assert "only a lead of at least 8 wins to 0" in said  # 2 * 0.5**8 = .0078 < .01, 2 * 0.5**7 = .0156 is not
    assert "it would take about 57 questions" in said


def test_verdict_on_graded_values_goes_by_the_mean_difference_too():
    test = paired_exact_test([0.5] * 8, [0.25] * 8)
    assert verdict(test, a="A", b="B") == (
        "A beats B: 8 wins, 0 losses, 0 ties (p = .008; mean difference +0.250, from +0.250 to +0.250)"
    )
    for lower in (0.74, 0.625):  # many small wins, and a mean that is worse, or the same
        arms_of_it = [0.75] * 16 + [0.0] * 2, [lower] * 16 + [1.0] * 2
        for pair in (arms_of_it, arms_of_it[::-1]):
            small = paired_exact_test(*pair)
            assert small.p_two_sided < 0.05
            assert verdict(small, a="A", b="B").startswith("no difference shown")
