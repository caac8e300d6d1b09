"""``make results`` makes the tables of the pages, to the digit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "results.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPT.is_file(), reason="the package was installed without its repository"),
]


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "QUERYWRIGHT_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


def test_a_table_is_that_of_its_page_to_the_digit(tmp_path):
    ran = run("handbook-passages", "--check", home=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "as on the page" in ran.stdout


def test_every_table_has_a_place_on_its_page(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from results import PAGES, TABLES

    places = {
        (str(page.relative_to(PAGES)), name)
        for page in PAGES.rglob("*.md")
        for name in re.findall(r"<!-- table: (\S+) -->", page.read_text(encoding="utf-8"))
    }
    assert places == {(table.page, name) for name, table in TABLES.items()}
