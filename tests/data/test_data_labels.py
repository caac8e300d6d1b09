"""Labels of passages: files that people correct, and what becomes of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pandas
import pytest

from querywright.data import Label, Question, read_questions
from querywright.data.labels import PassageLabel, assessors_of, read_labels, with_labels, write_labels
from querywright.data.reading import check_labels
from querywright.errors import DataError

JUDGE = "usefulness:openai/m"
GIVEN = [
    PassageLabel(
        question="Which, \"a\"\nor b?", options=("a", "b, or c"), answer="a", title="T", text="Line.\nLine, too.",
        label=Label.USEFUL, judged=Label.USEFUL, by=JUDGE, reason="it, says", question_id="q1", passage_id="p1",
    ),
    PassageLabel(label=Label.NOT_USEFUL, by="person", question_id="q1", passage_id="p2"),
    PassageLabel(question_id="q2", passage_id="p 3"),
]  # fmt: skip


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_columns_that_people_added_stay(tmp_path, ending):
    noted = replace(GIVEN[1], further={"seen by": "Ann"})
    write_labels(tmp_path / f"labels.{ending}", [noted, GIVEN[0]])
    found = read_labels(tmp_path / f"labels.{ending}")
    assert found[0] == noted
    assert replace(found[1], further={}) == GIVEN[0]


def test_where_a_person_decides_judges_may_disagree_in_any_order():
    said = [("USEFUL", "a:m"), ("NOT_USEFUL", "b:m"), ("ENTAILED", "person"), (None, "")]
    rows = [{"question_id": "q", "passage_id": "p", "label": label, "by": by} for label, by in said]
    for given in itertools.permutations(rows):
        assert [(one.label, one.by) for one in read_labels(given)] == [(Label.ENTAILED, "person")]
    with pytest.raises(
        DataError, match=r"row 3, column .* found .*'NOT_USEFUL'.*; expected USEFUL, the label in row 1"
    ):
        read_labels([rows[0], rows[0], rows[1], rows[3]])


def test_a_label_that_was_changed_is_a_persons_and_goes_before_a_judges():
    rows = [
        {"question_id": "q", "passage_id": "p", "label": "useful", "judged": "NOT_USEFUL", "by": JUDGE},
        {"question_id": "q", "passage_id": "p", "label": "NOT_USEFUL", "judged": "NOT_USEFUL", "by": JUDGE},
        {"question_id": "q", "passage_id": "r", "label": 2},
        {"question_id": "q", "passage_id": "s", "label": None, "judged": "USEFUL", "by": JUDGE},
    ]
    for given in (rows, rows[::-1], pandas.DataFrame(rows)):
        found = {one.passage_id: (one.label, one.by) for one in read_labels(given)}
        assert found["p"] == (Label.USEFUL, "person")
        assert found["r"] == (Label.ENTAILED, "person")
        assert found["s"][0] is None
    asked = [
        Question("q", "?", evidence={"p": Label.ENTAILED, "own": Label.USEFUL}),
        Question("other", "?", evidence={"x": Label.USEFUL}),
    ]
    first, other = with_labels(asked, read_labels(rows[1:3]))
    assert first.evidence == {"p": Label.ENTAILED, "own": Label.USEFUL, "r": Label.ENTAILED}
    assert with_labels(asked, read_labels(rows))[0].evidence["p"] is Label.USEFUL
    assert other == asked[1]
    judged = with_labels([Question("q", "?")], read_labels(rows[1:]))
    assert assessors_of(judged) == {JUDGE: 1, "person": 1}
    assert assessors_of(asked) == {}


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([{"question_id": "q", "passage_id": "p", "label": "GOOD"}], ['column "label"', "'GOOD'", "grades 0, 1, 2"]),
        ([{"question_id": "q", "label": 1}], ["no column for 'passage_id'", "passage_id or corpus-id"]),
        (
            [{"question_id": "q", "passage_id": "p", "label": n, "by": "person"} for n in (1, 0)],
            ["row 2", "NOT_USEFUL", "USEFUL, the label in row 1; remove one"],
        ),
    ],
)
def test_labels_that_are_refused(rows, parts):
    with pytest.raises(DataError) as caught:
        read_labels(rows)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_labels_become_evidence_and_those_of_something_else_are_refused(tmp_path):
    questions = [{"id": "q1", "question": "Which?"}, {"id": "q2", "question": "What?"}]
    path = tmp_path / "labels.jsonl"
    write_labels(path, GIVEN)
    first, second = read_questions(questions, labels=path)
    assert first.evidence == {"p1": Label.USEFUL, "p2": Label.NOT_USEFUL}
    assert first.assessors == {"p1": (JUDGE,), "p2": ("person",)}
    assert (second.evidence, second.assessors) == ({}, {})
    check_labels([first, second], {"p1", "p2"})
    check_labels([first, second], {"p1"})
    with pytest.raises(DataError, match=r"a different collection.*\n.*'q1' .*: labeled passages .*'p2'.*2 of 2"):
        check_labels([first, second], {"p3"})
    path.write_text(json.dumps({"question_id": "zz", "passage_id": "p", "label": "USEFUL"}))
    with pytest.raises(DataError, match=r"different questions: .* \['zz'\] is in the data \(questions: 2\)"):
        read_questions(questions, labels=path)
    write_labels(path, [replace(one, label=None, judged=None, by="") for one in GIVEN])
    with pytest.raises(DataError, match=r"all 3 labels in .*labels.jsonl are empty; fill in the column 'label' with"):
        read_questions(questions, labels=path)
