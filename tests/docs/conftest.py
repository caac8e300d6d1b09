"""Pages that run: in a folder of their own with the tutorial's files, the embedded embedder, and a scripted LM."""

from __future__ import annotations

import contextlib
import io
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querywright.cli import show
from querywright.cli.main import run

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


@pytest.fixture(scope="session")
def docs() -> Path:
    folder = ROOT / "docs"
    if not folder.is_dir():
        pytest.skip("the package was installed without its repository")
    return folder


@pytest.fixture(scope="session")
def page() -> dict[str, Any]:
    """What ``markdown_blocks.py`` knows of pages."""
    return runpy.run_path(str(TESTS / "markdown_blocks.py"))


@pytest.fixture
def workshop(docs: Path, tmp_path: Path, working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a reader of the tutorial works."""
    for name in ("passages.jsonl", "questions.jsonl"):
        (tmp_path / name).write_bytes((docs / "tutorial" / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(show.out, "width", 110)
    return tmp_path


@pytest.fixture
def scripted_lm(chat_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """An LM that answers every prompt in the form asked for, on the address that the environment names."""
    write = runpy.run_path(str(ROOT / "benchmarks" / "loopback.py"))["write"]
    server = chat_server(lambda body: {"answer": write(body)})
    monkeypatch.setenv("OPENAI_API_BASE", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "scripted")
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "openai/*")
    return server


@pytest.fixture
def play() -> Callable[..., str]:
    """Runs the blocks of a page in order; each block of output is held against what the block before it printed."""
    return play_blocks


def play_blocks(blocks: list[Any], lm: str = "") -> str:
    """Run shell and Python in this process.

    Args:
        blocks: Of a page. A command of one that is noted ``scripted LM`` is given ``lm``.
        lm: Options that name an LM.

    Returns:
        All that was printed.
    """
    names: dict[str, Any] = {"__name__": "page"}
    printed, everything = "", ""
    for block in blocks:
        if block.language == "sh":
            options = shlex.split(lm) if block.note == "scripted LM" else []
            printed = "".join(_command([*shlex.split(line)[1:], *options]) for line in block.commands)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(block.text, "<page>", "exec"), names)
            printed = stdout.getvalue()
        elif block.language == "text":
            said = _words(printed)
            for line in block.text.splitlines():
                assert _words(line) in said, f"the page says {line!r}, but printed was:\n{printed}"
        everything += printed
    return everything


def _command(arguments: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        status = run(arguments)
    assert status == 0, f"querywright {shlex.join(arguments)} ended with {status}:\n{stderr.getvalue()}"
    return stdout.getvalue() + stderr.getvalue()


def _words(text: str) -> str:
    """The text with every gap as one space."""
    return " ".join(text.split())
