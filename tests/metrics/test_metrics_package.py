from __future__ import annotations

import subprocess
import sys


def test_import_is_light():
    code = (
        "import sys, querywright.metrics\n"
        "heavy = {'dspy', 'scipy', 'numpy', 'torch', 'chromadb'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
