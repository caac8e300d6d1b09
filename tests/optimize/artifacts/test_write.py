from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import dspy
import pytest

from querywright.errors import ArtifactError
from querywright.optimize.artifacts.files import read_artifact
from querywright.programs import make_program

FILES = ("README.md", "golden.jsonl", "manifest.json", "program.json")


def nothing(query, k):
    return []


def test_an_artifact_is_four_files_and_says_how_it_was_made(artifact):
    assert sorted(file.name for file in artifact.iterdir()) == list(FILES)
    read = read_artifact(artifact)
    assert read.manifest.technique == "hcqr"
    assert read.manifest.reader == "multiple_choice"
    assert read.manifest.made == {"dev": {"value": 0.25, "n": 4}}
    assert read.manifest.versions["dspy"]
    assert (artifact / "README.md").read_text() == "# card\n"


def test_the_same_program_gives_the_same_bytes(place, write):
    write(place / "a")
    write(place / "b")
    for name in FILES:
        assert (place / "a" / name).read_bytes() == (place / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("demo", "message"),
    [
        ({"question": {1, 2}}, "set"),
        ({"question": float("nan")}, "nan|NaN|Out of range"),
        ({"question": "\ud800"}, "utf-8"),
    ],
)
def test_a_demonstration_that_json_cannot_hold_is_refused_and_the_old_artifact_stays(demo, message, artifact, write):
    before = {name: (artifact / name).read_bytes() for name in FILES}
    program = make_program("hcqr", nothing, reader="multiple_choice")
    program.technique.write_queries.demos = [dspy.Example(**demo)]
    with pytest.raises(ArtifactError, match=f"technique.write_queries cannot be saved as JSON: .*(?:{message})"):
        write(artifact, program)
    assert {name: (artifact / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize("change", [{"made": {"x": float("nan")}}, {"made": {"x": {1}}}, {"card": "\ud800"}])
def test_other_things_that_cannot_be_written_are_refused(change, place, write):
    with pytest.raises(ArtifactError, match="cannot be saved as JSON"):
        write(place / "a", **change)
    assert list(place.iterdir()) == []


def test_an_older_artifact_is_replaced_and_nothing_is_left_beside_it(artifact, write):
    write(artifact, make_program("plain", nothing, reader=None))
    assert read_artifact(artifact).manifest.technique == "plain"
    assert [entry.name for entry in artifact.parent.iterdir()] == ["a"]


def test_missing_folders_above_are_made(place, write):
    write(place / "x" / "y" / "a")
    assert read_artifact(place / "x" / "y" / "a")


def test_an_empty_folder_is_taken(place, write):
    (place / "a").mkdir()
    write(place / "a")
    assert read_artifact(place / "a")


def test_a_link_to_an_artifact_stays_a_link(artifact, place, write):
    (place / "link").symlink_to(artifact)
    write(place / "link", make_program("plain", nothing, reader=None))
    assert (place / "link").is_symlink()
    assert read_artifact(artifact).manifest.technique == "plain"


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_folder_with_other_files_is_never_replaced(with_manifest, place, write):
    (place / "a").mkdir()
    (place / "a" / "thesis.txt").write_text("years of work")
    if with_manifest:
        (place / "a" / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"'a' holds files that are not of an artifact, such as 'thesis\.txt'"):
        write(place / "a")
    assert (place / "a" / "thesis.txt").read_text() == "years of work"
    assert [entry.name for entry in place.iterdir()] == ["a"]


def test_a_file_at_the_place_is_not_replaced(place, write):
    (place / "a").write_text("mine")
    with pytest.raises(ArtifactError, match="could not be written"):
        write(place / "a")
    assert (place / "a").read_text() == "mine"


FAILING_STEPS = [("mkdir", 1), *(("open", n) for n in range(1, 5)), *(("fsync", n) for n in range(1, 7))]


@pytest.mark.parametrize(
    ("exists", "step", "which"),
    [
        *((exists, step, which) for exists in (True, False) for step, which in FAILING_STEPS),
        (True, "rename", 1),
        (True, "rename", 2),
        (False, "rename", 1),
    ],
)
def test_a_step_that_fails_is_said_and_what_stood_there_stays(exists, step, which, place, monkeypatch, write):
    if exists:
        write(place / "a", made={"which": "old"})
    owner = os if step == "fsync" else Path
    real = getattr(owner, step)
    calls = []

    def failing(path, *args, **kwargs):
        if step in {"fsync", "rename"} or ".new-" in str(path):
            calls.append(path)
            if len(calls) == which:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, failing)
        with pytest.raises(ArtifactError, match="the disk is full; nothing at that place was changed"):
            write(place / "a", made={"which": "new"})
    if exists:
        assert read_artifact(place / "a").manifest.made == {"which": "old"}
    assert [entry.name for entry in place.iterdir()] == (["a"] if exists else [])
    write(place / "a", made={"which": "new"})
    assert read_artifact(place / "a").manifest.made == {"which": "new"}


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EROFS, "the file system is read-only"), (errno.EACCES, "Permission denied")]
)
def test_no_right_to_write_is_said(number, reason, place, monkeypatch, write):
    def failing(path, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", failing)
    with pytest.raises(ArtifactError, match=f"'a' could not be written: {reason}; .*--out"):
        write(place / "a")


@pytest.mark.skipif(not shutil.which("mount") or os.geteuid() != 0, reason="needs a small file system of its own")
def test_a_full_disk(place, write):
    disk = place / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        write(disk / "a", made={"which": "old"})
        with pytest.raises(ArtifactError, match="the disk is full"):
            write(disk / "a", made={"which": "new"}, card="x" * 200_000)
        assert read_artifact(disk / "a").manifest.made == {"which": "old"}
        assert [entry.name for entry in disk.iterdir()] == ["a"]
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(ArtifactError, match="read-only"):
            write(disk / "a", made={"which": "new"})
        assert read_artifact(disk / "a").manifest.made == {"which": "old"}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


KILLED = """
import os, signal, sys, time
from querywright.optimize.artifacts.files import Golden, read_artifact, write_artifact
from querywright.programs import make_program

program = make_program("hcqr", lambda query, k: [], reader="multiple_choice")
golden = [Golden(question="x" * 500, options=[], answer=None, passages=[])] * 200

def write(n):
    write_artifact(sys.argv[1], program, lm="x/y", embedder=None, collection=None, engine=None, reranker=None,
                   fingerprint=None, created="2026-01-02", made={"n": n}, golden=golden, card="# card")

write(0)
for kill in range(40):
    last = read_artifact(sys.argv[1]).manifest.made["n"]
    child = os.fork()
    if not child:
        while True:
            last += 1
            write(last)
    time.sleep(0.001 + 0.00137 * kill)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(last, read_artifact(sys.argv[1]).manifest.made["n"], flush=True)
"""


def test_killed_while_writing_the_old_or_the_new_one_is_there_whole(place, write):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place / "a")], capture_output=True, text=True, timeout=100, check=True
    )
    seen = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(seen) == 40
    assert all(before <= after for before, after in seen)
    assert seen[-1][1] >= 5  # some writes ended before their writer was killed, on a busy machine too
    assert read_artifact(place / "a").manifest.made == {"n": seen[-1][1]}
    write(place / "a")
    assert [entry.name for entry in place.iterdir()] == ["a"]


@pytest.mark.parametrize("moment", ["while the files are written", "between the two renames", "after them"])
def test_what_a_killed_writer_left_is_read_and_swept(moment, place, write):
    target, old, new = place / "a", place / ".a.old", place / ".a.new-123456"
    write(target, made={"which": "old"})
    expected = "old"
    if moment == "while the files are written":
        new.mkdir()
        (new / "program.json").write_text("{")
    elif moment == "between the two renames":
        target.rename(old)
        write(new, made={"which": "new"})
    else:
        target.rename(old)
        write(target, made={"which": "new"})
        (old).mkdir(exist_ok=True)
        expected = "new"
    assert read_artifact(target).manifest.made == {"which": expected}
    write(target, made={"which": "newest"})
    assert read_artifact(target).manifest.made == {"which": "newest"}
    assert [entry.name for entry in place.iterdir()] == ["a"]


def test_two_writers_take_turns(place, write):
    errors = []

    def rewrite(which):
        try:
            for _ in range(15):
                write(place / "a", made={"which": which})
        except ArtifactError as error:
            errors.append(error)

    threads = [threading.Thread(target=rewrite, args=(which,)) for which in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert read_artifact(place / "a")
    assert [entry.name for entry in place.iterdir()] == ["a"]


def test_a_writer_waits_for_the_lock_of_the_folder(place, write):
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    thread = threading.Thread(target=write, args=(place / "a",), daemon=True)
    thread.start()
    time.sleep(0.2)
    assert list(place.iterdir()) == []
    os.close(descriptor)
    thread.join(timeout=10)
    assert read_artifact(place / "a")


def test_files_are_on_the_disk_before_the_folder_is_in_its_place(place, monkeypatch, write):
    events = []
    real_sync, real_rename = os.fsync, Path.rename

    def fsync(descriptor):
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        real_sync(descriptor)

    def rename(path, other):
        events.append(("rename", other.name))
        return real_rename(path, other)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    write(place / "a")
    renamed = events.index(("rename", "a"))
    assert {name for what, name in events[:renamed] if what == "fsync"} >= set(FILES)
    assert events[renamed + 1 :] == [("fsync", place.name)]
