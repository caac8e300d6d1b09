"""The recipe of docs/how-to/technique.md: its technique and its test, as they are printed there."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import querywright.programs
from querywright.programs import Technique, make_program

RECIPE = Path(__file__).parents[2] / "docs" / "how-to" / "technique.md"
pytestmark = pytest.mark.skipif(not RECIPE.is_file(), reason="the package was installed without its repository")


@pytest.fixture
def printed(monkeypatch):
    """The technique and the test, run as they are printed."""
    technique, test = re.findall(r"```python\n(.*?)```", RECIPE.read_text(encoding="utf-8"), re.DOTALL)
    module = types.ModuleType("querywright.programs.keywords")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(technique, "<keywords>", "exec"), vars(module))
    monkeypatch.setattr(querywright.programs, "Keywords", module.Keywords, raising=False)
    monkeypatch.setitem(querywright.programs.TECHNIQUES, module.Keywords.NAME, module.Keywords)
    names: dict[str, object] = {}
    exec(compile(test, "<test_keywords>", "exec"), names)
    return module.Keywords, names["test_the_question_and_its_keywords_are_searched"]


def test_its_test_passes(printed, retriever, scripted, asking):
    _, test = printed
    test(retriever, scripted, asking)


def test_its_technique_is_a_program_like_any_other(printed, retriever, scripted, asking, plant):
    technique, _ = printed
    assert issubclass(technique, Technique)
    assert {"max_passages", "gate"} <= {knob.name for knob in technique.KNOBS}
    program = make_program("keywords", retriever, reader="multiple_choice", max_passages=3, fusion="rrf")
    lm = scripted()
    with asking(lm):
        out = program(question="What helps?", options=["Salt", "Sugar"])

    assert out.answer in {"Salt", "Sugar"}
    assert len({passage.id for passage in out.passages}) == 3
    assert [query.role for query in out.queries] == ["original", "keywords"]
    assert plant in lm.engine.written[0]
    assert plant not in lm.engine.asked[-1].text
    with asking(scripted("no JSON")):
        assert program.technique(question="What helps?").fallbacks == ["keywords"]
