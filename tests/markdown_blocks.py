"""What stands in a page: its blocks of code, and the command lines and names of ours that it uses.

Loaded with ``runpy`` by the tests of the README and of the documentation.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from typing import Any, NamedTuple

import typer

from querywright.cli.main import app

_BLOCK = re.compile(r"^(?:<!-- ([^\n]*) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


def parse(line: str) -> None:
    """Parse a command line without running it; only the name is looked up where there is no more than a name.

    Raises:
        AssertionError: There is no such command, or it does not take what it is given.
    """
    words = shlex.split(line, comments=True)[1:]
    try:
        _parse(typer.main.get_command(app), "querywright", words, None)
    except typer.BadParameter.__base__ as error:  # type: ignore[misc]
        raise AssertionError(f"{line}: {error.format_message()}") from None  # type: ignore[attr-defined]


def _parse(group: Any, name: str, words: list[str], parent: Any) -> None:
    with group.make_context(name, words[:1], parent=parent) as context:
        command = group.get_command(context, words[0])
        assert command is not None, f"{name} has no command {words[0]!r}"
        if hasattr(command, "get_command"):
            if words[1:]:
                _parse(command, words[0], words[1:], context)
        elif words[1:]:
            with command.make_context(words[0], words[1:], parent=context):
                pass


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
