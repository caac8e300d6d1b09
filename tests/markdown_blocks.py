"""What stands in a page: its blocks of code, and the command lines and names of ours that it uses.

Loaded with ``runpy`` by the tests of the README and of the documentation.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
from typing import NamedTuple

from cyclopts import CycloptsError

from querywright.cli.main import app, every_command
from querywright.cli.options import DEFAULTS

_BLOCK = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

OPTIONS = {"--help", "--version"} | {
    name
    for _, command in every_command()
    for argument in command.assemble_argument_collection(default_parameter=DEFAULTS)
    for name in argument.names
}
"""Options of all commands."""


class Block(NamedTuple):
    """A block of code.

    Args:
        note: The comment on the line before it; empty where there is none.
        language: What stands behind the backticks.
        text: What is between them.
    """

    note: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its command lines of ours, each on a line of its own."""
        lines = [line.strip() for line in re.sub(r"\s*\\\n\s*", " ", self.text).splitlines()]
        return [line for line in lines if line.startswith("querywright ")]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(note or "", language, text) for note, language, text in _BLOCK.findall(page)]


def prose(page: str) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", page)


def command_lines(page: str) -> list[str]:
    """Every command line of ours: in blocks of code, and in running text where it has arguments."""
    in_blocks = [line for block in blocks(page) for line in block.commands]
    in_text = [line.strip() for line in re.findall(r"`([^`]+)`", prose(page))]
    return [*in_blocks, *(line for line in in_text if line.startswith("querywright "))]


def check_prose(page: str) -> None:
    """Look up the options and the names of ours in running text.

    Raises:
        AssertionError: No command takes an option, or the package has no such name.
    """
    import querywright

    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        if option := re.match(r"--[a-z][a-z-]*", code):
            assert option[0] in OPTIONS, f"no command takes {option[0]}"
        if name := re.match(r"(?:qw|querywright)\.(\w+)", code):
            there = hasattr(querywright, name[1]) or importlib.util.find_spec(f"querywright.{name[1]}")
            assert there, f"querywright has no {name[1]}"


def parse(line: str) -> None:
    """Parse a command line without running it; only the name is looked up where there is no more than a name.

    Raises:
        AssertionError: There is no such command, or it does not take what it is given.
    """
    words = shlex.split(line, comments=True)[1:]
    chain, apps, rest = app.parse_commands(words)
    try:
        assert chain, f"there is no command {words[:1]}"
        if apps[-1].default_command is None:
            assert not rest, f"{' '.join(chain)} has no command {rest[:1]}"
        elif rest:
            app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise AssertionError(f"{line}: {error}") from None


def check_python(code: str) -> None:
    """Look at Python without running it: it compiles, and what it takes from us is there.

    Raises:
        AssertionError: A name is not there, or not public where it is taken from the package itself.
        ImportError: A module is not there.
    """
    import querywright

    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            names = {alias.name for alias in node.names}
            if node.module == "querywright":
                assert names <= set(querywright.__all__), names - set(querywright.__all__)
            for name in names:
                assert hasattr(module, name), f"{node.module} has no {name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "querywright":
            assert node.attr in querywright.__all__, f"querywright.{node.attr} is not public"
