"""Every page: its code compiles and names what is there, its commands parse, its links and pictures are there."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import dspy
import pytest
import yaml

from querywright.optimize.study.spec import read_spec

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
RUN = ["how-to/own-data.md", "how-to/own-retriever.md", "explanation/decision-usefulness.md"]
"""Pages whose Python is run; the tutorial and how-to/metric.md have tests of their own, and so has how-to/technique.md
with the programs.
"""

pytestmark = pytest.mark.skipif(not PAGES, reason="the package was installed without its repository")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_order(name, page):
    """Its commands parse, its text and its Python name what is there, its data are well formed, and its links work."""
    text = (DOCS / name).read_text(encoding="utf-8")
    for line in page["command_lines"](text):
        page["parse"](line)
    if not name.startswith("results/"):  # they name options of benchmarks
        page["check_prose"](text)
    for block in page["blocks"](text):
        assert block.language in {"sh", "python", "json", "yaml", "text"}, block.text
        if block.language == "python" and not block.note.startswith("run by"):
            page["check_python"](block.text)
        if block.language == "json":
            for line in block.text.splitlines():
                json.loads(line)
        if block.language == "yaml":
            read_spec(yaml.safe_load(block.text))
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert ((DOCS / name).parent / target).exists(), target
    for alternative, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
        assert len(alternative) > 40, target


@pytest.fixture
def workshop_indexed(page, workshop, play):
    play(page["blocks"]("```sh\nquerywright index workshop passages.jsonl\n```\n"))
    return workshop


@pytest.mark.parametrize("name", RUN)
def test_it_runs(name, page, workshop_indexed, play):
    """In the tutorial's folder, with its collection."""
    blocks = [block for block in page["blocks"]((DOCS / name).read_text(encoding="utf-8")) if block.language != "sh"]
    shown, last = [], ""
    for block in blocks:  # output counts where it stands right after code
        if block.language == "python" or (block.language, last) == ("text", "python"):
            shown.append(block)
        last = block.language
    assert shown
    play(shown)


def test_what_the_metric_page_says_is_so(page, workshop_indexed, play):
    printed = play(page["blocks"]((DOCS / "how-to/metric.md").read_text(encoding="utf-8")))
    one, three, losses = printed.split()
    assert 0 < float(one) <= float(three) < 1
    assert int(losses) >= 1


@pytest.mark.parametrize("path", sorted((DOCS / "assets").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_can_be_read(path):
    """In words too, in light and in dark, and from this file alone."""
    root = ET.parse(path).getroot()
    said = [root.findtext(f"{SVG}{name}") or "" for name in ("title", "desc")]
    assert root.get("role") == "img"
    assert len(said[0]) > 10
    assert len(said[1]) > 60
    style = root.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style
    classes = {one.get("class") for one in root.iter() if one.get("class")}
    light, _, dark = style.partition("@media")
    for name in classes:
        assert f".{name} " in light, name
        assert f".{name} " in dark, name
    assert not list(root.iter(f"{SVG}image")) + list(root.iter(f"{SVG}script"))
    width, height = (float(size) for size in root.get("viewBox", "").split()[2:])
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x", -1)) <= width, text.text
        assert 0 <= float(text.get("y", -1)) <= height, text.text


def test_every_picture_is_shown():
    shown = {name for page in PAGES for name in re.findall(r"assets/([\w-]+\.svg)", (DOCS / page).read_text())}
    assert shown == {path.name for path in (DOCS / "assets").glob("*.svg")}


def told_in(picture):
    """The values and the tokens in a picture's description."""
    root = ET.parse(DOCS / "assets" / picture).getroot()
    return re.findall(r"0(\.\d+) with ([\d,]+) tokens", root.findtext(f"{SVG}desc", ""))


def test_the_pictures_of_rates_and_tokens_show_their_tables():
    page = (DOCS / "results/tuning.md").read_text(encoding="utf-8").partition("<!-- table: handbook-tuning -->")[2]
    rows = re.findall(r"^\| [^|]* \| (\.\d+) \[.*\| ([\d,]+) \|$", page.partition("!")[0], re.MULTILINE)
    assert len(rows) == 8
    assert told_in("front.svg") == rows
    page = (DOCS / "explanation/rewrite-retrieve-select.md").read_text(encoding="utf-8")
    table = page.partition("<!-- table: selection -->")[2].partition("!")[0]
    cells = re.findall(r"\| (\.\d+) \[[^|]*\| ([\d,]+) ", table)
    assert len(cells) == 9
    assert sorted(told_in("selection.svg")) == sorted(cells)


@pytest.fixture
def own_settings():
    """DSPy's settings, which the page changes for the whole process, are put back."""
    before = {name: dspy.settings[name] for name in ("lm", "adapter")}
    yield
    dspy.configure(**before)


def test_the_page_of_dspy_alone_runs(page, workshop_indexed, play, scripted_lm, own_settings):
    printed = play(page["blocks"]((DOCS / "how-to/plain-dspy.md").read_text(encoding="utf-8")))
    (scores,) = re.findall(r"^([\d.]+) ([\d.]+)$", printed, re.MULTILINE)  # DSPy prints between them
    assert all(0 <= float(score) <= 100 for score in scores)
    assert "Weigh the options" in printed or "Write three short" in printed
    assert printed.split()[-1] == "3"
    assert (workshop_indexed / "hcqr.json").exists()
