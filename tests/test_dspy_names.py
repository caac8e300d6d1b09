"""The names of DSPy that the package uses: check a new release of DSPy with this test first."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import dspy
import pytest

PACKAGE = Path(__file__).parents[1]
ROOMS = ("src", "programs", "metrics", "optimize")

INSIDE = {
    "dspy.adapters.utils.apply_output_field_defaults": "a missing optional field gets the default that DSPy gives it",
    "dspy.adapters.utils.parse_value": "a value is parsed as DSPy's adapters parse it",
    "dspy.clients.backend_selection.CLIENT_KEYS": "keys of an LM's client that do not belong to its request",
    "dspy.clients.backend_selection.select_backend": "a remote LM uses the engine that dspy.LM would choose",
    "dspy.clients.costs.estimate_cost": "prices",
    "dspy.clients.engines.LM15Engine": "an engine of a remote LM",
    "dspy.clients.engines.LiteLLMEngine": "an engine of a remote LM",
    "dspy.clients.engines.base.validate_request": "custom engines check requests as DSPy's engines do",
    "dspy.clients.errors.error_boundary": "errors of a provider become errors of DSPy",
    "dspy.clients.model_metadata.model_info": "the context length and the abilities of a model",
    "dspy.predict.parameter.Parameter": "knobs are parameters of a module",
    "dspy.teleprompt.gepa.gepa_utils.ScoreWithFeedback": "the type of a score that GEPA reads",
    "dspy.teleprompt.gepa.instruction_proposal.InstructionProposer": "GEPA's proposer, which asks for instructions",
    "dspy.utils.callback.BaseCallback": "the base class of callbacks, as DSPy's pages import it",
}
"""Names that neither ``dspy`` nor ``dspy.lm15`` exports, and why the package needs them."""


def used() -> dict[str, str]:
    """Return the full names that the package takes from DSPy, each with one file that takes it."""
    found: dict[str, str] = {}
    for file in sorted(file for room in ROOMS for file in (PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dspy":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("dspy.")]
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("dspy."):
                names = [ast.unparse(node)] if isinstance(node.value, ast.Name) else []
            found |= dict.fromkeys(names, str(file.relative_to(PACKAGE)))
    return found


def resolve(name: str) -> object:
    """Return the object with a full name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        return importlib.import_module(name)


def is_exported(name: str) -> bool:
    """Return whether ``dspy`` or ``dspy.lm15`` exports the object under its own name."""
    short = name.rpartition(".")[2]
    return any(getattr(module, short, None) is resolve(name) for module in (dspy, dspy.lm15))


USED = used()


@pytest.mark.parametrize("name", USED)
def test_a_name_is_there(name: str) -> None:
    resolve(name)


def test_names_that_dspy_does_not_export_have_a_reason() -> None:
    inside = {name: file for name, file in USED.items() if not is_exported(name)}
    assert {name: file for name, file in inside.items() if name not in INSIDE} == {}
    assert INSIDE.keys() - inside.keys() == set(), "nothing uses these names any more"
    assert [name for name in USED if any(part.startswith("_") for part in name.split("."))] == []
