from __future__ import annotations

import math
from dataclasses import replace

import pytest

from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.diagnosis import MEANING, Flips, Stage, decisions, diagnose
from querywright.optimize.evaluate import Evaluation, Row

GOLD = {"g1": Label.ENTAILED, "g2": Label.USEFUL, "bad": Label.NOT_USEFUL}


def asked(id="q", evidence=None):
    return Question(id, "What?", answer="right", evidence=GOLD if evidence is None else evidence)


def arm(*rows, name="arm"):
    return Evaluation(name, rows, 1.0)


def row(score, *passages, found=(), answer="wrong", id="q", **same):
    return Row(id, {"accuracy": score}, answer=answer, passages=passages, found=found or passages, **same)


def stage(given, question=None, indexed=("g1", "g2", "bad", "x"), **options):
    question = question or asked()
    return diagnose([arm(given)], [question], {"arm": indexed}, **options).arms["arm"][0].stage


def test_each_stage_is_told_from_the_others():
    assert stage(row(1.0)) is Stage.RIGHT
    assert stage(row(0.0, "g1"), indexed=("x", "bad")) is Stage.NOT_INDEXED
    assert stage(row(0.0, "x", "bad")) is Stage.NOT_FOUND
    assert stage(row(0.0, "x", found=("x", "g2"))) is Stage.CUT
    assert stage(row(0.0, "x", "g1")) is Stage.MISREAD
    assert stage(row(math.nan, "g1")) is Stage.UNKNOWN
    assert stage(row(0.0, "g1"), question=asked(evidence={})) is Stage.UNKNOWN
    assert stage(row(0.0, "g1"), question=asked(evidence={"g1": Label.NOT_USEFUL})) is Stage.UNKNOWN
    assert set(MEANING) == set(Stage)


def test_not_used_is_the_answer_that_is_given_without_passages():
    without = arm(row(0.0, answer="Paris"), name="closed book")
    assert stage(row(0.0, "g1", answer="Paris"), closed_book={"arm": without}) is Stage.NOT_USED
    assert stage(row(0.0, "g1", answer="Rome"), closed_book={"arm": without}) is Stage.MISREAD
    picks = Question("q", "What?", ("right", "Paris"), "right", evidence=GOLD)
    for one, other in (("Paris", "B"), ("Paris.", "paris")):
        bare = {"arm": arm(row(0.0, answer=one), name="closed book")}
        assert stage(row(0.0, "g1", answer=other), question=picks, closed_book=bare) is Stage.NOT_USED
    assert stage(row(0.0, "g1", answer="paris."), closed_book={"arm": without}) is Stage.NOT_USED
    failed = arm(Row("q", {"accuracy": math.nan}, failure="lm"), name="closed book")
    assert stage(row(0.0, "g1", answer=None), closed_book={"arm": failed}) is Stage.MISREAD


def test_where_all_the_evidence_is_needed_a_part_of_it_is_not_enough():
    both = replace(asked(), jointly=True)
    assert stage(row(0.0, "g1"), both) is Stage.NOT_FOUND
    assert stage(row(0.0, "g1", found=("g1", "g2")), both) is Stage.CUT
    assert stage(row(0.0, "g2", "g1"), both) is Stage.MISREAD
    assert stage(row(0.0, "g2", "g1"), both, indexed=("g1",)) is Stage.NOT_INDEXED


def test_of_alternatives_one_is_enough():
    question = Question("q", "What?", answer="right", evidence=dict.fromkeys("abc", Label.ENTAILED), jointly=True)
    question, held = replace(question, alternatives=(("a", "b"),)), {"indexed": ("b", "c", "x")}
    assert stage(row(0.0, "b", "c"), question, **held) is Stage.MISREAD
    assert stage(row(0.0, "b", found=("b", "c")), question, **held) is Stage.CUT
    assert stage(row(0.0, "b"), question, **held) is Stage.NOT_FOUND
    assert stage(row(0.0, "b"), question, indexed=("a", "b")) is Stage.NOT_INDEXED


def test_counts_and_what_the_reader_does_without_and_with_the_evidence():
    questions = [asked(f"q{n}") for n in range(3)]
    plain = arm(row(1.0, "g1", id="q0"), row(0.0, "x", id="q1"), row(0.0, "x", id="q2"), name="plain")
    closed = arm(row(0.0, id="q0"), row(1.0, id="q1"), row(math.nan, id="q2"), name="closed book")
    oracle = arm(row(1.0, "g1", id="q0"), row(1.0, id="q1"), row(0.0, "g2", id="q2"), name="oracle")
    found = diagnose([plain], questions, {"plain": GOLD}, closed_book={"plain": closed}, oracle={"plain": oracle})

    assert found.counts("plain") == {Stage.RIGHT: 1, Stage.NOT_FOUND: 2}
    assert [(one.closed_book, one.oracle) for one in found.arms["plain"]] == [
        (False, True),
        (True, None),  # the oracle had no passage for it
        (None, False),
    ]
    assert found.to_json() == {
        "metric": "accuracy",
        "jointly": 0,
        "arms": {"plain": {"right": 1, "not found": 2}},
    }


def test_an_arm_on_other_questions_is_refused():
    with pytest.raises(InputError, match="arm was not evaluated on the same questions"):
        diagnose([arm(row(1.0, id="other"))], [asked()], {"arm": ()})


QUESTIONS = [
    Question("q0", "a?", answer="x", evidence={"g0": Label.ENTAILED}),
    Question("q1", "b?", answer="x", evidence={"g1": Label.USEFUL}),
    Question("q2", "c?", answer="x", evidence={"g2": Label.ENTAILED}),
    Question("q3", "d?", answer="x"),
]
SCORES = {"closed book": (0, 1, 1, 1), "plain": (1, 1, 0, 0), "hyde": (1, 0, 0, math.nan)}
FOUND = {
    "plain": (("g0", "x"), ("y", "g1"), ("z",), ("w",)),
    "hyde": (("g0",), ("x", "y"), ("z", "g2"), ()),
}
LABEL = {
    "plain": (Label.ENTAILED, Label.USEFUL, Label.NOT_USEFUL, None),
    "hyde": (Label.ENTAILED, Label.NOT_USEFUL, Label.ENTAILED, Label.ENTAILED),
}


def decided(name):
    rows = [
        Row(
            f"q{n}",
            {"accuracy": float(score)},
            label=LABEL.get(name, (None,) * 4)[n],
            passages=FOUND.get(name, ((),) * 4)[n],
        )
        for n, score in enumerate(SCORES[name])
    ]
    return Evaluation(name, tuple(rows), 1.0)


def test_answers_turned_accuracy_by_label_and_shares():
    plain, hyde = decisions(
        [decided("plain"), decided("hyde")],
        QUESTIONS,
        baseline=decided("plain"),
        closed_book=dict.fromkeys(("plain", "hyde"), decided("closed book")),
    )

    assert plain.turned == {"closed book": Flips(2, 1, 1, 0, 0)}
    assert hyde.turned == {"closed book": Flips(2, 1, 0, 0, 1), "plain": Flips(1, 0, 1, 1, 1)}
    entailed = hyde.by_label[Label.ENTAILED]
    assert (entailed.n, entailed.unscored, entailed.arm.value, entailed.other.value) == (2, 1, 0.5, 0.5)
    assert math.isnan(hyde.by_label[Label.USEFUL].arm.value)
    assert plain.by_label[Label.USEFUL].arm.value == plain.by_label[Label.USEFUL].other.value == 1.0
    assert plain.passages == 5  # q3 has no labelled evidence
    assert plain.shares == {Label.ENTAILED: 0.2, Label.USEFUL: 0.2, Label.NOT_USEFUL: 0.6}
    told = hyde.to_json()
    assert told["turned"]["plain"]["wrong_to_right"] == 0
    assert told["accuracy_by_label"]["USEFUL"]["arm"]["value"] is None
    assert told["passages"]["shares"]["ENTAILED"] == 0.4
    (plain,) = decisions([decided("plain")], QUESTIONS, baseline=decided("plain"), closed_book={})
    assert (plain.turned, plain.by_label) == ({}, {})
