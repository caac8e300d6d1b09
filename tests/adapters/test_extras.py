"""Adapters name the extra of a missing framework, and importing them sends nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from querywright.adapters.common import documents
from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.programs import Record

ROOTS = {
    "langchain": "langchain_core",
    "llama_index": "llama_index",
    "haystack": "haystack",
    "mcp": "mcp",
    "mlflow": "mlflow",
}
QUIET = """
import sys

def guard(event, args):
    if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(args[1], tuple)):
        print("tried", event, args[1:], flush=True)
        raise OSError(101, "no network in this test")

sys.addaudithook(guard)
import querywright.adapters.langchain, querywright.adapters.llama_index, querywright.adapters.haystack
import querywright.adapters.mcp, querywright.adapters.mlflow
from haystack.telemetry._telemetry import telemetry
from langsmith.utils import tracing_is_enabled
from mlflow.telemetry.client import get_telemetry_client

print(telemetry, tracing_is_enabled(), get_telemetry_client())
"""


@pytest.mark.parametrize("name", ROOTS)
def test_without_its_framework_an_adapter_names_the_extra(name, monkeypatch):
    root = ROOTS[name]
    for module in [root, *(one for one in sys.modules if one.startswith(f"{root}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"querywright.adapters.{name}", raising=False)
    extra = name.replace("_", "-")
    with pytest.raises(InputError, match=rf"requires the {extra} extra .*; run: pip install 'querywright\[{extra}\]'"):
        importlib.import_module(f"querywright.adapters.{name}")


@pytest.mark.slow
def test_importing_the_adapters_switches_nothing_on_that_sends(tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", QUIET],
        env={**kept, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.split() == ["None", "False", "None"], done.stderr
    assert not (tmp_path / ".haystack").exists()


def test_a_passage_knows_how_it_was_found():
    passages = [Passage("a", "text a"), Passage("b", "text b", "B", {"page": 3, "rank": 9})]
    steps = [
        Record("lm", "queries", 1, {}, {"support": "one"}),
        Record("search", "passages", 2, {}, {"one": ["b", "a"], "two": ["b"]}, {"one": [0.5, 0.4], "two": [0.7]}),
        Record("search", "passages", 3, {}, {"three": ["c"]}),
    ]
    first, second = documents(lambda *told: told, passages, steps)
    assert first == (passages[0], 0.4, {"id": "a", "title": "", "rank": 1, "queries": ["one"]})
    assert second[1:] == (0.7, {"id": "b", "title": "B", "page": 3, "rank": 2, "queries": ["one", "two"]})
    assert documents(lambda *told: told, passages)[1][1:] == (None, {**second[2], "queries": []})
