from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.models.json_stream import FieldText

ANSWERS = [
    '{"answer": "tea"}',
    '{"reasoning": "they say \\"answer\\": \\"no\\"", "answer": "caf\u00e9 \U0001f600 na\u00efve"}',
    '{"answer": " \\n two  words\\t\\" and \\\\ a slash \\/ \\n ", "passage_numbers": [1, 2]}',
    '{"answer": "\\u0063af\\u00e9 \\ud83d\\ude00!", "passages_hold_the_answer": "yes"}',
    'Sure! Here it is:\n```json\n{"passage_numbers": [1, {"answer": "not this"}], "answer": "this"}\n```',
    '{"a": {"answer": "inner"}, "b": [["answer", "x"], "]"], "c": true, "n": -1.5e3, "answer": "outer"}',
    '{\n  "answer" :\n "spread over lines"\n}',
    '{"other": "ends with a backslash \\\\", "answer": "here"}',
    '{"answer": ""}',
    '{"\\u0061nswer": "the key in escapes"}',
]


def wanted(answer: str) -> str:
    return str(json.JSONDecoder().raw_decode(answer[answer.index("{") :])[0]["answer"]).strip()


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_text_is_the_same_wherever_the_answer_is_cut(answer):
    for cut in range(len(answer) + 1):
        reader = FieldText("answer")
        assert reader.feed(answer[:cut]) + reader.feed(answer[cut:]) == wanted(answer)
    reader = FieldText("answer")
    assert "".join(map(reader.feed, answer)) == wanted(answer)


def test_the_text_is_given_as_soon_as_it_is_there():
    reader = FieldText("answer")
    pieces = ['{"reasoning": "long', '", "ans', 'wer": "It is', " tea", " \\u00e", "9 ", 'x "', ', "more": "no"}']
    assert [reader.feed(piece) for piece in pieces] == ["", "", "It is", " tea", "", " \u00e9", " x", ""]


@pytest.mark.parametrize(
    "answer",
    [
        "It is tea.",
        "[[ ## answer ## ]]\ntea",
        '{"answer": 42}',
        '{"answer": ["tea"]}',
        '{"answer": null}',
        '{"answers": "tea"}',
        '{"inner": {"answer": "tea"}}',
        "{'answer': 'tea'}",
        '{"answer" "tea"}',
        "",
    ],
)
def test_what_is_no_text_of_that_field_is_not_given(answer):
    assert FieldText("answer").feed(answer) == ""


@pytest.mark.parametrize("end", ["\\x41 and more", "\\u00g1 and more", "\\ud83d alone"])
def test_an_escape_that_there_is_not_ends_it(end):
    reader = FieldText("answer")
    assert [reader.feed('{"answer": "tea'), reader.feed(end), reader.feed('"}')] == ["tea", "", ""]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.text().filter(lambda key: key != "answer"), JSON, max_size=3),
    text=st.text(),
    ascii_only=st.booleans(),
    step=st.integers(1, 5),
)
def test_any_object_gives_its_field(before, text, ascii_only, step):
    answer = json.dumps({**before, "answer": text, "after": before}, ensure_ascii=ascii_only)
    reader = FieldText("answer")
    pieces = [answer[start : start + step] for start in range(0, len(answer), step)]
    assert "".join(map(reader.feed, pieces)) == text.strip()
