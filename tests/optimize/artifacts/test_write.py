from __future__ import annotations

import errno
import os
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EROFS, "the file system is read-only"), (errno.EACCES, "Permission denied")]
)
def test_what_cannot_be_written_is_said(number, reason, place, monkeypatch, write):
    def failing(path, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", failing)
    with pytest.raises(ArtifactError, match=f"'a' could not be written: {reason}; .*--out"):
        write(place / "a")


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
    if kill % 8 == 0:  # some writes end before their writer is killed, on a busy machine too
        while read_artifact(sys.argv[1]).manifest.made["n"] == last:
            time.sleep(0.001)
    time.sleep(0.001 + 0.00137 * kill)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(last, read_artifact(sys.argv[1]).manifest.made["n"], flush=True)
"""


@pytest.mark.slow
def test_killed_while_writing_the_old_or_the_new_one_is_there_whole(place, write):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place / "a")], capture_output=True, text=True, timeout=100, check=True
    )
    seen = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(seen) == 40
    assert all(before <= after for before, after in seen)
    assert read_artifact(place / "a").manifest.made == {"n": seen[-1][1]}
    write(place / "a")
    assert [entry.name for entry in place.iterdir()] == ["a"]
