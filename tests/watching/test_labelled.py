"""Traffic and labels become questions; what contradicts itself is named and left out."""

from __future__ import annotations

import json
import stat

import dspy
import pytest

from querywright.data import read_questions
from querywright.data.types import Label
from querywright.errors import DataError, InputError
from querywright.optimize.artifacts.watchers import exchange_of
from querywright.watching import labelled_questions, write_questions


@pytest.fixture
def labelled(tmp_path, exchange):
    """Labels of exchanges, each given as a number and what is different in it."""

    def call(labels, *exchanges, name="labels.jsonl"):
        traffic = [exchange(number, id=f"e{number}", **changes) for number, changes in exchanges]
        path = tmp_path / name
        path.write_text("".join(json.dumps(label) + "\n" for label in labels), "utf-8")
        return labelled_questions(traffic, path)

    return call


def test_each_kind_of_label(labelled, tmp_path):
    found = labelled(
        [
            {"id": "e3", "evidence": {"p9": "useful", "p8": "NOT_USEFUL"}},
            {"id": "e1", "answer": "b", "evidence": ["p1"]},
            {"id": "e2", "feedback": "up"},
            {"id": "e4", "answer": "12 weeks", "feedback": "down"},
        ],
        (1, {}), (2, {"answer": "Aspirin"}), (3, {"answer": None}), (4, {"options": (), "answer": "6 weeks"}),
    )  # fmt: skip
    asked = {one.question: one for one in found.questions}
    assert [*asked] == [f"What of number {n}?" for n in (1, 2, 3, 4)]
    first, second, third, fourth = asked.values()
    assert (first.answer, dict(first.evidence)) == ("Aspirin", {"p1": Label.ENTAILED})  # b is the second option
    assert (second.answer, dict(second.evidence)) == ("Aspirin", {})
    assert (third.answer, third.evidence["p9"]) == (None, Label.USEFUL)
    assert (fourth.options, fourth.answer, fourth.aliases) == ((), "12 weeks", ())
    assert (found.labels, found.merged, found.left_out) == (4, 0, ())

    path = tmp_path / "questions.jsonl"
    write_questions(path, found.questions)
    assert read_questions(path) == list(found.questions)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(path.read_text() * 2)
    assert read_questions(path) == list(found.questions)
    with pytest.raises(InputError, match="No such file"):
        write_questions(tmp_path / "missing" / "q.jsonl", found.questions)


def test_labels_of_one_question_are_one(labelled):
    same = {"question": "How long?", "options": ()}
    found = labelled(
        [
            {"id": "e1", "feedback": "up"},
            {"id": "e2", "answer": "a dozen weeks", "evidence": ["p1"]},
            {"id": "e3", "feedback": "yes", "evidence": ["p2"]},
            {"id": "e4", "feedback": "down"},
        ],
        (1, same | {"answer": "12 weeks"}), (2, same | {"question": " How long? "}), (3, same | {"answer": "12 Weeks"}),
        (4, same | {"answer": "6 weeks"}),
    )  # fmt: skip
    (one,) = found.questions
    assert (one.answer, one.aliases) == ("12 weeks", ("a dozen weeks",))
    assert set(one.evidence) == {"p1", "p2"}
    assert (found.labels, found.merged, found.left_out) == (4, 3, ())


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([{"id": "e1", "answer": "Aspirin"}, {"id": "e2", "answer": "A"}], "the right answer is 'Aspirin' (e1) and"),
        ([{"id": "e1", "feedback": "up"}, {"id": "e2", "feedback": "down"}], "'Heparin' is right (e1) and wrong (e2)"),
        ([{"id": "e1", "evidence": {"p": "USEFUL"}}, {"id": "e2", "evidence": ["p"]}], "the passage 'p' is USEFUL"),
        ([{"id": "e1", "feedback": "down"}], "nothing but a wrong answer is known"),
    ],
    ids=["two answers", "right and wrong", "two labels", "only wrong"],
)
def test_what_contradicts_itself_is_named_and_left_out(labelled, labels, told):
    found = labelled(
        [*labels, {"id": "e3", "feedback": "up"}], (1, {"question": "Q?"}), (2, {"question": "Q?"}), (3, {})
    )
    assert [one.question for one in found.questions] == ["What of number 3?"]
    (line,) = found.left_out
    assert line.startswith("'Q?': ")
    assert told in line


def test_wrong_labels_are_all_named(labelled, tmp_path):
    with pytest.raises(DataError) as wrong:
        labelled(
            [
                {"id": "e1", "feedback": "maybe"},
                {"answer": "x"},
                {"id": "e1", "answer": "Warfarin"},
                {"id": "e1"},
                {"id": "e1", "evidence": {"p": "GREAT"}},
            ],
            (1, {}),
        )
    assert [problem.split(",")[0] for problem in wrong.value.problems] == [
        f"labels.jsonl line {n}" for n in range(1, 6)
    ]
    with pytest.raises(DataError, match=r"none\.csv"):
        labelled_questions([], tmp_path / "none.csv")
    (tmp_path / "labels.txt").write_text("x")
    with pytest.raises(DataError, match="one label a row"):
        labelled_questions([], tmp_path / "labels.txt")


def test_an_answer_is_one_of_the_options_whatever_space_was_around_them(tmp_path):
    given = {"at": "2026-03-04T05:06:07+00:00", "artifact": "a", "question": "Which?", "options": [" A one ", "B"]}
    traffic = [exchange_of(dspy.Prediction(answer="A one"), **given) for _ in range(40)]
    labels = tmp_path / "labels.jsonl"
    labels.write_text(json.dumps({"id": traffic[0].id, "feedback": "up"}))
    (question,) = labelled_questions(traffic, labels).questions
    assert (question.answer, question.options) == ("A one", ("A one", "B"))
