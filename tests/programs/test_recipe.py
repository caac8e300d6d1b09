"""The recipe of docs/how-to/technique.md: its technique and its test, as they are printed there."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import querywright.programs

RECIPE = Path(__file__).parents[2] / "docs" / "how-to" / "technique.md"
pytestmark = pytest.mark.skipif(not RECIPE.is_file(), reason="the package was installed without its repository")


def test_its_test_passes(monkeypatch, retriever, scripted, asking):
    technique, test = re.findall(r"```python\n(.*?)```", RECIPE.read_text(encoding="utf-8"), re.DOTALL)
    module, names = types.ModuleType("querywright.programs.keywords"), {}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(technique, "<keywords>", "exec"), vars(module))
    monkeypatch.setattr(querywright.programs, "Keywords", module.Keywords, raising=False)
    exec(compile(test, "<test_keywords>", "exec"), names)
    names["test_the_question_and_its_keywords_are_searched"](retriever, scripted, asking)
