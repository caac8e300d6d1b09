from __future__ import annotations

import json

import pytest

from querywright.data.judged import judged_hash, read_judged
from querywright.errors import DataError

LABELS = {"ENTAILED": "ENTAILED", "NOT_USEFUL": "NOT_USEFUL", "1": "NOT_USEFUL", "4": "ENTAILED", "TRUE": "ENTAILED"}


@pytest.fixture
def file(tmp_path):
    def write(*rows, name="cases.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def row(**changes):
    return {"question": "What helps?", "passage": "Sugar helps.", "label": "ENTAILED", **changes}


def problem(source, match, **options):
    with pytest.raises(DataError, match=match):
        read_judged(source, LABELS, **options)


def test_a_file(file):
    path = file(
        row(id="q1", options=["sugar", "salt"], answer="B"),
        row(id="q1", passage="Salt does not.", label="not useful"),
        row(question="Who?", label=4),
        row(question="Who?", passage="Nobody.", label=True),
    )
    one, two, three, four = read_judged(path, LABELS)
    assert (one.case.question.id, one.case.question.options, one.case.question.answer) == (
        "q1",
        ("sugar", "salt"),
        "salt",
    )
    assert [p.text for p in two.case.passages] == ["Salt does not."]
    assert [x.label for x in (one, two, three, four)] == ["ENTAILED", "NOT_USEFUL", "ENTAILED", "ENTAILED"]
    assert three.case.question.id == four.case.question.id != "q1"
    assert three.case.response is None


def test_a_folder(file, tmp_path):
    file({"id": "p1", "text": "Sugar helps."}, {"id": "p2", "title": "T", "text": "Salt."}, name="d/corpus.jsonl")
    file(
        {"id": "q1", "question": "What helps?", "message": "long", "judged": {"p1": 4, "p2": 1}},
        {"question": "Who?", "passage": "p2", "label": False},
        name="d/questions.jsonl",
    )
    found = read_judged(tmp_path / "d", {**LABELS, "FALSE": "NOT_USEFUL"})
    assert [(one.case.question.question, one.case.passages[0].id, one.label) for one in found] == [
        ("What helps?", "p1", "ENTAILED"),
        ("What helps?", "p2", "NOT_USEFUL"),
        ("Who?", "p2", "NOT_USEFUL"),
    ]
    assert found[1].case.passages[0].content == "T\nSalt."


def test_other_parts_and_columns(file):
    path = file({"q": "What?", "ctx": ["One.", "Two."], "said": "This.", "ok": "TRUE"})
    (one,) = read_judged(
        path,
        LABELS,
        needs=("passages", "response"),
        columns={"question": "q", "passages": "ctx", "response": "said", "label": "ok"},
    )
    assert ([p.text for p in one.case.passages], one.case.response) == (["One.", "Two."], "This.")
    assert read_judged(file(row(point="A point.", response="R.")), LABELS, needs=("response", "point"))[0].case.point


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"label": "PERFECT"}, r"line 1, column \"label\": found 'PERFECT'; expected a label: ENTAILED, NOT_USEFUL, 1"),
        ({"label": 5}, "found 5; expected a label"),
        ({"label": 2.5}, "found 2.5; expected a label"),
        ({"label": None}, "label"),
        ({"passage": ""}, "passage"),
        ({"passage": None}, "passage"),
        ({"passage": 7}, "found 7; expected non-empty text"),
        ({"question": None}, "question"),
    ],
)
def test_bad_rows_are_named(file, change, match):
    problem(file(row(**change)), match)


def test_every_bad_row_is_named_at_once(file):
    with pytest.raises(DataError) as caught:
        read_judged(file(row(label="X"), row(), row(passage=3)), LABELS)
    assert [("line 1" in p, "line 3" in p) for p in caught.value.problems] == [(True, False), (False, True)]


def test_an_empty_file_a_missing_one_and_parts_that_lack(file, tmp_path):
    problem(file(), "found no rows")
    problem(tmp_path / "none.jsonl", "no such file")
    problem(file(row()), "response", needs=("response",))
    problem(file(row(passages="One.")), "a list of texts", needs=("passages",))
    problem(file(row(passages=[])), "a list of texts", needs=("passages",))
    problem(file(row()), "columns: unknown name", columns={"x": "y"})
    problem(file(row()), "limit must be 1 or more", limit=0)


def test_a_folder_with_a_passage_that_is_not_there(file, tmp_path):
    file({"id": "p1", "text": "Sugar helps."}, name="d/corpus.jsonl")
    file({"question": "What?", "judged": {"p9": 4}}, name="d/questions.jsonl")
    problem(tmp_path / "d", "found 'p9'; expected the id of a passage of the folder")
    file({"question": "What?", "judged": ["p1"]}, name="d/questions.jsonl")
    problem(tmp_path / "d", "an object of passage id and label")
    file({"question": "What?", "passage": "p8", "label": "4"}, name="d/questions.jsonl")
    problem(tmp_path / "d", "found 'p8'; expected the id of a passage of the folder")


def rows(n=6, m=10):
    return [
        row(question=f"Question {q}?", passage=f"Passage {p} of {q}.", label=["1", "4"][p % 2])
        for q in range(n)
        for p in range(m)
    ]


def test_a_sample_is_stable_and_blind_to_the_labels(file):
    path = file(*rows())
    small, larger = (read_judged(path, LABELS, limit=4, per_question=k) for k in (2, 5))
    assert [one.case.question.question for one in small] == [f"Question {q}?" for q in range(4) for _ in range(2)]
    assert {one.digest() for one in small} <= {one.digest() for one in larger}
    backwards = read_judged(file(*rows()[::-1], name="back.jsonl"), LABELS, per_question=2)
    assert {one.digest() for one in small} <= {one.digest() for one in backwards}
    turned = [{**one, "label": {"1": "4", "4": "1"}[one["label"]]} for one in rows()]
    other = read_judged(file(*turned, name="turned.jsonl"), LABELS, limit=4, per_question=2)
    assert [one.case for one in other] == [one.case for one in small]
    assert len(read_judged(path, LABELS)) == 60


def test_the_hash_is_of_everything_and_of_no_order(file):
    found = read_judged(file(*rows()), LABELS)
    assert judged_hash(found) == judged_hash(found[::-1]) != judged_hash(found[1:])
    turned = [{**one, "label": "4"} for one in rows()]
    assert judged_hash(read_judged(file(*turned), LABELS)) != judged_hash(found)
