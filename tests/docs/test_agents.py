"""The pages for coding agents name only what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGENTS, LLMS = ROOT / "AGENTS.md", ROOT / "docs" / "llms.txt"
pytestmark = pytest.mark.skipif(not AGENTS.is_file(), reason="the package was installed without its repository")


def test_every_path_exists():
    text = AGENTS.read_text("utf-8")
    paths = {one for one in re.findall(r"`([\w./-]+)`", text) if "/" in one or one.endswith((".py", ".md", ".toml"))}
    missing = [one for one in paths if not any((base / one).exists() for base in (ROOT, ROOT / "src" / "querywright"))]
    assert len(paths) > 12
    assert missing == []


def test_every_command_exists():
    commands = re.search(r"```sh\n(.*?)```", AGENTS.read_text("utf-8"), re.DOTALL).group(1).splitlines()
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for command in commands:
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), command
        else:
            assert (ROOT / words[-1]).exists(), command


@pytest.mark.parametrize("page", [AGENTS, LLMS], ids=lambda page: page.name)
def test_every_link_leads_to_a_page(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    assert links
    assert [one for one in links if not (page.parent / one).exists()] == []


def test_every_name_of_the_package_exists():
    import querywright

    names = re.findall(r"`qw\.(\w+)`", LLMS.read_text("utf-8"))
    assert len(names) > 4
    for name in names:
        assert hasattr(querywright, name), name
