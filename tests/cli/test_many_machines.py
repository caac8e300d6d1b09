"""A collection and its questions built over Ray, with a process killed in each part of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import RECORDS, questions_folder

FILLED_UP = 700
"""Passages beside the six, so that there are several batches to embed."""


def children(number: int) -> list[int]:
    """All processes below a process."""
    found, below = [number], list[int]()
    while found:
        with contextlib.suppress(OSError):
            mine = Path(f"/proc/{found[0]}/task/{found[0]}/children").read_text().split()
            found.extend(map(int, mine))
            below.extend(map(int, mine))
        found.pop(0)
    return below


def named(number: int, word: str) -> list[int]:
    """Those processes below a process that are called so."""
    kept = []
    for one in children(number):
        with contextlib.suppress(OSError):
            kept += [one] if word in Path(f"/proc/{one}/cmdline").read_text() else []
    return kept


@pytest.fixture
def command(tmp_path, studies, monkeypatch):
    """Runs a command in a process of its own; ``kill`` names one below it that is killed once ``when`` says so."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started = []

    def run(home, *arguments, kill=None, when=lambda: True):
        environment = {**os.environ, "QUERYWRIGHT_HOME": str(home)}
        given = [sys.executable, "-W", "ignore", "-m", "querywright", *map(str, arguments)]
        out = tmp_path / f"out-{len(started)}"
        with out.open("w") as said:
            process = subprocess.Popen(given, env=environment, stdout=said, stderr=said)
            started.append(process)
            if kill is not None:
                studies.wait_for(lambda: process.poll() is not None or (when() and named(process.pid, kill)), 300)
                assert process.poll() is None, out.read_text()
                os.kill(named(process.pid, kill)[0], signal.SIGKILL)
            assert process.wait(600) == 0, out.read_text()

    yield run
    for one in started:
        one.kill()


def answers(sent):
    """Writes and judges questions; queries and answers are as the prompt's fields have them."""

    def reply(body, fill_in):
        text = sent(body)
        topic = re.search(r"passage: (?:\[1\] )?(\w+):", text)
        if "already_asked" in text or "- questions" in text:
            count = text.partition("already_asked:")[2].count("\n- ")
            return json.dumps({"questions": [f"What of {topic[1]}, case {count + n}?" for n in range(1, 6)]})
        if topic and "case" in text:
            return json.dumps({"reason": f"It speaks of {topic[1]}.", "label": "complete"})
        return fill_in(body)

    return reply


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_collection_and_its_questions_over_ray_are_those_of_one_process(command, server, sent, passages, tmp_path):
    pytest.importorskip("ray.data", reason="needs the extra ray")
    rows = passages.read_text() + "".join(
        json.dumps({"id": f"z-{n}", "text": f"Shelf {n} holds the files of street {n * 7} and year {1900 + n % 90}."})
        + "\n"
        for n in range(FILLED_UP)
    )
    passages.write_text(rows)
    server.reply, fill_in = (lambda body: answers(sent)(body, fill_in)), server.reply
    one, many = tmp_path / "one", tmp_path / "many"

    def embedded():
        """Whether a part of the passages is embedded."""
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(many / "store.sqlite") as store:
            (count,) = store.execute("SELECT count(*) FROM querywright_entries WHERE kind LIKE 'vector:%'").fetchone()
            return count > 0
        return False

    build = ("questions", "build", "small", "--num-questions", 10, "--limit", 6, *server.lm)
    command(one, "index", "small", passages)
    command(one, *build)

    command(many, "index", "small", passages, "--workers", 2, kill="_Embedding", when=embedded)
    server.requests.clear()
    server.delay = 0.05
    command(many, *build, "--workers", 2, kill="ray::_Worker", when=lambda: len(server.requests) > 9)
    assert (questions_folder("small", many) / RECORDS).read_bytes() == (
        questions_folder("small", one) / RECORDS
    ).read_bytes()

    one_by_one, together = (published_passages(collection_folder("small", home))[1] for home in (one, many))
    assert together == one_by_one
