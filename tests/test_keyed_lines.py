"""Lines of a file by key."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from querywright.keyed_lines import KeyedLines


@dataclass(frozen=True)
class Line:
    text: str


def read(line: bytes) -> Line:
    return Line(line.decode().rstrip("\n"))


def test_lines_are_read_by_key_and_number_while_others_are_added(tmp_path: Path) -> None:
    lines = KeyedLines(tempfile.TemporaryFile(dir=tmp_path), read)  # noqa: SIM115 - closed with the lines
    lines.add("b", "größer\n".encode())
    assert lines["b"].text == "größer"
    lines.add("a", b"last\n")
    assert (list(lines), len(lines), "a" in lines, "c" in lines) == (["b", "a"], 2, True, False)
    assert lines.at(1).text == "last"
    assert [one.text for one in lines.values()] == ["größer", "last"]
    with pytest.raises(KeyError):
        lines["c"]
    lines.add("a", b"another\n")
    assert (lines["a"].text, len(lines)) == ("another", 2)


def test_what_somebody_has_is_given_again_and_nothing_else_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querywright.keyed_lines.RECENT", 0)
    lines = KeyedLines(tempfile.TemporaryFile(dir=tmp_path), read)  # noqa: SIM115 - closed with the lines
    lines.add("a", b"one\n")
    held = lines["a"]
    assert lines["a"] is held
    del held
    gc.collect()
    assert not lines._had


def test_what_was_read_lately_is_given_again_and_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("querywright.keyed_lines.RECENT", 2)
    lines = KeyedLines(tempfile.TemporaryFile(dir=tmp_path), read)  # noqa: SIM115 - closed with the lines
    for key in "abc":
        lines.add(key, key.encode() + b"\n")
    assert [lines[key].text for key in "abc"] == ["a", "b", "c"]
    gc.collect()
    assert [one.text for one in lines._had.values()] == ["b", "c"]


def test_a_file_that_was_removed_is_still_read_and_closed_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    file = path.open("rb")
    lines = KeyedLines(file, read)
    for key, line in zip("ab", file, strict=True):
        lines.note(key, len(line))
    path.unlink()
    assert lines["b"].text == "two"
    del lines
    gc.collect()
    assert file.closed
