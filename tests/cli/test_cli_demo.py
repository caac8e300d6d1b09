"""What the demo gives to a compilation; the compilation itself is not run here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from querywright import api
from querywright.cli import compile as module
from querywright.cli.options import Threads
from querywright.data import load_sample, split_questions
from querywright.data.splits import left_over
from querywright.data.types import Question
from querywright.errors import OutageError


def test_the_reader_is_checked_on_questions_that_no_other_stage_sees(monkeypatch, tmp_path):
    seen = {}

    def compiled(technique, splits, **given):
        seen.update(given, splits=splits)
        raise OutageError("enough")

    monkeypatch.setattr(api, "compiled", compiled)
    monkeypatch.setattr(module, "build", lambda *args, **options: SimpleNamespace(count=200, embedded=0))
    with pytest.raises(OutageError):
        module.demo(save_to=tmp_path / "artifact", run=Threads(2))
    used = {question.id for part in seen["splits"] for question in part}
    check = [question.id for question in seen["reader_check"]]
    assert [len(part) for part in seen["splits"]] == list(module.DEMO_SIZES)
    assert len(set(check)) == len(check) == module.DEMO_READER_CHECK == 60
    assert not used & set(check)
    assert set(check) <= {question.id for question in load_sample().questions}


def test_what_is_left_over_stands_in_the_order_of_the_hashes_and_not_of_the_file():
    questions = [Question(f"q{n}", f"{n}?") for n in range(40)]
    splits = split_questions(questions, sizes=(3, 4, 5))
    left = left_over(questions, splits)
    assert left == left_over(questions[::-1], splits)
    assert left != sorted(left, key=questions.index)
    assert {one.id for one in left} == {one.id for one in questions} - {one.id for part in splits for one in part}
    every = [one for part in split_questions(questions) for one in part]
    assert left == [one for one in every if one in left]


def test_what_is_left_over_is_new_by_text_and_stands_there_once():
    questions = [Question(f"q{n}", f"{n}?", ("a", "b")) for n in range(40)]
    splits = split_questions(questions, sizes=(3, 4, 5))
    known, further = splits.dev[0], left_over(questions, splits)
    again = [Question(f"again {n}", f" {one.question}".upper(), ("b", "a")) for n, one in enumerate([known, *further])]
    left = left_over([*questions, *again], splits)
    assert len(left) == len(further)
    assert known.question not in {one.question.strip() for one in left}
    other = Question("other", known.question, ("a", "c"))
    assert other in left_over([*questions, other], splits)
