from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from querywright.data import Passage, Question, read_passages, read_questions
from querywright.errors import DataError

ROWS = [
    {"id": "1", "question": "Which, exactly?", "options": ["a, b", 'say "c"'], "answer": 'say "c"'},
    {"id": "2", "question": "Two\nlines?", "options": ["x", "y"], "gold": ["p"]},
    {"id": "3", "question": "Ünï?", "options": None, "answer": "é"},
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def problems_of(source: str | os.PathLike[str], **options: str) -> tuple[str, ...]:
    with pytest.raises(DataError) as caught:
        read_questions(source, **options)  # type: ignore[arg-type]
    return caught.value.problems


def expected_questions(tmp_path: Path) -> list[Question]:
    path = tmp_path / "expected.jsonl"
    path.write_text(LINES, encoding="utf-8")
    return read_questions(path)


def write_csv(path: Path, delimiter: str) -> None:
    import csv
    import io

    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(["id", "question", "options", "answer", "gold"])
    for row in ROWS:
        cells = [row.get(name) for name in ("id", "question", "options", "answer", "gold")]
        writer.writerow([json.dumps(cell) if isinstance(cell, list) else cell for cell in cells])
    data = buffer.getvalue().encode("utf-8-sig")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_every_format_gives_the_same(tmp_path):
    import pyarrow
    import pyarrow.parquet

    expected = expected_questions(tmp_path)
    assert [question.answer for question in expected] == ['say "c"', None, "é"]
    (tmp_path / "q.JSONL").write_text("\ufeff" + LINES.replace("\n", "\r\n\r\n"), encoding="utf-8", newline="")
    (tmp_path / "q.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    for name, delimiter in (("q.csv", ","), ("q.tsv", "\t"), ("q.csv.gz", ",")):
        write_csv(tmp_path / name, delimiter)
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"gold": None} | row for row in ROWS]), tmp_path / "q.parquet"
    )
    for name in ("q.JSONL", "q.json", "q.jsonl.gz", "q.csv", "q.tsv", "q.csv.gz", "q.parquet"):
        assert read_questions(tmp_path / name) == expected, name
        assert read_questions(str(tmp_path / name), limit=2) == expected[:2], name


def test_letter_columns_in_csv(tmp_path):
    path = tmp_path / "mmlu.csv"
    path.write_text("question,A,B,C,D,answer\nHow many?,1,2,3,4,C\nYes?,yes,no,,,A\nOpen?,,,,,free\n")
    first, second, third = read_questions(path)
    assert (first.options, first.answer) == (("1", "2", "3", "4"), "3")
    assert (second.options, second.answer) == (("yes", "no"), "yes")
    assert (third.options, third.answer) == ((), "free")
    path.write_text("question,A,B,C,answer\nHow many?,1,,3,C\n")
    (problem,) = problems_of(path)
    assert 'line 2, column "A,B,C": found None' in problem


def test_parquet_structs_with_holes(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "question": "Which?",
            "options": {"A": "x", "B": "y", "C": None},
            "answer_idx": 1,
            "gold": {"p": "USEFUL", "r": None},
        },
        {
            "question": "What?",
            "options": {"A": "x", "B": "y", "C": "z"},
            "answer_idx": 2,
            "gold": {"p": None, "r": "ENTAILED"},
        },
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    first, second = read_questions(tmp_path / "q.parquet")
    assert (first.options, first.answer, list(first.evidence)) == (("x", "y"), "y", ["p"])
    assert (second.options, second.answer, list(second.evidence)) == (("x", "y", "z"), "z", ["r"])


@pytest.mark.parametrize(
    ("name", "data", "parts"),
    [
        (
            "a.jsonl",
            b'{"question": "ok?"}\n{"question": \n',
            ["a.jsonl line 2", "no valid JSON", "one JSON object a line"],
        ),
        ("a.jsonl", b'{"question": "caf\xe9"}\n', ["a.jsonl line 1", "not UTF-8", "0xe9"]),
        ("a.jsonl", b"[1, 2]\n", ["a.jsonl line 1", "found list"]),
        ("a.jsonl", b"[" * 100_000 + b"\n", ["a.jsonl line 1", "nested too deeply"]),
        ("a.jsonl", b'{"n": ' + b"1" * 5000 + b"}\n", ["a.jsonl line 1", "digits"]),
        ("a.jsonl", b"\n \n", ["found no rows"]),
        ("a.json", b'{"question": "ok?"}', ["found dict", "list of objects"]),
        ("a.json", b'[\n{"question": "ok?"},\n{]', ["no valid JSON", "line 3", ".jsonl"]),
        ("a.json", b'[{"question": "ok?"}, 5]', ["a.json row 2", "found int"]),
        ("a.jsonl.gz", b"plain text", ["cannot be read", "damaged"]),
        ("a.jsonl.gz", gzip.compress(b'{"question": "ok?"}\n' * 99, mtime=0)[:-12], ["cannot be read"]),
        ("a.csv", b"question,answer\na,b\nonly\n", ["a.csv line 3", "found 1 cells", "expected 2"]),
        ("a.csv", b"question,answer,question\na,b,c\n", ["line 1", "repeated: ['question']"]),
        ("a.csv", b"", ["line 1"]),
        ("a.csv", b"question\ncaf\xe9\n", ["not UTF-8"]),
        ("a.csv", b'question\n"a"b\n', ["a.csv line 2", "quote"]),
        ("a.csv", b"question\n" + b"x" * 200_000 + b"\n", ["a.csv line 2", "JSON lines"]),
        (
            "a.csv",
            b'question,answer\n"two\nlines",b\n"  ",c\n',
            ["a.csv line 4", 'column "question": found nothing'],
        ),
        ("a.parquet", b"PAR1 nonsense", ["a.parquet", "no readable Parquet"]),
        ("a.txt", b"question", ["unknown format", ".parquet"]),
        ("a.parquet.gz", b"question", ["unknown format"]),
    ],
)
def test_broken_files(tmp_path, name, data, parts):
    path = tmp_path / name
    path.write_bytes(data)
    (problem,) = problems_of(path)
    for part in parts:
        assert part in problem


def test_broken_rows_do_not_hide_others(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,question\n1\n2,\n2,ok\n2,again\n")
    problems = problems_of(path)
    assert [problem.removeprefix(f"{path} ").split(":")[0] for problem in problems] == [
        "line 2",
        'line 3, column "question"',
        'line 5, column "id"',
    ]


@pytest.mark.parametrize("name", ["none.jsonl", "data/none.jsonl", "./none", "~/none.csv", "medqa", ""])
def test_missing_files(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (problem,) = problems_of(name)
    assert problem.startswith(f"{name}: no such file")
    assert "hf:NAME" in problem


def test_split_is_for_datasets(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(LINES)
    assert "only datasets have splits" in problems_of(path, split="train")[0]
    assert "only datasets have splits" in problems_of("sample", split="train")[0]
    assert "names no dataset" in problems_of("hf:")[0]


def test_dataset_folder(tmp_path, monkeypatch):
    import datasets
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [{"question": "Which?", "choices": ["a", "b"], "answer": n} for n in (1, 0)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[:1]), folder / "train.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[1:]), folder / "test.parquet")
    assert [question.answer for question in read_questions(str(folder), split="train")] == ["b"]
    assert [question.answer for question in read_questions(f"hf:{folder}", split="test")] == ["a"]
    assert "has the splits ['test', 'train']" in problems_of(folder)[0]
    assert "cannot be loaded" in problems_of(folder, split="dev")[0]

    single = tmp_path / "cards"
    single.mkdir()
    (single / "data.jsonl").write_text('{"id": 4, "contents": "four"}\n{"id": 5, "contents": ""}\n')
    assert read_passages(str(single), limit=1) == [Passage("4", "four")]
    with pytest.raises(DataError, match=r'\(train\) row 2, column "contents": found \'\''):
        read_passages(str(single))


@pytest.mark.parametrize(
    ("source", "name", "config"),
    [
        ("hf:squad", "squad", None),
        ("hf:cais/mmlu:anatomy", "cais/mmlu", "anatomy"),
        ("owner/set", "owner/set", None),
    ],
)
def test_hub_without_network(monkeypatch, source, name, config):
    import datasets

    asked = []

    def refuse(*arguments: object, **options: object) -> None:
        asked.append((arguments, options))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    (problem,) = problems_of(source, split="test")
    assert asked == [((name, config), {"split": "test"})]
    for part in (repr(name), "no network", "Without a network", ".jsonl"):
        assert part in problem


def test_sample_names_the_packaged_sample_even_where_a_folder_has_that_name(tmp_path, monkeypatch):
    (tmp_path / "sample").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_passages("sample") == read_passages("sample", split=None)
    assert len(read_passages("sample")) > 1
