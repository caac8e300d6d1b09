"""Rows given in Python, rows of other tools, and the public sets in the schema of each, from files and from the hub."""

from __future__ import annotations

import hashlib
import json

import datasets
import dspy
import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.data.hub import RECIPES

ROME = {
    "user_input": "Where?", "retrieved_contexts": ["noise", "Rome is it."], "reference_contexts": ["Rome is it."],
    "response": "Paris", "reference": "Rome",
}  # fmt: skip
HOTPOT = {
    "_id": "5a", "question": "Who?", "answer": "Ed", "supporting_facts": [["A", 0], ["B", 1], ["A", 2]],
    "context": [["A", ["One.", " Two."]], ["B", ["Three."]]],
}  # fmt: skip
MEDQUAD = {
    "document_id": "0000001_1", "document_source": "CancerGov", "document_url": "https://example.org/1",
    "question_id": "0000001_1-1", "question_focus": "Leukemia", "question_type": "information",
    "question": "What is leukemia ?", "answer": "A cancer of the blood.",
}  # fmt: skip


def text_id(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def one(row, **options):
    (question,) = read_questions([row], **options)
    return question


def test_rows_given_in_python(problems):
    examples = [
        dspy.Example(question="One?", answer="yes", gold_titles={"B", "A"}).with_inputs("question"),
        dspy.Example(id="2", question="Two?", options=("x", "y"), answer="y", gold=["p"]).with_inputs("question"),
    ]
    first, second = read_questions(examples)
    assert (first.answer, list(first.evidence)) == ("yes", ["A", "B"])
    assert second == Question("2", "Two?", ("x", "y"), "y", (), {"p": Label.ENTAILED})
    assert read_questions(question.to_example() for question in (first, second)) == [first, second]
    frame = pandas.DataFrame({
        "qid": numpy.array([1, 2]), "query": ["One?", "Two?"], "generation_gt": [numpy.array(["yes"]), float("nan")],
        "retrieval_gt": [numpy.array([numpy.array(["a", "b"])], dtype=object), float("nan")],
    })  # fmt: skip
    first, second = read_questions(frame)
    assert (first.id, list(first.evidence), first.answer) == ("1", ["a", "b"], "yes")
    assert (second.id, second.evidence, second.answer) == ("2", {}, None)
    assert read_passages(datasets.Dataset.from_list([{"id": "a", "text": "x"}])) == [Passage("a", "x")]
    found = problems([{"question": "One?"}, "Two?", {"question": " "}, 4])
    assert [problem.partition(";")[0] for problem in found] == [
        "row 2: found str", "row 3, column \"question\": found ' '", "row 4: found int",
    ]  # fmt: skip
    assert problems([]) == ("the given rows: found no rows; expected at least one",)


def test_flashrag():
    assert one({"id": "t", "question": "Where?", "golden_answers": ["Rome", "Roma"]}).answers == ("Rome", "Roma")
    row = {"id": "t", "question": "Which?", "golden_answers": ["B"], "choices": ["red", "blue"]}
    assert one(row) == Question("t", "Which?", ("red", "blue"), "blue")
    corpus = [
        {"id": "0", "contents": '"Rome"\nThe capital.\nOf Italy.'},
        {"id": 1, "contents": '"No title"'},
        {"id": 2, "contents": 'He said "no"\nand left.'},
        {"id": 3, "title": "T", "contents": '"Own"\ntext'},
        {"id": 4, "title": "T", "content": "They divide.", "contents": "T. They divide."},
    ]
    assert [(passage.title, passage.text) for passage in read_passages(corpus)] == [
        ("Rome", "The capital.\nOf Italy."), ("", '"No title"'), ("", 'He said "no"\nand left.'), ("T", '"Own"\ntext'),
        ("T", "They divide."),
    ]  # fmt: skip


def test_ragas_gives_questions_and_their_contexts(problems):
    question = one(ROME)
    assert (question.question, question.answers) == ("Where?", ("Rome",))
    assert question.evidence == {text_id("Rome is it."): Label.ENTAILED}
    passages = read_passages([ROME, ROME | {"user_input": "Else?"}])
    assert passages == [Passage(text_id(text), text) for text in ("Rome is it.", "noise")]
    named = ROME | {"reference_context_ids": ["r"], "retrieved_context_ids": ["n", "r"]}
    assert list(one(named).evidence) == ["r"]
    assert [passage.id for passage in read_passages([named])] == ["r", "n"]
    (problem,) = problems([named | {"retrieved_context_ids": ["n"]}], read_passages)
    assert problem.startswith("row 1, column \"retrieved_context_ids\": found ['n']; expected a list with one ID per")
    (problem,) = problems([{"user_input": "Where?", "reference": "Rome"}], read_passages)
    assert problem.startswith("row 1, no column with contexts (reference_contexts, retrieved_contexts, contexts)")
    assert problem.endswith("the columns are ['user_input', 'reference']")


def test_the_answer_of_an_older_ragas_row_is_the_systems():
    row = {"question": "Where?", "answer": "Paris", "contexts": ["Rome is it."]}
    told = row | {"ground_truth": "Rome"}
    assert one(row).answers == one(told, columns={"answer": "answer"}).answers == ("Paris",)
    assert (one(told).answers, one(told).evidence) == (("Rome",), {})  # retrieved, not labelled
    assert one(row | {"ground_truths": ["Rome", "Roma"]}).answers == ("Rome", "Roma")
    assert [passage.text for passage in read_passages([told])] == ["Rome is it."]


@pytest.mark.parametrize(
    ("given", "ids", "alternatives", "jointly"),
    [
        ([["a", "b"]], "ab", (("a", "b"),), False), ([["a", "b"], ["c"]], "abc", (("a", "b"),), True),
        ([["a"], ["b"]], "ab", (), True), ("[['a' 'b']\n ['c' 'd']]", "abcd", (("a", "b"), ("c", "d")), True),
        ('[["a"], ["b", "c"]]', "abc", (("b", "c"),), True), ([["a", "a"]], "a", (), False),
        (["a", "b", "c"], "abc", (), False), ("a", "a", (), False), (7, "7", (), False), (None, "", (), False),
        ("[array(['a', 'b'], dtype=object) array(['c'], dtype=object)]", "abc", (("a", "b"),), True),
        ([["a"], []], "a", (), False), ([[""]], "", (), False), ([], "", (), False), ("nan", "", (), False),
        ([["a", "b", "a", None], ["b", "c"]], "abc", (("a", "b"), ("b", "c")), True),
    ],
)  # fmt: skip
def test_inner_lists_of_autorag_are_alternatives(given, ids, alternatives, jointly):
    row = {"qid": "1", "query": "?", "retrieval_gt": given, "generation_gt": "x", "opts": ["x", "y"], "q": "Why?"}
    found = one(row)
    assert ("".join(found.evidence), found.alternatives, found.jointly) == (ids, alternatives, jointly)
    assert found.answers == ("x",)
    assert one({**row, "jointly": not jointly}).jointly is not jointly
    assert one(row, columns={"options": "opts", "question": "q"}).question == "Why?"


@pytest.mark.parametrize("name", ["relevant_doc_ids", "correct_answer_document_ids", "expected_ids"])
def test_evidence_under_the_names_of_other_tools(name):
    assert list(one({"question": "?", name: ["a", 7]}).evidence) == ["a", "7"]


def test_hotpotqa_as_published():
    assert (list(one(HOTPOT).evidence), one(HOTPOT).jointly) == (["A", "B"], True)
    assert list(one(HOTPOT, columns={"evidence": "supporting_facts"}).evidence) == ["A", "B"]
    assert read_passages([HOTPOT]) == [Passage("A", "One. Two.", "A"), Passage("B", "Three.", "B")]


@pytest.mark.parametrize(
    ("read", "row", "said"),
    [
        (read_passages, HOTPOT | {"context": [["A", "One."]]}, "column \"context\": found 'One.'"),
        (read_questions, HOTPOT | {"supporting_facts": ["A", "B"]}, "pairs of a title and sent_id"),
        (read_questions, {"question": "?", "annotations": [{"qaPairs": [], "type": "no"}]}, "multipleQAs with qaPairs"),
        (read_questions, {"query": "?", "retrieval_gt": [[1.5]]}, 'column "retrieval_gt": found 1.5'),
        (read_questions, {"question": "?", "judged": {"a": 5}}, "grades from 1 to 4"),
    ],
)  # fmt: skip
def test_a_row_that_is_not_of_its_form(problems, read, row, said):
    (problem,) = problems([row], read)
    assert said in problem


def test_grades_of_liveqa():
    labels = one({"question": "?", "judged": {"a": 1, "b": 2, "c": 3, "d": 4}}).evidence.values()
    assert list(labels) == ["NOT_USEFUL", "NOT_USEFUL", "USEFUL", "ENTAILED"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Puts rows by dataset, configuration and split; loading one of them by name reads it with the library."""
    stored = {}
    load = datasets.load_dataset
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def from_files(name, config, *, split):
        return load("parquet", data_files={split: stored[name, config, split]}, split=split)

    def put(name, config, split, *rows):
        stored[name, config, split] = str(tmp_path / f"{len(stored)}.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), stored[name, config, split])

    monkeypatch.setattr(datasets, "load_dataset", from_files)
    return put


def test_questions_with_options_from_the_hub(hub, problems):
    options = {"A": "K", "B": "C", "C": "D", "D": "A"}
    row = {"question": "Which?", "answer": "C", "options": options, "meta_info": "step1", "answer_idx": "B"}
    hub("GBaker/MedQA-USMLE-4-options", None, "test", row)
    assert [(one.options, one.answer) for one in read_questions("hf:medqa")] == [(("K", "C", "D", "A"), "C")]
    for number, subject in enumerate(RECIPES["mmlu-med"].configs):
        row = {"question": f"How many, {number}?", "subject": subject, "choices": ["2", "3", "1", "4"], "answer": 1}
        hub("cais/mmlu", subject, "test", row)
        hub("cais/mmlu", subject, "dev", row, row | {"question": "Other?", "answer": 7})
    found = read_questions("hf:mmlu-med")
    assert [one.question for one in found] == [f"How many, {number}?" for number in range(6)]
    assert {one.answer for one in found} == {"3"}  # a position
    assert read_questions("hf:cais/mmlu:anatomy", split="dev", limit=1) == found[:1]
    (problem,) = problems("hf:mmlu-med:anatomy", split="dev")
    assert problem.startswith('cais/mmlu:anatomy (dev) row 2, column "answer_idx": found 7; expected')
    (problem,) = problems("hf:mmlu-med", read_passages)
    assert "contains questions but no passages; use a dataset with passages (medquad, hotpotqa)" in problem


def test_medquad_rows_without_an_answer_are_left_out_and_counted(hub, caplog, problems):
    missing = MEDQUAD | {"document_source": "ADAM", "answer": None}
    again = MEDQUAD | {"question_id": "0000002_1-1", "document_url": None, "answer": "Cells that grow too fast."}
    hub("lavita/MedQuAD", None, "train", missing, MEDQUAD, missing | {"answer": " "}, again)
    (question,) = read_questions("hf:medquad")
    assert "hf:medquad: ignored questions without a text or an answer: 2" in caplog.text
    first, second = read_passages("hf:medquad")
    metadata = {"source": "CancerGov", "url": "https://example.org/1", "type": "information"}
    assert first == Passage("CancerGov_0000001_1-1", "A cancer of the blood.", "Leukemia", metadata)
    assert "url" not in second.metadata
    assert (question.answer, list(question.evidence)) == (None, [first.id, second.id])
    assert read_passages("hf:medquad", limit=1) == [first]
    assert "all passages lack a text or an answer (rows: 1)" in problems([missing], read_passages)[0]


def test_hotpotqa_from_the_hub_is_questions_and_a_corpus(hub, caplog):
    first = {
        "id": "q1", "question": "Who?", "answer": "Ed", "type": "bridge", "level": "hard",
        "supporting_facts": {"title": ["A", "B", "A"], "sent_id": [0, 0, 1]},
        "context": {"title": ["A", "B", "C"], "sentences": [["One.", " Two."], ["Three."], [""]]},
    }  # fmt: skip
    second = first | {"id": "q2", "context": {"title": ["B", "D"], "sentences": [["Three."], ["Four."]]}}
    hub("hotpotqa/hotpot_qa", "distractor", "validation", first, second)
    gold = {"A": Label.ENTAILED, "B": Label.ENTAILED}
    assert read_questions("hf:hotpotqa")[0] == Question("q1", "Who?", (), "Ed", (), gold, jointly=True)
    passages = read_passages("hf:hotpotqa")
    assert passages == [Passage("A", "One. Two.", "A"), Passage("B", "Three.", "B"), Passage("D", "Four.", "D")]
    assert "ignored passages without a text or an answer: 1" in caplog.text


def test_questions_with_short_answers_from_the_hub(hub):
    hub("stanfordnlp/web_questions", None, "test", {"url": "u", "question": "where?", "answers": ["Rome", "Italy"]})
    assert read_questions("hf:webquestions")[0].answers == ("Rome", "Italy")
    row = {"id": 42, "question": "What is his work?", "obj": "x", "possible_answers": json.dumps(["pol", "MP"])}
    hub("akariasai/PopQA", None, "test", row, row | {"id": 43})
    assert [(one.id, one.answers) for one in read_questions("hf:popqa")] == [
        ("42", ("pol", "MP")), ("43", ("pol", "MP")),
    ]  # fmt: skip
    single = {"type": ["singleAnswer"], "answer": [["Rome", "Roma"]], "qaPairs": [{"question": [], "answer": []}]}
    pairs = {"question": ["Began?", "Ended?"], "answer": [["1914"], ["1918", "11/1918"]]}
    several = {
        "type": ["multipleQAs", "singleAnswer"], "answer": [[], ["1914"]],
        "qaPairs": [pairs, {"question": [], "answer": []}],
    }  # fmt: skip
    rows = [
        {"id": "1", "question": "Where?", "annotations": single},
        {"id": "2", "question": "When?", "annotations": several},
    ]
    hub("sewon/ambig_qa", "light", "validation", *rows)
    assert [(one.question, one.answers) for one in read_questions("hf:ambignq")] == [
        ("Where?", ("Rome", "Roma")), ("Began?", ("1914",)), ("Ended?", ("1918", "11/1918")), ("When?", ("1914",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "name", "config"),
    [("hf:squad", "squad", None), ("hf:cais/mmlu:anatomy", "cais/mmlu", "anatomy"), ("owner/set", "owner/set", None)],
)
def test_the_hub_without_a_network(monkeypatch, problems, source, name, config):
    asked = []

    def refuse(*arguments, **options):
        asked.append((arguments, options))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    (problem,) = problems(source, split="test")
    assert asked == [((name, config), {"split": "test"})]
    for part in (repr(name), "no network", "no network access", ".jsonl"):
        assert part in problem


def test_a_dataset_that_is_a_program_is_not_run(tmp_path, monkeypatch, problems):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "this folder has no file with questions" in problems(folder)[0]
    assert not (tmp_path / "ran").exists()
    for source in ("medqua", "hf:"):
        assert all(name in problems(source)[0] for name in RECIPES)
