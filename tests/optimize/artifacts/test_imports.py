"""What an application waits for when it imports us: in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORBIDDEN = (
    "optuna", "pandas", "plotly", "torch", "datasets", "sqlalchemy", "scipy", "sklearn", "chromadb", "litellm",
    "sentence_transformers", "xllamacpp", "querywright.optimize.study.compile", "querywright.optimize.evaluate",
    "querywright.optimize.study", "querywright.metrics",
)  # fmt: skip

IMPORT = "import querywright\nquerywright.load\n"
ANSWER = """
import sys
import querywright
from dspy.utils import DummyLM
from querywright.optimize.artifacts.files import write_artifact
from querywright.programs import make_program
write_artifact(
    "a", make_program("plain", lambda query, k: [], reader="short_answer"), lm="x/y", embedder=None, collection=None,
    engine=None, reranker=None, fingerprint=None, created="2026-01-02", made={}, golden=[], card="")
lm = DummyLM([{"answer": "tea"}] * 2, adapter=querywright.load.__globals__["dspy"].JSONAdapter())
program = querywright.load("a", lm=lm, retriever=lambda query, k: ["Tea is hot."])
assert program("What is hot?").answer == "tea"
"""


@pytest.mark.parametrize("script", [IMPORT, ANSWER], ids=["import", "answer"])
def test_loading_imports_nothing_that_compiling_needs(script, tmp_path):
    told = f"{script}\nimport sys\nprint([name for name in {FORBIDDEN!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_package_imports_nothing_at_all():
    script = "import querywright.optimize, sys; print([n for n in sys.modules if n.startswith('dspy')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
