"""How far work is: in a terminal, in a notebook, and where nothing can be drawn."""

from __future__ import annotations

import contextlib
import io
import time

import pytest
from rich.console import Console

from querywright import progress as module
from querywright.models.usage import Cost, Ledger, loading
from querywright.progress import Bar, part, shown


def arm(name, state="running", done=3, mean=0.5, unscored=0):
    low, high = (None, None) if mean is None else (mean - 0.1, mean + 0.1)
    counts = {"done": done, "unscored": unscored, "total": 6}
    return {"name": name, "state": state, **counts, "mean": mean, "low": low, "high": high}


@pytest.fixture
def plain():
    return Console(file=io.StringIO(), width=80)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80)


def test_where_nothing_can_be_drawn_work_says_now_and_then_what_is_under_way(plain, monkeypatch):
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.1)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    said = plain.file.getvalue
    with Bar("opening the collection", console=plain) as bar:
        wait(lambda: "opening the collection\n" in said())
        with loading("the model [b]"):
            wait(lambda: "loading the model [b]\n" in said())
        bar.stand(lambda: ("recall", [arm("plain"), arm("hyde", mean=0.75, unscored=2)]))
        Ledger().add(Cost(calls=7, saved=2, dollars=0.5))
        bar("hyde", 3, 6)
        facts = "best so far hyde, recall 75.0 [65, 85] (2 unscored); LM calls: 7 (2 cached); $0.5000"
        wait(lambda: f"hyde: 3 of 6; {facts}\n" in said())
        bar("hyde", 6, 6, "dev 0.7")
        assert "hyde: 6 of 6; best so far hyde, recall 75.0 [65, 85] (2 unscored); dev 0.7\n" in said()
        many = "rag_fusion:" + "n_queries=2," * 9
        bar.stand(lambda: ("decision_useful", [arm("plain"), arm(many, mean=0.75)]))
        bar(many, 3, 7, "dev 0.7, " * 9)
        best = f"best so far {many[:21]}..., decision_useful 75.0 [65, 85]"
        wait(lambda: f"{many[:37]}...: 3 of 7; {best}\n" in said())
    assert max(map(len, said().splitlines())) <= 120


def test_a_terminal_shows_every_arm_within_its_width_and_nothing_is_left(terminal):
    with Bar("opening", console=terminal) as bar:
        bar.stand(lambda: ("decision_useful", [arm("plain", unscored=2), arm("a" * 90, "waiting", 0, None)]))
        bar._look()
        bar("[red]plain, of a name that is long" + " and longer" * 9, 1, 3)
        bar._draw()
    text = terminal.file.getvalue()
    assert "[red]plain, of a" in text
    assert "50.0 [40, 60] (2 unscored)" in text
    assert "1/3" in text
    assert text.endswith("\x1b[?25h\r" + "\x1b[1A\x1b[2K" * 6)  # the cursor is back and the lines are gone
    drawn = Console(file=io.StringIO(), width=80)
    drawn.print(bar)
    assert max(map(len, drawn.file.getvalue().splitlines())) <= 80
    assert bar._page()["text/plain"].splitlines()[0].split() == ["arm", "questions", "decision_useful", "state"]


def test_of_work_that_is_ended_the_arms_so_far_are_printed(plain):
    bar = Bar("x", console=plain)
    with contextlib.suppress(KeyboardInterrupt), bar:
        standing = "recall", [arm("plain"), arm("hyde", "waiting", 0, None)]
        bar.stand(lambda: standing)
        bar("plain", 3, 12)
        raise KeyboardInterrupt
    assert "so far, recall in percent:" in plain.file.getvalue()
    assert "plain" in plain.file.getvalue()


def test_of_many_arms_those_under_way_and_the_best_are_drawn(plain):
    with Bar("x", console=plain) as bar:
        bar.stand(lambda: ("m", [arm(f"arm {n}", "done", mean=n / 30) for n in range(20)] + [arm("now", mean=None)]))
        bar._look()
    plain.print(bar.table())
    names = [line[:7].strip() for line in plain.file.getvalue().splitlines()[2:]]
    assert names == [*(f"arm {n}" for n in range(19, 8, -1)), "now"]


def test_a_part_tells_of_the_whole_and_a_callable_is_called():
    told = []
    with shown(lambda *what: told.append(what), "x") as update:
        part(update, 6, 18)("plain", 2, 6)
    assert told == [("plain", 8, 18)]
    assert part(None, 6, 18) is None
    with shown(None, "x") as none, shown(True, "x") as bar:
        assert none is None
        assert isinstance(bar, Bar)


def wait(until):
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)
