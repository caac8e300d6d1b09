from __future__ import annotations

import copy
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from querywright.errors import QuerywrightError
from querywright.models.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "inner" / "store.sqlite")
    yield store
    store.close()


def _python(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)


def test_gives_back_what_was_put(store: Store) -> None:
    store.put_many("lm", {"a": b"\x00\xff", "b": b""})
    store.put("vector", "a", b"other kind")

    assert store.get_many("lm", ["b", "a", "a", "missing"]) == {"a": b"\x00\xff", "b": b""}
    assert store.get("lm", "missing") is None
    assert (store.count("lm"), store.count("vector"), store.count("none")) == (2, 1, 0)
    assert store.get_many("lm", []) == {}
    store.put_many("lm", {})
    assert store.count("lm") == 2


def test_the_first_writer_wins(store: Store) -> None:
    store.put("lm", "a", b"first")
    store.put_many("lm", {"a": b"second", "b": b"new"})

    assert store.get_many("lm", ["a", "b"]) == {"a": b"first", "b": b"new"}


def test_only_the_owner_may_read_it(store: Store) -> None:
    store.put("lm", "a", b"1")
    for path in store.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_threads_see_one_value_a_key(store: Store) -> None:
    def write(thread: int) -> dict[str, bytes]:
        keys = [str(number) for number in range(50)]
        for key in keys:
            store.put("lm", key, f"{key} by {thread}".encode())
        return store.get_many("lm", keys)

    with ThreadPoolExecutor(16) as pool:
        seen = list(pool.map(write, range(16)))
    assert all(one == seen[0] for one in seen)
    assert store.count("lm") == 50


def test_processes_see_one_value_a_key(tmp_path: Path) -> None:
    code = """
import json, sys
from pathlib import Path
from querywright.models.store import Store
store = Store(Path(sys.argv[1]))
for number in range(100):
    store.put("lm", str(number), sys.argv[2].encode())
found = store.get_many("lm", [str(number) for number in range(100)])
print(json.dumps({key: found[key].decode() for key in sorted(found)}))
"""
    path = tmp_path / "store.sqlite"
    workers = [_python(code, str(path), name) for name in "abc"]
    answers = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert Store(path).count("lm") == 100


@pytest.mark.slow
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from querywright.models.store import Store
store = Store(Path(sys.argv[1]))
for number in range(10**6):
    store.put("lm", str(number), str(number).encode() * 100)
    print(number, flush=True)
"""
    path = tmp_path / "store.sqlite"
    for stop_at in (1, 40, 200):
        worker = _python(code, str(path))
        assert worker.stdout is not None
        last = -1
        for line in worker.stdout:
            last = int(line)
            if last >= stop_at:
                break
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(10)
        worker.stdout.close()
        store = Store(path)
        assert len(store.get_many("lm", [str(number) for number in range(last + 1)])) == last + 1
        store.close()


@pytest.mark.parametrize("damage", [b"", b"this is no database" * 300, None])
def test_a_damaged_file_costs_its_content_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | None
) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(path)
    store.put_many("lm", {str(number): bytes(1000) for number in range(100)})
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:2048] + b"\xff" * (len(whole) - 2048) if damage is None else damage)

    with caplog.at_level(logging.WARNING):
        assert store.get("lm", "1") is None
        store.put("lm", "1", b"again")
    assert store.get("lm", "1") == b"again"
    if damage != b"":  # SQLite takes an empty file for a new database
        assert (tmp_path / "store.sqlite.damaged-1").exists()
        assert "store.sqlite.damaged-1" in caplog.text
    store.close()


OTHERS = "(SELECT value FROM querywright_entries WHERE key = 'b')"


@pytest.mark.parametrize("damage", ["value = x'00'", "checksum = 1", "key = 'c'", f"value = {OTHERS}"])
def test_one_damaged_value_is_missing_and_can_be_written_again(
    store: Store, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """Its bytes, its checksum or its key was changed, or it is another one's value."""
    store.put_many("lm", {"a": b"right", "b": b"whole"})
    with sqlite3.connect(store.path) as other:
        other.execute(f"UPDATE querywright_entries SET {damage} WHERE key = 'a'")
    other.close()

    with caplog.at_level(logging.WARNING):
        assert store.get_many("lm", ["a", "b", "c"]) == {"b": b"whole"}
    assert "1 damaged values" in caplog.text
    store.put("lm", "a", b"right")
    assert store.get("lm", "a") == b"right"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QuerywrightError, match=r"store\.sqlite cannot be created"):
        Store(tmp_path / "file" / "store.sqlite")


def test_one_instance_a_path_and_a_copy_is_itself(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert open_store(tmp_path / ".." / tmp_path.name) is store
    assert copy.deepcopy(store) is store
    assert store.path == tmp_path.resolve() / "store.sqlite"
    store.close()
