"""The site: built strictly and without a network, from the code as it is, and in need of no other host."""

from __future__ import annotations

import html
import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import querywright
from querywright.cli.main import every_command
from querywright.metrics.dspy_metrics import METRICS
from querywright.metrics.judges import JUDGES
from querywright.programs import TECHNIQUES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NO_NETWORK = """
import socket, sys
def refused(*args, **kwargs):
    raise OSError("the documentation is built without a network")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refused
from mkdocs.__main__ import cli
sys.exit(cli())
"""
LOADED = {
    "link": "href",
    "use": "href",
    "form": "action",
    **dict.fromkeys(("script", "img", "iframe", "source"), "src"),
}


class Page(HTMLParser):
    """What a page loads, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if given.get(LOADED.get(tag, "")) and given.get("rel") != "canonical":
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_page_is_built(docs, pages):
    for path in docs.rglob("*.md"):
        page = path.relative_to(docs).with_suffix("")
        assert ((page.parent if page.name == "index" else page) / "index.html").as_posix() in pages


def test_what_it_loads_is_there_and_nothing_comes_from_another_host(site, pages):
    assert sum(len(page.loads) for page in pages.values()) > 100
    for name, page in pages.items():
        for one in page.loads:
            assert not re.match(r"([a-z]+:)?//", one), (name, one)
            target = one.partition("?")[0].partition("#")[0]
            where = site / target.lstrip("/") if target.startswith("/") else (site / name).parent / target
            assert where.resolve().exists(), (name, one)
    styles = list(site.rglob("*.css"))
    assert styles
    for path in styles:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//", text), path.name


def test_every_public_name_has_its_reference(pages):
    documented = set().union(*(page.ids for name, page in pages.items() if name.startswith("reference/")))
    wanted = {f"querywright.{name}" for name in querywright.__all__}
    wanted |= {f"{technique.__module__}.{technique.__qualname__}" for technique in TECHNIQUES.values()}
    assert not wanted - documented
    short = {one.rpartition(".")[2] for one in documented}
    for room in ("metrics", "programs"):
        module = importlib.import_module(f"querywright.{room}")
        public = {name for name in module.__all__ if callable(getattr(module, name))}  # lists by name have tables
        assert not public - short, room


def test_its_tables_come_from_the_code(site):
    techniques = text_of(site / "reference" / "techniques" / "index.html")
    for technique in TECHNIQUES.values():
        assert technique.TITLE in techniques
        for knob in technique.KNOBS:
            assert knob.help in techniques, knob.name
    metrics = text_of(site / "reference" / "metrics" / "index.html")
    for name in (*METRICS, *JUDGES, "recall@K"):
        assert name in metrics
    commands = text_of(site / "reference" / "commands" / "index.html")
    for command, _ in every_command():
        assert command in commands
    assert '"location":"tutorial/' in (site / "search" / "search_index.json").read_text(encoding="utf-8")


def text_of(path: Path) -> str:
    """The text of a page, with every gap as one space."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8"))).split())
