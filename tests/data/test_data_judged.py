"""Cases that people judged: read, refused and sampled."""

from __future__ import annotations

import functools

import pytest

from querywright.data.judged import judged_hash, read_judged

LABELS = {"ENTAILED": "ENTAILED", "NOT_USEFUL": "NOT_USEFUL", "1": "NOT_USEFUL", "4": "ENTAILED", "TRUE": "ENTAILED"}
ROW = {"question": "What helps?", "passage": "Sugar helps.", "label": "ENTAILED"}
read = functools.partial(read_judged, labels=LABELS)


def test_a_file(write):
    one, two, three, four = read(write(
        "cases.jsonl",
        ROW | {"id": "q1", "options": ["sugar", "salt"], "answer": "B"},
        ROW | {"id": "q1", "passage": "Salt does not.", "label": "not useful"},
        ROW | {"question": "Who?", "label": 4},
        ROW | {"question": "Who?", "passage": "Nobody.", "label": True},
    ))  # fmt: skip
    asked = one.case.question
    assert (asked.id, asked.options, asked.answer) == ("q1", ("sugar", "salt"), "salt")
    assert [passage.text for passage in two.case.passages] == ["Salt does not."]
    assert [found.label for found in (one, two, three, four)] == ["ENTAILED", "NOT_USEFUL", "ENTAILED", "ENTAILED"]
    assert three.case.question.id == four.case.question.id != "q1"
    assert three.case.response is None


def test_a_folder(write):
    write("d/corpus.jsonl", {"id": "p1", "text": "Sugar helps."}, {"id": "p2", "title": "T", "text": "Salt."})
    judged = {"id": "q1", "question": "What helps?", "judged": {"p1": 4, "p2": 1}}
    folder = write("d/questions.jsonl", judged, {"question": "Who?", "passage": "p2", "label": "4"}).parent
    found = read(folder)
    assert [(one.case.question.question, one.case.passages[0].id, one.label) for one in found] == [
        ("What helps?", "p1", "ENTAILED"), ("What helps?", "p2", "NOT_USEFUL"), ("Who?", "p2", "ENTAILED"),
    ]  # fmt: skip
    assert found[1].case.passages[0].content == "T\nSalt."


def test_a_second_person_and_the_arms(write):
    beside = {"second_label": "1", "arms": ["plain", "hyde"]}
    one, two = read(write("cases.jsonl", ROW | beside, ROW | {"passage": "Salt.", "arms": "plain"}))
    assert [(found.second, found.arms) for found in (one, two)] == [
        ("NOT_USEFUL", ("plain", "hyde")),
        (None, ("plain",)),
    ]


def test_other_parts_and_columns(write):
    path = write("other.jsonl", {"q": "What?", "ctx": ["One.", "Two."], "said": "This.", "ok": "TRUE"})
    columns = {"question": "q", "passages": "ctx", "response": "said", "label": "ok"}
    (one,) = read(path, needs=("passages", "response"), columns=columns)
    assert ([passage.text for passage in one.case.passages], one.case.response) == (["One.", "Two."], "This.")
    path = write("point.jsonl", ROW | {"point": "A point.", "response": "R."})
    assert read(path, needs=("response", "point"))[0].case.point == "A point."


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"label": "PERFECT"}, {}, "line 1, column \"label\": found 'PERFECT'; expected one of the labels ENTAILED"),
        ({"label": 2.5}, {}, "found 2.5; expected one of the labels"),
        ({"passage": ""}, {}, "passage"),
        ({"passage": 7}, {}, "found 7; expected a non-empty string"),
        ({}, {"needs": ("response",)}, "response"),
        ({"passages": "One."}, {"needs": ("passages",)}, "a non-empty list of strings"),
        ({"second_label": "PERFECT"}, {}, "column \"second_label\": found 'PERFECT'; expected one of the labels"),
        ({"arms": [[]]}, {}, 'column "arms"'),
        ({}, {"limit": 0}, "limit must be 1 or more"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(write, problems, change, options, said):
    (problem,) = problems(write("cases.jsonl", ROW | change), read, **options)
    assert said in problem


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"judged": {"": 4}}, "found ''; expected the ID of a passage in the folder"),
        ({"judged": {"p9": 4}}, "found 'p9'; expected the ID of a passage in the folder"),
        ({"judged": ["p1"]}, "an object that maps passage IDs to labels"),
        ({"passage": "p8", "label": "4"}, "found 'p8'; expected the ID of a passage in the folder"),
    ],
)
def test_a_folder_with_a_passage_that_is_not_there(write, problems, row, said):
    write("d/corpus.jsonl", {"id": "p1", "text": "Sugar helps."})
    assert said in problems(write("d/questions.jsonl", {"question": "What?", **row}).parent, read)[0]


def rows(labels="14"):
    return [
        {"question": f"Question {q}?", "passage": f"Passage {p} of {q}.", "label": labels[p % 2]}
        for q in range(6)
        for p in range(10)
    ]


def test_a_sample_is_stable_and_blind_to_the_labels(write):
    path = write("cases.jsonl", *rows())
    small, larger = (read(path, limit=4, per_question=k) for k in (2, 5))
    assert [one.case.question.question for one in small] == [f"Question {q}?" for q in range(4) for _ in range(2)]
    backwards = read(write("back.jsonl", *rows()[::-1]), per_question=2)
    for more in (larger, backwards):
        assert {one.digest() for one in small} <= {one.digest() for one in more}
    turned = read(write("turned.jsonl", *rows("41")), limit=4, per_question=2)
    assert [one.case for one in turned] == [one.case for one in small]
    assert len(read(path)) == 60


def test_the_hash_is_of_everything_and_of_no_order(write):
    found = read(write("cases.jsonl", *rows()))
    assert judged_hash(found) == judged_hash(found[::-1]) != judged_hash(found[1:])
    assert judged_hash(read(write("turned.jsonl", *rows("44")))) != judged_hash(found)


def test_a_conversation_is_part_of_the_question(write):
    row = {"question_id": "q", "passage_id": "p", "text": "Sugar.", "judged": "USEFUL", "by": "person"}
    labelled = write("labels.jsonl", ROW | row | {"history": ["I am dizzy."]})
    alone, told, of_labels = *read(write("cases.jsonl", ROW, ROW | {"history": "I am dizzy."})), *read(labelled)
    assert told.case.question.history == of_labels.case.question.history == ("I am dizzy.",)
    assert alone.case.question.id != told.case.question.id
    assert alone.digest() != told.digest()
