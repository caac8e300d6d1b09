from __future__ import annotations

import math

from querywright.data.types import Label, Question
from querywright.metrics.decisions import Flips
from querywright.optimize.decisions import decisions
from querywright.optimize.evaluate import Evaluation, Row

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
    "hyde": (Label.ENTAILED, Label.NOT_USEFUL, Label.ENTAILED, None),
}


def arm(name):
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
        [arm("plain"), arm("hyde")],
        QUESTIONS,
        baseline=arm("plain"),
        closed_book=dict.fromkeys(("plain", "hyde"), arm("closed book")),
    )

    assert plain.turned == {"closed book": Flips(2, 1, 1, 0, 0)}
    assert hyde.turned == {"closed book": Flips(2, 1, 0, 0, 1), "plain": Flips(1, 0, 1, 1, 1)}
    entailed = hyde.by_label[Label.ENTAILED]
    assert (entailed.n, entailed.arm.value, entailed.other.value) == (2, 0.5, 0.5)
    assert math.isnan(hyde.by_label[Label.USEFUL].arm.value)
    assert plain.by_label[Label.USEFUL].arm.value == plain.by_label[Label.USEFUL].other.value == 1.0
    assert (plain.shares.n, plain.shares.questions) == (5, 3)  # q3 has no labelled evidence
    assert plain.shares.shares == {Label.ENTAILED: 0.2, Label.USEFUL: 0.2, Label.NOT_USEFUL: 0.6}
    told = hyde.to_json()
    assert told["turned"]["plain"]["wrong_to_right"] == 0
    assert told["accuracy_by_label"]["USEFUL"]["arm"]["value"] is None
    assert told["passages"]["shares"]["ENTAILED"] == 0.4


def test_without_closed_book_there_is_no_accuracy_by_label():
    (plain,) = decisions([arm("plain")], QUESTIONS, baseline=arm("plain"), closed_book={})
    assert (plain.turned, plain.by_label) == ({}, {})
