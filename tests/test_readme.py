from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

import querywright
from querywright.cli.main import app
from querywright.cli.techniques import markdown_table, technique_rows

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").is_file() else ""
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not README, reason="the package was installed without its repository")


def command_lines() -> list[str]:
    """Every command line of ours: in blocks of code, and in running text where it has arguments."""
    in_blocks = [line for _, block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
    in_text = re.findall(r"`([^`]+)`", PROSE)
    found = [line.strip() for line in [*in_blocks, *in_text]]
    return [line for line in found if line.startswith("querywright ")]


def parse(line: str) -> None:
    """Parse a command line without running it; only the name is looked up where there is no more than a name."""
    words = shlex.split(line, comments=True)[1:]
    group = typer.main.get_command(app)
    with group.make_context("querywright", words[:1]) as context:
        command = group.get_command(context, words[0])
        assert command is not None, f"there is no command {words[0]!r}"
        if words[1:]:
            with command.make_context(words[0], words[1:], parent=context):
                pass


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
    assert shown.group(1).strip() == markdown_table(technique_rows()).strip(), "run: make table"


def test_its_command_lines_parse():
    lines = command_lines()
    assert len(lines) >= 3
    for line in lines:
        try:
            parse(line)
        except typer.BadParameter.__base__ as error:  # type: ignore[misc]
            pytest.fail(f"{line}: {error.format_message()}")  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", ["querywright index one", "querywright ask x --nothing y", "querywright nothing x"])
def test_a_command_line_that_is_wrong_does_not_parse(line):
    with pytest.raises((AssertionError, typer.BadParameter.__base__)):  # type: ignore[arg-type]
        parse(line)


def test_its_python_uses_public_names():
    python = [block for language, block in BLOCKS if language == "python"]
    assert python
    for block in python:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "querywright":
                names = [alias.name for alias in node.names]
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "querywright"
            ):
                names = [node.attr]
            else:
                continue
            assert set(names) <= set(querywright.__all__)


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target


if __name__ == "__main__":
    table = f"<!-- techniques -->\n{markdown_table(technique_rows())}<!-- /techniques -->"
    written = re.sub(r"<!-- techniques -->.*?<!-- /techniques -->", lambda _: table, README, flags=re.DOTALL)
    (ROOT / "README.md").write_text(written, encoding="utf-8")
