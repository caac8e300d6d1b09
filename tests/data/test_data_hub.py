"""The public sets by name: rows in the schema of each, as Parquet that stands in for what the hub would send."""

from __future__ import annotations

import json
import logging

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.data.hub import RECIPES
from querywright.errors import DataError


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Rows by (dataset, config, split); loading one of them by name reads it with the library, from a file."""
    stored: dict[tuple[str, str | None, str], str] = {}
    load = datasets.load_dataset
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def from_files(name: str, config: str | None, *, split: str) -> object:
        return load("parquet", data_files={split: stored[name, config, split]}, split=split)

    def put(name: str, config: str | None, split: str, *rows: dict[str, object]) -> None:
        path = tmp_path / f"{len(stored)}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
        stored[name, config, split] = str(path)

    monkeypatch.setattr(datasets, "load_dataset", from_files)
    return put


def test_medqa(hub):
    hub(
        "GBaker/MedQA-USMLE-4-options",
        None,
        "test",
        {
            "question": "Which vitamin?",
            "answer": "C",
            "options": {"A": "K", "B": "C", "C": "D", "D": "A"},
            "meta_info": "step1",
            "answer_idx": "B",
            "metamap_phrases": ["vitamin"],
        },
    )
    (question,) = read_questions("hf:medqa")
    assert (question.options, question.answer) == (("K", "C", "D", "A"), "C")


def test_mmlu_med_is_six_subjects_and_its_answer_a_position(hub):
    for number, subject in enumerate(RECIPES["mmlu-med"].configs):
        row = {"question": f"How many, {number}?", "subject": subject, "choices": ["2", "3", "1", "4"], "answer": 1}
        hub("cais/mmlu", subject, "test", row)
        hub("cais/mmlu", subject, "dev", row | {"answer": 2})
    questions = read_questions("hf:mmlu-med")
    assert [question.question for question in questions] == [f"How many, {number}?" for number in range(6)]
    assert {question.answer for question in questions} == {"3"}
    (anatomy,) = read_questions("hf:mmlu-med:anatomy", split="dev")
    assert anatomy.answer == "1"
    assert read_questions("hf:cais/mmlu:anatomy", split="dev") == [anatomy]
    with pytest.raises(DataError, match="holds questions, and no passages; names with passages: medquad, hotpotqa"):
        read_passages("hf:mmlu-med")


def test_a_bad_row_is_named_with_its_configuration(hub):
    row = {"question": "Which?", "subject": "x", "choices": ["a", "b"], "answer": 1}
    hub("cais/mmlu", "anatomy", "test", row, row | {"question": "Other?", "answer": 7})
    with pytest.raises(DataError) as caught:
        read_questions("hf:mmlu-med:anatomy")
    (problem,) = caught.value.problems
    assert problem.startswith('cais/mmlu:anatomy (test) row 2, column "answer_idx": found 7; expected')


MEDQUAD = {
    "document_id": "0000001_1",
    "document_source": "CancerGov",
    "document_url": "https://example.org/1",
    "category": None,
    "umls_cui": "C1|C2",
    "question_id": "0000001_1-1",
    "question_focus": "Leukemia",
    "question_type": "information",
    "question": "What is leukemia ?",
    "answer": "A cancer of the blood.",
}


def test_medquad_rows_without_an_answer_are_left_out_and_counted(hub, caplog):
    missing = MEDQUAD | {"document_source": "ADAM", "answer": None}
    again = MEDQUAD | {"question_id": "0000002_1-1", "document_url": None, "answer": "Cells that grow too fast."}
    hub("lavita/MedQuAD", None, "train", missing, MEDQUAD, missing | {"answer": " "}, again)
    with caplog.at_level(logging.WARNING):
        (question,) = read_questions("hf:medquad")
    assert [record.getMessage() for record in caplog.records] == [
        "hf:medquad: left out 2 questions without text or answer"
    ]
    first, second = read_passages("hf:medquad")
    assert first == Passage(
        "CancerGov_0000001_1-1",
        "A cancer of the blood.",
        "Leukemia",
        {"source": "CancerGov", "url": "https://example.org/1", "type": "information"},
    )
    assert "url" not in second.metadata
    assert (question.answer, dict(question.evidence)) == (None, {first.id: Label.ENTAILED, second.id: Label.ENTAILED})
    assert read_passages("hf:medquad", limit=1) == [first]


def test_medquad_without_any_answer(hub):
    hub("lavita/MedQuAD", None, "train", MEDQUAD | {"answer": ""})
    with pytest.raises(DataError, match="all 1 passages are without text or answer"):
        read_passages("hf:medquad")


def test_hotpotqa_is_questions_and_a_corpus(hub, caplog):
    first = {
        "id": "q1",
        "question": "Who?",
        "answer": "Ed",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": {"title": ["A", "B", "A"], "sent_id": [0, 0, 1]},
        "context": {"title": ["A", "B", "C"], "sentences": [["One.", " Two."], ["Three."], [""]]},
    }
    second = first | {"id": "q2", "context": {"title": ["B", "D"], "sentences": [["Three."], ["Four."]]}}
    hub("hotpotqa/hotpot_qa", "distractor", "validation", first, second)
    question, _ = read_questions("hf:hotpotqa")
    gold = {"A": Label.ENTAILED, "B": Label.ENTAILED}
    assert question == Question("q1", "Who?", (), "Ed", (), gold, jointly=True)
    passages = read_passages("hf:hotpotqa")
    assert passages == [Passage("A", "One. Two.", "A"), Passage("B", "Three.", "B"), Passage("D", "Four.", "D")]
    assert "left out 1 passages" in caplog.text
    assert read_passages("hf:hotpotqa", limit=1) == passages[:2]


def test_triviaqa_has_a_row_for_each_document_of_a_question(hub):
    answer = {
        "value": "Rome",
        "aliases": ["Roma", "Rome", ""],
        "normalized_aliases": ["roma"],
        "type": "WikipediaEntity",
    }
    row = {"question": "Where?", "question_id": "tc_1", "question_source": "x", "answer": answer}
    untold = row | {"question": "When?", "question_id": "tc_2", "answer": answer | {"value": "<unk>", "aliases": []}}
    hub("mandarjoshi/trivia_qa", "rc.nocontext", "validation", row, row, untold)
    first, second = read_questions("hf:triviaqa")
    assert first.answers == ("Rome", "Roma")
    assert second.answers == ()


def test_webquestions_and_popqa(hub):
    hub(
        "stanfordnlp/web_questions",
        None,
        "test",
        {"url": "u", "question": "where?", "answers": ["Rome", "Italy", "Rome"]},
    )
    assert read_questions("hf:webquestions")[0].answers == ("Rome", "Italy")
    row = {
        "id": 42,
        "question": "What is his work?",
        "obj": "politician",
        "possible_answers": json.dumps(["pol", "MP"]),
    }
    hub("akariasai/PopQA", None, "test", row, row | {"id": 43})
    assert read_questions("hf:popqa") == [
        Question("42", "What is his work?", (), "pol", ("MP",)),
        Question("43", "What is his work?", (), "pol", ("MP",)),
    ]


def test_ambignq_questions_stand_alone(hub):
    single = {"type": ["singleAnswer"], "answer": [["Rome", "Roma"]], "qaPairs": [{"question": [], "answer": []}]}
    several = {
        "type": ["multipleQAs", "singleAnswer"],
        "answer": [[], ["1914"]],
        "qaPairs": [
            {"question": ["When did it begin?", "When did it end?"], "answer": [["1914"], ["1918", "11/1918"]]},
            {"question": [], "answer": []},
        ],
    }
    hub(
        "sewon/ambig_qa",
        "light",
        "validation",
        {"id": "1", "question": "Where?", "annotations": single},
        {"id": "2", "question": "When?", "annotations": several},
    )
    assert [(question.question, question.answers) for question in read_questions("hf:ambignq")] == [
        ("Where?", ("Rome", "Roma")),
        ("When did it begin?", ("1914",)),
        ("When did it end?", ("1918", "11/1918")),
        ("When?", ("1914",)),
    ]


def test_a_dataset_that_is_a_program_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(DataError, match="is not run; download the Parquet files of its branch refs/convert/parquet"):
        read_questions(folder)
    assert not (tmp_path / "ran").exists()


def test_the_names_are_listed_where_one_is_wrong():
    for source in ("medqua", "hf:"):
        with pytest.raises(DataError) as caught:
            read_questions(source)
        assert all(name in str(caught.value) for name in RECIPES)
