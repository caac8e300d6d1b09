from __future__ import annotations

import hashlib
import json
import os

import pytest

from querywright.errors import ArtifactError, InputError
from querywright.files import json_digest
from querywright.optimize.artifacts import files
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.program_state import program_from

FILES = ("README.md", "golden.jsonl", "manifest.json", "program.json")


def nothing(query, k):
    return []


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
    signed = {key: value for key, value in content.items() if key != "sha256"}
    text = json.dumps({**signed, "sha256": json_digest(signed)}, indent=2, sort_keys=True) + "\n"
    (folder / "manifest.json").write_text(text)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_and_every_cut_is_noticed(name, artifact):
    file = artifact / name
    whole = file.read_bytes()
    step = max(1, len(whole) // 40)
    for position in range(0, len(whole), step):
        for bad in (
            whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :],
            whole[:position],
            whole[:position] + whole[position + 1 :],
        ):
            file.write_bytes(bad)
            with pytest.raises(ArtifactError, match=r"manifest\.json" if name == "manifest.json" else name):
                read_artifact(artifact)
    file.write_bytes(whole)
    assert read_artifact(artifact)


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
    monkeypatch.setitem(files.LIMITS, name, 20)
    with (artifact / name).open("ab") as file:
        file.truncate(10 * 2**30)  # takes no room on the disk
    with pytest.raises(ArtifactError, match=f"{name} has more than the 20 bytes"):
        read_artifact(artifact)


def test_there_is_no_artifact(place):
    with pytest.raises(ArtifactError, match=r"no artifact at 'none'.*--out"):
        read_artifact(place / "none")
    (place / "file").write_text("x")
    with pytest.raises(ArtifactError, match="no artifact at 'file'"):
        read_artifact(place / "file")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("program.json", "[" * 100_000, "program.json"),
        ("program.json", '{"a":' * 300 + "1" + "}" * 300, "program.json"),
        ("program.json", "[]", "program.json"),
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
        (put(*QUERIES, "headers", value={"Authorization": "x"}), "headers: Extra inputs"),
        (put("lm", value={"model": "openai/x", "api_base": "http://127.0.0.1:9"}), "lm: Extra inputs"),
        (put(*QUERIES, "instructions", value=12345), "instructions: Input should be a valid string"),
        (put(*QUERIES, "instructions", value="half a character \ud800"), "Invalid JSON"),
        (put(*QUERIES, "instructions", value="x" * 200_000), "instructions: String should have at most"),
        (put(*QUERIES, "demos", value=None), "demos"),
        (put("knobs", "n_queries", value="3"), "n_queries must be a whole number"),
        (put("knobs", "planted", value=1), "unknown knob 'planted'"),
        (put("predictors", "planted", value={"instructions": "x", "fields": {}, "demos": []}), "has the predictors"),
        (put(*QUERIES, "fields", value={}), "has the fields"),
        (put(*QUERIES, "demos", value=[{"forward": "x"}]), "unknown field 'forward'"),
        (put("technique", value="plain"), "different programs"),
        (lambda data: data["knobs"].pop("top_k"), "knobs lack top_k"),
        (lambda data: data["predictors"].pop("reader.predict"), "has the predictors"),
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
        (put("format", value=1), "field format: Input should be 5; compile again, or install the version"),
        (put("format", value=6), "field format: Input should be 5"),
        (put("format", value="5"), "field format"),
        (put("files", "x.txt", value="0"), "must name"),
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


def test_a_manifest_that_was_edited_is_refused(artifact):
    whole = (artifact / "manifest.json").read_text()
    for edited in (whole.replace("0.25", "0.99"), whole + " ", whole.replace('"format"', ' "format"')):
        (artifact / "manifest.json").write_text(edited)
        with pytest.raises(ArtifactError, match=r"manifest\.json: it.* changed after it was written; compile again"):
            read_artifact(artifact)


def test_a_pinned_digest_refuses_every_other_artifact(artifact):
    whole = hashlib.sha256((artifact / "manifest.json").read_bytes()).hexdigest()  # as sha256sum has it
    digest = f"sha256:{whole}"
    assert read_artifact(artifact, digest=digest).manifest.digest == digest
    assert read_artifact(artifact).manifest.id == whole[:12]
    resign(artifact, "program.json", put("knobs", "n_queries", value=5))
    assert read_artifact(artifact).state.knobs["n_queries"] == 5
    with pytest.raises(ArtifactError, match=f"digest is sha256:.*, but {digest} is asked for: it is another one"):
        read_artifact(artifact, digest=digest)
    for none in ("", whole, digest.upper(), digest[:-1]):
        with pytest.raises(InputError, match="a digest is sha256: and 64 hexadecimal digits, as artifact show prints"):
            read_artifact(artifact, digest=none)


@pytest.mark.parametrize(("key", "value"), [("technique", "magic"), ("reader", "essay")])
def test_an_unknown_technique_or_reader_is_refused(key, value, artifact):
    resign(artifact, "program.json", put(key, value=value))
    resign(artifact, "manifest.json", put(key, value=value))
    with pytest.raises(ArtifactError, match=f"program.json: unknown {key} '{value}'"):
        program_from(read_artifact(artifact).state, nothing)
