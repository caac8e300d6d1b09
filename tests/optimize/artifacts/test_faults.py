from __future__ import annotations

import hashlib
import json
import os
import time

import pytest

from querywright.errors import ArtifactError
from querywright.optimize.artifacts import folders
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
    signed = {key: value for key, value in content.items() if key != "checksum"}
    checksum = hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()
    text = json.dumps({**signed, "checksum": checksum}, ensure_ascii=False, indent=2) + "\n"
    (folder / "manifest.json").write_text(text, encoding="utf-8", errors="surrogatepass")


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
        ("manifest.json", '{"format": 2, "format": 2}', "'format' stands twice"),
        ("program.json", '{"format": 2, "knobs": {"top_k": 1, "top_k": 2}}', "'top_k' stands twice"),
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
        (put("format", value=1), "different programs"),
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
        (put("format", value=1), "has format 1, this version of querywright reads 2, 3 and 4; compile again"),
        (put("format", value="2"), "format"),
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
