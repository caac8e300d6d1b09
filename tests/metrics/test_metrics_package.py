from __future__ import annotations

import subprocess
import sys

import pytest

import querywright.metrics as metrics


def test_import_is_light():
    code = (
        "import sys, querywright.metrics as m\n"
        "heavy = {'dspy', 'scipy', 'numpy', 'torch', 'chromadb'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(metrics, name).__doc__ for name in metrics.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'recal'"):
        metrics.recal  # noqa: B018
