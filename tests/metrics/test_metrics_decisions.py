from __future__ import annotations

import math

import pytest

from querywright.data.types import Label
from querywright.errors import DataError
from querywright.metrics.decisions import accuracy_by_label, flips, label_shares
from querywright.metrics.statistics import wilson_interval

E, U, N = Label.ENTAILED, Label.USEFUL, Label.NOT_USEFUL
NAN = math.nan


def by_id(values):
    return {f"q{number}": value for number, value in enumerate(values)}


SCORES = by_id([1, 1, 0, 1, 0, 0, NAN, 1])
CLOSED = by_id([1, 0, 0, NAN, 1, 1, 1, 1])
LABELS = by_id([E, E, E, E, N, N, N, None])


def test_accuracy_given_a_label_is_held_against_the_same_questions():
    rows = accuracy_by_label(SCORES, LABELS, CLOSED)
    entailed, useful, useless = rows[E], rows[U], rows[N]
    assert (entailed.n, entailed.unscored) == (3, 1)  # q3 was not scored closed book
    assert (entailed.arm.value, entailed.other.value) == pytest.approx((2 / 3, 1 / 3))
    assert (entailed.arm.low, entailed.arm.high) == wilson_interval(2 / 3, 3)
    assert (useless.n, useless.unscored, useless.arm.value, useless.other.value) == (2, 1, 0.0, 1.0)
    assert (useful.n, useful.unscored, math.isnan(useful.arm.value)) == (0, 0, True)


def test_unknown_labels_are_refused_and_no_passage_has_no_share():
    assert all(math.isnan(value) for value in label_shares({}).shares.values())
    for refused in (lambda: label_shares({"q": ["entailed", N]}), lambda: accuracy_by_label(*[{"q": 1.0}] * 3)):
        with pytest.raises(DataError, match="'q' has the label"):
            refused()


def test_other_questions_and_graded_scores_are_refused():
    for compare in (
        lambda: flips({"a": 1, "b": 0}, {"a": 1, "c": 0}),
        lambda: accuracy_by_label({"a": 1, "b": 0}, {"a": E, "b": N}, {"a": 1, "c": 0}),
        lambda: accuracy_by_label({"a": 1, "b": 0}, {"a": E, "c": N}, {"a": 1, "b": 0}),
    ):
        with pytest.raises(DataError, match=r"only one side names 'b', 'c' \(2 of 3 questions\); compare on the same"):
            compare()
    for count, more in ((3, ""), (9, r", \.\.\.")):
        with pytest.raises(DataError, match=rf"names '0', '1', '2'{more} \({count} of {count} questions\)"):
            flips({str(number): 1.0 for number in range(count)}, {})
    with pytest.raises(DataError, match=r"question 'a' has the score 0\.5; right is 1, wrong 0"):
        flips({"a": 1}, {"a": 0.5})
