"""Folders: which file is read, and BEIR's judgements as labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.data.qrels import label_of
from querywright.errors import DataError

QUERIES = [
    {"_id": "q1", "text": "One?", "metadata": {}},
    {"_id": "q2", "text": "Two?"},
    {"_id": "q3", "text": "Three?"},
]
CORPUS = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "title": "", "text": "two"}]
HEADER = "query-id\tcorpus-id\tscore\n"


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def problems_of(folder: Path, **options: str) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_questions(folder, **options)  # type: ignore[arg-type]
    return caught.value.problems


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    write_lines(folder / "corpus.jsonl", CORPUS)
    write_lines(folder / "queries.jsonl", QUERIES)
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t1\nq3\td1\t0\nq3\td2\t1\n")
    return folder


def test_beir(beir):
    assert read_passages(beir) == [Passage("d1", "one", "T"), Passage("d2", "two")]
    expected = [
        Question("q1", "One?", evidence={"d1": Label.ENTAILED}),
        Question("q3", "Three?", evidence={"d1": Label.NOT_USEFUL, "d2": Label.ENTAILED}),
    ]
    assert read_questions(beir) == read_questions(f"{beir}/") == read_questions(beir, split="test") == expected
    assert read_questions(beir, limit=1) == expected[:1]


def test_beir_documents_with_a_title_alone_or_nothing(beir, caplog):
    rows = [{"_id": "a", "title": "Only", "text": ""}, {"_id": "b", "title": "", "text": " "}, *CORPUS]
    write_lines(beir / "corpus.jsonl", rows)
    assert read_passages(beir)[:2] == [Passage("a", "Only"), Passage("d1", "one", "T")]
    assert "left out 1 passages" in caplog.text


def test_beir_grades(beir):
    (beir / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t2\nq1\td2\t1\nq2\td1\t0\nq2\td2\t-1\nq3\td1\t3.0\n")
    first, second, third = read_questions(beir)
    assert dict(first.evidence) == {"d1": Label.ENTAILED, "d2": Label.USEFUL}
    assert set(second.evidence.values()) == {Label.NOT_USEFUL}
    assert dict(third.evidence) == {"d1": Label.ENTAILED}


@pytest.mark.parametrize("grade", range(-2, 5))
def test_a_grade_that_is_more_is_never_worth_less(grade):
    order = [Label.NOT_USEFUL, Label.USEFUL, Label.ENTAILED]
    for positive in ({1, 2}, {2, 3}, {1}):
        this, more = label_of(grade, positive), label_of(grade + 1, positive)
        assert order.index(this) <= order.index(more)
    assert (label_of(grade, {1}) is Label.ENTAILED) == (grade >= 1)


def test_of_several_positive_grades_the_lowest_is_useful_whatever_it_is():
    assert [label_of(grade, {2, 3}) for grade in (0, 2, 3)] == [Label.NOT_USEFUL, Label.USEFUL, Label.ENTAILED]


def test_beir_splits(beir):
    (beir / "qrels" / "dev.tsv").write_text(HEADER + "q2\td2\t1\n")
    assert [question.id for question in read_questions(beir, split="dev")] == ["q2"]
    assert len(read_passages(beir)) == 2
    (problem,) = problems_of(beir)
    assert "several files of qrels in this folder, dev.tsv, test.tsv" in problem
    assert "--split: ['dev', 'test']" in problem
    assert "no file of the split 'train'" in problems_of(beir, split="train")[0]


def test_every_bad_judgement_is_named(beir):
    qrels = beir / "qrels" / "test.tsv"
    qrels.write_text(HEADER + "q3\td1\thigh\nq1\td2\t1\nq1\td2\t2\n\td1\t1\nq9\td1\t1\nq2\td1\n")
    problems = problems_of(beir)
    name = str(qrels)
    assert [problem.removeprefix(name)[:8].rstrip(":,") for problem in problems] == [
        " line 2",
        " line 4",
        " line 5",
        " line 7",
        " line 6",
    ]
    assert "'high'" in problems[0]
    assert "expected 1" in problems[1]
    assert "found 'q9'; expected the _id of a query" in problems[-1]


def test_judgements_without_a_header(beir):
    (beir / "qrels" / "test.tsv").write_text("q1\td1\t1\nq2\td1\t1\n")
    problem = problems_of(beir)[0]
    assert "no column ['query-id', 'corpus-id', 'score']; the columns are ['q1', 'd1', '1']" in problem
    assert "need a first line" in problem


def test_beir_judgements_in_one_file(beir):
    (beir / "qrels" / "test.tsv").rename(beir / "qrels.tsv")
    (beir / "qrels").rmdir()
    assert [question.id for question in read_questions(beir)] == ["q1", "q3"]


def test_repeated_query(beir):
    write_lines(beir / "queries.jsonl", [*QUERIES, QUERIES[0]])
    assert "line 4" in problems_of(beir)[0]


def test_autorag_folder(tmp_path):
    from datetime import datetime

    import pyarrow
    import pyarrow.parquet

    qa = [
        {"qid": "1", "query": "One?", "retrieval_gt": [["a", "b"], ["c"]], "generation_gt": ["yes", "sure"]},
        {"qid": "2", "query": "Two?", "retrieval_gt": [[]], "generation_gt": ["no"]},
    ]
    metadata = {"last_modified_datetime": datetime(2024, 5, 6, 7), "prev_id": None, "page": 3}
    corpus = [{"doc_id": key, "contents": key * 3, "metadata": metadata} for key in "abc"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(qa), tmp_path / "qa.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(corpus), tmp_path / "corpus.parquet")
    first, second = read_questions(tmp_path)
    assert first == Question("1", "One?", (), "yes", ("sure",), dict.fromkeys("abc", Label.ENTAILED))
    assert (second.answers, second.evidence) == (("no",), {})
    passages = read_passages(tmp_path)
    assert passages[0] == Passage("a", "aaa", "", {"last_modified_datetime": "2024-05-06T07:00:00", "page": 3})
    assert len(passages) == 3


def test_folder_with_a_file_a_split(tmp_path):
    for part in ("train", "test"):
        write_lines(tmp_path / f"qa_{part}.jsonl", [{"qid": part, "query": "?", "retrieval_gt": "d1"}])
    write_lines(tmp_path / "corpus.jsonl", CORPUS)
    assert [question.id for question in read_questions(tmp_path, split="test")] == ["test"]
    assert "['test', 'train']" in problems_of(tmp_path)[0]
    with pytest.raises(DataError, match=r"has one file of passages, corpus\.jsonl; leave split out"):
        read_passages(tmp_path, split="test")


def test_folder_that_is_not_clear(tmp_path):
    write_lines(tmp_path / "questions.jsonl", [{"question": "?"}])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError) as caught:
        read_passages(tmp_path)
    assert "no file of passages in this folder" in str(caught.value)
    assert "corpus or passages" in str(caught.value)
    assert "found ['notes.txt', 'questions.jsonl']" in str(caught.value)
    (tmp_path / "queries.csv").write_text("question\n?\n")
    (problem,) = problems_of(tmp_path)
    assert "several files of questions in this folder, queries.csv, questions.jsonl" in problem
    assert "give the path of one of them" in problem
