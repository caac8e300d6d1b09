"""Artifacts on disk: written whole or not at all, read as they were written, and refused when anybody changed them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from pathlib import Path

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.files import json_digest
from querywright.models.adapter import PromptAdapter
from querywright.optimize.artifacts.files import Golden, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.program_state import program_from, shaped, state_of
from querywright.programs import READERS, TECHNIQUES, Ensemble, make_program

FILES = ("README.md", "golden.jsonl", "manifest.json", "program.json")
GOLDEN = Golden(question="What of number 1?\u2028And\x85now?", options=["a", "b"], answer="a", passages=["p"])


def nothing(query, k):
    return []


# What is written is what is read.


def test_an_artifact_is_four_files_and_says_how_it_was_made(artifact, write):
    assert sorted(file.name for file in artifact.iterdir()) == list(FILES)
    manifest = read_artifact(artifact).manifest
    assert (manifest.technique, manifest.reader) == ("hcqr", "multiple_choice")
    assert manifest.made == {"dev": {"value": 0.25, "n": 4}}
    assert manifest.versions["dspy"]
    assert (artifact / "README.md").read_text() == "# card\n"
    (artifact.parent / "link").symlink_to(artifact)
    write(artifact.parent / "link", make_program("plain", nothing, reader=None))
    assert read_artifact(artifact).manifest.technique == "plain"
    assert sorted(entry.name for entry in artifact.parent.iterdir()) == ["a", "link"]
    assert (artifact.parent / "link").is_symlink()


SHIPPED = Path(__file__).parents[3] / "artifacts"


LISTED = re.findall(r"^\| `([\w-]+)` \|", (SHIPPED / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_is_shipped_whole_says_if_it_has_no_reader_and_what_to_do_without_its_passages(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # the repository may have a workspace from make demo
    reader = read_artifact(SHIPPED / name).manifest.reader
    card = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    assert (reader is None) == ("It has no reader" in card) == (name != "handbook")
    with pytest.raises(
        CollectionError, match=r"a collection that is missing: .*build the collection with .*retriever="
    ):
        load(SHIPPED / name, lm="embedded")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def values_of(knob):
    if knob.choices or isinstance(knob.default, bool):
        return st.sampled_from(knob.choices or (False, True))
    return (st.integers if isinstance(knob.default, int) else st.floats)(knob.low, knob.high)


def tune(program, data):
    """Give each predictor instructions, a field's description and demonstrations."""
    for _, predictor in program.named_predictors():
        names = st.sampled_from(list(predictor.signature.fields))
        signature = predictor.signature.with_instructions(data.draw(TEXT.filter(str.strip)))
        predictor.signature = signature.with_updated_fields(data.draw(names), desc=data.draw(TEXT))
        demos = data.draw(st.lists(st.dictionaries(names, PLAIN), max_size=2))
        predictor.demos = [dspy.Example(**demo) for demo in demos]


def prompts(program):
    """What each predictor would send for fixed inputs."""
    return {
        name: PromptAdapter().format(p.signature, p.demos, {field: f"<{field}>" for field in p.signature.input_fields})
        for name, p in program.named_predictors()
    }


@pytest.mark.parametrize("technique", TECHNIQUES)
@given(data=st.data())
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_was_tuned_is_what_is_read(technique, data, place, write):
    knobs = data.draw(st.fixed_dictionaries({knob.name: values_of(knob) for knob in TECHNIQUES[technique].KNOBS}))
    program = make_program(technique, None, reader=data.draw(st.sampled_from([None, *READERS])), **knobs)
    tune(program, data)
    write(place / "a", program, golden=[GOLDEN])
    artifact = read_artifact(place / "a")
    again = program_from(artifact.state)
    assert dict(again.technique.knobs) == dict(program.technique.knobs)
    assert [type(v) for v in again.technique.knobs.values()] == [type(v) for v in program.technique.knobs.values()]
    assert prompts(again) == prompts(program)
    assert state_of(again) == state_of(program)
    assert artifact.golden == [GOLDEN]


@pytest.mark.parametrize("shape", [{"nearest": 3, "members": 0}, {"nearest": 2, "members": 3}])
def test_nearest_demonstrations_and_ensembles_come_back(shape, place, write):
    program = shaped(make_program("hcqr", nothing, reader="multiple_choice", n_queries=2), **shape)
    for number, (_, predictor) in enumerate(program.named_predictors()):
        predictor.demos = [{"question": f"Q{number}"}]
    write(place / "a", program)
    loaded = program_from(read_artifact(place / "a").state)
    assert state_of(loaded) == state_of(program)
    assert isinstance(loaded, Ensemble) == bool(shape["members"])
    assert [one.demos[0]["question"] for one in loaded.predictors()] == [
        f"Q{number}" for number in range(3 * max(1, shape["members"]))
    ]


# What cannot be written leaves what stood there.


@pytest.mark.parametrize("demo", [{"question": {1, 2}}, {"question": float("nan")}, {"question": "\ud800"}])
def test_a_demonstration_that_json_cannot_hold_is_refused(demo, artifact, write):
    before = read_artifact(artifact).manifest.digest
    program = make_program("hcqr", nothing, reader="multiple_choice")
    program.technique.write_queries.demos = [dspy.Example(**demo)]
    with pytest.raises(ArtifactError, match=r"technique.write_queries cannot be saved as JSON: "):
        write(artifact, program)
    assert read_artifact(artifact).manifest.digest == before


@pytest.mark.parametrize("change", [{"made": {"x": float("nan")}}, {"card": "\ud800"}, {"collection": "../x"}])
def test_other_things_that_cannot_be_written_are_refused(change, place, write):
    with pytest.raises(ArtifactError, match="cannot be saved as JSON"):
        write(place / "a", **change)
    assert list(place.iterdir()) == []


def test_a_folder_with_other_files_is_never_replaced(place, write):
    (place / "a").mkdir()
    (place / "a" / "thesis.txt").write_text("years of work")
    (place / "a" / "manifest.json").write_text("{}")
    with pytest.raises(
        ArtifactError, match=r"'a' contains files that are not part of an artifact, such as 'thesis\.txt'"
    ):
        write(place / "a")
    assert (place / "a" / "thesis.txt").read_text() == "years of work"
    assert [entry.name for entry in place.iterdir()] == ["a"]


def test_what_cannot_be_written_is_said(place, monkeypatch, write):
    def failing(path, *args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", failing)
    with pytest.raises(ArtifactError, match=r"could not write .*'a': Read-only file system; .*--out"):
        write(place / "a")


# Reading writes nothing, and sees one whole artifact.


def test_reading_writes_nothing(place, write):
    write(place / "a")
    (place / "a").rename(place / ".a.old")
    assert read_artifact(place / "a")
    assert [entry.name for entry in place.iterdir()] == [".a.old"]


def test_readers_beside_a_writer_always_see_a_whole_artifact(place, write):
    write(place / "a", made={"n": 0})
    stop = threading.Event()

    def rewrite():
        n = 0
        while not stop.is_set():
            n += 1
            write(place / "a", made={"n": n})

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        seen = []
        while len(seen) < 40 or len(set(seen)) < 3:  # on a busy machine the writer is slow
            seen.append(read_artifact(place / "a").manifest.made["n"])
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)


# What somebody else may do to it: all of it is refused, none of it runs.


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "folder", "link", "pipe", "binary", "huge"])
def test_a_file_that_is_no_file_of_the_usual_size_is_named(name, damage, artifact, place):
    file = artifact / name
    whole = file.read_bytes()
    file.unlink()
    if damage in ("empty", "binary"):
        file.write_bytes(b"\xff\xfe\x00" * 50 * (damage == "binary"))
    elif damage == "folder":
        file.mkdir()
    elif damage == "link":
        (place / "elsewhere").write_bytes(whole)
        file.symlink_to(place / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(file)
    elif damage == "huge":
        with file.open("wb") as made:
            made.truncate(10 * 2**30)  # takes no room on the disk
    with pytest.raises(ArtifactError, match=f"{name} is larger than" if damage == "huge" else name):
        read_artifact(artifact)


def test_there_is_no_artifact(place):
    (place / "file").write_text("x")
    for name in ("none", "file"):
        with pytest.raises(ArtifactError, match=rf"no artifact at '{place / name}'.*--out"):
            read_artifact(place / name)


def sign(folder, name, change):
    """Edit a file as someone would who knows the checksums."""
    if callable(change):
        data = json.loads((folder / name).read_text())
        change(data)
        change = json.dumps(data)
    (folder / name).write_text(change)
    content = json.loads((folder / "manifest.json").read_text())
    content.pop("sha256")
    for one in content["files"]:
        if (folder / one).exists():
            content["files"][one] = hashlib.sha256((folder / one).read_bytes()).hexdigest()
    text = json.dumps({**content, "sha256": json_digest(content)}, indent=2, sort_keys=True) + "\n"
    (folder / "manifest.json").write_text(text)


def put(*path, value):
    def change(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


QUERIES = ("predictors", "technique.write_queries")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("program.json", "[" * 100_000, "program.json"),
        ("golden.jsonl", '{"question": "x"}', "golden.jsonl line 1: field options"),
        ("program.json", put(*QUERIES, "config", value={"api_base": "http://127.0.0.1:9"}), "config: Extra inputs"),
        ("program.json", put("lm", value={"model": "openai/x", "api_base": "http://x"}), "lm: Extra inputs"),
        ("program.json", put(*QUERIES, "instructions", value="half a character \ud800"), "Invalid JSON"),
        ("program.json", put(*QUERIES, "instructions", value="x" * 200_000), "instructions: String should have at"),
        ("program.json", put("knobs", "n_queries", value="3"), "n_queries must be a whole number"),
        ("program.json", put("knobs", "planted", value=1), "unknown knob 'planted'"),
        ("program.json", put(*QUERIES, "fields", value={}), "has the fields"),
        ("program.json", put(*QUERIES, "demos", value=[{"forward": "x"}]), "unknown field 'forward'"),
        ("program.json", put("technique", value="plain"), "different programs"),
        ("program.json", lambda data: data["predictors"].pop("reader.predict"), "has the predictors"),
        ("manifest.json", put("api_base", value="http://127.0.0.1:9"), "api_base: Extra inputs"),
        ("manifest.json", put("format", value=6), "field format: Input should be 5; recompile, or install"),
        ("manifest.json", put("files", "x.txt", value="0"), "must list"),
        ("manifest.json", put("made", value={"x": "\ud800"}), "manifest.json"),
        ("manifest.json", put("reader", value="short_answer"), "different programs"),
        ("manifest.json", put("engine", value="bm25"), "both be null, but got None and 'bm25'"),
        *(
            (
                "manifest.json",
                lambda data, one=one: data.update(collection=one, engine="bm25"),
                "not a valid collection name",
            )
            for one in ("../../etc", "", "a\n")
        ),
    ],
)
def test_what_was_edited_and_signed_again_is_refused(name, change, message, artifact, no_connection):
    sign(artifact, name, change)
    with pytest.raises(ArtifactError, match=message) as error:
        program_from(read_artifact(artifact).state, nothing)
    assert name in str(error.value)


@pytest.mark.parametrize(("key", "value"), [("technique", "magic"), ("reader", "essay")])
def test_an_unknown_technique_or_reader_is_refused(key, value, artifact):
    sign(artifact, "program.json", put(key, value=value))
    sign(artifact, "manifest.json", put(key, value=value))
    with pytest.raises(ArtifactError, match=f"program.json: unknown {key} '{value}'"):
        program_from(read_artifact(artifact).state, nothing)


def test_a_manifest_that_was_edited_is_refused(artifact):
    whole = (artifact / "manifest.json").read_text()
    for edited in (whole.replace("0.25", "0.99"), whole + " ", whole.replace('"format"', ' "format"')):
        (artifact / "manifest.json").write_text(edited)
        with pytest.raises(ArtifactError, match=r"manifest\.json: .* changed after it was written; recompile"):
            read_artifact(artifact)


def test_a_pinned_digest_refuses_every_other_artifact(artifact):
    whole = hashlib.sha256((artifact / "manifest.json").read_bytes()).hexdigest()  # as sha256sum has it
    digest = f"sha256:{whole}"
    assert read_artifact(artifact, digest=digest).manifest.digest == digest
    assert read_artifact(artifact).manifest.id == whole[:12]
    sign(artifact, "program.json", put("knobs", "n_queries", value=5))
    assert read_artifact(artifact).state.knobs["n_queries"] == 5
    with pytest.raises(
        ArtifactError, match=f"digest must be {digest}, but got sha256:.*: this is a different artifact"
    ):
        read_artifact(artifact, digest=digest)
    for none in ("", whole, digest.upper(), digest[:-1]):
        with pytest.raises(InputError, match="pass sha256: followed by 64 hexadecimal digits"):
            read_artifact(artifact, digest=none)
