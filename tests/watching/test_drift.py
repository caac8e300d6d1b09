"""Drift: how often it is seen where there is none, and how often where it was planted."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from querywright.watching import find_drift
from querywright.watching.drift import (
    ALPHA,
    BEST,
    DECLINED,
    FAILED,
    FAR,
    FELL_BACK,
    LEAST,
    PASSAGES,
    distinct,
    far,
    newcombe,
    scores,
    shares,
)

OPTIONS = ("a", "b", "c", "d")
TOPICS = np.random.default_rng(7).normal(size=(12, 24))


def draw(make, n, seed, vectors, *, score=0.6, spread=0.1, fell_back=0.1, declined=0.08, failed=0.03, new=0.0):
    """Traffic; what is not said to be different is the same for all."""
    rng, numbers, found = random.Random(seed), np.random.default_rng(seed), []
    for number in range(n):
        question = f"{seed} {number}"
        middle = numbers.normal(size=24) if rng.random() < new else TOPICS[rng.randrange(12)]
        vectors[question] = middle + 0.5 * numbers.normal(size=24)
        fails = rng.random() < failed
        found.append(
            make(
                number, id=f"{seed}-{number}", question=question, options=OPTIONS,
                passages=("p",) * rng.choice((3, 4, 5, 5, 5)),
                top_scores=(rng.gauss(score, spread), 0.1),
                answer=None if fails else rng.choice(OPTIONS),
                declined=rng.random() < declined and not fails,
                fallbacks=("hypothesis",) if rng.random() < fell_back else (),
                error="LMTransportError" if fails else None,
            )
        )  # fmt: skip
    return found


def compared(make, seed, *, n=120, m=90, far=True, **changes):
    """What a comparison shows of traffic from a source that differs so from that of the reference."""
    vectors = {}
    traffic, reference = draw(make, n, 2 * seed, vectors, **changes), draw(make, m, 2 * seed + 1, vectors)

    def embed(texts):
        return np.asarray([vectors[text] for text in texts])

    return find_drift(traffic, reference, embed=embed if far else None, seed=seed)


def shown(found):
    return {one.name for one in found.measures if one.p_holm < ALPHA}


@pytest.mark.parametrize(
    ("draws", "most"), [(8, 2), pytest.param(200, 17, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_where_nothing_changed_nothing_is_shown_in_nineteen_of_twenty(exchange, draws, most):
    """All six measures together: of 200 draws .05 or fewer may show something; 18 of them would be .09."""
    found = [compared(exchange, seed) for seed in range(draws)]
    wrong = [one.sentence for one in found if one.verdict == "drift"]
    assert len(wrong) <= most, wrong
    tested = {one.name for one in found[0].measures if not math.isnan(one.p)}
    assert tested == {BEST, FAR, PASSAGES, FELL_BACK, DECLINED, FAILED}
    by_measure = {name: sum(one.p < ALPHA for f in found for one in f.measures if one.name == name) for name in tested}
    bound = 0.11 * draws + 2
    assert all(count <= bound for count in by_measure.values()), by_measure


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"spread": 0.25}, BEST),
        ({"new": 0.3}, FAR),
        ({"fell_back": 0.4}, FELL_BACK),
        ({"declined": 0.35}, DECLINED),
        ({"failed": 0.3}, FAILED),
    ],
)
def test_what_was_planted_is_found(exchange, change, name):
    for seed in (1_000, 1_001):
        found = compared(exchange, seed, **change)
        assert found.verdict == "drift"
        assert name in shown(found)
        assert name in found.sentence
        assert ("look at the LM first" if shown(found) == {FAILED} else "compile again") in found.sentence


@pytest.mark.parametrize(("n", "m"), [(LEAST - 1, 90), (90, LEAST - 1), (0, 90)])
def test_few_questions_tell_nothing(exchange, n, m):
    found = compared(exchange, 5, n=n, m=m, score=0.1, new=1.0)
    side, count = ("traffic", n) if n < LEAST else ("reference", m)
    assert found.sentence == f"too few distinct questions to tell: the {side} has {count}, and 30 are needed"
    assert found.verdict == "too_few"
    assert all(math.isnan(one.p) for one in found.measures)


def test_a_question_asked_again_counts_once_as_it_went_last(exchange):
    first, last = exchange(1, declined=True), exchange(2, question=" What of number 1? ")
    other = exchange(3, question="What of number 1?", options=("x", "y"))
    given_up = exchange(4, question="What of number 1?", error="CancelledError", answer=None)
    assert distinct([first, other, last, given_up]) == [other, last]
    many = [exchange(n, question="one question", top_scores=(0.1,)) for n in range(500)]
    found = find_drift(many, draw(exchange, 60, 1, {}))
    assert (found.verdict, found.requests, found.questions) == ("too_few", 500, 1)


def test_without_answers_of_the_reference_the_reader_is_left_out(exchange):
    traffic = [exchange(n, fallbacks=("reader",), declined=True) for n in range(40)]
    found = {one.name: one for one in find_drift(traffic, [exchange(n, answer=None) for n in range(40)]).measures}
    assert set(found) == {BEST, PASSAGES, FELL_BACK, FAILED}
    assert found[FELL_BACK].value == 0
    both = {one.name: one for one in find_drift(traffic, [exchange(n) for n in range(40)]).measures}
    assert both[FELL_BACK].value == both[DECLINED].value == 1
    assert both[FELL_BACK].p_holm < 0.001


def test_far_is_what_is_farther_than_the_reference_from_itself():
    """On a circle: reference points one degree apart but for the last two, and among others three far ones."""
    angles, others = [*range(38), 60, 61.5], [*np.linspace(0.5, 36.5, 37), 100.0, 200.0, 50.0]

    def embed(texts):
        radians = np.radians([float(text) for text in texts])
        return np.stack([np.cos(radians), np.sin(radians)], axis=1)

    one = far([str(angle) for angle in others], [str(angle) for angle in angles], embed)
    assert (one.reference, one.value) == (2 / 40, 3 / 40)
    assert one.p > 0.2
    n, m, rng = 30, 90, np.random.default_rng(0)  # vectors that keep to themselves are all far
    rows = np.zeros((n + m, 32))
    rows[:n, 16:], rows[n:, :16] = rng.normal(0.5, 1, (n, 16)), rng.normal(0.5, 1, (m, 16))
    one = far([f"t{k}" for k in range(n)], [f"r{k}" for k in range(m)], lambda texts: rows)
    assert (one.value, one.p) == (1.0, 1 / 1_000)


def test_measures_by_hand():
    high, low = [2.0] * 20 + [4.0] * 20, [1.0] * 20 + [3.0] * 20
    one = scores("x", high, low)
    assert (one.value, one.reference, one.difference) == (3.0, 2.0, 1.0)
    welch = stats.ttest_ind(high, low, equal_var=False)
    assert (one.low, one.high) == pytest.approx(tuple(welch.confidence_interval()))
    yes = shares("y", [True] * 30 + [False] * 70, [True] * 10 + [False] * 90)
    assert yes.p == pytest.approx(stats.fisher_exact([[30, 70], [10, 90]]).pvalue)
    assert newcombe(56 / 70, 70, 48 / 80, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)  # Newcombe 1998, table II
