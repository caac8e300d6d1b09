"""Rows of other tools and sets, from files and from Python."""

from __future__ import annotations

import hashlib
import json

import dspy
import pytest

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.errors import DataError


def text_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def problems_of(read, *rows: object, **options: object) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read(rows, **options)
    return caught.value.problems


# --- rows given in Python ---


def test_dspy_examples():
    examples = [
        dspy.Example(question="One?", answer="yes", gold_titles={"B", "A"}).with_inputs("question"),
        dspy.Example(id="2", question="Two?", options=("x", "y"), answer="y", gold=["p"]).with_inputs("question"),
    ]
    first, second = read_questions(examples)
    assert (first.answer, dict(first.evidence)) == ("yes", {"A": Label.ENTAILED, "B": Label.ENTAILED})
    assert second == Question("2", "Two?", ("x", "y"), "y", (), {"p": Label.ENTAILED})
    assert read_questions(question.to_example() for question in (first, second)) == [first, second]
    assert read_questions(examples, limit=1) == [first]


def test_rows_given_in_python_are_checked_like_a_file():
    problems = problems_of(read_questions, {"question": "One?"}, "Two?", {"question": " "}, 4)
    assert problems == (
        "row 2: found str; expected a row of a list of dicts, of dspy.Example, of Question or Passage, a DataFrame "
        "or a datasets.Dataset",
        "row 3, column \"question\": found ' '; expected non-empty text",
        "row 4: found int; expected a row of a list of dicts, of dspy.Example, of Question or Passage, a DataFrame "
        "or a datasets.Dataset",
    )
    assert problems_of(read_passages) == ("the rows given: found no rows; expected at least one",)
    assert "only datasets have splits" in problems_of(read_questions, {"question": "?"}, split="test")[0]
    assert read_passages([{"id": "a", "text": "x"}]) == [Passage("a", "x")]


def test_rows_of_a_data_frame():
    import numpy
    import pandas

    frame = pandas.DataFrame(
        {
            "qid": numpy.array([1, 2]),
            "query": ["One?", "Two?"],
            "retrieval_gt": [numpy.array([numpy.array(["a", "b"])], dtype=object), float("nan")],
            "generation_gt": [numpy.array(["yes"]), numpy.array(["no"])],
        }
    )
    first, second = read_questions(frame.to_dict("records"))
    assert (first.id, list(first.evidence), first.answer) == ("1", ["a", "b"], "yes")
    assert (second.id, second.evidence, second.answer) == ("2", {}, "no")


# --- other tools ---


def test_flashrag(tmp_path):
    questions = [
        {"id": "t_0", "question": "Where?", "golden_answers": ["Rome", "Roma"], "metadata": {"any": [1]}},
        {"id": "t_1", "question": "Which?", "golden_answers": ["B"], "choices": ["red", "blue"]},
    ]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in questions))
    assert read_questions(path) == [
        Question("t_0", "Where?", (), "Rome", ("Roma",)),
        Question("t_1", "Which?", ("red", "blue"), "blue"),
    ]
    corpus = [
        {"id": "0", "contents": '"Rome"\nThe capital.\nOf Italy.'},
        {"id": 1, "contents": '"No title"'},
        {"id": 2, "contents": 'He said "no"\nand left.'},
        {"id": 3, "title": "T", "contents": '"Own"\ntext'},
    ]
    assert read_passages(corpus) == [
        Passage("0", "The capital.\nOf Italy.", "Rome"),
        Passage("1", '"No title"'),
        Passage("2", 'He said "no"\nand left.'),
        Passage("3", '"Own"\ntext', "T"),
    ]


def test_content_goes_before_contents_that_repeat_the_title():
    row = {"id": "a", "title": "Cells", "content": "They divide.", "contents": "Cells. They divide."}
    assert read_passages([row]) == [Passage("a", "They divide.", "Cells")]


def test_ragas_gives_questions_and_their_contexts():
    row = {
        "user_input": "Where?",
        "retrieved_contexts": ["noise", "Rome is it."],
        "reference_contexts": ["Rome is it."],
        "response": "Paris",
        "reference": "Rome",
    }
    (question,) = read_questions([row])
    assert (question.question, question.answers) == ("Where?", ("Rome",))
    assert dict(question.evidence) == {text_id("Rome is it."): Label.ENTAILED}
    passages = read_passages([row, row | {"user_input": "Else?"}])
    assert passages == [Passage(text_id(text), text) for text in ("Rome is it.", "noise")]
    named = row | {"reference_context_ids": ["r"], "retrieved_context_ids": ["n", "r"]}
    assert list(read_questions([named])[0].evidence) == ["r"]
    assert [passage.id for passage in read_passages([named])] == ["r", "n"]
    (problem,) = problems_of(read_passages, named | {"retrieved_context_ids": ["n"]})
    assert problem.startswith("row 1, column \"retrieved_context_ids\": found ['n']; expected a list of 2 ids")


def test_the_answer_of_an_older_ragas_row_is_the_systems():
    row = {"question": "Where?", "answer": "Paris", "contexts": ["Rome is it."]}
    assert read_questions([row | {"ground_truth": "Rome"}])[0].answers == ("Rome",)
    assert read_questions([row | {"ground_truths": ["Rome", "Roma"]}])[0].answers == ("Rome", "Roma")
    (question,) = read_questions([row | {"ground_truth": "Rome"}])
    assert question.evidence == {}  # retrieved, not labelled
    assert [passage.text for passage in read_passages([row | {"ground_truth": "Rome"}])] == ["Rome is it."]
    assert read_questions([row])[0].answers == ("Paris",)
    assert read_questions([row | {"ground_truth": "Rome"}], columns={"answer": "answer"})[0].answers == ("Paris",)


def test_ragas_without_contexts_has_no_passages():
    (problem,) = problems_of(read_passages, {"user_input": "Where?", "reference": "Rome"})
    assert problem == "row 1, no column of contexts to take passages from; the columns are ['user_input', 'reference']"


@pytest.mark.parametrize("given", [[["a", "b"], ["c"]], ["a", "b", "c"], '[["a"], ["b", "c"]]'])
def test_autorag_evidence(given):
    (question,) = read_questions([{"qid": "1", "query": "?", "retrieval_gt": given, "generation_gt": "x"}])
    assert (list(question.evidence), question.answers) == (["a", "b", "c"], ("x",))


def test_autorag_evidence_of_one_or_no_passage():
    for given, ids in (("a", ["a"]), ([[""]], []), ([], []), (None, [])):
        (question,) = read_questions([{"qid": "1", "query": "?", "retrieval_gt": given}])
        assert list(question.evidence) == ids
    (problem,) = problems_of(read_questions, {"query": "?", "retrieval_gt": [[1.5]]})
    assert 'column "retrieval_gt": found 1.5' in problem


@pytest.mark.parametrize(
    "name", ["relevant_doc_ids", "correct_answer_document_ids", "expected_ids", "reference_context_ids"]
)
def test_evidence_under_the_names_of_other_tools(name):
    assert list(read_questions([{"question": "?", name: ["a", 7]}])[0].evidence) == ["a", "7"]


# --- sets ---


def test_hotpotqa_as_published():
    row = {
        "_id": "5a",
        "question": "Who?",
        "answer": "Ed",
        "supporting_facts": [["A", 0], ["B", 1], ["A", 2]],
        "context": [["A", ["One.", " Two."]], ["B", ["Three."]]],
    }
    assert list(read_questions([row])[0].evidence) == ["A", "B"]
    assert read_questions([row])[0].jointly
    assert list(read_questions([row], columns={"evidence": "supporting_facts"})[0].evidence) == ["A", "B"]
    assert read_passages([row]) == [Passage("A", "One. Two.", "A"), Passage("B", "Three.", "B")]
    problems = problems_of(read_passages, row | {"context": [["A", "One."]]}, row, row | {"context": "A"})
    assert [problem.partition(";")[0] for problem in problems] == [
        "row 1, column \"context\": found 'One.'",
        "row 3, column \"context\": found 'A'",
    ]
    for facts in (["A", "B"], [[["A"], 0]], "A", {"title": ["A"], "sent_id": []}):
        (problem,) = problems_of(read_questions, row | {"supporting_facts": facts})
        assert "expected pairs of title and sent_id" in problem


def test_ambignq_annotation_of_another_kind():
    note = {"type": "other", "answer": [], "qaPairs": []}
    for notes in ([note], [note | {"type": "multipleQAs"}], [{"answer": []}, note]):
        (problem,) = problems_of(read_questions, {"question": "?", "annotations": notes})
        assert "expected a singleAnswer, or multipleQAs with qaPairs" in problem


def test_triviaqa_answers_that_are_no_texts():
    row = {"question": "?", "answer": {"value": 1.5, "aliases": "none"}}
    (problem,) = problems_of(read_questions, row)
    assert 'column "answer": found 1.5' in problem
    assert read_questions([row | {"answer": {"value": "a", "aliases": "b"}}])[0].answers == ("a", "b")


def test_judged_answers():
    (question,) = read_questions([{"question": "?", "judged": {"a": 1, "b": 2, "c": 3, "d": 4}}])
    assert list(question.evidence.values()) == ["NOT_USEFUL", "NOT_USEFUL", "USEFUL", "ENTAILED"]
    problems = problems_of(
        read_questions, {"question": "?", "judged": {"a": 5}}, {"question": "?", "judged": {"a": True}}
    )
    assert all("grade, 1 to 4" in problem for problem in problems)
    assert len(problems) == 2


def test_a_mapping_reaches_columns_that_a_form_does_not_use():
    row = {"query": "Which?", "retrieval_gt": [["a"]], "generation_gt": ["y"], "opts": ["x", "y"], "q": "Why?"}
    (question,) = read_questions([row], columns={"options": "opts", "question": "q"})
    assert (question.question, question.options, question.answer) == ("Why?", ("x", "y"), "y")
    assert list(question.evidence) == ["a"]
