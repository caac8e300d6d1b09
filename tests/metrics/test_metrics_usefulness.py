from __future__ import annotations

import math

import pytest

from querywright.data.types import Label
from querywright.errors import DataError
from querywright.metrics.usefulness import Usefulness, passage_labels, usefulness

E, U, N = Label.ENTAILED, Label.USEFUL, Label.NOT_USEFUL
EVIDENCE = {"e": "ENTAILED", "u": U, "n": "NOT_USEFUL"}


def test_labels_in_order_and_unnamed_passages_do_not_help():
    assert passage_labels(["n", "other", "u", "e", "u"], EVIDENCE) == [N, N, U, E, U]
    with pytest.raises(DataError, match="label of 'p' must be one of ENTAILED, USEFUL, NOT_USEFUL, but got 'entailed'"):
        passage_labels(["p"], {"p": "entailed"})


def test_usefulness_of_what_was_found():
    found = usefulness(["u", "x", "y", "u", "e"], EVIDENCE)
    assert found == Usefulness(E, 1.0)
    assert usefulness(["x"], EVIDENCE) == Usefulness(N, 0.0)
    nothing, unscored = usefulness([], EVIDENCE), usefulness(["e"], {})
    assert (nothing.label, nothing.score) == (N, 0.0)
    assert (unscored.label, math.isnan(unscored.score)) == (None, True)


def test_an_unjudged_passage_of_a_pool_is_counted_and_may_help():
    assert passage_labels(["u", "x"], EVIDENCE, pooled=True) == [U, None]
    assert usefulness(["u", "x"], EVIDENCE, pooled=True) == Usefulness(U, 1.0, 1)
    open_ended = usefulness(["n", "x", "x"], EVIDENCE, pooled=True)
    assert (open_ended.label, math.isnan(open_ended.score), open_ended.unjudged) == (None, True, 1)
    assert usefulness(["n"], EVIDENCE, pooled=True).score == 0.0


def test_evidence_that_counts_only_together_is_entailed_when_all_of_it_was_found():
    hops = {"one": E, "two": E, "other": N}
    assert usefulness(["one"], hops).label is E
    assert usefulness(["one", "other"], hops, jointly=True) == Usefulness(U, 1.0)
    assert usefulness(["two", "x", "one"], hops, jointly=True).label is E
    assert usefulness(["x"], hops, jointly=True).label is N
    assert usefulness(["one"], {"one": E}, jointly=True) == Usefulness(E, 1.0)
    assert passage_labels(["two", "x"], hops, jointly=True) == [U, N]


def test_alternatives_count_as_one_passage_of_those_that_it_takes_together():
    hops, either = {"a": E, "b": E, "c": E}, [["a", "b"]]
    for ids, label in ((["a"], U), (["a", "b"], U), (["b", "c"], E), (["x"], N)):
        assert usefulness(ids, hops, jointly=True, alternatives=either).label is label
    assert passage_labels(["a", "c"], hops, jointly=True, alternatives=either) == [U, U]
    assert passage_labels(["a", "b"], {"a": E, "b": E}, jointly=True, alternatives=either) == [E, E]
    assert usefulness(["b", "c"], {**hops, "b": N}, jointly=True, alternatives=either).label is U
