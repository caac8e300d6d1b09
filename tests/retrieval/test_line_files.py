"""Files of JSON lines that are read one line at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from querywright.retrieval.line_files import Edited, LineFile


class Reader:
    """Reads lines ``["key", value]`` and remembers the numbers of those it was asked for."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __call__(self, number: int, line: bytes) -> tuple[str, int]:
        self.read.append(number)
        key, value = json.loads(line)
        return key, value


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_last_line_of_a_key_counts_and_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    reader = Reader()
    lines = LineFile(written(tmp_path / "a", ["b", 1], ["a", 2], ["b", 3]), reader)
    assert reader.read == [1, 2, 3]
    assert list(lines) == ["b", "a"]
    assert "b" in lines
    assert (len(lines), "c" in lines, lines.get("c")) == (2, False, None)
    assert reader.read == [1, 2, 3]
    assert lines == {"a": 2, "b": 3}
    assert reader.read == [1, 2, 3, 3, 2]


def test_what_it_held_stays_when_it_grows_or_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "a", ["a", 1])
    lines = LineFile(path, Reader())
    with path.open("a") as file:
        file.write('["a", 2]\n["b", 3]\n')
    written(tmp_path / "b", ["z", 9]).replace(path)
    assert lines == {"a": 1}


def test_half_a_line_and_a_missing_file_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert LineFile(path, Reader()) == {}
    path.write_text('["a", 1]\n["b", 2]')
    assert LineFile(path, Reader()) == {"a": 1}


def test_what_the_reader_raises_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        LineFile(written(tmp_path / "a", ["a", 1], ["b"]), Reader())


def test_changes_and_what_is_left_out() -> None:
    edited = Edited({"a": 1, "b": 2, "c": 3}, {"b": 20, "d": 4, "a": 10}, without={"c", "a"})
    assert list(edited.items()) == [("a", 10), ("b", 20), ("d", 4)]
    assert (len(edited), "c" in edited, "a" in edited) == (3, False, True)
    with pytest.raises(KeyError):
        edited["c"]
