"""What is installed is what was looked at: every package pinned by hash, every licence known."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
supply = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "supply.py")))


def test_everything_that_is_installed_is_pinned_by_hash():
    locked, pinned = supply.pins(supply.LOCK), supply.pins(ROOT / "constraints.txt")
    blocks = re.split(r"(?m)^(?=[^\s#])", supply.LOCK.read_text())[1:]
    assert len(blocks) == len(locked)
    assert [one for one in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}", one)] == []
    assert {
        name: (version, pinned[name]) for name, version in locked.items() if pinned.get(name, version) != version
    } == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    names = {re.match(r"[\w.-]+", one)[0].lower() for one in asked} | set(supply.ALONE)
    assert names - set(locked) == set()


def test_the_makefile_installs_nothing_else():
    rule = (ROOT / "Makefile").read_text().partition("\n$(STAMP): ")[2].partition("\n\n")[0]
    installs = [line.split("pip install", 1)[1] for line in rule.splitlines() if "pip install" in line]
    assert "-c constraints.txt torch" in installs.pop(0)
    assert all("--no-deps" in one for one in installs)
    assert [one for one in installs if "-e ." not in one and "--require-hashes" not in one] == []


def test_the_page_of_licences_is_current():
    """Packages of this platform; ``make licences`` writes it anew."""
    said = supply.PAGE.read_text().splitlines()
    wanted = supply.installed(supply.pins(supply.LOCK))
    assert len(wanted) > 200
    assert [row for row in wanted.values() if row not in said] == []
    refused = re.compile(r"\bAGPL|\bGPL|unknown|proprietary", re.IGNORECASE)
    assert [row for row in said if refused.search(row) and "LGPL" not in row] == []
