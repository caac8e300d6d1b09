"""Drift: how often it is seen where there is none, and how often where it was planted."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from querywright.errors import OutageError
from querywright.watching import find_drift
from querywright.watching.drift import ALPHA, BEST, DECLINED, FAILED, FAR, FELL_BACK, PASSAGES, distinct, recorded_now
from querywright.watching.measures import LEAST, detectable, far, newcombe, scores, shares

OPTIONS = ("a", "b", "c", "d")


class Source:
    """Draws traffic; what is not said to be different is the same for all sources."""

    def __init__(self, make, *, score=0.6, spread=0.1, fell_back=0.1, declined=0.08, failed=0.03, new=0.0, first=0.25):
        self.make = make
        self.score, self.spread, self.new, self.first = score, spread, new, first
        self.fell_back, self.declined, self.failed = fell_back, declined, failed

    def draw(self, n, seed, vectors):
        rng = random.Random(seed)
        numbers = np.random.default_rng(seed)
        topics = np.random.default_rng(7).normal(size=(12, 24))
        found = []
        for number in range(n):
            question = f"{seed} {number}"
            middle = numbers.normal(size=24) if rng.random() < self.new else topics[rng.randrange(12)]
            vectors[question] = middle + 0.5 * numbers.normal(size=24)
            failed = rng.random() < self.failed
            place = 0 if rng.random() < self.first else rng.randrange(1, 4)
            exchange = self.make(
                number, id=f"{seed}-{number}", question=question, options=OPTIONS,
                passages=("p",) * rng.choice((3, 4, 5, 5, 5)),
                top_scores=(rng.gauss(self.score, self.spread), 0.1),
                answer=None if failed else OPTIONS[place],
                declined=rng.random() < self.declined and not failed,
                fallbacks=("hypothesis",) if rng.random() < self.fell_back else (),
                error="LMTransportError" if failed else None,
            )  # fmt: skip
            found.append(exchange)
        return found


def compared(make, seed, *, n=120, m=90, far=True, **changes):
    """What a comparison shows of traffic from a source that differs so from that of the reference."""
    vectors = {}
    traffic = Source(make, **changes).draw(n, 2 * seed, vectors)
    reference = Source(make).draw(m, 2 * seed + 1, vectors)

    def embed(texts):
        return np.asarray([vectors[text] for text in texts])

    return find_drift(traffic, reference, embed=embed if far else None, seed=seed)


def shown(found):
    return {one.name for one in found.measures if one.p_holm < ALPHA}


@pytest.mark.parametrize(
    ("draws", "most"), [(8, 2), pytest.param(200, 17, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_where_nothing_changed_nothing_is_shown_in_nineteen_of_twenty(exchange, draws, most):
    """All seven measures together: of 200 draws .05 or fewer may show something; 18 of them would be .09."""
    found = [compared(exchange, seed) for seed in range(draws)]
    wrong = [one.sentence for one in found if one.verdict == "drift"]
    assert len(wrong) <= most, wrong
    tested = {one.name for one in found[0].measures if not math.isnan(one.p)}
    assert {BEST, FAR, PASSAGES, FELL_BACK, DECLINED, FAILED} < tested
    assert len(tested) == 7
    by_measure = {name: sum(one.p < ALPHA for f in found for one in f.measures if one.name == name) for name in tested}
    bound = 0.11 * draws + 2
    assert all(count <= bound for name, count in by_measure.items() if not name.startswith("answer")), by_measure


@pytest.mark.parametrize(
    ("change", "name", "least"),
    [
        ({"spread": 0.25}, BEST, 0.9),
        ({"new": 0.3}, FAR, 0.9),
        ({"new": 1.0}, FAR, 0.9),
        ({"fell_back": 0.4}, FELL_BACK, 0.9),
        ({"declined": 0.35}, DECLINED, 0.9),
        ({"failed": 0.3}, FAILED, 0.9),
        ({"first": 0.7}, "answer: option 1", 0.9),
    ],
    ids=["score spread", "new topics", "nothing but new topics", "fallbacks", "declined", "failures", "one option"],
)
def test_what_was_planted_is_found(exchange, change, name, least):
    found = [compared(exchange, 1_000 + seed, **change) for seed in range(2)]
    hits = sum(name in shown(one) for one in found)
    assert hits / len(found) >= least
    assert sum(bool(shown(one) - {name}) for one in found) <= 1
    seen = next(one for one in found if name in shown(one))
    assert seen.verdict == "drift"
    assert name in seen.sentence
    remedy = "look at the LM first" if shown(seen) == {FAILED} else "compile again"
    assert remedy in seen.sentence


@pytest.mark.slow
def test_the_shift_that_is_told_is_found_four_times_in_five(exchange):
    found = compared(exchange, 3, far=False)
    assert found.verdict == "none"
    assert "nothing shown: 120 distinct questions of traffic, 90 of the reference" in found.sentence
    told = float(found.sentence.partition("best score that is ")[2].split()[0])
    assert told == pytest.approx(0.1 * 1.07 * detectable(120, 90, alpha=ALPHA / 6), rel=0.15)
    shift = 0.1 * 1.07 * detectable(120, 90, alpha=ALPHA / 6)
    lower = [compared(exchange, 5_000 + seed, far=False, score=0.6 - shift) for seed in range(100)]
    share = sum(BEST in shown(one) for one in lower) / len(lower)
    assert 0.7 <= share <= 0.9
    seen = next(one for one in lower if shown(one) == {BEST})
    assert "compile again" in seen.sentence


@pytest.mark.parametrize(("n", "m"), [(LEAST - 1, 90), (90, LEAST - 1), (0, 90)])
def test_few_questions_tell_nothing(exchange, n, m):
    found = compared(exchange, 5, n=n, m=m, score=0.1, new=1.0)
    assert found.verdict == "too_few"
    side, count = ("traffic", n) if n < LEAST else ("reference", m)
    assert found.sentence == f"too few distinct questions to tell: the {side} has {count}, and 30 are needed"
    assert all(math.isnan(one.p) for one in found.measures)


def test_a_question_asked_again_counts_once_as_it_went_last(exchange):
    first = exchange(1, declined=True)
    last = exchange(2, question=" What of number 1? ")
    other = exchange(3, question="What of number 1?", options=("x", "y"))
    given_up = exchange(4, question="What of number 1?", error="CancelledError", answer=None)
    assert distinct([first, other, last, given_up]) == [other, last]
    many = [exchange(n, question="one question", top_scores=(0.1,)) for n in range(500)]
    reference = Source(exchange).draw(60, 1, {})
    found = find_drift(many, reference)
    assert (found.verdict, found.requests, found.questions) == ("too_few", 500, 1)


def test_without_answers_of_the_reference_the_reader_is_left_out(exchange):
    traffic = [exchange(n, fallbacks=("reader",), declined=True) for n in range(40)]
    reference = [exchange(n, answer=None) for n in range(40)]
    found = {one.name: one for one in find_drift(traffic, reference).measures}
    assert set(found) == {BEST, PASSAGES, FELL_BACK, FAILED}
    assert found[FELL_BACK].value == 0
    both = {one.name: one for one in find_drift(traffic, [exchange(n) for n in range(40)]).measures}
    assert both[FELL_BACK].value == both[DECLINED].value == 1
    assert both[FELL_BACK].p_holm < 0.001


def test_far_is_what_is_farther_than_the_reference_from_itself():
    """On a circle: reference points one degree apart but for the last two, and among others three far ones."""
    angles = [*range(38), 60, 61.5]
    others = [*np.linspace(0.5, 36.5, 37), 100.0, 200.0, 50.0]

    def embed(texts):
        radians = np.radians([float(text) for text in texts])
        return np.stack([np.cos(radians), np.sin(radians)], axis=1)

    one = far([str(angle) for angle in others], [str(angle) for angle in angles], embed)
    assert (one.reference, one.value) == (2 / 40, 3 / 40)
    assert one.p > 0.2


@pytest.mark.parametrize(("n", "m"), [(60, 60), (30, 90)])
def test_vectors_that_keep_to_themselves_are_all_far(n, m):
    rng = np.random.default_rng(0)
    rows = np.zeros((n + m, 32))
    rows[:n, 16:], rows[n:, :16] = rng.normal(0.5, 1, (n, 16)), rng.normal(0.5, 1, (m, 16))
    one = far([f"t{k}" for k in range(n)], [f"r{k}" for k in range(m)], lambda texts: rows)
    assert (one.value, one.p) == (1.0, 1 / 1_000)


def test_measures_by_hand():
    one = scores("x", [2.0] * 20 + [4.0] * 20, [1.0] * 20 + [3.0] * 20)
    assert (one.value, one.reference, one.difference) == (3.0, 2.0, 1.0)
    welch = stats.ttest_ind([2.0] * 20 + [4.0] * 20, [1.0] * 20 + [3.0] * 20, equal_var=False)
    assert (one.low, one.high) == pytest.approx(tuple(welch.confidence_interval()))
    assert one.effect == pytest.approx((3 * 400 - 400) / 1600)  # of 1,600 pairs three quarters are larger
    yes = shares("y", [True] * 30 + [False] * 70, [True] * 10 + [False] * 90)
    assert yes.p == pytest.approx(stats.fisher_exact([[30, 70], [10, 90]]).pvalue)
    assert yes.effect == pytest.approx(2 * math.asin(math.sqrt(0.3)) - 2 * math.asin(math.sqrt(0.1)))
    assert newcombe(56 / 70, 70, 48 / 80, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)  # Newcombe 1998, table II
    z = NormalDist().inv_cdf
    assert detectable(50, 50, alpha=0.05) == pytest.approx((z(0.975) + z(0.8)) * 0.2)


def test_the_reference_is_asked_as_it_is(exchange):
    from types import SimpleNamespace

    from querywright.data.types import Question

    asked = []

    def ask(question, options):
        asked.append((question, options))
        if question == "bad":
            raise ValueError("no")
        return SimpleNamespace(toDict=lambda: {"answer": "x", "passages": [], "steps": []})

    questions = [Question("1", "good"), Question("2", "bad"), Question("3", "other", ("x", "y"))]
    found = recorded_now(ask, questions, artifact="a", threads=1)
    assert asked == [("good", None), ("bad", None), ("other", ["x", "y"])]
    assert [(one.question, one.answer, one.error, one.artifact) for one in found] == [
        ("good", "x", None, "a"), ("bad", None, "ValueError", "a"), ("other", "x", None, "a"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no"):
        recorded_now(ask, questions[1:2], artifact="a")

    def out(question, options):
        raise OutageError("the LM is away")

    with pytest.raises(OutageError):
        recorded_now(out, questions, artifact="a")
