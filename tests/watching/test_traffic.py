"""Lines of traffic: whole, private, kept apart by size, and never in the way of a question."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from querywright.errors import DataError
from querywright.watching import JsonLines, read_traffic
from querywright.watching.traffic import HASHED, is_traffic


def lines(path):
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def files_of(path):
    """The file and those that were put aside, in any order."""
    return [file for file in path.parent.iterdir() if file.name.startswith(path.name)]


def test_a_line_holds_the_exchange_and_is_read_back(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    watcher = JsonLines(path)
    watcher(exchange(1, question="Ist 20 °C warm? \ud800", support=("p1",)))
    watcher(exchange(2, answer=None, error="OutageError", passages=(), options=()))

    first, second = read_traffic(path)
    assert first == exchange(1, question="Ist 20 °C warm? ?", support=("p1",))
    assert (first.passages, first.n_passages, first.metadata) == (("p1", "p2"), 2, {"request": "r1"})
    assert (second.answer, second.error, second.n_passages) == (None, "OutageError", 0)
    assert is_traffic(path)
    assert watcher.lost == 0


def test_the_file_is_its_owner_s_alone_whatever_the_umask(tmp_path, exchange):
    before = os.umask(0)
    try:
        JsonLines(tmp_path / "traffic.jsonl", questions=False)(exchange())
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("traffic.jsonl", "traffic.jsonl.salt", ".traffic.jsonl.lock"), 0o600)


def test_texts_can_be_left_out_and_equal_ones_still_be_known(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    query = {"role": "original", "text": "Planted secret?"}
    secret = exchange(1, question="Planted secret?", queries=(query,), answer="Aspirin")
    JsonLines(path, questions=False)(secret)
    JsonLines(path, questions=False)(exchange(2, question="Planted secret?"))  # as another process would
    JsonLines(tmp_path / "other.jsonl", questions=False)(secret)

    written = path.read_bytes()
    for text in (b"Planted", b"Aspirin", b"Heparin"):
        assert text not in written
    first, second = read_traffic(path)
    assert first.question.startswith(HASHED)
    assert first.question == second.question == first.queries[0].text
    assert first.answer == first.options[1] != second.answer == second.options[0]
    assert len(first.question) == len(HASHED) + 64
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


def test_a_file_is_put_aside_when_it_is_full_and_read_in_order(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    watcher = JsonLines(path, max_bytes=2_000, keep=3)
    for number in range(40):
        watcher(exchange(number))
    files = files_of(path)
    assert {file.name for file in files} == {f"traffic.jsonl{end}" for end in (".3", ".2", ".1", "")}
    assert all(file.stat().st_size <= 2_000 for file in files)
    kept = [int(one.id, 16) for one in read_traffic(path)]
    assert kept == list(range(40 - len(kept), 40))
    assert len(kept) > 8
    assert watcher.lost == 0


def write_many(path, start, count, exchange):
    watcher = JsonLines(path, max_bytes=20_000, keep=1_000)

    def write(first):
        for number in range(first, first + count):
            watcher(exchange(number, question=f"{number} " + "x" * (number % 700)))

    threads = [threading.Thread(target=write, args=(start + place * count,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(watcher.lost)


def test_threads_of_several_processes_lose_and_mix_nothing(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    script = "import sys, runpy; sys.path.insert(0, sys.argv[1]); from test_traffic import write_many; " \
        "from conftest import made_exchange; write_many(sys.argv[2], int(sys.argv[3]), 60, made_exchange)"  # fmt: skip
    running = [
        subprocess.Popen([sys.executable, "-c", script, os.path.dirname(__file__), str(path), str(process * 240)])
        for process in range(2)
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(files_of(path)) > 5
    found = read_traffic(path)
    assert sorted(int(one.id, 16) for one in found) == list(range(480))
    assert all(one.question == f"{int(one.id, 16)} " + "x" * (int(one.id, 16) % 700) for one in found)
    assert sum(len(lines(file)) for file in files_of(path)) == 480


FULL = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from conftest import made_exchange
from querywright.watching import JsonLines
path = sys.argv[2]
watcher = JsonLines(path)
watcher(made_exchange(0))
size = len(open(path, "rb").read())
resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, resource.RLIM_INFINITY))
watcher(made_exchange(1))
assert len(open(path, "rb").read()) == size, "half a line was left"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
watcher(made_exchange(2))
sys.exit(watcher.lost)
"""


def test_a_line_without_room_is_taken_back_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "traffic.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, os.path.dirname(__file__), str(path)], check=False, timeout=60)
    assert done.returncode == 1  # one line was lost
    assert [int(one.id, 16) for one in read_traffic(path)] == [0, 2]


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path, exchange):
    path = tmp_path / "traffic.jsonl"
    watcher = JsonLines(path)
    watcher(exchange(0))
    with path.open("ab") as file:
        file.write(b'{"format": 1, "id": "half')  # a process was killed
    assert [int(one.id, 16) for one in read_traffic(path)] == [0]  # not an error: it may be being written
    watcher(exchange(1))
    problems: list[str] = []
    assert [int(one.id, 16) for one in read_traffic(path, problems=problems)] == [0, 1]
    assert len(problems) == 1
    assert problems[0].startswith("traffic.jsonl line 2: ")
    with pytest.raises(DataError, match="line 2"):
        read_traffic(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "format"),
        ({"declined": "no"}, "declined"),
        ({"id": ""}, "id"),
        ({"options": "Heparin"}, "options"),
        ({"n_passages": None}, "n_passages"),
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
