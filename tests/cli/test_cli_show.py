"""Tables, JSON and progress."""

from __future__ import annotations

import io
import json
import math
import sys

import pytest
from rich.console import Console

from querywright.cli import show

ROWS = [
    {"arm": "plain", "n": "3", "accuracy": "33.3 [6, 79]", "a very long head": "1.5", "knobs": "-"},
    {"arm": "[red]arm", "n": "12", "accuracy": "100.0 [6, 100]", "a very long head": "2", "knobs": "one=1 " * 9},
]


@pytest.fixture
def printed(monkeypatch):
    def at(width, rows=ROWS, **more):
        file = io.StringIO()
        monkeypatch.setattr(show, "out", Console(file=file, width=width))
        show.show_table("[b]title", rows, **more)
        return file.getvalue()

    return at


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_every_number_is_whole_at_every_width(printed, width):
    text = printed(width, notes=["[i]note"])
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    for row in ROWS:
        for cell in (row["n"], row["accuracy"], row["a very long head"]):
            assert any(cell in line for line in lines)
    assert lines[0] == "[b]title"
    assert lines[-1] == "[i]note"
    assert any(line.startswith("[red]arm ") for line in lines)
    assert " ".join(text.split()).count("one=1") == 9


def test_a_wide_table_is_divided_where_it_may_be():
    rows = [{"arm": "a", "x": "1" * 20, "y": "2" * 20, "z": "3" * 20}]
    assert show.fit(rows, 100) == [["arm", "x", "y", "z"]]
    assert show.fit(rows, 50) == [["arm", "x", "y"], ["arm", "z"]]
    assert show.fit(rows, 50, breaks=("y",)) == [["arm", "x"], ["arm", "y", "z"]]
    assert show.fit(rows, 30) == [["arm", "x"], ["arm", "y"], ["arm", "z"]]
    assert show.fit([], 80) == []


def test_wide_signs_take_two_columns(printed):
    rows = [{"arm": "名前" * 5, "x": "1" * 30, "y": "2" * 35}]
    assert show.fit(rows, 80) == [["arm", "x"], ["arm", "y"]]
    assert "名前" * 5 in printed(80, rows)


def test_clean_takes_out_what_steers_a_terminal():
    assert show.clean("a\x1b[31mb\x07\x00c\rd\x7f\x9b\u2028e") == "a[31mbcd\u2028e"
    assert show.clean("tab\there\r\nnext\n") == "tab\there\nnext\n"
    assert show.clean("ümläut 名前") == "ümläut 名前"


def test_json_has_no_nan(capsys):
    show.print_json({"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}, "e": ("ü", True, None, 2)})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": [None, 1.5], "c": {"d": None}, "e": ["ü", True, None, 2]}
    assert "ü" in text


def test_json_of_signs_that_the_terminal_cannot_show(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show.print_json({"a": "ü", "b": "\ud800"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue()) == {"a": "ü", "b": "\ud800"}


def test_progress_without_a_terminal_is_one_line_a_piece_of_work(capsys):
    with show.progress() as update:
        for done in range(1, 4):
            update("[red]plain", done, 3)
        update("hcqr", 1, 3)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "[red]plain: 3 of 3\n"


def test_progress_on_a_terminal_leaves_nothing_behind(monkeypatch, capsys):
    file = io.StringIO()
    monkeypatch.setattr(show, "err", Console(file=file, force_terminal=True, width=60))
    with show.progress() as update:
        update("[red]plain", 1, 3)
        update("[red]plain", 3, 3)
    text = file.getvalue()
    assert "[red]plain" in text
    assert text.endswith("\r\x1b[2K\x1b[?25h\r")  # the line is gone and the cursor is back
    assert capsys.readouterr().out == ""
