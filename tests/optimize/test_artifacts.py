from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from querywright.errors import ArtifactError
from querywright.models.adapter import PromptAdapter
from querywright.optimize import folders
from querywright.optimize.artifacts import Golden, read_artifact, write_artifact
from querywright.optimize.state import ProgramState, program_from, state_of
from querywright.programs import READERS, TECHNIQUES, make_program

FILES = ("README.md", "golden.jsonl", "manifest.json", "program.json")
GOLDEN = Golden(question="What of number 1?\u2028And\x85now?", options=["a", "b"], answer="a", passages=["p"])


def nothing(query, k):
    return []


def write(path, program=None, **changes):
    program = program or make_program("hcqr", nothing, reader="multiple_choice")
    given = {
        "lm": "scripted/model",
        "embedder": None,
        "collection": None,
        "fingerprint": "f",
        "created": "2026-01-02",
        "made": {"dev": {"value": 0.25, "n": 4}},
        "golden": [GOLDEN],
        "card": "# card\n",
    }
    return write_artifact(path, program, **(given | changes))


@pytest.fixture
def place(tmp_path):
    """An empty folder."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def artifact(place):
    write(place / "a")
    return place / "a"


def resign(folder, name, change):
    """Edit a file as someone would who knows the checksums."""
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data))
    sign(folder)


def sign(folder):
    content = json.loads((folder / "manifest.json").read_text())
    for name in content["files"]:
        content["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    sign_manifest(folder, content)


def sign_manifest(folder, content):
    signed = {key: value for key, value in content.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**signed, "checksum": checksum}))


def prompts(program):
    """What each predictor would send for fixed inputs."""
    adapter = PromptAdapter()
    return {
        name: adapter.format(p.signature, p.demos, {field: f"<{field}>" for field in p.signature.input_fields})
        for name, p in program.named_predictors()
    }


def values_of(knob):
    if knob.choices or isinstance(knob.default, bool):
        return st.sampled_from(knob.choices or (False, True))
    kind = st.integers if isinstance(knob.default, int) else st.floats
    return kind(knob.low, knob.high)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def knobs_of(technique):
    return st.fixed_dictionaries({knob.name: values_of(knob) for knob in TECHNIQUES[technique].KNOBS})


def prompt_of(fields):
    """Instructions, a field with its description, and demonstrations of a predictor."""
    demo = st.dictionaries(st.sampled_from(fields), PLAIN)
    return st.tuples(TEXT.filter(str.strip), st.sampled_from(fields), TEXT, st.lists(demo, max_size=2))


def tune(program, prompts):
    for name, predictor in program.named_predictors():
        instructions, field, description, demos = prompts[name]
        signature = predictor.signature.with_instructions(instructions)
        predictor.signature = signature.with_updated_fields(field, desc=description)
        predictor.demos = [dspy.Example(**demo) for demo in demos]


READ_AGAIN = """
import json, sys
from pathlib import Path
from querywright.models.adapter import PromptAdapter
from querywright.optimize.artifacts import read_artifact
from querywright.optimize.state import program_from
for folder in sorted(Path(sys.argv[1]).iterdir()):
    program = program_from(read_artifact(folder).state, lambda query, k: [])
    adapter = PromptAdapter()
    prompts = {
        name: adapter.format(p.signature, p.demos, {field: f"<{field}>" for field in p.signature.input_fields})
        for name, p in program.named_predictors()
    }
    reader = None if program.reader is None else program.reader.NAME
    print(json.dumps([folder.name, program.technique.NAME, reader, dict(program.technique.knobs), prompts]))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Artifacts of every technique, written by the test below, with what a new process must find in them."""
    return tmp_path_factory.mktemp("written"), {}


@pytest.mark.parametrize("technique", TECHNIQUES)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_tuned_is_what_is_read(technique, data, written):
    reader = data.draw(st.sampled_from([None, *READERS]))
    program = make_program(technique, nothing, reader=reader, **data.draw(knobs_of(technique)))
    fields = {name: list(predictor.signature.fields) for name, predictor in program.named_predictors()}
    tune(program, data.draw(st.fixed_dictionaries({name: prompt_of(own) for name, own in fields.items()})))
    folder, expected = written
    name = f"{len(expected):04}"
    write(folder / name, program)
    artifact = read_artifact(folder / name)
    again = program_from(artifact.state, nothing)
    assert dict(again.technique.knobs) == dict(program.technique.knobs)
    assert [type(v) for v in again.technique.knobs.values()] == [type(v) for v in program.technique.knobs.values()]
    assert prompts(again) == prompts(program)
    assert state_of(again) == state_of(program)
    assert artifact.golden == [GOLDEN]
    expected[name] = [name, technique, reader, dict(program.technique.knobs), prompts(program)]


def test_what_was_tuned_is_what_another_process_reads(written):
    folder, expected = written
    assert len(expected) >= len(TECHNIQUES)
    done = subprocess.run(
        [sys.executable, "-c", READ_AGAIN, str(folder)], capture_output=True, text=True, timeout=100, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == [json.loads(json.dumps(one)) for one in expected.values()]


def test_an_artifact_is_four_files_and_says_how_it_was_made(artifact):
    assert sorted(file.name for file in artifact.iterdir()) == list(FILES)
    read = read_artifact(artifact)
    assert read.manifest.technique == "hcqr"
    assert read.manifest.reader == "multiple_choice"
    assert read.manifest.made == {"dev": {"value": 0.25, "n": 4}}
    assert read.manifest.versions["dspy"]
    assert (artifact / "README.md").read_text() == "# card\n"


def test_the_same_program_gives_the_same_bytes(place):
    write(place / "a")
    write(place / "b")
    for name in FILES:
        assert (place / "a" / name).read_bytes() == (place / "b" / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_and_every_cut_is_noticed(name, artifact):
    file = artifact / name
    whole = file.read_bytes()
    step = max(1, len(whole) // 150)
    for position in range(0, len(whole), step):
        for bad in (
            whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :],
            whole[:position],
            whole[:position] + whole[position + 1 :],
        ):
            file.write_bytes(bad)
            if name == "manifest.json" and json_equal(bad, whole):
                continue
            with pytest.raises(ArtifactError, match=r"manifest\.json" if name == "manifest.json" else name):
                read_artifact(artifact)
    file.write_bytes(whole)
    assert read_artifact(artifact)


def json_equal(one, other):
    """White space of the manifest is the only thing that no checksum covers."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "folder", "link", "pipe", "binary"])
def test_a_file_that_is_no_file_is_named(name, damage, artifact, place):
    file = artifact / name
    whole = file.read_bytes()
    file.unlink()
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "folder":
        file.mkdir()
    elif damage == "link":
        (place / "elsewhere").write_bytes(whole)
        file.symlink_to(place / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(file)
    elif damage == "binary":
        file.write_bytes(b"\xff\xfe\x00" * 50)
    with pytest.raises(ArtifactError, match=name):
        read_artifact(artifact)


@pytest.mark.parametrize("name", FILES)
def test_a_huge_file_is_not_read(name, artifact, monkeypatch):
    monkeypatch.setitem(folders.LIMITS, name, 20)
    with (artifact / name).open("ab") as file:
        file.truncate(10 * 2**30)  # takes no room on the disk
    began = time.monotonic()
    with pytest.raises(ArtifactError, match=f"{name} has more than the 20 bytes"):
        read_artifact(artifact)
    assert time.monotonic() - began < 2


def test_there_is_no_artifact(place):
    with pytest.raises(ArtifactError, match=r"no artifact at 'none'.*--out"):
        read_artifact(place / "none")
    (place / "file").write_text("x")
    with pytest.raises(ArtifactError, match="no artifact at 'file'"):
        read_artifact(place / "file")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("manifest.json", '{"format": 1, "format": 1}', "'format' stands twice"),
        ("program.json", '{"format": 1, "knobs": {"top_k": 1, "top_k": 2}}', "'top_k' stands twice"),
        ("program.json", '{"format": NaN}', "NaN is not a number"),
        ("program.json", '{"format": -Infinity}', "Infinity is not a number"),
        ("program.json", '{"format": 1e999}', "1e999 is not a number"),
        ("program.json", "[" * 100_000, "not valid JSON"),
        ("program.json", "[" * 500 + "]" * 500, "program.json"),
        ("program.json", '{"a":' * 300 + "1" + "}" * 300, "program.json"),
        ("program.json", "9" * 5000, "not valid JSON"),
        ("program.json", "[]", r"field \(whole\)"),
        ("program.json", "null", r"field \(whole\)"),
        ("program.json", '"\\ud800"', "program.json"),
        ("golden.jsonl", '{"question": "x"}', "golden.jsonl line 1: field options"),
        ("golden.jsonl", "\n", "golden.jsonl line 1"),
        ("golden.jsonl", "{}\n\n{}\n", "golden.jsonl line 1"),
    ],
)
def test_json_that_is_none_or_of_another_form_is_refused(name, text, message, artifact):
    (artifact / name).write_text(text)
    if name != "manifest.json":
        sign(artifact)
    with pytest.raises(ArtifactError, match=message):
        read_artifact(artifact)


def test_a_repeated_key_is_found_without_delay_among_very_many(artifact):
    text = "{" + ",".join(f'"{n}": 1' for n in range(300_000)) + ', "7": 1}'
    (artifact / "program.json").write_text(text)
    sign(artifact)
    began = time.monotonic()
    with pytest.raises(ArtifactError, match="'7' stands twice"):
        read_artifact(artifact)
    assert time.monotonic() - began < 10


def put(*path, value):
    def change(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


QUERIES = ("predictors", "technique.write_queries")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(*QUERIES, "config", value={"api_base": "http://127.0.0.1:9"}), "config: Extra inputs"),
        (put(*QUERIES, "lm", value={"api_base": "http://127.0.0.1:9"}), "lm: Extra inputs"),
        (put(*QUERIES, "traces", value=[]), "traces: Extra inputs"),
        (put(*QUERIES, "headers", value={"Authorization": "x"}), "headers: Extra inputs"),
        (put("lm", value={"model": "openai/x", "api_base": "http://127.0.0.1:9"}), "lm: Extra inputs"),
        (put("metadata", value={}), "metadata: Extra inputs"),
        (put(*QUERIES, "instructions", value=12345), "instructions: Input should be a valid string"),
        (put(*QUERIES, "instructions", value="half a character \ud800"), "not valid JSON"),
        (put(*QUERIES, "instructions", value="x" * 200_000), "instructions: String should have at most"),
        (put(*QUERIES, "demos", value=None), "demos"),
        (put(*QUERIES, "demos", value=["x"]), "demos"),
        (put("knobs", "n_queries", value="3"), "n_queries must be a whole number"),
        (put("knobs", "n_queries", value=99), "n_queries must be a whole number"),
        (put("knobs", "n_queries", value=None), "knobs.n_queries"),
        (put("knobs", "n_queries", value=True), "n_queries must be"),
        (put("knobs", "fusion", value="no_such"), "fusion must be"),
        (put("knobs", "planted", value=1), "unknown knob 'planted'"),
        (put("predictors", "planted", value={"instructions": "x", "fields": {}, "demos": []}), "has the predictors"),
        (put(*QUERIES, "fields", value={}), "has the fields"),
        (put(*QUERIES, "demos", value=[{"forward": "x"}]), "unknown field 'forward'"),
        (put("format", value=2), "different programs"),
        (put("technique", value="plain"), "different programs"),
        (lambda data: data["knobs"].pop("top_k"), "knobs lack top_k"),
        (lambda data: data["predictors"].pop("reader.predict"), "has the predictors"),
        (lambda data: data.pop("reader"), "field reader"),
    ],
)
def test_a_program_that_was_edited_and_signed_again_is_refused(change, message, artifact, no_connection):
    resign(artifact, "program.json", change)
    with pytest.raises(ArtifactError, match=message) as error:
        program_from(read_artifact(artifact).state, nothing)
    assert "program.json" in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("api_base", value="http://127.0.0.1:9"), "api_base: Extra inputs"),
        (put("format", value=2), "has format 2, this version of querywright reads 1; compile again"),
        (put("format", value="1"), "format"),
        (put("technique", value=7), "technique"),
        (put("files", "x.txt", value="0"), "must name"),
        (put("files", value={}), "must name"),
        (put("lm", value=None), "lm"),
        (lambda data: data.pop("versions"), "versions"),
        (put("made", value={"x": "\ud800"}), "manifest.json"),
        (put("reader", value="short_answer"), "different programs"),
    ],
)
def test_a_manifest_that_was_edited_and_signed_again_is_refused(change, message, artifact):
    content = json.loads((artifact / "manifest.json").read_text())
    change(content)
    sign_manifest(artifact, content)
    with pytest.raises(ArtifactError, match=message):
        read_artifact(artifact)


def test_a_manifest_with_the_wrong_checksum_is_refused(artifact):
    content = json.loads((artifact / "manifest.json").read_text())
    content["made"]["dev"]["value"] = 0.99
    (artifact / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=r"manifest.json was changed after it was written \(field checksum\)"):
        read_artifact(artifact)


@pytest.mark.parametrize(("key", "value"), [("technique", "magic"), ("reader", "essay")])
def test_an_unknown_technique_or_reader_is_refused(key, value, artifact):
    resign(artifact, "program.json", put(key, value=value))
    resign(artifact, "manifest.json", put(key, value=value))
    with pytest.raises(ArtifactError, match=f"program.json: unknown {key} '{value}'"):
        program_from(read_artifact(artifact).state, nothing)


@pytest.mark.parametrize(
    ("demo", "message"),
    [
        ({"question": {1, 2}}, "set"),
        ({"question": float("nan")}, "nan|NaN|Out of range"),
        ({"question": "\ud800"}, "utf-8"),
    ],
)
def test_a_demonstration_that_json_cannot_hold_is_refused_and_the_old_artifact_stays(demo, message, artifact):
    before = {name: (artifact / name).read_bytes() for name in FILES}
    program = make_program("hcqr", nothing, reader="multiple_choice")
    program.technique.write_queries.demos = [dspy.Example(**demo)]
    with pytest.raises(ArtifactError, match=f"technique.write_queries cannot be saved as JSON: .*(?:{message})"):
        write(artifact, program)
    assert {name: (artifact / name).read_bytes() for name in FILES} == before


@pytest.mark.parametrize("change", [{"made": {"x": float("nan")}}, {"made": {"x": {1}}}, {"card": "\ud800"}])
def test_other_things_that_cannot_be_written_are_refused(change, place):
    with pytest.raises(ArtifactError, match="cannot be saved as JSON"):
        write(place / "a", **change)
    assert list(place.iterdir()) == []


# Writing: whole or not at all.


def test_an_older_artifact_is_replaced_and_nothing_is_left_beside_it(artifact):
    write(artifact, make_program("plain", nothing, reader=None))
    assert read_artifact(artifact).manifest.technique == "plain"
    assert [entry.name for entry in artifact.parent.iterdir()] == ["a"]


def test_missing_folders_above_are_made(place):
    write(place / "x" / "y" / "a")
    assert read_artifact(place / "x" / "y" / "a")


def test_an_empty_folder_is_taken(place):
    (place / "a").mkdir()
    write(place / "a")
    assert read_artifact(place / "a")


def test_a_link_to_an_artifact_stays_a_link(artifact, place):
    (place / "link").symlink_to(artifact)
    write(place / "link", make_program("plain", nothing, reader=None))
    assert (place / "link").is_symlink()
    assert read_artifact(artifact).manifest.technique == "plain"


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_folder_with_other_files_is_never_replaced(with_manifest, place):
    (place / "a").mkdir()
    (place / "a" / "thesis.txt").write_text("years of work")
    if with_manifest:
        (place / "a" / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"'a' holds files that are not of an artifact, such as 'thesis\.txt'"):
        write(place / "a")
    assert (place / "a" / "thesis.txt").read_text() == "years of work"
    assert [entry.name for entry in place.iterdir()] == ["a"]


def test_a_file_at_the_place_is_not_replaced(place):
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
def test_a_step_that_fails_is_said_and_what_stood_there_stays(exists, step, which, place, monkeypatch):
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
def test_no_right_to_write_is_said(number, reason, place, monkeypatch):
    def failing(path, *args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", failing)
    with pytest.raises(ArtifactError, match=f"'a' could not be written: {reason}; .*--out"):
        write(place / "a")


@pytest.mark.skipif(not shutil.which("mount") or os.geteuid() != 0, reason="needs a small file system of its own")
def test_a_full_disk(place):
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
from querywright.optimize.artifacts import Golden, read_artifact, write_artifact
from querywright.programs import make_program

program = make_program("hcqr", lambda query, k: [], reader="multiple_choice")
golden = [Golden(question="x" * 500, options=[], answer=None, passages=[])] * 200

def write(n):
    write_artifact(sys.argv[1], program, lm="x/y", embedder=None, collection=None, fingerprint=None,
                   created="2026-01-02", made={"n": n}, golden=golden, card="# card")

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


def test_killed_while_writing_the_old_or_the_new_one_is_there_whole(place):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place / "a")], capture_output=True, text=True, timeout=100, check=True
    )
    seen = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(seen) == 40
    assert all(before <= after for before, after in seen)
    assert seen[-1][1] > 10
    assert read_artifact(place / "a").manifest.made == {"n": seen[-1][1]}
    write(place / "a")
    assert [entry.name for entry in place.iterdir()] == ["a"]


@pytest.mark.parametrize("moment", ["while the files are written", "between the two renames", "after them"])
def test_what_a_killed_writer_left_is_read_and_swept(moment, place):
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


def test_reading_writes_nothing(place):
    write(place / "a")
    (place / "a").rename(place / ".a.old")
    assert read_artifact(place / "a")
    assert [entry.name for entry in place.iterdir()] == [".a.old"]


def test_readers_beside_a_writer_always_see_a_whole_artifact(place):
    target = place / "a"
    write(target, made={"n": 0})
    stop = threading.Event()

    def rewrite():
        n = 0
        while not stop.is_set():
            n += 1
            write(target, made={"n": n})

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        seen = [read_artifact(target).manifest.made["n"] for _ in range(150)]
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 3


def test_two_writers_take_turns(place):
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


def test_a_writer_waits_for_the_lock_of_the_folder(place):
    descriptor = os.open(place, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    thread = threading.Thread(target=write, args=(place / "a",), daemon=True)
    thread.start()
    time.sleep(0.2)
    assert list(place.iterdir()) == []
    os.close(descriptor)
    thread.join(timeout=10)
    assert read_artifact(place / "a")


def test_files_are_on_the_disk_before_the_folder_is_in_its_place(place, monkeypatch):
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


WATCHED = """
import pickle, sys
import dspy
from querywright.optimize.artifacts import read_artifact
from querywright.optimize.state import program_from
program_from(read_artifact(sys.argv[1]).state, lambda query, k: [])  # what is imported late is imported now
events = []
sys.addaudithook(lambda event, args: events.append(event) if event.split(".")[0] in WATCH else None)
WATCH = {"pickle", "marshal", "exec", "compile", "import", "socket", "subprocess", "os.system", "ctypes"}
dspy.Module.load = dspy.Module.load_state = dspy.Predict.load_state = None
program_from(read_artifact(sys.argv[1]).state, lambda query, k: [])
print(sorted(set(events)))
pickle.loads(pickle.dumps(dspy.Example))
print("pickle.find_class" in events)
"""


def test_nothing_is_unpickled_run_imported_or_connected_to(artifact):
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(artifact)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["[]", "True"]


def test_states_are_equal_only_when_everything_is():
    one = state_of(make_program("hcqr", nothing, reader="multiple_choice"))
    assert isinstance(one, ProgramState)
    assert one != state_of(make_program("hcqr", nothing, reader="multiple_choice", top_k=7))
    assert one != state_of(make_program("hcqr", nothing, reader="short_answer"))
