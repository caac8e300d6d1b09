"""Lines of traffic: whole, private, kept apart by size, and never in the way of a question."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from querywright.errors import DataError
from querywright.files import locked
from querywright.watching import JsonLines, read_traffic, traffic
from querywright.watching.traffic import HASHED, is_traffic


def lines(path):
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def numbers(path):
    return [int(one.id, 16) for one in read_traffic(path)]


def test_a_line_holds_the_exchange_and_is_read_back(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    watcher, before = JsonLines(path, questions=True), os.umask(0)
    try:
        watcher(exchange(1, question="Ist 20 °C warm? \ud800", support=("p1",)))
        watcher(exchange(2, answer=None, error="OutageError", passages=(), options=()))
        JsonLines(tmp_path / "hashed.jsonl", questions=False)
    finally:
        os.umask(before)
    first, second = read_traffic(path)
    assert first == exchange(1, question="Ist 20 °C warm? ?", support=("p1",))
    assert (first.passages, first.n_passages, first.metadata) == (("p1", "p2"), 2, {"request": "r1"})
    assert (second.answer, second.error, second.n_passages) == (None, "OutageError", 0)
    assert (is_traffic(path), watcher.lost) == (True, 0)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    names = ("traffic.jsonl", ".traffic.jsonl.lock", "hashed.jsonl", "hashed.jsonl.salt", ".hashed.jsonl.lock")
    assert modes == dict.fromkeys(names, 0o600)  # their owner's alone, whatever the umask


def test_texts_can_be_left_out_and_equal_ones_still_be_known(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    query = {"role": "original", "text": "Planted secret?"}
    secret = exchange(1, question="Planted secret?", queries=(query,), answer="Aspirin")
    JsonLines(path, questions=False)(secret)
    JsonLines(path, questions=False)(exchange(2, question="Planted secret?"))  # as another process would
    JsonLines(tmp_path / "other.jsonl", questions=False)(secret)
    assert not any(text in path.read_bytes() for text in (b"Planted", b"Aspirin", b"Heparin"))
    first, second = read_traffic(path)
    assert first.question == second.question == first.queries[0].text
    assert first.answer == first.options[1] != second.answer == second.options[0]
    assert (first.question.startswith(HASHED), len(first.question)) == (True, len(HASHED) + 64)
    (elsewhere,) = read_traffic(tmp_path / "other.jsonl")
    assert elsewhere.question != first.question


def test_every_text_goes_through_the_redaction(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    marked = exchange(
        question="q 555-0100", options=("a 555-0100", "b"), queries=({"role": "original", "text": "q 555-0100"},),
        answer="a 555-0100", metadata={"caller": "555-0100"},
    )  # fmt: skip
    JsonLines(path, redact=lambda text: text.replace("555-0100", "[phone]"))(marked)
    assert "555" not in path.read_text()
    assert path.read_text().count("[phone]") == 5
    failing = JsonLines(path, redact=lambda text: text[99])
    failing(marked)
    assert (failing.lost, len(lines(path))) == (1, 1)


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    JsonLines(path)(exchange(2))
    with path.open("ab") as file:
        file.write(b'{"format": 1, "id": "half')  # a process was killed
    assert numbers(path) == [2]  # not an error: it may be being written
    JsonLines(path)(exchange(3))
    assert numbers(path) == [2, 3]


def test_a_line_waits_for_no_disk_and_is_lost_where_another_keeps_the_lock(tmp_path, exchange, monkeypatch):
    monkeypatch.setattr(traffic, "LOCK_SECONDS", 0.01)
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("waited for the disk"))
    path = tmp_path / "traffic.jsonl"
    watcher = JsonLines(path)
    with locked(tmp_path / ".traffic.jsonl.lock"):
        watcher(exchange(1))
    watcher(exchange(2))
    assert (numbers(path), watcher.lost) == ([2], 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format"),
        ({"declined": "no"}, "declined"),
        ({"id": ""}, "id"),
        ({"options": "Heparin"}, "options"),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path, exchange, change, told):
    path = tmp_path / "traffic.jsonl"
    JsonLines(path)(exchange())
    (line,) = lines(path)
    path.write_text(json.dumps(line) + "\n" + json.dumps(line | {"id": "x"} | change) + "\n[1]\n")
    problems: list[str] = []
    assert len(read_traffic(path, problems=problems)) == 1
    assert [problem.split(": ")[0] for problem in problems] == ["traffic.jsonl line 2", "traffic.jsonl line 3"]
    assert told in problems[0]
    with pytest.raises(DataError, match="line 2"):
        read_traffic(path)
