from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from querywright.cli.techniques import technique_rows
from querywright.programs.base import SHARED_KNOBS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").is_file() else ""
PAGE = runpy.run_path(str(Path(__file__).with_name("markdown_blocks.py")))
BLOCKS = [(block.language, block.text) for block in PAGE["blocks"](README)]

pytestmark = pytest.mark.skipif(not README, reason="the package was installed without its repository")


def markdown_table():
    """Return the table of techniques; knobs that all techniques with LM stages share are named below it."""
    rows = [{**row, "knobs": [(one["name"], one["default"]) for one in row["knobs"]]} for row in technique_rows()]
    of_all = [(knob.name, knob.default) for knob in SHARED_KNOBS]
    lines = ["| technique | what | source | LM stages | searches | knobs (default) |", "| --- " * 6 + "|"]
    for row in rows:
        knobs = ", ".join(f"`{name}` ({default})" for name, default in row["knobs"] if (name, default) not in of_all)
        facts = f"{row['title']} | {row['source']} | {row['LM stages']} | {row['searches']}"
        lines.append(f"| `{row['technique']}` | {facts} | {knobs or '-'} |")
    shared = ", ".join(f"`{name}` ({default})" for name, default in of_all)
    below = f"Every technique with LM stages also has these knobs (default, unless its row differs): {shared}."
    return "\n".join([*lines, "", below]) + "\n"


def test_it_names_the_two_commands():
    shell = "\n".join(block for language, block in BLOCKS if language in ("sh", "bash", "shell"))
    assert "make demo" in shell
    assert "make test" in shell


def test_the_makefile_has_what_it_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z]+)\b", "".join(block for _, block in BLOCKS))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_table_is_that_of_the_command_line():
    shown = re.search(r"<!-- techniques -->\n(.*?)<!-- /techniques -->", README, re.DOTALL)
    assert shown is not None, "the markers <!-- techniques --> and <!-- /techniques --> are missing"
    assert shown.group(1).strip() == markdown_table().strip(), "run: make table"


def test_its_rows_are_those_of_the_results():
    shown = re.search(r"<!-- result -->\n(.*?)<!-- /result -->", README, re.DOTALL)
    results = (ROOT / "docs" / "results" / "handbook.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in shown.group(1).splitlines()[6:] if line.startswith("| ")]
    assert len(rows) >= 5
    for row in rows:
        assert any(line.startswith(" | ".join(row[:4])) and row[4] in line for line in results.splitlines()), row


def test_it_is_one_screen():
    screen = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", README, flags=re.DOTALL)
    assert len(screen.encode()) < 6_000
    assert len(re.findall(r"^\| --- \|", README, re.MULTILINE)) == 2


def test_its_command_lines_parse():
    lines = PAGE["command_lines"](README)
    assert len(lines) >= 3
    for line in lines:
        PAGE["parse"](line)


def test_its_python_uses_public_names():
    python = [text for language, text in BLOCKS if language == "python"]
    assert python
    for text in python:
        PAGE["check_python"](text)


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target


if __name__ == "__main__":
    table = f"<!-- techniques -->\n{markdown_table()}<!-- /techniques -->"
    written = re.sub(r"<!-- techniques -->.*?<!-- /techniques -->", lambda _: table, README, flags=re.DOTALL)
    (ROOT / "README.md").write_text(written, encoding="utf-8")
