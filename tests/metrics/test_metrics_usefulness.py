from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.data.types import Label
from querywright.errors import DataError
from querywright.metrics.usefulness import (
    Usefulness,
    decision_useful,
    passage_labels,
    question_label,
    usefulness,
)

E, U, N = Label.ENTAILED, Label.USEFUL, Label.NOT_USEFUL
EVIDENCE = {"e": "ENTAILED", "u": U, "n": "NOT_USEFUL"}


def test_labels_in_order_and_unnamed_passages_do_not_help():
    assert passage_labels(["n", "other", "u", "e", "u"], EVIDENCE) == [N, N, U, E, U]


def test_unknown_label_is_named():
    with pytest.raises(DataError, match="passage 'p' has the label 'entailed'; a label is one of ENTAILED, USEFUL"):
        passage_labels(["p"], {"p": "entailed"})


@pytest.mark.parametrize(
    ("labels", "label"), [([N, U, E], E), ([N, U, N], U), ([N, N], N), ([], N), ([E], E), (["USEFUL"], U)]
)
def test_best_label_is_the_questions(labels, label):
    assert question_label(labels) is label


def test_decision_useful_is_entailed_or_useful():
    assert [decision_useful(label) for label in (E, U, N)] == [1.0, 1.0, 0.0]
    assert decision_useful("NOT_USEFUL") == 0.0  # type: ignore[arg-type]


def test_usefulness_of_what_was_found():
    found = usefulness(["u", "x", "y", "u", "e"], EVIDENCE)
    assert found == Usefulness(E, {E: 0.25, U: 0.25, N: 0.5}, 1.0)
    assert usefulness(["x"], EVIDENCE) == Usefulness(N, {E: 0.0, U: 0.0, N: 1.0}, 0.0)


def test_evidence_that_counts_only_together_is_entailed_when_all_of_it_was_found():
    hops = {"one": E, "two": E, "other": N}
    assert usefulness(["one"], hops).label is E
    found = usefulness(["one", "other"], hops, jointly=True)
    assert found == Usefulness(U, {E: 0.0, U: 0.5, N: 0.5}, 1.0)
    assert usefulness(["two", "x", "one"], hops, jointly=True).label is E
    assert usefulness(["x"], hops, jointly=True).label is N
    assert usefulness(["one"], {"one": E}, jointly=True) == Usefulness(E, {E: 1.0, U: 0.0, N: 0.0}, 1.0)
    assert passage_labels(["two", "x"], hops, jointly=True) == [U, N]


def test_nothing_found_does_not_help():
    found = usefulness([], EVIDENCE)
    assert (found.label, found.score) == (N, 0.0)
    assert all(math.isnan(share) for share in found.shares.values())


def test_without_evidence_it_cannot_be_scored():
    found = usefulness(["e"], {})
    assert found.label is None
    assert math.isnan(found.score)


def test_passages_without_label_are_left_out_and_counted():
    assert Usefulness.of([None, U, N]) == Usefulness(U, {E: 0.0, U: 0.5, N: 0.5}, 1.0, unlabelled=1)
    found = Usefulness.of([None, None])
    assert (found.label, found.unlabelled) == (None, 2)
    assert math.isnan(found.score)


@given(st.lists(st.sampled_from([E, U, N]), min_size=1), st.randoms())
def test_order_does_not_matter(labels, rng):
    shuffled = rng.sample(labels, len(labels))
    assert Usefulness.of(shuffled) == Usefulness.of(labels)
    assert sum(Usefulness.of(labels).shares.values()) == pytest.approx(1.0)


@given(st.lists(st.sampled_from([E, U, N])), st.sampled_from([E, U, N]))
def test_a_further_passage_never_makes_it_worse(labels, further):
    assert decision_useful(question_label([*labels, further])) >= decision_useful(question_label(labels))
