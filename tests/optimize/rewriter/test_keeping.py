from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from querywright.errors import InputError
from querywright.optimize.rewriter.keeping import (
    add_line,
    keep_lines,
    only_one,
    read_json,
    read_lines,
    write_json,
    write_whole,
)

FULL = """
import resource, signal, sys
from pathlib import Path
from querywright.optimize.rewriter.keeping import add_line, write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
folder = Path(sys.argv[1])
for write in (lambda: write_whole(folder / "card.json", "x" * 100), lambda: add_line(folder / "log", {"y": "z" * 100})):
    try:
        write()
    except OSError as error:
        print(error.errno)
"""


def test_what_is_no_number_becomes_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": math.nan, "y": [math.inf, 1.5], "z": (1, 2)})
    assert read_json(tmp_path / "a.json") == {"x": None, "y": [None, 1.5], "z": [1, 2]}
    assert read_json(tmp_path / "b.json") is None
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.json .* is no JSON"):
        read_json(tmp_path / "a.json")


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_lines(log) == []
    for step in range(3):
        add_line(log, {"step": step})
    with log.open("a", encoding="utf-8") as file:
        file.write('{"step": 3')
    keep_lines(log, lambda line: line["step"] != 1)
    assert log.read_text(encoding="utf-8") == '{"step": 0}\n{"step": 2}\n'


def test_a_full_disk_leaves_what_stood_there(tmp_path: Path) -> None:
    write_whole(tmp_path / "card.json", "old")
    add_line(tmp_path / "log", {"y": 1})
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert done.stdout.split() == ["27", "27"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["card.json", "log"]
    assert (tmp_path / "card.json").read_text(encoding="utf-8") == "old"
    assert read_lines(tmp_path / "log") == [{"y": 1}]
    assert (tmp_path / "log").read_bytes() == b'{"y": 1}\n'
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 64


def test_one_process_trains_in_a_folder(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(InputError, match=r"another process trains.*--work"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass
