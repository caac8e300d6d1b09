from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib import resources

import pytest

from querywright.data import Label, load_sample, read_passages, read_questions
from querywright.data.splits import Splits, left_over
from querywright.errors import DataError
from querywright.metrics.usefulness import helpful_ids

CARDS = [
    {"id": "bp-1", "title": "Cuffs", "text": "Too small."},
    {"id": "bp-2", "title": "Sleeves", "text": "Too high."},
]
QUESTION = {
    "id": "q", "question": "Why?", "options": ["A tight band", "Old batteries"], "answer": "A tight band",
    "evidence": {"bp-1": "ENTAILED", "bp-2": "USEFUL"}, "why": "It says so.",
}  # fmt: skip


@pytest.fixture
def folder(write, tmp_path):
    write("cards.jsonl", *CARDS)
    write("questions.jsonl", QUESTION)
    return tmp_path


def test_the_sample_is_found_in_the_package_and_checked(folder, write, monkeypatch):
    monkeypatch.setattr(resources, "files", {"querywright.data.sample": folder}.__getitem__)
    sample = load_sample()
    assert [passage.content for passage in sample.passages] == ["Cuffs\nToo small.", "Sleeves\nToo high."]
    assert sample.questions[0].evidence == {"bp-1": Label.ENTAILED, "bp-2": Label.USEFUL}
    assert (read_questions("sample"), read_passages("sample")) == (sample.questions, sample.passages)
    write("cards.jsonl", CARDS[0])
    with pytest.raises(DataError, match="bp-2"):
        load_sample()
    (folder / "cards.jsonl").unlink()
    with pytest.raises(DataError, match=r"sample/cards\.jsonl: no such file"):
        read_passages("sample")


def test_import_is_light():
    heavy = json.dumps(["pandas", "pyarrow", "datasets", "dspy", "numpy", "torch"])
    code = f"import sys, querywright.data\nsys.exit(', '.join(set({heavy}) & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def entailed(question):
    return [card_id for card_id, label in question.evidence.items() if label is Label.ENTAILED]


def test_every_card_of_the_sample_decides_a_question():
    sample = load_sample()
    assert (len(sample.passages), len(sample.questions)) == (200, 240)
    assert all(1 <= len(entailed(question)) <= 3 for question in sample.questions)
    assert all(passage.title for passage in sample.passages)
    assert {passage.id for passage in sample.passages} == {id for one in sample.questions for id in entailed(one)}


def test_the_hard_questions_take_several_cards_or_a_distant_one_or_none_helps():
    sample = load_sample(hard=True)
    assert (sample.passages, sample.questions) == (load_sample().passages, read_questions("sample-hard"))
    assert len(left_over(sample.questions, Splits(load_sample().questions, [], []))) == 60
    kinds = {"joint": [], "apart": [], "none": []}
    for question in sample.questions:
        kinds[question.id.split("-")[0]].append((len(entailed(question)), len(helpful_ids(question.evidence))))
        assert question.evidence  # else nothing would be known of it
    assert [len(found) for found in kinds.values()] == [24, 24, 12]
    assert all(alone == 0 and 2 <= helping <= 4 for alone, helping in kinds["joint"])
    assert all(1 <= alone <= helping <= 2 for alone, helping in kinds["apart"])
    assert set(kinds["none"]) == {(0, 0)}


def test_the_handbook_has_evidence_for_every_question_and_spreads_the_right_options():
    passages, questions = read_passages("handbook"), read_questions("handbook", multiple_choice=True)
    ids = {passage.id for passage in passages}
    assert (len(ids), len(questions), sum(question.jointly for question in questions)) == (220, 200, 60)
    assert all(question.evidence and ids.issuperset(question.evidence) for question in questions)
    places = Counter(question.options.index(question.answer) for question in questions)
    assert min(places.values()) >= 40
