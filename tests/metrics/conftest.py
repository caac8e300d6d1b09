"""The scripted LM of the programs' tests, for judges."""

from __future__ import annotations

import runpy
from pathlib import Path

_programs = runpy.run_path(str(Path(__file__).parents[1] / "programs" / "conftest.py"))
scripted, asking = _programs["scripted"], _programs["asking"]
