"""docs/how-to/technique.md: its subclass, its technique and its test, as they are printed there."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import querywright.programs
from querywright.data.types import Question

RECIPE = Path(__file__).parents[2] / "docs" / "how-to" / "technique.md"
pytestmark = pytest.mark.skipif(not RECIPE.is_file(), reason="the package was installed without its repository")


def blocks():
    note = "<!-- run by tests/programs/test_recipe.py -->\n"
    return re.findall(note + r"```python\n(.*?)```", RECIPE.read_text(encoding="utf-8"), re.DOTALL)


def test_a_subclass_with_another_signature_is_optimized_by_dspy(retriever, scripted, asking):
    exec(compile(blocks()[0], "<catalog>", "exec"), names := {"__name__": "catalog"})
    found = retriever.search(["anything"], 1)[0][0].passage.id
    asked = [Question(f"q{n}", f"What of {n}?", evidence={found: "ENTAILED"}).to_example() for n in range(3)]
    with asking(lm := scripted({"proposed_instruction": "Write as a clerk would."})):
        tuned = names["tune"](retriever, asked)
        tuned(question="Which part wears first?")
    prompts = [one.system.partition("\n")[0] for one in lm.engine.asked]
    assert isinstance(tuned, names["CatalogHyDE"])
    assert tuned.knobs["n_documents"] == 2
    assert "Write the entry of a parts catalog that answers the question." in prompts
    assert "Write as a clerk would." in prompts


def test_its_test_passes(monkeypatch, retriever, scripted, asking):
    _, technique, test = blocks()
    module, names = types.ModuleType("querywright.programs.keywords"), {}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(technique, "<keywords>", "exec"), vars(module))
    monkeypatch.setattr(querywright.programs, "Keywords", module.Keywords, raising=False)
    exec(compile(test, "<test_keywords>", "exec"), names)
    names["test_the_question_and_its_keywords_are_searched"](retriever, scripted, asking)
