from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from querywright import files
from querywright.checksummed import Checksummed
from querywright.files import (
    append_line,
    file_digest,
    locked,
    place_of,
    replace_folder,
    write_file,
)

FULL = """
import resource, signal, sys
from pathlib import Path
from querywright.files import append_line, write_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
folder = Path(sys.argv[1])
for write in (lambda: write_file(folder / "card", "x" * 100), lambda: append_line(folder / "log", b"z" * 100)):
    try:
        write()
    except OSError as error:
        print(error.errno)
"""

HELD = """
import sys
from pathlib import Path
from querywright.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


class Facts(Checksummed):
    name: str
    count: int
    parts: tuple[str, ...] = ()


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[1])}


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_is_the_old_one_or_the_whole_new_one(tmp_path):
    path = tmp_path / "card.json"
    digest = write_file(path, "old\ud800")
    assert path.read_bytes() == b"old?"
    assert digest == file_digest(path)

    def parts():
        yield b"new"
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_file(path, parts())
    assert path.read_bytes() == b"old?"
    assert write_file(path, iter([b"a", b"b"])) == file_digest(path)
    assert path.read_bytes() == b"ab"
    assert names(tmp_path) == ["card.json"]


def test_a_full_disk_leaves_what_stood_there(tmp_path):
    write_file(tmp_path / "card", b"old")
    append_line(tmp_path / "log", b"one")
    done = subprocess.run(python(FULL, tmp_path), capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.split() == [str(errno.EFBIG)] * 2
    assert names(tmp_path) == ["card", "log"]
    assert (tmp_path / "card").read_bytes() == b"old"
    assert (tmp_path / "log").read_bytes() == b"one\n"


def test_a_file_that_a_killed_writer_was_at_goes_and_that_of_a_living_one_stays(tmp_path):
    card, left = tmp_path / "card[1]", tmp_path / ".card[1].0a0b0c0d.tmp"
    left.write_bytes(b"half")

    def parts():
        yield b"one"
        write_file(card, b"two")

    write_file(card, parts())
    assert card.read_bytes() == b"one"
    assert names(tmp_path) == ["card[1]"]


@pytest.mark.parametrize("torn", [b"", b"half", b"one\ntwo\nhal"])
def test_half_a_line_that_a_killed_process_left_is_cut_off(tmp_path, torn):
    path = tmp_path / "log"
    path.write_bytes(torn)
    append_line(path, b"next")
    assert path.read_bytes() == torn[: torn.rfind(b"\n") + 1] + b"next\n"


def test_a_folder_is_replaced_whole_or_stays(tmp_path, monkeypatch):
    target = tmp_path / "made" / "here"

    def fill(text):
        return lambda folder: (folder / "text").write_text(text)

    replace_folder(target, fill("one"))
    replace_folder(target, fill("two"))
    assert (target / "text").read_text() == "two"

    def refuse(_):
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        replace_folder(target, fill("three"), check=refuse)
    with pytest.raises(ValueError, match="lost"):
        replace_folder(target, refuse)
    monkeypatch.setattr(files, "sync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        replace_folder(target, fill("three"))
    assert (target / "text").read_text() == "two"
    assert names(target.parent) == ["here"]


def test_a_folder_that_a_killed_writer_set_aside_is_found_and_put_back(tmp_path):
    target = tmp_path / "here"
    replace_folder(target, lambda folder: (folder / "text").write_text("one"))
    target.rename(files.aside(target))
    (tmp_path / ".here.new-1").mkdir()
    assert (place_of(target) / "text").read_text() == "one"
    with pytest.raises(ZeroDivisionError):
        replace_folder(target, lambda folder: 1 // 0)
    assert (target / "text").read_text() == "one"
    assert names(tmp_path) == ["here"]


def test_one_process_at_a_time_holds_a_lock_and_its_end_gives_it_back(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen(
        python(HELD, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(KeyError, match="busy"), locked(path, KeyError("busy")):
            pass
        with pytest.raises(TimeoutError, match="'lock' has been locked"), locked(path, seconds=0.01):
            pass
        other.kill()
    with locked(path, KeyError("busy")):
        pass
    assert path.stat().st_mode & 0o777 == 0o600


def edited(**changes: object) -> bytes:
    """A file whose checksum fits, with other content than the fields allow."""
    content = {"name": "a", "count": 3, "parts": [], **changes}
    return json.dumps({**content, "sha256": files.json_digest(content)}).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"name": "a"}', "wrong checksum"),
        (Facts(name="a", count=3).to_bytes().replace(b"3", b"4", 1), "wrong checksum"),
        (edited(count="3"), "field count: "),
        (edited(more=1), "field more: "),
        (b" " * (Checksummed.LARGEST + 1), "larger than the 1048576-byte limit"),
    ],
)
def test_a_checksummed_file_that_is_something_else_is_refused_with_one_line(tmp_path, data, reason):
    path = tmp_path / "facts.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=reason) as caught:
        Facts.read(path)
    assert "\n" not in str(caught.value)
