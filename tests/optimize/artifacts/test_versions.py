"""Artifacts of other forms, as folders on the disk."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from querywright.errors import ArtifactError
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.versions import MIGRATIONS, READABLE, REWRITERS, migrated
from querywright.optimize.program_state import FORMAT, program_from, state_of

NEW_IN_3 = ("nearest", "members")


def as_written(folder: Path, number: object, *, without: tuple[str, ...] = (), **changes: object) -> Path:
    """The artifact as another version of querywright would have written it, hashes and all."""
    program = json.loads((folder / "program.json").read_text())
    program = {key: value for key, value in program.items() if key not in without} | {"format": number}
    data = (json.dumps(program, indent=2) + "\n").encode()
    (folder / "program.json").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"format": number} | changes
    if isinstance(number, int) and number < REWRITERS and "rewriter" not in changes:
        del manifest["rewriter"]
    manifest["files"]["program.json"] = hashlib.sha256(data).hexdigest()
    manifest.pop("checksum")
    text = json.dumps(manifest, sort_keys=True)
    manifest["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return folder


def test_there_is_a_way_from_each_readable_form_to_the_present_one():
    assert (*MIGRATIONS, FORMAT) == READABLE
    assert list(READABLE) == list(range(READABLE[0], FORMAT + 1))


def test_an_artifact_of_format_2_is_the_same_program(artifact):
    written = read_artifact(artifact)
    as_written(artifact, 2, without=NEW_IN_3)
    before = {path.name: path.read_bytes() for path in artifact.iterdir()}
    read = read_artifact(artifact)
    assert read.state == written.state
    assert read.state.format == FORMAT
    assert read.manifest.format == 2  # which is what was signed and hashed
    assert read.manifest.checksum == read.manifest.digest() != written.manifest.checksum
    assert state_of(program_from(read.state)) == written.state
    assert {path.name: path.read_bytes() for path in artifact.iterdir()} == before


def test_an_artifact_of_format_2_answers(artifact, world, make_lm, no_connection):
    as_written(artifact, 2, without=NEW_IN_3)
    program = load(artifact, lm=make_lm(), retriever=world)
    assert program("What of number 1?", ["wrong 1", "right 1"]).answer == "right 1"
    assert len(program.id) == 12
    assert program.manifest.checksum.startswith(program.id)


def test_an_artifact_of_format_3_is_the_same_program_without_a_rewriter(artifact):
    written = read_artifact(artifact)
    as_written(artifact, 3)
    read = read_artifact(artifact)
    assert (read.state, read.manifest.format, read.manifest.rewriter) == (written.state, 3, None)


@pytest.mark.parametrize("rewriter", [None, {"name": "mine", "checksum": "ab" * 6}])
def test_a_rewriter_is_refused_in_a_form_that_has_none(artifact, rewriter):
    as_written(artifact, 3, rewriter=rewriter)
    with pytest.raises(ArtifactError, match="field rewriter: is of format 4"):
        read_artifact(artifact)


def test_the_present_form_says_whether_there_is_a_rewriter(artifact):
    manifest = json.loads((artifact / "manifest.json").read_text())
    del manifest["rewriter"], manifest["checksum"]
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (artifact / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="field rewriter: is of format 4, and must stand there"):
        read_artifact(artifact)


def test_what_only_a_later_form_has_is_refused_in_an_older_one(artifact):
    as_written(artifact, 2)
    with pytest.raises(ArtifactError, match="format 2 has neither nearest nor members"):
        read_artifact(artifact)


@pytest.mark.parametrize("missing", NEW_IN_3)
def test_a_program_of_the_present_form_may_lack_what_has_a_default(artifact, missing):
    written = read_artifact(artifact).state
    as_written(artifact, FORMAT, without=(missing,))
    assert read_artifact(artifact).state == written


@pytest.mark.parametrize("number", [-1, 0, 1])
def test_an_older_form_is_refused_with_the_way_out(artifact, number):
    as_written(artifact, number, without=NEW_IN_3, versions={"querywright": "0.0.7"})
    said = rf"format {number}, this version of querywright reads 2, 3 and 4; compile again.*wrote it \(0\.0\.7\)"
    with pytest.raises(ArtifactError, match=said):
        load(artifact)


@pytest.mark.parametrize("number", [FORMAT + 1, 10**30])
def test_a_newer_form_is_refused_with_the_way_out_whatever_else_it_holds(artifact, number):
    as_written(artifact, number, lm=None, unheard="of", versions={"querywright": "9.1"})
    (artifact / "program.json").write_text("no JSON at all")
    said = rf"format {number}.*a newer version \(9\.1\).*pip install --upgrade querywright"
    with pytest.raises(ArtifactError, match=said):
        load(artifact)


@pytest.mark.parametrize("number", ["3", 3.0, True, None, [3]])
def test_a_format_that_is_no_whole_number_is_not_guessed(artifact, number):
    as_written(artifact, number)
    with pytest.raises(ArtifactError, match=rf"format: must be a whole number, but is {re.escape(repr(number))}"):
        read_artifact(artifact)


def test_a_manifest_without_a_format_is_refused(artifact):
    manifest = json.loads((artifact / "manifest.json").read_text())
    del manifest["format"]
    (artifact / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="field format: Field required"):
        read_artifact(artifact)


@pytest.mark.parametrize("writer", ["x" * 5000, "a\nb", 7, None, ["1.0"]])
def test_only_a_plain_name_of_the_writer_is_shown(artifact, writer):
    as_written(artifact, 1, versions={"querywright": writer})
    with pytest.raises(ArtifactError) as caught:
        read_artifact(artifact)
    assert str(caught.value).endswith("the version of querywright that wrote it")


def test_files_of_different_forms_do_not_go_together(artifact):
    as_written(artifact, 2, without=NEW_IN_3)
    manifest = json.loads((artifact / "manifest.json").read_text()) | {"format": 3}
    manifest.pop("checksum")
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (artifact / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    with pytest.raises(ArtifactError, match="different programs"):
        read_artifact(artifact)


@pytest.mark.parametrize("content", [None, [], "x", {}, {"format": "2"}, {"format": FORMAT}])
def test_what_is_no_older_program_is_left_as_it_is(content):
    assert migrated(content) == content
