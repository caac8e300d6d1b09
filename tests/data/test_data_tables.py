"""Files of every format, folders of files, and what is said of those that are broken or missing."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from querywright.data import Label, Passage, Question, load_sample, read_passages, read_questions
from querywright.data.documents import names_documents
from querywright.data.sources import label_of
from querywright.errors import DataError

ROWS = [
    {"id": "1", "question": "Which, exactly?", "options": ["a, b", 'say "c"'], "answer": 'say "c"'},
    {"id": "2", "question": "Two\nlines?", "options": ["x", "y"], "gold": ["p"]},
    {"id": "3", "question": "Ünï?", "options": None, "answer": "é"},
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
HEADER = "query-id\tcorpus-id\tscore\n"


def parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def as_csv(delimiter):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter)
    names = ["id", "question", "options", "answer", "gold"]
    writer.writerow(names)
    for row in ROWS:
        cells = [row.get(name) for name in names]
        writer.writerow([json.dumps(cell) if isinstance(cell, list) else cell for cell in cells])
    return buffer.getvalue().encode("utf-8-sig")


def test_every_format_gives_the_same(tmp_path):
    files = {
        "q.JSONL": ("\ufeff" + LINES.replace("\n", "\r\n\r\n")).encode(),
        "q.json": json.dumps(ROWS, indent=1).encode(),
        "q.jsonl.gz": gzip.compress(LINES.encode()),
        "q.csv": as_csv(","),
        "q.tsv": as_csv("\t"),
        "q.csv.gz": gzip.compress(as_csv(",")),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    parquet(tmp_path / "q.parquet", [{"gold": None} | row for row in ROWS])
    expected = read_questions(ROWS)
    assert [question.answer for question in expected] == ['say "c"', None, "é"]
    for name in (*files, "q.parquet"):
        assert read_questions(tmp_path / name) == expected, name
        assert read_questions(str(tmp_path / name), limit=2) == expected[:2], name


def test_letter_columns_and_structs_with_holes(tmp_path, problems):
    path = tmp_path / "mmlu.csv"
    path.write_text("question,A,B,C,D,answer\nHow many?,1,2,3,4,C\nYes?,yes,no,,,A\nOpen?,,,,,free\n")
    assert [(one.options, one.answer) for one in read_questions(path)] == [
        (("1", "2", "3", "4"), "3"), (("yes", "no"), "yes"), ((), "free"),
    ]  # fmt: skip
    path.write_text("question,A,B,C,answer\nHow many?,1,,3,C\n")
    assert 'line 2, column "A,B,C": found None' in problems(path)[0]
    gold = dict.fromkeys("pr")
    rows = [
        {"query": "A?", "choices": {"A": "x", "B": "y", "C": None}, "answer_idx": 1, "gold": gold | {"p": "USEFUL"}},
        {"query": "B?", "choices": {"A": "x", "B": "y", "C": "z"}, "answer_idx": 2, "gold": gold | {"r": "USEFUL"}},
    ]  # fmt: skip
    parquet(tmp_path / "q.parquet", rows)
    assert [(one.options, one.answer, list(one.evidence)) for one in read_questions(tmp_path / "q.parquet")] == [
        (("x", "y"), "y", ["p"]), (("x", "y", "z"), "z", ["r"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "data", "parts"),
    [
        ("a.jsonl", b'{"question": "ok?"}\n{"question": \n', ["line 2", "not valid JSON", "one JSON object per line"]),
        ("a.jsonl", b'{"question": "caf\xe9"}\n', ["a.jsonl line 1", "not UTF-8", "0xe9"]),
        ("a.jsonl", b"[" * 100_000 + b"\n", ["a.jsonl line 1", "nested too deeply"]),
        ("a.jsonl", b"\n \n", ["found no rows"]),
        ("a.json", b'{"question": "ok?"}', ["found dict", "list of objects"]),
        ("a.json", b'[\n{"question": "ok?"},\n{]', ["not valid JSON", "line 3", ".jsonl"]),
        ("a.jsonl.gz", b"plain text", ["cannot be read", "damaged"]),
        ("a.jsonl.gz", gzip.compress(b'{"question": "ok?"}\n' * 99, mtime=0)[:-12], ["cannot be read"]),
        ("a.csv", b"question,answer\na,b\nonly\n", ["a.csv line 3", "number of cells: 1", "expected 2"]),
        ("a.csv", b"question,answer,question\na,b,c\n", ["line 1", "duplicates: ['question']"]),
        ("a.csv", b'question\n"a"b\n', ["a.csv line 2", "quotation marks"]),
        ("a.csv", b"x," + b",".join(b"c%d" % n for n in range(20_000)) + b"\n", ["a.csv: found no rows"]),
        ("a.csv", b'question,answer\n"two\nlines",b\n"  ",c\n', ["line 4", 'column "question": found nothing']),
        ("a.parquet", b"PAR1 nonsense", ["a.parquet", "cannot read the Parquet file"]),
        ("a.txt", b"question", ["unknown format", ".parquet"]),
    ],
)
def test_broken_files(tmp_path, problems, name, data, parts):
    (tmp_path / name).write_bytes(data)
    (problem,) = problems(tmp_path / name)
    for part in parts:
        assert part in problem


def test_a_cell_is_as_long_as_a_text_of_json_and_of_many_columns_a_problem_names_some(tmp_path, problems):
    path, names = tmp_path / "a.csv", ",".join(f"c{n}" for n in range(20_000))
    path.write_text(f"question,{names}\n{'x' * 1_000_000},{',' * 19_999}\n")
    (question,) = read_questions(path)
    assert len(question.question) == 1_000_000
    path.write_text(f"{names}\n1{',' * 19_999}\n")
    assert "'c19'] and 19980 more. Choose one with" in problems(path)[0]


def test_broken_rows_do_not_hide_others(tmp_path, problems):
    path = tmp_path / "a.csv"
    path.write_text("id,question\n1\n2,\n2,ok\n2,again\n")
    found = [problem.removeprefix(f"{path} ").split(":")[0] for problem in problems(path)]
    assert found == ["line 2", 'line 3, column "question"', 'line 5, column "id"']


@pytest.mark.parametrize("name", ["none.jsonl", "data/none.jsonl", "./none", "~/none.csv", "medqa", ""])
def test_missing_files(tmp_path, monkeypatch, problems, name):
    monkeypatch.chdir(tmp_path)
    (problem,) = problems(name)
    assert problem.startswith(f"{name}: no such file")
    assert "hf:NAME" in problem


def test_only_datasets_and_folders_have_splits(write, problems):
    for source in (write("q.jsonl", *ROWS), "sample", ROWS):
        assert "only datasets have splits" in problems(source, split="train")[0]
    assert "does not name a dataset" in problems("hf:")[0]


def test_a_folder_of_a_dataset(tmp_path, monkeypatch, write, problems):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    for number, part in ((1, "train"), (0, "test")):
        parquet(folder / f"{part}.parquet", [{"question": "Which?", "choices": ["a", "b"], "answer": number}])
    assert [question.answer for question in read_questions(str(folder), split="train")] == ["b"]
    assert [question.answer for question in read_questions(f"hf:{folder}", split="test")] == ["a"]
    assert "has the splits ['test', 'train']" in problems(folder)[0]
    assert "cannot be loaded" in problems(folder, split="dev")[0]
    single = write("cards/data.jsonl", {"id": 4, "contents": "four"}, {"id": 5, "contents": ""}).parent
    assert read_passages(str(single), limit=1) == [Passage("4", "four")]
    assert "(train) row 2, column \"contents\": found ''" in problems(str(single), read_passages)[0]


def test_a_split_that_was_saved_to_disk(tmp_path, problems):
    rows = [{"question": one, "choices": ["a", "b"], "answer": 1} for one in ("Which?", "")]
    split = datasets.Dataset.from_list(rows, split="test")
    split.select([0]).with_format("numpy").save_to_disk(tmp_path / "one")
    (question,) = read_questions(tmp_path / "one")
    assert (question.options, question.answer) == (("a", "b"), "b")
    assert read_questions(f"hf:{tmp_path / 'one'}", split="test") == read_questions(split.select([0])) == [question]
    (problem,) = problems(tmp_path / "one", split="train")
    assert problem.startswith("split='train': ")
    assert problem.endswith("has only one split (test); omit split=")
    split.save_to_disk(tmp_path / "two")
    assert "(test) row 2, column \"question\": found ''" in problems(tmp_path / "two")[0]
    (tmp_path / "two" / "state.json").write_text("{}")
    assert "cannot be loaded" in problems(tmp_path / "two")[0]


def test_a_name_of_a_packaged_set_and_of_a_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample-hard").mkdir()
    monkeypatch.chdir(tmp_path)
    for read in (read_passages, read_questions, names_documents):
        with pytest.raises(DataError, match=r"'sample' is a packaged set, and also a file or folder here; for yours, "):
            read("sample")
    assert read_passages("packaged:sample") == load_sample().passages != []
    (tmp_path / "sample" / "passages.jsonl").write_text('{"id": "1", "content": "mine"}\n')
    assert read_passages(Path("sample")) == read_passages("./sample") == [Passage("1", "mine")]


@pytest.fixture
def beir(write):
    write("set/corpus.jsonl", {"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "title": "", "text": "two"})
    queries = [
        {"_id": "q1", "text": "One?", "metadata": {}},
        {"_id": "q2", "text": "Two?"},
        {"_id": "q3", "text": "3?"},
    ]
    folder = write("set/queries.jsonl", *queries).parent
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t1\nq3\td1\t0\nq3\td2\t1\n")
    return folder


def test_beir(beir, write, caplog):
    assert read_passages(beir) == [Passage("d1", "one", "T"), Passage("d2", "two")]
    expected = [
        Question("q1", "One?", evidence={"d1": Label.ENTAILED}),
        Question("q3", "3?", evidence={"d1": Label.NOT_USEFUL, "d2": Label.ENTAILED}),
    ]
    assert read_questions(beir) == read_questions(f"{beir}/") == read_questions(beir, split="test") == expected
    assert read_questions(beir, limit=1) == expected[:1]
    write("set/corpus.jsonl", {"_id": "a", "title": "Only", "text": ""}, {"_id": "b", "title": "", "text": " "})
    assert read_passages(beir) == [Passage("a", "Only")]
    assert "ignored passages without a text or an answer: 1" in caplog.text


def test_grades_of_beir(beir):
    (beir / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t2\nq1\td2\t1\nq2\td1\t0\nq2\td2\t-1\nq3\td1\t3.0\n")
    first, second, third = read_questions(beir)
    assert first.evidence == {"d1": Label.ENTAILED, "d2": Label.USEFUL}
    assert set(second.evidence.values()) == {Label.NOT_USEFUL}
    assert third.evidence == {"d1": Label.ENTAILED}
    order = [Label.NOT_USEFUL, Label.USEFUL, Label.ENTAILED]
    for positive in ({1, 2}, {2, 3}, {1}):
        worth = [order.index(label_of(grade, positive)) for grade in range(-2, 6)]
        assert worth == sorted(worth)
    assert [label_of(grade, {1}) for grade in (0, 1)] == [Label.NOT_USEFUL, Label.ENTAILED]
    assert [label_of(grade, {2, 3}) for grade in (0, 2, 3)] == order


def test_splits_of_beir(beir, problems):
    (beir / "qrels" / "dev.tsv").write_text(HEADER + "q2\td2\t1\n")
    assert [question.id for question in read_questions(beir, split="dev")] == ["q2"]
    (problem,) = problems(beir)
    assert "more than one file with qrels in this folder (dev.tsv, test.tsv)" in problem
    assert "split=: ['dev', 'test']" in problem
    assert "no file with qrels for the split 'train'" in problems(beir, split="train")[0]
    (beir / "qrels" / "dev.tsv").rename(beir / "qrels.tsv")
    (beir / "qrels" / "test.tsv").unlink()
    (beir / "qrels").rmdir()
    assert [question.id for question in read_questions(beir)] == ["q2"]


def test_every_bad_judgement_is_named(beir, problems):
    qrels = beir / "qrels" / "test.tsv"
    qrels.write_text(HEADER + "q3\td1\thigh\nq1\td2\t1\nq1\td2\t2\n\td1\t1\nq9\td1\t1\nq2\td1\n")
    found = problems(beir)
    assert [problem.removeprefix(f"{qrels} line ")[0] for problem in found] == ["2", "4", "5", "7", "6"]
    assert "'high'" in found[0]
    assert "expected 1" in found[1]
    assert "found 'q9'; expected the _id of a query" in found[-1]
    qrels.write_text("q1\td1\t1\nq2\td1\t1\n")
    assert "no column ['query-id', 'corpus-id', 'score']; the columns are ['q1', 'd1', '1']" in problems(beir)[0]


def test_a_folder_of_autorag(tmp_path):
    from datetime import datetime

    qa = [
        {"qid": "1", "query": "One?", "retrieval_gt": [["a", "b"], ["c"]], "generation_gt": ["yes", "sure"]},
        {"qid": "2", "query": "Two?", "retrieval_gt": [[]], "generation_gt": ["no"]},
    ]
    metadata = {"last_modified_datetime": datetime(2024, 5, 6, 7), "prev_id": None, "page": 3}
    parquet(tmp_path / "qa.parquet", qa)
    parquet(tmp_path / "corpus.parquet", [{"doc_id": id, "contents": id * 3, "metadata": metadata} for id in "abc"])
    first, second = read_questions(tmp_path)
    evidence = dict.fromkeys("abc", Label.ENTAILED)
    assert first == Question("1", "One?", (), "yes", ("sure",), evidence, True, alternatives=(("a", "b"),))
    assert (second.answers, second.evidence) == (("no",), {})
    passages = read_passages(tmp_path)
    assert passages[0] == Passage("a", "aaa", "", {"last_modified_datetime": "2024-05-06T07:00:00", "page": 3})
    assert len(passages) == 3


def test_a_folder_with_a_file_a_split_and_one_that_is_not_clear(write, problems, tmp_path):
    for part in ("train", "test"):
        write(f"split/qa_{part}.jsonl", {"qid": part, "query": "?", "retrieval_gt": "d1"})
    write("split/corpus.jsonl", {"id": "d1", "text": "x"})
    assert [question.id for question in read_questions(tmp_path / "split", split="test")] == ["test"]
    assert "['test', 'train']" in problems(tmp_path / "split")[0]
    (problem,) = problems(tmp_path / "split", read_passages, split="test")
    assert "have no splits (corpus.jsonl); omit split=" in problem

    write("one/questions.jsonl", {"question": "?"})
    (problem,) = problems(tmp_path / "one", read_passages)
    for part in ("this folder has no file with passages", "corpus or passages", "found ['questions.jsonl']"):
        assert part in problem
    write("one/queries.jsonl", {"question": "?"})
    (problem,) = problems(tmp_path / "one")
    assert "more than one file with questions in this folder (queries.jsonl, questions.jsonl)" in problem
    assert "pass the path of one file" in problem
