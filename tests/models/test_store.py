"""The store keeps values in spite of damage, and computes each value once for all threads."""

from __future__ import annotations

import copy
import os
import sqlite3
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from querywright.errors import QuerywrightError
from querywright.models.store import Store, open_store


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "inner" / "store.sqlite")
    yield store
    store.close()


def test_gives_back_what_was_put_and_the_first_writer_wins(store):
    store.put_many("lm", {"a": b"\x00\xff", "b": b""})
    store.put("vector", "a", b"other kind")
    store.put_many("lm", {"a": b"second", "c": b"new"})
    assert store.get_many("lm", ["c", "b", "a", "a", "missing"]) == {"a": b"\x00\xff", "b": b"", "c": b"new"}
    assert store.get("lm", "missing") is None
    assert (store.count("lm"), store.count("vector"), store.count("none")) == (3, 1, 0)
    assert store.get_many("lm", []) == {}
    store.delete_many("lm", ["a", "b"])
    assert store.count("lm") == 1
    many = {str(number): b"%d" % number for number in range(1100)}  # more than one statement selects
    store.put_many("many", many)
    assert store.get_many("many", [*many]) == many
    store.delete_many("many", [*many])
    assert store.count("many") == 0


def test_only_the_owner_may_read_it(store):
    store.get_or_compute("lm", "a", lambda: b"1")
    store.path.chmod(0o644)
    store.close()
    store.put("lm", "b", b"1")
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("is_there_again", [False, True])
def test_a_damaged_file_that_another_process_has_set_aside_is_not_set_aside_again(store, is_there_again):
    store.put("lm", "a", b"1")
    for path in store.path.parent.glob("store.sqlite*"):
        path.rename(path.with_name(f"aside{path.suffix}"))
    if is_there_again:
        Store(store.path).close()
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    assert store._set_aside(error)
    store.put("lm", "b", b"2")
    assert store.get_many("lm", ["a", "b"]) == {"b": b"2"}
    assert not list(store.path.parent.glob("*.damaged-*"))


def test_a_forked_process_leaves_its_parents_connections_and_copies_what_is_in_memory(store, monkeypatch):
    in_memory = Store()
    for one in (store, in_memory):
        one.put("lm", "a", b"1")
    before = store._engine
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert (store.get("lm", "a"), in_memory.get("lm", "a")) == (b"1", b"1")
    assert store._engine is not before
    monkeypatch.undo()
    store.close()  # the parent's connections, from the view of a forked process
    before.dispose()


OTHERS = "(SELECT value FROM querywright_entries WHERE key = 'b')"


@pytest.mark.parametrize(
    "damage",
    [
        "value = x'00'", "value = 'a text'", "value = 7", "checksum = 1", "checksum = 'x'", "key = 'c'",
        "key = CAST(x'61ff' AS TEXT)", "key = 1", f"value = {OTHERS}",
    ],
)  # fmt: skip
def test_one_damaged_value_is_missing_and_can_be_written_again(store, caplog, damage):
    """A value's bytes, checksum, or key changed, or it is the value of another key."""
    store.put_many("lm", {"a": b"right", "b": b"whole"})
    with sqlite3.connect(store.path) as other:
        other.execute(f"UPDATE querywright_entries SET {damage} WHERE key = 'a'")
    other.close()
    assert store.get_many("lm", ["a", "b", "c"]) == {"b": b"whole"}
    assert store.values("lm") == [b"whole"]
    store.put("lm", "a", b"right")
    assert store.get("lm", "a") == b"right"


@pytest.mark.parametrize(
    ("place", "data"),
    [(20 * 4096, bytes(4096)), (18, b"\x07\x07"), (4000, b"\xd1" * 60), (0, b"this is no database" * 3000)],
    ids=["a page", "its head", "its schema", "all of it"],
)
def test_a_damaged_file_is_set_aside_and_costs_its_content(store, caplog, place, data):
    values = {str(number): bytes([number]) * 1000 for number in range(100)}
    store.put_many("lm", values)
    store.close()
    with store.path.open("r+b") as file:
        file.seek(place)
        file.write(data)
    made = []
    for _ in range(2):
        for key, value in values.items():
            assert store.get_or_compute("lm", key, lambda key=key: made.append(key) or values[key]) == value
    assert len(made) <= 100
    assert "renamed it to store.sqlite.damaged-1 and started a new file" in caplog.text
    assert store.path.with_name("store.sqlite.damaged-1").exists()


def test_a_database_that_another_one_holds_is_told_of_and_not_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("querywright.models.store.BUSY_SECONDS", 0.05)
    store = Store(tmp_path / "store.sqlite")
    with closing(sqlite3.connect(store.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            QuerywrightError, match=r"cannot use the store .*store.sqlite \(database is locked\); free some"
        ):
            store.put("lm", "a", b"1")
    store.put("lm", "a", b"1")
    store.close()
    assert not list(tmp_path.glob("*.damaged-1"))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QuerywrightError, match=r"cannot create the store .*store\.sqlite"):
        Store(tmp_path / "file" / "store.sqlite")


def test_one_instance_a_path_and_a_copy_is_itself(tmp_path):
    store = open_store(tmp_path)
    assert open_store(tmp_path / ".." / tmp_path.name) is store is copy.deepcopy(store)
    assert store.path == tmp_path.resolve() / "store.sqlite"
    assert (repr(store), repr(Store())) == (f"<the store {store.path}>", "<the store in memory>")
    store.close()


def test_threads_make_each_value_once_and_all_have_an_error_of_it(store):
    made, together = [], threading.Barrier(8)

    def make():
        made.append(1)
        time.sleep(0.5)
        if len(made) == 1:
            raise LookupError("down")
        return b"yes"

    def outcome(_):
        together.wait(60)
        try:
            return store.get_or_compute("lm", "key", make)
        except LookupError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        assert (set(pool.map(outcome, range(8))), len(made)) == ({"down"}, 1)
        assert (set(pool.map(outcome, range(8))), len(made)) == ({b"yes"}, 2)


def test_who_waits_for_work_that_was_interrupted_does_it(store):
    begun = threading.Event()

    def interrupted():
        begun.set()
        time.sleep(0.2)
        raise KeyboardInterrupt

    def first():
        with pytest.raises(KeyboardInterrupt):
            store.get_or_compute("lm", "key", interrupted)

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(first)
        begun.wait(60)
        assert store.get_or_compute("lm", "key", lambda: b"made") == b"made"
        stopped.result()


def test_what_is_not_to_be_kept_is_given_and_forgotten(store):
    assert store.get_or_compute("lm", "key", lambda: b"cut off", keep=lambda value: False) == b"cut off"
    assert store.get_or_compute("lm", "key", lambda: b"whole") == b"whole"
    assert store.get_or_compute("lm", "key", lambda: b"never made") == b"whole"


def test_threads_with_other_keys_do_not_wait(store):
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(store.get_or_compute, "lm", key, lambda: str(both.wait(60)).encode()) for key in "ab"]
        assert sorted(future.result() for future in futures) == [b"0", b"1"]
