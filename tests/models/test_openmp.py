from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import os
from querywright.models.embedder import resolve_embedder
assert "GOMP_SPINCOUNT" not in os.environ
resolve_embedder("embedded").encode(["a"])
print(os.environ["GOMP_SPINCOUNT"])
"""


def run(environment):
    return subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_spinning_is_limited_before_torch_is_loaded(monkeypatch):
    import os

    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    done = run(environment)
    assert (done.stdout.strip(), done.returncode) == ("100", 0), done.stderr
