from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.data.reading import check_evidence
from querywright.errors import DataError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
shared_data = pytest.mark.shared_data
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the public question sets are not here")


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_one(tmp_path: Path, row: dict[str, object], **options: object) -> Question:
    (question,) = read_questions(write_lines(tmp_path / "q.jsonl", row), **options)  # type: ignore[arg-type]
    return question


def problems_of(tmp_path: Path, *rows: object, **options: object) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_questions(write_lines(tmp_path / "q.jsonl", *rows), **options)  # type: ignore[arg-type]
    return caught.value.problems


def passage_problems(tmp_path: Path, *rows: object, **options: object) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_passages(write_lines(tmp_path / "p.jsonl", *rows), **options)  # type: ignore[arg-type]
    return caught.value.problems


CHOICE = {"id": "q", "question": "Which?", "options": ["red", "Blue", "green"]}


# --- questions as they are meant ---


def test_own_form_is_read_whole(tmp_path):
    row = {
        "id": " q1 ",
        "question": "  Which  one?\n",
        "options": ["red ", "blue"],
        "answer": "blue",
        "aliases": ["azure"],
        "evidence": {"p1": "ENTAILED", "p2": "useful", "p3": "not useful"},
        "why": {"anything": [1]},
    }
    assert read_one(tmp_path, row) == Question(
        id="q1",
        question="Which  one?",
        options=("red", "blue"),
        answer="blue",
        aliases=("azure",),
        evidence={"p1": Label.ENTAILED, "p2": Label.USEFUL, "p3": Label.NOT_USEFUL},
    )


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"answer": "green"}, "green"),
        ({"answer": " BLUE "}, "Blue"),
        ({"answer": "C"}, "green"),
        ({"answer": "(b)"}, "Blue"),
        ({"answer": 0}, "red"),
        ({"answer": "2"}, "green"),
        ({"answer_idx": "B"}, "Blue"),
        ({"answer_letter": "c"}, "green"),
        ({"answer_idx": 1, "answer": "blue"}, "Blue"),
        ({"answerKey": "A", "answer": None}, "red"),
        ({"answers": ["green"]}, "green"),
        ({}, None),
        ({"answer": None}, None),
    ],
)
def test_answer_forms_of_a_choice(tmp_path, fields, answer):
    assert read_one(tmp_path, CHOICE | fields).answer == answer


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"A": "red", "B": "Blue", "C": "green"}},
        {"options": {"A": "red", "B": "Blue", "C": "green", "D": None}},
        {"choices": {"text": ["red", "Blue", "green"], "label": ["A", "B", "C"]}},
        {"choices": ["red", "Blue", "green"]},
        {"A": "red", "B": "Blue", "C": "green", "D": None},
        {"options": '["red", "Blue", "green"]'},
    ],
)
def test_option_forms(tmp_path, fields):
    question = read_one(tmp_path, {"id": "q", "question": "Which?", "answer_idx": "B"} | fields)
    assert question.options == ("red", "Blue", "green")
    assert question.answer == "Blue"


def test_labels_other_than_letters(tmp_path):
    question = read_one(
        tmp_path,
        {"question": "Which?", "choices": {"text": ["red", "blue"], "label": ["1", "2"]}, "answerKey": "2"},
    )
    assert question.answer == "blue"


def test_exact_text_goes_before_case_and_before_letters(tmp_path):
    genotypes = {"question": "Which genotype?", "options": ["AA", "Aa", "B"]}
    assert read_one(tmp_path, genotypes | {"answer": "Aa"}).answer == "Aa"
    assert read_one(tmp_path, genotypes | {"answer": "B"}).answer == "B"
    assert "one of the options" in problems_of(tmp_path, genotypes | {"answer": "aa"})[0]


def test_short_answers_and_aliases(tmp_path):
    base = {"id": "q", "question": "Where?"}
    assert read_one(tmp_path, base | {"answers": ["in Rome", "Rome", "in Rome"]}).answers == (
        "in Rome",
        "Rome",
    )
    assert read_one(tmp_path, base | {"answers": []}).answers == ()
    assert read_one(tmp_path, base | {"answer": "Rome", "answers": ["Rome", "Roma"]}).answers == (
        "Rome",
        "Roma",
    )
    assert read_one(tmp_path, base | {"answers": {"text": ["x", "y"], "answer_start": [3, 4]}}).answers == (
        "x",
        "y",
    )
    assert read_one(tmp_path, base | {"answer": 1912}).answer == "1912"
    assert read_one(tmp_path, base | {"answer": "B"}).answer == "B"
    assert read_one(tmp_path, base | {"options": [], "answer": "B"}).options == ()


def test_gold_lists_are_entailed(tmp_path):
    for name in ("gold", "gold_ids", "relevant", "evidence"):
        question = read_one(tmp_path, {"question": "Where?", name: ["p1", 7]})
        assert question.evidence == {"p1": Label.ENTAILED, "7": Label.ENTAILED}
    assert read_one(tmp_path, {"question": "Where?", "gold": "p1"}).evidence == {"p1": Label.ENTAILED}
    labelled = read_one(tmp_path, {"question": "Where?", "gold": {"p1": "USEFUL", "p2": None}})
    assert labelled.evidence == {"p1": Label.USEFUL}


def test_derived_id_is_the_documented_hash_and_ignores_order_of_rows(tmp_path):
    rows = [{"question": "One?", "options": ["a", "é"], "answer": "a"}, {"question": "Two?"}]
    expected = hashlib.sha256('["One?", "a", "é"]'.encode()).hexdigest()[:16]
    first = read_questions(write_lines(tmp_path / "a.jsonl", *rows))
    second = read_questions(write_lines(tmp_path / "b.jsonl", *reversed(rows)))
    assert first[0].id == expected
    assert first == second[::-1]


def test_repeated_rows_without_id_are_united(tmp_path):
    path = write_lines(
        tmp_path / "q.jsonl",
        {"question": "Where?", "answers": ["Rome"], "gold": ["p1"]},
        {"question": "Else?"},
        {"question": "Where? ", "answers": [], "gold": ["p2"]},
        {"question": "Where?", "answers": ["Roma"], "gold": ["p1"]},
    )
    first, second = read_questions(path)
    assert first.answers == ("Rome", "Roma")
    assert list(first.evidence) == ["p1", "p2"]
    assert second.question == "Else?"


def test_repeated_rows_that_contradict_each_other(tmp_path):
    row = {"question": "Which?", "options": ["a", "b"], "answer": "a", "evidence": {"p": "USEFUL"}}
    (answer,) = problems_of(tmp_path, row, row | {"answer": "b"})
    assert "q.jsonl line 2" in answer
    assert "line 1 says" in answer
    (label,) = problems_of(tmp_path, row, row | {"evidence": {"p": "ENTAILED"}})
    assert 'column "evidence"' in label


def test_mapping(tmp_path):
    row = {
        "nr": 5,
        "stem": "Which?",
        "opa": "red",
        "opb": "blue",
        "cop": 1,
        "answer": "no option",
        "docs": ["p"],
    }
    mapping = {"id": "nr", "question": "stem", "options": "opa, opb", "answer": "cop", "evidence": "docs"}
    assert read_one(tmp_path, row, columns=mapping) == Question(
        "5", "Which?", ("red", "blue"), "blue", (), {"p": Label.ENTAILED}
    )


def test_mapping_the_answer_leaves_the_guesses_alone(tmp_path):
    row = CHOICE | {"answer": "red", "answer_idx": "A", "second": "B"}
    assert read_one(tmp_path, row, columns={"answer": "second"}).answer == "Blue"
    assert read_one(tmp_path, row | {"answer": "Blue"}, columns={"answer": "answer_idx"}).answer == "red"


def test_limit_and_multiple_choice(tmp_path):
    rows = [CHOICE | {"id": str(n), "answer": "red"} for n in range(5)]
    path = write_lines(tmp_path / "q.jsonl", *rows)
    assert [question.id for question in read_questions(path, limit=2)] == ["0", "1"]
    assert all(not q.options and q.answer == "red" for q in read_questions(path, multiple_choice=False))
    assert all(len(q.options) == 3 for q in read_questions(path, multiple_choice=True))
    with_options = read_one(tmp_path, {"question": "Which?", "options": ["a", "b"]})
    without = read_one(tmp_path, {"question": "Which?", "options": ["a", "b"]}, multiple_choice=False)
    assert with_options.id == without.id


def test_limit_stops_before_a_broken_line(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", {"question": "One?"})
    path.write_text(path.read_text() + "{broken\n")
    assert len(read_questions(path, limit=1)) == 1
    with pytest.raises(DataError, match=r"q\.jsonl line 2"):
        read_questions(path)


# --- questions that are refused ---


@pytest.mark.parametrize(
    ("fields", "column", "parts"),
    [
        ({"question": "  "}, "question", ["found '  '", "non-empty text"]),
        ({"question": None}, "question", ["found nothing"]),
        ({"question": 3}, "question", ["found 3"]),
        ({"question": "a\0b"}, "question", ["NUL"]),
        ({"question": "a\ud800b"}, "question", ["surrogate", r"a\ud800b"]),
        ({"options": ["red"]}, "options", ["['red']", "2 to 26"]),
        ({"options": ["red", "red "]}, "options", ["distinct"]),
        ({"options": ["red", " "]}, "options", ["option B"]),
        ({"options": ["red", 3]}, "options", ["found 3", "option B"]),
        ({"options": ["red", None]}, "options", ["found None"]),
        ({"options": "red or blue"}, "options", ["found 'red or blue'", "a list of"]),
        ({"options": {"text": ["red", "blue"], "label": ["A"]}}, "options", ["'label'", "a list of"]),
        ({"options": {"text": ["red", "blue"], "label": ["A", "A"]}}, "options", ["distinct"]),
        ({"answer_idx": 1.0}, "answer_idx", ["found 1.0"]),
        ({"answer": "black"}, "answer", ["found 'black'", "'Blue'"]),
        ({"answer": True}, "answer", ["found True"]),
        ({"answer": 3}, "answer", ["found 3"]),
        ({"answer": ""}, "answer", ["found ''"]),
        ({"answer_idx": "D"}, "answer_idx", ["found 'D'", "A, B, C", "0 to 2"]),
        ({"answer_idx": -1}, "answer_idx", ["found -1"]),
        ({"answer_idx": "A", "answer": "green"}, "answer", ["found 'green'", "'red'", "answer_idx='A'"]),
        ({"aliases": ["x", 0.5]}, "aliases", ["found 0.5"]),
        ({"evidence": {"p": "RELEVANT"}}, "evidence", ["'RELEVANT'", "ENTAILED, USEFUL, NOT_USEFUL"]),
        ({"evidence": {"p": 1}}, "evidence", ["{'p': 1}"]),
        ({"gold": [["p", 0]]}, "gold", ["['p', 0]", "passage id"]),
        ({"gold": [""]}, "gold", ["found ''"]),
        ({"id": ""}, "id", ["found ''"]),
        ({"id": 1.5}, "id", ["found 1.5"]),
    ],
)
def test_a_problem_names_file_line_column_found_and_expected(tmp_path, fields, column, parts):
    sound = {"id": "other", "question": "Fine?"}
    (problem,) = problems_of(tmp_path, sound, CHOICE | fields)
    assert problem.startswith(f'{tmp_path / "q.jsonl"} line 2, column "{column}": found ')
    assert "; expected " in problem
    for part in parts:
        assert part in problem


def test_position_that_is_also_an_option_is_ambiguous(tmp_path):
    row = {"id": "q", "question": "How many?", "options": ["2", "3", "1"]}
    assert "found 1" in problems_of(tmp_path, row | {"answer": 1})[0]
    assert read_one(tmp_path, row | {"answer": "1"}).answer == "1"
    assert read_one(tmp_path, row | {"answer_idx": 1}).answer == "3"


def test_letter_that_is_also_an_option_is_ambiguous(tmp_path):
    vitamins = {"A": "K", "B": "C", "C": "D", "D": "A"}
    for row in (
        {"id": "q", "question": "Which vitamin?", "options": vitamins},
        {"id": "q", "question": "?"} | vitamins,
    ):
        (problem,) = problems_of(tmp_path, row | {"answer": "D"})
        assert "the text of C and the letter or position of D" in problem
        assert "answer_idx" in problem
        assert read_one(tmp_path, row | {"answer": "D", "answer_idx": "C"}).answer == "D"
        assert read_one(tmp_path, row | {"answer": "A", "answer_idx": "D"}).answer == "A"
        assert read_one(tmp_path, row | {"answer": "K"}).answer == "K"
    plain = {"id": "q", "question": "Which vitamin?", "options": list(vitamins.values())}
    assert read_one(tmp_path, plain | {"answer": "D"}).answer == "D"
    assert read_one(tmp_path, plain | {"answer": "B"}).answer == "C"


def test_index_without_options(tmp_path):
    (problem,) = problems_of(tmp_path, {"question": "Which?", "answer_idx": "A"})
    assert "the row has none" in problem


def test_all_problems_come_at_once_in_order(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", CHOICE, CHOICE, {"id": "b", "question": ""})
    with path.open("a") as stream:
        stream.write('{"id": "c", \n[1]\n')
        stream.write(json.dumps({"id": "d", "question": "?", "options": ["x"], "gold": [None]}) + "\n")
    with pytest.raises(DataError) as caught:
        read_questions(path)
    lines = caught.value.problems
    assert [line.removeprefix(str(path))[:7] for line in lines] == [
        " line 2",
        " line 3",
        " line 4",
        " line 5",
    ] + [" line 6"] * 2
    assert "another id" in lines[0]
    assert "line 1 has it" in lines[0]
    assert "no valid JSON" in lines[2]
    assert "found list" in lines[3]
    assert str(caught.value).count("\n") == 5


def test_long_values_are_shortened(tmp_path):
    (problem,) = problems_of(tmp_path, CHOICE | {"answer": "x" * 5000})
    assert len(problem) < 400


def test_column_that_is_nowhere_is_said_once(tmp_path):
    (problem,) = problems_of(tmp_path, {"id": "1", "text": "a"}, {"id": "2", "text": "b"})
    assert "no column for 'question' (looked for question or query or user_input)" in problem
    assert "['id', 'text']" in problem
    (problem,) = problems_of(tmp_path, {"id": "1", "text": "a"}, {"id": "2"}, columns={"question": "txt"})
    assert "no column ['txt'] for 'question'; the columns are ['id', 'text']" in problem
    (problem,) = problems_of(tmp_path, CHOICE, columns={"evidence": "docs"})
    assert "no column ['docs'] for 'evidence'" in problem
    (problem,) = problems_of(tmp_path, {"question": "?", "a": "x", "b": "y"}, columns={"options": "a,b,c"})
    assert "no column ['c']" in problem


def test_unknown_name_in_the_mapping(tmp_path):
    (problem,) = problems_of(tmp_path, CHOICE, columns={"stem": "question"})
    assert "unknown name ['stem']" in problem
    assert "'aliases'" in problem


def test_multiple_choice_is_required(tmp_path):
    (problem,) = problems_of(tmp_path, CHOICE, {"id": "b", "question": "?"}, multiple_choice=True)
    assert "line 2" in problem
    assert "multiple_choice=True" in problem


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_has_to_be_positive(tmp_path, limit):
    assert problems_of(tmp_path, CHOICE, limit=limit) == (
        f"limit must be 1 or more, or None for all rows, but got {limit}",
    )


# --- passages ---


def test_passage_forms(tmp_path):
    path = write_lines(
        tmp_path / "p.jsonl",
        {"id": "a", "title": " T ", "text": " one\n two ", "metadata": {"year": 2020, "ok": True, "x": None}},
        {"_id": 7, "contents": "seven", "title": None},
        {"doc_id": "d", "body": "eight", "title": ""},
        {"id": "a", "title": "T", "text": "one\n two", "metadata": {"year": 2020, "ok": True}},
    )
    assert read_passages(path) == [
        Passage("a", "one\n two", "T", {"year": 2020, "ok": True}),
        Passage("7", "seven"),
        Passage("d", "eight"),
    ]
    assert [passage.id for passage in read_passages(path, limit=2)] == ["a", "7"]


def test_passage_mapping(tmp_path):
    path = write_lines(
        tmp_path / "p.jsonl", {"key": "k", "id": "no", "abstract": "text", "name": "n", "info": {"a": 1.5}}
    )
    mapping = {"id": "key", "text": "abstract", "title": "name", "metadata": "info"}
    assert read_passages(path, columns=mapping) == [Passage("k", "text", "n", {"a": 1.5})]


@pytest.mark.parametrize(
    ("fields", "column", "parts"),
    [
        ({"text": ""}, "text", ["found ''"]),
        ({"text": None}, "text", ["found nothing"]),
        ({"text": ["a"]}, "text", ["found ['a']"]),
        ({"text": "a\0"}, "text", ["NUL"]),
        ({"text": "\udc00"}, "text", ["surrogate"]),
        ({"title": 3}, "title", ["found 3"]),
        ({"metadata": {"a": {"b": 1}}}, "metadata", ["{'a': {'b': 1}}", "flat value"]),
        ({"metadata": {"a": [1]}}, "metadata", ["flat value"]),
        ({"metadata": {"a": float("nan")}}, "metadata", ["finite"]),
        ({"metadata": {"a": "\ud800"}}, "metadata", ["surrogate"]),
        ({"metadata": "none"}, "metadata", ["an object"]),
        ({"id": None}, "id", ["found nothing"]),
        ({"id": "a", "text": "other"}, "id", ["line 1 has it with other content"]),
    ],
)
def test_passages_that_are_refused(tmp_path, fields, column, parts):
    (problem,) = passage_problems(tmp_path, {"id": "a", "text": "x"}, {"id": "b", "text": "y"} | fields)
    assert problem.startswith(f'{tmp_path / "p.jsonl"} line 2, column "{column}": found ')
    for part in parts:
        assert part in problem


def test_passages_without_ids(tmp_path):
    (problem,) = passage_problems(tmp_path, {"text": "a"}, {"text": "b"})
    assert "no column for 'id'" in problem


def test_check_evidence():
    questions = [
        Question("q1", "?", evidence={"a": Label.ENTAILED, "zz": Label.USEFUL}),
        Question("q2", "?", evidence={"a": Label.USEFUL}),
        Question("q3", "?"),
    ]
    (line,) = check_evidence(questions, ["a", "b"])
    assert line == "question 'q1': 1 of its 2 labelled passages are not among the 2 of the collection: ['zz']"
    assert check_evidence(questions, {"a": 1, "zz": 2}) == []


# --- round trip ---

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda text: text == text.strip()
)


@st.composite
def sound_questions(draw: st.DrawFn) -> Question:
    options = tuple(draw(st.lists(TEXT, unique=True, max_size=5).filter(lambda found: len(found) != 1)))
    answer = draw(st.none() | (st.sampled_from(options) if options else TEXT))
    spellings = draw(st.lists(TEXT, unique=True, max_size=2)) if answer is not None else []
    return Question(
        id=draw(TEXT),
        question=draw(TEXT),
        options=options,
        answer=answer,
        aliases=tuple(alias for alias in spellings if alias != answer),
        evidence=draw(st.dictionaries(TEXT, st.sampled_from(Label), max_size=3)),
        jointly=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(questions=st.lists(sound_questions(), unique_by=lambda question: question.id, min_size=1, max_size=4))
def test_what_is_written_is_read_again(tmp_path, questions):
    path = write_lines(tmp_path / "q.jsonl", *(question.to_json() for question in questions))
    assert read_questions(path) == questions


# --- the public sets ---


@shared_data
@needs_shared
@pytest.mark.parametrize(
    ("name", "n_questions", "n_options", "n_passages"),
    [
        ("hotpotqa", 255, 0, 4937),
        ("liveqa-med", 52, 0, 1935),
        ("medquad", 1797, 0, 4573),
        ("pubmedqa", 501, 3, 1000),
        ("squad2", 6071, 0, 646),
        ("medqa", 637, 5, 0),
        ("mmlu-med", 517, 4, 0),
        ("nursing", 0, 0, 6566),
    ],
)
def test_public_sets_need_no_mapping(name, n_questions, n_options, n_passages):
    folder = SHARED / name
    questions = read_questions(folder) if n_questions else []
    passages = read_passages(str(folder)) if n_passages else []
    assert (len(questions), len(passages)) == (n_questions, n_passages)
    assert {len(question.options) for question in questions} <= {n_options}
    assert all(question.answer is not None for question in questions) or not n_options
    if n_passages:
        assert check_evidence(questions, [passage.id for passage in passages]) == []


@shared_data
@needs_shared
def test_public_sets_have_the_evidence_they_say():
    multi_hop = read_questions(SHARED / "hotpotqa")
    assert {len(question.evidence) for question in multi_hop} == {2}
    labels = Counter(
        label for question in read_questions(SHARED / "liveqa-med") for label in question.evidence.values()
    )
    assert labels == {Label.NOT_USEFUL: 1001, Label.USEFUL: 101, Label.ENTAILED: 69}
    mapped = read_questions(SHARED / "squad2" / "questions.jsonl", columns={"evidence": "passage"}, limit=10)
    assert mapped[0].evidence == {"Normans_0": Label.ENTAILED}
    assert mapped[0].answers == ("France",)
