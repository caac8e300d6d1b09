"""Regenerate ``expected/`` for all or only the named scenarios: ``python tests/golden/regenerate.py [NAME ...]``."""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def main(names: list[str]) -> None:
    golden = runpy.run_path(str(HERE / "test_golden.py"))
    (HERE / "expected").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        base = golden["indexed"](Path(folder) / "base")
        for name in names or golden["SCENARIOS"]:
            found = golden["figures"](name, Path(folder) / name, base)
            text = json.dumps(found, ensure_ascii=False, indent=1, sort_keys=False) + "\n"
            (HERE / "expected" / f"{name}.json").write_text(text, encoding="utf-8")
            sys.stderr.write(f"{name}: {found['lm']['calls']} calls, {len(text)} characters\n")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(sys.argv[1:])
