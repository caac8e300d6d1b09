"""The LM of the soak benchmark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import faulty

    yield faulty
    for name in ("faulty", "loopback"):
        sys.modules.pop(name, None)


def test_an_answer_belongs_to_its_question_alone(faulty: ModuleType) -> None:
    def write(number: int, field: str) -> str:
        system = f"Answer with one JSON object with these fields:\n- {field}: text"
        user = f"question: What is said, number {number}?"
        return faulty.write({"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]})

    answers = [json.loads(write(number, "answer"))["answer"] for number in range(50)]
    assert answers == [faulty.right_answer(number) for number in range(50)]
    assert len(set(answers)) == 50
    assert "answer" not in json.loads(write(7, "queries"))
