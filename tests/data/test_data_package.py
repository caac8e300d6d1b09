from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import pytest

import querywright.data
from querywright.data import Label, load_sample, read_passages, read_questions
from querywright.errors import DataError

CARDS = [
    {"id": "bp-cuff-01", "title": "Cuffs", "text": "A cuff that is too small reads too high."},
    {"id": "bp-cuff-02", "title": "Sleeves", "text": "Clothing under a cuff raises the reading."},
]
QUESTIONS = [
    {
        "id": "bp-q-01",
        "question": "Why is mine so much above my neighbour's?",
        "options": ["A tight band", "Old batteries"],
        "answer": "A tight band",
        "evidence": {"bp-cuff-01": "ENTAILED", "bp-cuff-02": "USEFUL"},
        "why": "It says so.",
    }
]


@pytest.fixture
def folder(tmp_path):
    for name, rows in (("cards.jsonl", CARDS), ("questions.jsonl", QUESTIONS)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_loader(folder):
    sample = load_sample(folder)
    assert [passage.id for passage in sample.passages] == ["bp-cuff-01", "bp-cuff-02"]
    assert sample.passages[0].content == "Cuffs\nA cuff that is too small reads too high."
    assert sample.questions[0].evidence == {"bp-cuff-01": Label.ENTAILED, "bp-cuff-02": Label.USEFUL}
    assert sample.questions[0].answer == "A tight band"


def test_loader_refuses_evidence_that_is_not_there(folder):
    (folder / "cards.jsonl").write_text(json.dumps(CARDS[0]) + "\n")
    with pytest.raises(DataError, match="bp-cuff-02"):
        load_sample(folder)


def test_loader_refuses_questions_without_options(folder):
    (folder / "questions.jsonl").write_text('{"id": "q", "question": "?"}\n')
    with pytest.raises(DataError, match="multiple_choice"):
        load_sample(folder)


def test_sample_is_found_in_the_package(folder, monkeypatch):
    asked = []

    def stand_in(package: str) -> object:
        asked.append(package)
        return folder

    monkeypatch.setattr(resources, "files", stand_in)
    assert load_sample() == load_sample(folder)
    assert read_questions("sample") == load_sample(folder).questions
    assert read_passages("sample") == load_sample(folder).passages
    assert set(asked) == {"querywright.data.sample"}
    (folder / "cards.jsonl").unlink()
    with pytest.raises(DataError, match=r"sample/cards\.jsonl: no such file"):
        read_passages("sample")


def test_problems_in_the_sample_name_the_sample(folder, monkeypatch):
    monkeypatch.setattr(resources, "files", lambda package: folder)
    (folder / "cards.jsonl").write_text('{"id": "a", "text": ""}\n')
    with pytest.raises(DataError, match=r'^sample/cards\.jsonl line 1, column "text"'):
        load_sample()


def test_public_names():
    assert querywright.data.__all__ == sorted(querywright.data.__all__)
    assert all(hasattr(querywright.data, name) for name in querywright.data.__all__)


def test_import_is_light():
    code = (
        "import sys, querywright.data\n"
        "heavy = {'pandas', 'pyarrow', 'datasets', 'dspy', 'numpy', 'torch'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
