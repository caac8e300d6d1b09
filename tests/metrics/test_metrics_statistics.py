from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.metrics.intervals import bootstrap_interval, wilson_interval
from querywright.metrics.statistics import (
    Mean,
    holm,
    mean_with_interval,
    paired_exact_test,
    verdict,
)

NAN = math.nan


def arms(wins, losses, ties):
    """0/1 values of two arms with these outcomes."""
    return [1.0] * wins + [0.0] * losses + [1.0] * ties, [0.0] * wins + [1.0] * losses + [1.0] * ties


def test_mean_leaves_nan_out_and_counts_it():
    mean = mean_with_interval([1, NAN, 0, 1, NAN, 1])
    assert (mean.value, mean.n, mean.unscored) == (0.75, 4, 2)
    assert (mean.low, mean.high) == wilson_interval(0.75, 4)


def test_mean_of_nothing_is_nan():
    for values in ([], [NAN, NAN]):
        mean = mean_with_interval(values)
        assert (mean.n, mean.unscored) == (0, len(values))
        assert math.isnan(mean.value)
        assert math.isnan(mean.low)
        assert math.isnan(mean.high)


@pytest.mark.parametrize(("right", "n"), [(0, 10), (3, 10), (10, 10), (1, 1), (57, 60), (330, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_wilson_agrees_with_scipy(right, n, confidence):
    from scipy.stats import binomtest

    theirs = binomtest(right, n).proportion_ci(confidence_level=confidence, method="wilson")
    mean = mean_with_interval([1.0] * right + [0.0] * (n - right), confidence=confidence)
    assert (mean.low, mean.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_bootstrap_is_seeded_and_near_scipys():
    from scipy.stats import bootstrap

    values = list(np.random.default_rng(3).beta(2, 5, size=80))
    mean = mean_with_interval(values, seed=1)
    assert mean == mean_with_interval(values, seed=1)
    assert mean != mean_with_interval(values, seed=2)
    theirs = bootstrap((values,), np.mean, n_resamples=10_000, method="percentile", rng=5).confidence_interval
    assert (mean.low, mean.high) == pytest.approx((theirs.low, theirs.high), abs=0.005)
    assert mean.low < mean.value < mean.high


def test_bootstrap_of_a_known_distribution():
    # Means of two resampled values from {0, 4} are 0, 2, 4 with probability 1/4, 1/2, 1/4. With one degree of
    # freedom t is tan(pi (q - 1/2)): the lower percentile is Phi(-.325 * 2**.5) = .32 at 0.2, Phi(-.727 * 2**.5) = .15
    # at 0.4.
    assert bootstrap_interval([0.0, 4.0], confidence=0.95) == (0.0, 4.0)
    assert bootstrap_interval([0.0, 4.0], confidence=0.4) == (0.0, 4.0)
    assert bootstrap_interval([0.0, 4.0], confidence=0.2) == (2.0, 2.0)


def f1_like(rng, size):
    """Token F1 as readers get it: a third wrong, a third right, the rest between. Mean 0.475."""
    kind = rng.random(size)
    return np.where(kind < 0.35, 0.0, np.where(kind < 0.65, 1.0, rng.beta(2, 2, size)))


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda rng, size: rng.random(size), 0.5),
        (f1_like, 0.475),
        (lambda rng, size: rng.choice([0, 0.5, 1], p=[0.15, 0.35, 0.5], size=size), 0.675),
        (lambda rng, size: rng.choice([-1, -0.5, 0, 0.5, 1], p=[0.03, 0.07, 0.7, 0.12, 0.08], size=size), 0.075),
    ],
    ids=["uniform", "f1", "recall", "difference"],
)
def test_bootstrap_covers_the_mean_of_twenty_values(draw, mean, monkeypatch):
    # The share of 1,000 intervals has a standard error of 0.7 points. Fewer resamples are enough to count hits.
    monkeypatch.setattr("querywright.metrics.intervals.RESAMPLES", 1_000)
    rng = np.random.default_rng(12)
    intervals = [bootstrap_interval(list(values), seed=seed) for seed, values in enumerate(draw(rng, (1_000, 20)))]
    assert np.mean([low <= mean <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(("n", "off"), [(20, 0.031), (60, 0.02), (200, 0.013)])
def test_wilson_covers_the_share(n, off):
    # Summed over all outcomes, so exact. It swings with the share, less for more questions.
    from scipy.stats import binom

    low, high = np.array([wilson_interval(right / n, n) for right in range(n + 1)]).T
    covered = [
        binom.pmf(np.arange(n + 1), n, share)[(low <= share) & (share <= high)].sum()
        for share in np.linspace(0.1, 0.9, 401)
    ]
    assert covered == pytest.approx([0.95] * 401, abs=off)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.005)


def test_bootstrap_in_blocks_covers_all_resamples():
    values = [0.0, 0.5] * 2_000  # 4,000 values need several blocks
    low, high = bootstrap_interval(values)
    expected = 1.96 * 0.25 / math.sqrt(4_000)
    assert (low, high) == pytest.approx((0.25 - expected, 0.25 + expected), abs=0.0008)


def test_a_single_graded_value_has_no_interval():
    mean = mean_with_interval([0.4])
    assert mean.value == 0.4
    assert math.isnan(mean.low)
    assert mean_with_interval([1.0]) == Mean(1.0, wilson_interval(1.0, 1)[0], 1.0, 1, 0)


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_confidence_is_a_share(confidence):
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, but got"):
        mean_with_interval([1.0], confidence=confidence)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, but got"):
        paired_exact_test([1.0], [0.0], confidence=confidence)


@pytest.mark.parametrize(
    ("wins", "losses", "one_sided"),
    [
        (12, 4, 0.0384063720703125),
        (9, 3, 0.072998046875),
        (0, 0, 1.0),
        (1, 0, 0.5),
        (0, 1, 1.0),
        (6, 0, 1 / 64),
    ],
)
def test_exact_values(wins, losses, one_sided):
    test = paired_exact_test(*arms(wins, losses, 5))
    assert test.p_one_sided == one_sided
    assert (test.wins, test.losses, test.ties, test.n) == (wins, losses, 5, wins + losses + 5)
    assert test.difference == pytest.approx((wins - losses) / test.n)
    assert test.method == "exact binomial"


@given(st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_binomial_agrees_with_scipy(wins, losses):
    from scipy.stats import binomtest

    test = paired_exact_test(*arms(wins, losses, 1))
    if wins + losses == 0:
        assert (test.p_two_sided, test.p_one_sided) == (1.0, 1.0)
    else:
        assert test.p_two_sided == pytest.approx(binomtest(wins, wins + losses).pvalue, rel=1e-9)
        one = binomtest(wins, wins + losses, alternative="greater").pvalue
        assert test.p_one_sided == pytest.approx(one, rel=1e-9)
    turned = paired_exact_test(*reversed(arms(wins, losses, 1)))
    assert (turned.wins, turned.losses, turned.p_two_sided) == (losses, wins, test.p_two_sided)


def test_pairs_without_both_values_are_left_out():
    test = paired_exact_test([1, NAN, 1, 0, NAN], [0, 1, NAN, 0, NAN])
    assert (test.wins, test.losses, test.ties, test.n, test.unscored) == (1, 0, 1, 2, 3)


def test_nothing_to_compare():
    test = paired_exact_test([NAN], [1.0])
    assert (test.n, test.unscored, test.p_two_sided) == (0, 1, 1.0)
    assert math.isnan(test.difference)
    assert verdict(test, a="HyDE", b="plain") == (
        "HyDE and plain cannot be compared: no question was scored for both; 1 question left out as unscored"
    )


def test_lists_must_match():
    with pytest.raises(ValueError, match="have 2 and 1 values"):
        paired_exact_test([1, 0], [1])


def test_graded_values_use_wilcoxon():
    from scipy.stats import wilcoxon

    rng = np.random.default_rng(11)
    a = list(rng.random(30))
    b = list(rng.random(30) * 0.8)
    test = paired_exact_test(a, b)
    assert test.method == "Wilcoxon signed-rank"
    assert test.p_two_sided == pytest.approx(wilcoxon(a, b).pvalue)
    assert test.p_one_sided == pytest.approx(wilcoxon(a, b, alternative="greater").pvalue)
    assert test.wins + test.losses == 30
    assert test.low < test.difference < test.high


def test_wilcoxon_by_hand():
    # Ranks 1 to 4, only the smallest is a loss: rank sums 9 and 1. Two of the 16 sign patterns reach 9.
    test = paired_exact_test([0.1, 0.5, 0.7, 0.9], [0.2, 0.3, 0.4, 0.5])
    assert test.p_one_sided == 2 / 16
    assert test.p_two_sided == 4 / 16


def all_sign_patterns(differences):
    """(two-sided, one-sided) p of the signed-rank test, from all ways to give the ranks a sign."""
    from scipy.stats import rankdata

    given = [value for value in differences if value]
    ranks = rankdata(np.abs(given))
    sums = np.array([np.dot(signs, ranks) for signs in itertools.product([0, 1], repeat=len(ranks))])
    seen = np.dot(np.array(given) > 0, ranks)
    at_least, at_most = np.mean(sums >= seen), np.mean(sums <= seen)
    return min(1.0, 2 * min(at_least, at_most)), at_least


@pytest.mark.parametrize("seed", range(12))
def test_wilcoxon_with_ties_and_zeros_is_exact_for_few_differences(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, 13) / 4, rng.integers(0, 4, 13) / 4
    a[:2], b[:2] = (0.5, 1.0), (0.5, 0.25)
    test = paired_exact_test(list(a), list(b))
    assert test.ties > 0
    assert (test.p_two_sided, test.p_one_sided) == pytest.approx(all_sign_patterns(a - b), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_wilcoxon_of_many_values_is_scipys_with_zeros_dropped(seed):
    from scipy.stats import wilcoxon

    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 9, 200) / 8, rng.integers(0, 8, 200) / 8
    test = paired_exact_test(list(a), list(b))
    assert test.ties > 0
    for p, side in ((test.p_two_sided, "two-sided"), (test.p_one_sided, "greater")):
        assert p == pytest.approx(wilcoxon(a, b, zero_method="wilcox", method="asymptotic", alternative=side).pvalue)


def test_values_that_are_all_equal():
    for value in (0.5, 1.0):
        test = paired_exact_test([value] * 9, [value] * 9)
        assert (test.ties, test.p_two_sided, test.p_one_sided, test.low, test.high) == (9, 1.0, 1.0, 0.0, 0.0)
        assert "no difference shown" in verdict(test, a="A", b="B")


def test_a_single_question():
    test = paired_exact_test([0.75], [0.5])
    assert (test.n, test.p_two_sided, test.p_one_sided, test.difference) == (1, 1.0, 0.5, 0.25)
    assert math.isnan(test.low)
    assert "with 1 question no difference could have been shown" in verdict(test, a="A", b="B")


def test_an_infinite_value_is_refused():
    for compute in (
        lambda: mean_with_interval([1.0, math.inf]),
        lambda: paired_exact_test([1.0], [-math.inf]),
        lambda: paired_exact_test([math.inf], [1.0]),
    ):
        with pytest.raises(ValueError, match="a value is infinite; what cannot be scored is NaN"):
            compute()


def test_ties_do_not_make_few_differences_significant():
    few = paired_exact_test([0.5] * 5 + [0.3] * 60, [0.4] * 5 + [0.3] * 60)
    assert (few.wins, few.ties, few.p_two_sided) == (5, 60, 2 / 2**5)
    enough = paired_exact_test([0.5] * 6 + [0.3] * 60, [0.4] * 6 + [0.3] * 60)
    assert enough.p_two_sided == 2 / 2**6


def test_rounding_noise_is_a_tie():
    test = paired_exact_test([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (test.ties, test.p_two_sided, test.low, test.high) == (2, 1.0, 0.0, 0.0)


def test_no_warning_for_few_or_many_values():
    rng = np.random.default_rng(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 2, 5, 13, 14, 51, 200):
            test = paired_exact_test(list(rng.integers(0, 5, n) / 4), list(rng.integers(0, 5, n) / 4))
            assert 0.0 < test.p_two_sided <= 1.0


def test_interval_is_of_the_paired_difference():
    rng = np.random.default_rng(4)
    base = rng.random(100)
    steady = paired_exact_test(list(base + 0.1), list(base))
    assert (steady.low, steady.high) == pytest.approx((0.1, 0.1))  # the spread between questions cancels
    again = paired_exact_test(list(base + 0.1), list(base))
    assert again == steady


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    adjusted = holm([NAN, 0.02, 0.01])
    assert math.isnan(adjusted[0])
    assert adjusted[1:] == [0.02, 0.02]
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], but got 1.5"):
        holm([0.1, 1.5])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_a_value_or_changes_the_order(p_values):
    adjusted = holm(p_values)
    for before, after in zip(p_values, adjusted, strict=True):
        assert before <= after <= min(1.0, before * len(p_values)) or after == max(adjusted) or before <= after
        assert before <= after <= 1.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [adjusted[index] for index in order] == sorted(adjusted)


def test_verdicts():
    names = {"a": "HCQR compiled", "b": "plain retrieval"}
    assert verdict(paired_exact_test(*arms(12, 3, 45)), **names) == (
        "HCQR compiled beats plain retrieval: 12 wins, 3 losses, 45 ties (p = .035)"
    )
    assert verdict(paired_exact_test(*arms(3, 12, 45)), **names) == (
        "HCQR compiled is worse than plain retrieval: 3 wins, 12 losses, 45 ties (p = .035)"
    )
    assert verdict(paired_exact_test(*arms(5, 4, 51)), **names) == (
        "no difference shown between HCQR compiled and plain retrieval: 5 wins, 4 losses, 51 ties (p = 1.0); "
        "with 60 questions only a lead of at least 6 wins to 0 could have been shown; "
        "at these rates about 4,300 questions could show it"
    )
    assert verdict(paired_exact_test(*arms(1, 1, 1)), **names).endswith(
        "1 win, 1 loss, 1 tie (p = 1.0); with 3 questions no difference could have been shown"
    )


def test_verdict_names_more_questions_only_where_they_would_do():
    def said(test):
        return verdict(test, a="A", b="B")

    assert said(paired_exact_test(*arms(9, 3, 48))).endswith("; at these rates about 170 questions could show it")
    assert said(paired_exact_test(*arms(3, 9, 48))).endswith("; at these rates about 170 questions could show it")
    enough = replace(paired_exact_test(*arms(30, 5, 25)), p_two_sided=0.2)  # only the correction stands against it
    for silent in (
        paired_exact_test(*arms(4, 4, 52)),
        paired_exact_test(*arms(0, 0, 60)),
        paired_exact_test([0.5, 0.5], [0.25, 0.5]),  # graded values: wins and losses do not tell it
        enough,
    ):
        assert "could show it" not in said(silent)


def test_verdict_says_what_was_left_out_and_prints_small_values():
    a, b = arms(30, 1, 0)
    assert verdict(paired_exact_test([*a, NAN, NAN], [*b, 1, 0]), a="A", b="B") == (
        "A beats B: 30 wins, 1 loss, 0 ties (p < .001); 2 questions left out as unscored"
    )


def test_verdict_follows_the_corrected_value():
    test = replace(paired_exact_test(*arms(12, 3, 45)), p_two_sided=0.07)
    assert verdict(test, a="A", b="B").startswith("no difference shown between A and B: 12 wins, 3 losses")
    near = replace(test, p_two_sided=0.0496)
    assert "(p = .0496)" in verdict(near, a="A", b="B")  # not ".050", which would look like no difference


def test_what_could_have_been_shown_is_told_for_all_tests_that_are_corrected_together():
    test = replace(paired_exact_test(*arms(7, 0, 33)), p_two_sided=5 * 0.5**6)  # p = .078 after Holm over five
    said = verdict(test, a="A", b="B", tests=5)
    assert "only a lead of at least 8 wins to 0" in said  # 2 * 0.5**8 = .0078 < .01, 2 * 0.5**7 = .0156 is not
    assert "at these rates about 57 questions" in said
    assert "at least 6 wins to 0" in verdict(test, a="A", b="B")


def test_verdict_on_graded_values_gives_the_mean_difference():
    test = paired_exact_test([0.5] * 8, [0.25] * 8)
    assert verdict(test, a="A", b="B") == (
        "A beats B: 8 wins, 0 losses, 0 ties (p = .008; mean difference +0.250, from +0.250 to +0.250)"
    )


def test_many_small_wins_do_not_beat_a_worse_mean():
    a = [0.6] * 20 + [0.0] * 2
    b = [0.59] * 20 + [1.0] * 2
    test = paired_exact_test(a, b)
    assert test.difference < 0
    assert test.p_two_sided < 0.05
    assert verdict(test, a="A", b="B").startswith("no difference shown")
