"""Questions and passages as they are meant, and what is said of those that are refused."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.data.reading import check_evidence
from querywright.data.splits import asked_of

CHOICE = {"id": "q", "question": "Which?", "options": ["red", "Blue", "green"]}
GENOTYPES = {"question": "Which genotype?", "options": ["AA", "Aa", "B"]}
VITAMINS = {"A": "K", "B": "C", "C": "D", "D": "A"}


def one(row, **options):
    (question,) = read_questions([row], **options)
    return question


def test_own_form_is_read_whole():
    row = {
        "id": " q1 ", "question": "  Which  one?\n", "options": ["red ", "blue"], "answer": "blue",
        "aliases": ["azure"], "evidence": {"p1": "ENTAILED", "p2": "useful", "p3": "not useful"}, "why": [1],
    }  # fmt: skip
    labels = {"p1": Label.ENTAILED, "p2": Label.USEFUL, "p3": Label.NOT_USEFUL}
    assert one(row) == Question("q1", "Which  one?", ("red", "blue"), "blue", ("azure",), labels)


@pytest.mark.parametrize(
    "fields",
    [
        {"history": ["user: I take two drugs.", " assistant: Which?"]},
        {"history": "user: I take two drugs.\n\nassistant: Which?\n"},
        {"chat_history": [{"role": "user", "content": "I take two drugs."}, "assistant: Which?"]},
        {"history": '["user: I take two drugs.", "assistant: Which?"]'},
    ],
)
def test_forms_of_a_history(fields):
    bare, told = one({"question": "Both?"}), one({"question": "Both?"} | fields)
    assert told.history == ("user: I take two drugs.", "assistant: Which?")
    assert one(told.to_json()) == told
    assert told.inputs == bare.inputs | {"history": list(told.history)} == told.to_example().inputs().toDict()
    assert (bare.history, told.id == bare.id, asked_of(told) == asked_of(bare)) == ((), False, False)


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        (CHOICE | {"answer": "green"}, "green"),
        (CHOICE | {"answer": " BLUE "}, "Blue"),
        (CHOICE | {"answer": "C"}, "green"),
        (CHOICE | {"answer": 0}, "red"),
        (CHOICE | {"answer": "2"}, "green"),
        (CHOICE | {"answer_idx": 1, "answer": "blue"}, "Blue"),
        (CHOICE | {"answerKey": "A", "answer": None}, "red"),
        (CHOICE, None),
        # The text as it is goes before case, and case before letters.
        (GENOTYPES | {"answer": "Aa"}, "Aa"),
        (GENOTYPES | {"answer": "B"}, "B"),
        # Labels other than letters, and positions that are texts of options too.
        ({"question": "?", "choices": {"text": ["red", "blue"], "label": ["1", "2"]}, "answerKey": "2"}, "blue"),
        ({"question": "?", "options": ["2", "3", "1"], "answer": "1"}, "1"),
        ({"question": "?", "options": ["2", "3", "1"], "answer_idx": 1}, "3"),
        # A letter that is the text of another option is told apart by an index, or by a plain list.
        ({"question": "?", "options": VITAMINS, "answer": "D", "answer_idx": "C"}, "D"),
        ({"question": "?", "answer": "A", "answer_idx": "D"} | VITAMINS, "A"),
        ({"question": "?", "options": list(VITAMINS.values()), "answer": "D"}, "D"),
        # Without options it is what it is.
        ({"question": "?", "answer": 1912}, "1912"),
        ({"question": "?", "options": [], "answer": "B"}, "B"),
    ],
)
def test_forms_of_an_answer(row, answer):
    assert one(row).answer == answer


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"A": "red", "B": "Blue", "C": "green", "D": None}},
        {"choices": {"text": ["red", "Blue", "green"], "label": ["A", "B", "C"]}},
        {"options": [{"key": key, "value": text} for key, text in zip("ABC", ("red", "Blue", "green"), strict=True)]},
        {"options": {"key": ["A", "B", "C"], "value": ["red", "Blue", "green"]}, "answer": "Blue"},
        {"A": "red", "B": "Blue", "C": "green", "D": None},
        {"options": '["red", "Blue", "green"]'},
    ],
)
def test_forms_of_options(fields):
    question = one({"id": "q", "question": "Which?", "answer_idx": "B"} | fields)
    assert (question.options, question.answer) == (("red", "Blue", "green"), "Blue")


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"answers": ["in Rome", "Rome", "in Rome"]}, ("in Rome", "Rome")),
        ({"answer": "Rome", "answers": ["Rome", "Roma"]}, ("Rome", "Roma")),
        ({"answers": {"text": ["x", "y"], "answer_start": [3, 4]}}, ("x", "y")),
    ],
)
def test_short_answers_and_other_spellings(fields, answers):
    assert one({"question": "Where?"} | fields).answers == answers


def test_ids_of_passages_are_entailed_and_labels_are_what_they_say():
    for name in ("gold", "gold_ids", "relevant", "evidence"):
        assert one({"question": "?", name: ["p1", 7]}).evidence == dict.fromkeys(("p1", "7"), Label.ENTAILED)
    assert one({"question": "?", "gold": "p1"}).evidence == {"p1": Label.ENTAILED}
    assert one({"question": "?", "gold": {"p1": "USEFUL", "p2": None}}).evidence == {"p1": Label.USEFUL}


def test_an_id_that_is_not_given_is_the_hash_of_question_and_options():
    rows = [{"question": "One?", "options": ["a", "é"], "answer": "a"}, {"question": "Two?"}]
    first = read_questions(rows)
    assert first[0].id == hashlib.sha256('["One?", "a", "é"]'.encode()).hexdigest()[:16]
    assert read_questions(rows[::-1]) == first[::-1]


def test_rows_that_ask_the_same_are_one_question_unless_they_contradict(problems):
    rows = [
        {"question": "Where?", "answers": ["Rome"], "gold": ["p1"]},
        {"question": "Else?"},
        {"question": "Where? ", "answers": [], "gold": ["p2"]},
        {"question": "Where?", "answers": ["Roma"], "gold": ["p1"]},
    ]
    first, second = read_questions(rows)
    assert (first.answers, list(first.evidence), second.question) == (("Rome", "Roma"), ["p1", "p2"], "Else?")
    row = {"question": "Which?", "options": ["a", "b"], "answer": "a", "evidence": {"p": "USEFUL"}}
    (answer,) = problems([row, row | {"answer": "b"}])
    assert answer.startswith("row 2")
    assert "the same question in row 1" in answer
    (label,) = problems([row, row | {"evidence": {"p": "ENTAILED"}}])
    assert 'column "evidence"' in label


def test_columns_of_other_names():
    row = {"nr": 5, "stem": "?", "opa": "red", "opb": "blue", "cop": 1, "answer": "no option", "docs": ["p"]}
    mapping = {"id": "nr", "question": "stem", "options": "opa, opb", "answer": "cop", "evidence": "docs"}
    assert one(row, columns=mapping) == Question("5", "?", ("red", "blue"), "blue", (), {"p": Label.ENTAILED})
    row = CHOICE | {"answer": "red", "answer_idx": "A", "second": "B"}
    assert one(row, columns={"answer": "second"}).answer == "Blue"
    assert one(row | {"answer": "Blue"}, columns={"answer": "answer_idx"}).answer == "red"


def test_limit_and_multiple_choice(write, problems):
    path = write("q.jsonl", *(CHOICE | {"id": str(n), "answer": "red"} for n in range(5)))
    path.write_text(path.read_text() + "{broken\n")
    assert [question.id for question in read_questions(path, limit=2)] == ["0", "1"]
    assert "q.jsonl line 6" in problems(path)[0]
    (problem,) = problems([CHOICE, {"id": "b", "question": "?"}], multiple_choice=True)
    assert "row 2" in problem
    assert "multiple_choice=True" in problem
    for limit in (0, -3):
        assert problems([CHOICE], limit=limit) == (f"limit must be 1 or more, or None for all rows, but got {limit}",)


@pytest.mark.parametrize(
    ("fields", "column", "parts"),
    [
        ({"question": "  "}, "question", ["found '  '", "non-empty string"]),
        ({"question": None}, "question", ["found nothing"]),
        ({"question": "a\0b"}, "question", ["NUL"]),
        ({"question": "a\ud800b", "id": None}, "question", ["surrogate", r"a\ud800b"]),
        ({"options": ["red"]}, "options", ["['red']", "2 to 26"]),
        ({"options": ["red", "red "]}, "options", ["distinct"]),
        ({"options": ["red", " "]}, "options", ["option B"]),
        ({"options": "red or blue"}, "options", ["found 'red or blue'", "a list of"]),
        ({"options": {"text": ["red", "blue"], "label": ["A"]}}, "options", ["'label'", "a list of"]),
        ({"answer_idx": 1.0}, "answer_idx", ["found 1.0"]),
        ({"answer": "black"}, "answer", ["found 'black'", "'Blue'"]),
        ({"answer_idx": "D"}, "answer_idx", ["found 'D'", "A, B, C", "0 to 2"]),
        ({"answer_idx": "A", "answer": "green"}, "answer", ["found 'green'", "'red'"]),
        ({"options": None, "answer_idx": "A"}, "answer_idx", ["the row has no options"]),
        ({"options": ["2", "3", "1"], "answer": 1}, "answer", ["found 1"]),
        ({"options": GENOTYPES["options"], "answer": "aa"}, "answer", ["one of the options"]),
        ({"options": VITAMINS, "answer": "D"}, "answer", ["option C and the letter or position of", "answer_idx"]),
        ({"evidence": {"p": "RELEVANT"}}, "evidence", ["'RELEVANT'", "ENTAILED, USEFUL, NOT_USEFUL"]),
        ({"gold": [["p", 0]]}, "gold", ["['p', 0]", "passage ID"]),
        ({"jointly": "maybe"}, "jointly", ["found 'maybe'", "true or false"]),
        ({"evidence": ["p"], "assessors": {"q": "person"}}, "assessors", ["{'q': 'person'}", "passage IDs in the evi"]),
        ({"evidence": ["p"], "assessors": "person"}, "assessors", ["found 'person'", "a name or a list of names"]),
        ({"evidence": ["p"], "alternatives": [["p", "q"]]}, "alternatives", ["['q']", "passage IDs from the evidence"]),
        ({"evidence": ["p"], "alternatives": ["p"]}, "alternatives", ["['p']", "a list of lists of passage IDs"]),
        ({"history": [{"said": "Hello"}]}, "history", ["a list of turns"]),
        ({"id": 1.5}, "id", ["found 1.5"]),
    ],
)  # fmt: skip
def test_a_problem_names_file_line_column_found_and_expected(write, problems, fields, column, parts):
    path = write("q.jsonl", {"id": "other", "question": "Fine?"}, CHOICE | fields)
    (problem,) = problems(path)
    assert problem.startswith(f'{path} line 2, column "{column}": found ')
    assert "; expected " in problem
    for part in parts:
        assert part in problem


def test_all_problems_come_at_once_in_order(write, problems):
    path = write("q.jsonl", CHOICE, CHOICE, {"id": "b", "question": ""})
    last = {"id": "d", "question": "?", "options": ["x"], "gold": [None]}
    path.write_text(path.read_text() + '{"id": "c", \n[1]\n' + json.dumps(last) + "\n")
    lines = problems(path)
    numbers = [int(line.removeprefix(f"{path} line ").partition(",")[0].partition(":")[0]) for line in lines]
    assert numbers == [2, 3, 4, 5, 6, 6]
    assert "a unique ID" in lines[0]
    assert "line 1 has the same ID" in lines[0]
    assert "not valid JSON" in lines[2]
    assert "found list" in lines[3]
    assert len(problems([CHOICE | {"answer": "x" * 5000}])[0]) < 400


@pytest.mark.parametrize(
    ("rows", "columns", "parts"),
    [
        ([{"id": 1, "text": "a"}, {"id": 2}], {}, ["(looked for question or query or user_input)", "['id', 'text']"]),
        ([{"id": 1, "text": "a"}, {"id": 2}], {"question": "q"}, ["no column ['q'] for 'question'", "['id', 'text']"]),
        ([{"question": "?", "a": "x", "b": "y"}], {"options": "a,b,c"}, ["no column ['c']"]),
        ([CHOICE], {"stem": "question"}, ["unknown names in columns: ['stem']", "'aliases'"]),
    ],
)  # fmt: skip
def test_a_column_that_is_nowhere_is_said_once(problems, rows, columns, parts):
    (problem,) = problems(rows, columns=columns)
    for part in parts:
        assert part in problem


def test_forms_of_passages():
    rows = [
        {"id": "a", "title": " T ", "text": " one\n two ", "metadata": {"year": 2020, "ok": True, "x": None}},
        {"_id": 7, "contents": "seven", "title": None},
        {"doc_id": "d", "body": "eight", "title": ""},
        {"id": "a", "title": "T", "text": "one\n two", "metadata": {"year": 2020, "ok": True}},
    ]
    found = [Passage("a", "one\n two", "T", {"year": 2020, "ok": True}), Passage("7", "seven"), Passage("d", "eight")]
    assert read_passages(rows) == found
    assert read_passages(rows, limit=2) == found[:2]
    row = {"key": "k", "id": "no", "abstract": "text", "name": "n", "info": {"a": 1.5}}
    mapping = {"id": "key", "text": "abstract", "title": "name", "metadata": "info"}
    assert read_passages([row], columns=mapping) == [Passage("k", "text", "n", {"a": 1.5})]


@pytest.mark.parametrize(
    ("fields", "column", "parts"),
    [
        ({"text": ""}, "text", ["found ''"]),
        ({"text": "\udc00"}, "text", ["surrogate"]),
        ({"title": 3}, "title", ["found 3"]),
        ({"metadata": {"a": {"b": 1}}}, "metadata", ["{'a': {'b': 1}}", "a finite number, a Boolean, or a date"]),
        ({"metadata": {"a": float("nan")}}, "metadata", ["finite"]),
        ({"metadata": "none"}, "metadata", ["an object"]),
        ({"id": None}, "id", ["found nothing"]),
        ({"id": "a", "text": "other"}, "id", ["line 1 has the same ID but different content"]),
    ],
)
def test_passages_that_are_refused(write, problems, fields, column, parts):
    path = write("p.jsonl", {"id": "a", "text": "x"}, {"id": "b", "text": "y"} | fields)
    (problem,) = problems(path, read_passages)
    assert problem.startswith(f'{path} line 2, column "{column}": found ')
    for part in parts:
        assert part in problem
    assert "no column for 'id'" in problems([{"text": "a"}, {"text": "b"}], read_passages)[0]


def test_evidence_that_is_not_in_the_collection_is_told():
    questions = [
        Question("q1", "?", evidence={"a": Label.ENTAILED, "zz": Label.USEFUL}),
        Question("q2", "?", evidence={"a": Label.USEFUL}),
        Question("q3", "?"),
    ]
    (line,) = check_evidence(questions, ["a", "b"])
    assert line == (
        "question 'q1' ('?'): labeled passages that are not in the collection: ['zz'] (1 of 2 labeled; passages in "
        "the collection: 2)"
    )
    assert check_evidence(questions, {"a": 1, "zz": 2}) == []


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda text: text == text.strip()
)


@st.composite
def sound_questions(draw: st.DrawFn) -> Question:
    options = tuple(draw(st.lists(TEXT, unique=True, max_size=5).filter(lambda found: len(found) != 1)))
    answer = draw(st.none() | (st.sampled_from(options) if options else TEXT))
    spellings = draw(st.lists(TEXT, unique=True, max_size=2)) if answer is not None else []
    evidence = draw(st.dictionaries(TEXT, st.sampled_from(Label), max_size=3))
    aliases = tuple(alias for alias in spellings if alias != answer)
    named = st.lists(TEXT, min_size=1, max_size=2).map(tuple)
    assessors = {key: draw(named) for key in evidence} if draw(st.booleans()) else {}
    either = (tuple(evidence),) if evidence and draw(st.booleans()) else ()
    labels = {"evidence": evidence, "jointly": draw(st.booleans()), "assessors": assessors, "alternatives": either}
    return Question(draw(TEXT), draw(TEXT), options, answer, aliases, **labels)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(questions=st.lists(sound_questions(), unique_by=lambda question: question.id, min_size=1, max_size=4))
def test_what_is_written_is_read_again(write, questions):
    assert read_questions(write("q.jsonl", *(question.to_json() for question in questions))) == questions
