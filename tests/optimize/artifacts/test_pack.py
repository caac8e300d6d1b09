"""Packed artifacts: on another machine nothing is embedded again, and what a stranger changed is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import zipfile

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.pack import MEMBERS, pack, unpack
from querywright.programs import make_program
from querywright.retrieval.collection import Generation, content_hash, list_collections
from querywright.retrieval.index import build_collection

MANIFEST, PASSAGES, VECTORS = (f"collection/{name}" for name in ("manifest.json", "passages.jsonl", "vectors.f32"))


@pytest.fixture
def other(tmp_path):
    """Another machine's working folder."""
    yield tmp_path / "other"
    if (tmp_path / "other").exists():
        open_store(tmp_path / "other").close()


def vectors_in(home):
    """How many vectors of any embedder the store of a working folder has."""
    if not (home / "store.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(home / "store.sqlite")) as connection:
        return connection.execute("SELECT COUNT(*) FROM querywright_entries WHERE kind LIKE 'vector:%'").fetchone()[0]


@pytest.mark.parametrize("engine", ["dense", "bm25", "hybrid", "questions", "expanded"])
def test_unpacked_on_another_machine_it_gives_its_golden_answers(engine, built, word_model, other, tmp_path, make_lm):
    home, artifact = built(engine)
    report = pack(artifact, tmp_path / "x.qw", home=home)
    word_model.loaded.clear()
    assert (report.collection, report.passages) == ("cards", 48)
    assert report.questions == (36 if engine in ("questions", "expanded") else 0)
    assert report.digest == f"sha256:{hashlib.sha256((tmp_path / 'x.qw').read_bytes()).hexdigest()}"
    done = unpack(tmp_path / "x.qw", tmp_path / "artifacts" / "b", home=other, digest=report.digest)
    assert done.built == (("cards-questions", "cards") if report.questions else ("cards",))
    assert word_model.loaded == []  # nothing was embedded
    assert vectors_in(other) == 0  # and what a stranger may have written serves its own collection alone
    assert read_artifact(tmp_path / "artifacts" / "b").data == read_artifact(artifact).data
    loaded = load(tmp_path / "artifacts" / "b", lm=make_lm(), home=other, verify=True)
    assert loaded("What of number 4?", ["wrong 4", "right 4"]).answer == "right 4"
    assert not list(other.glob(".unpacking-*"))
    assert unpack(tmp_path / "x.qw", tmp_path / "c", home=other).built == ()  # it is there


def test_a_packed_file_is_the_same_to_the_byte(saved, file, tmp_path):
    pack(saved[1], tmp_path / "again.qw", home=saved[0])
    assert (tmp_path / "again.qw").read_bytes() == file.read_bytes()
    members = members_of(file)  # any tool reads it
    assert set(members) <= set(MEMBERS)
    assert np.allclose(np.linalg.norm(np.frombuffer(members[VECTORS], dtype="<f4").reshape(48, 256), axis=1), 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again.qw"]


def test_a_program_that_searches_nothing_of_ours_is_packed_alone(place, write, other):
    write(place / "a", make_program("closed_book", None, reader="short_answer"))
    assert pack(place / "a", place / "a.qw", home=other).collection is None
    assert unpack(place / "a.qw", place / "b", home=other).built == ()
    assert read_artifact(place / "a").data == read_artifact(place / "b").data


def test_what_is_there_is_never_replaced(file, other, tmp_path, word_model):
    embedder = resolve_embedder("words", store=open_store(other))
    build_collection("cards", [Passage("mine", "My own passage.")], embedder=embedder, home=other)
    before = {path: path.read_bytes() for path in (other / "collections").rglob("*") if path.is_file()}
    with pytest.raises(CollectionError, match=r"a folder of that name holds another collection.*--home"):
        unpack(file, tmp_path / "a", home=other)
    assert {path: path.read_bytes() for path in (other / "collections").rglob("*") if path.is_file()} == before
    half = tmp_path / "half" / "collections" / "cards"
    half.mkdir(parents=True)
    (half / "records.jsonl").write_text("work\n")
    with pytest.raises(CollectionError, match="holds another collection, or something else"):
        unpack(file, tmp_path / "a", home=tmp_path / "half")
    assert (half / "records.jsonl").read_text() == "work\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match=r"thesis\.txt"):
        unpack(file, tmp_path / "a", home=tmp_path / "none")
    assert not (tmp_path / "none" / "collections").exists()


def test_a_collection_that_changed_is_not_packed(saved, tmp_path, word_model):
    home = tmp_path / "home"
    embedder = resolve_embedder("words", store=open_store(home))
    build_collection("cards", [Passage("mine", "My own passage.")], embedder=embedder, home=home)
    for error, out, folder, message in (
        (ArtifactError, "x.qw", home, "not the one the program was compiled on"),
        (CollectionError, "x.qw", tmp_path / "none", "there is no collection 'cards'"),
        (InputError, "x.zip", saved[0], r"ends in \.qw, not 'x\.zip'"),
    ):
        with pytest.raises(error, match=message):
            pack(saved[1], tmp_path / out, home=folder)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["home", "none"]
    open_store(home).close()


# What a stranger may do to a packed file.


def members_of(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def forge(file, members, *extra, compression=zipfile.ZIP_STORED):
    """Write a packed file by hand; ``extra`` are further names with their data."""
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in [*members.items(), *extra]:
            archive.writestr(name, data)
    return file


def generation(members, **changes):
    """What is said of the collection, otherwise, with its checksum right."""
    made = Generation.from_bytes(members[MANIFEST])
    return {**members, MANIFEST: made.model_copy(update=changes).to_bytes()}


@pytest.fixture
def refused(other, tmp_path):
    """Unpacks what must be refused; nothing may be written."""

    def refuse(file, message, error=ArtifactError, **given):
        before = {one for one in tmp_path.iterdir() if one != other}
        with pytest.raises(error, match=message):
            unpack(file, tmp_path / "unpacked", home=other, **given)
        assert not other.exists() or list_collections(other) == []
        assert not vectors_in(other)
        assert {one for one in tmp_path.iterdir() if one != other} == before

    return refuse


def test_a_forged_file_that_is_right_is_read_and_a_pinned_digest_refuses_it(file, tmp_path, other, refused):
    members = members_of(file)
    rows = np.frombuffer(members[VECTORS], dtype="<f4").reshape(-1, 256)
    forged = forge(tmp_path / "x.qw", {**members, VECTORS: rows[::-1].tobytes()})
    right = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    refused(forged, "is asked for; get the file again", digest=right)
    assert unpack(forge(tmp_path / "y.qw", members), tmp_path / "a", home=other).built == ("cards",)


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "/etc/evil", "artifact/../../evil", "artifact/evil", "evil", "ARTIFACT/manifest.json",
        "artifact\\manifest.json", "collection/chroma.sqlite3", "collection/x.pickle", "artifact/", "a" * 300,
        "artifact/README.md",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_does_not_belong_is_refused(name, file, tmp_path, refused):
    refused(forge(tmp_path / "x.qw", members_of(file), (name, b"x")), "no part of one, or is there twice")
    assert not list(tmp_path.rglob("evil"))


def test_sizes_that_lie_and_bombs_are_refused(file, tmp_path, refused):
    members, target = members_of(file), tmp_path / "x.qw"
    forge(target, {**members, "artifact/README.md": bytes(2**20 + 1)})
    refused(target, r"artifact/README\.md has more than the 1048576 bytes")
    refused(forge(target, members, compression=zipfile.ZIP_DEFLATED), "no part of one")
    whole = file.read_bytes()
    target.write_bytes(whole.replace(len(members[VECTORS]).to_bytes(4, "little"), (2**31).to_bytes(4, "little")))
    refused(target, "was cut off or changed|damaged")
    end = int.from_bytes(whole[-6:-2], "little") + 2**20
    for what in (whole[: len(whole) // 2], b"", b"x" * 500, whole[:-6] + end.to_bytes(4, "little") + whole[-2:]):
        target.write_bytes(what)
        refused(target, r"'x\.qw' is no packed file, was cut off or changed")
    target.unlink()
    refused(target, "the packed file 'x.qw' cannot be read")
    os.mkfifo(target)
    refused(target, "the packed file 'x.qw' cannot be read")


def test_another_collection_is_refused_also_with_every_digest_right(file, tmp_path, refused, place, write):
    members, target = members_of(file), tmp_path / "x.qw"
    lines = members[PASSAGES].replace(b"Decides 7.", b"Decides 8 too.", 1)
    refused(forge(target, {**members, PASSAGES: lines}), "the collection of the packed file is damaged")
    passages = [
        Passage(one["id"], one["text"], one["title"], one["metadata"]) for one in map(json.loads, lines.splitlines())
    ]
    facts = {"content_hash": content_hash(passages), "passages_sha256": hashlib.sha256(lines).hexdigest()}
    swapped = generation({**members, PASSAGES: lines}, **facts)
    refused(forge(target, swapped), "'cards' is not the one the program was compiled on")
    refused(forge(target, {name: data for name, data in members.items() if name != VECTORS}), "is damaged")
    for change in (
        {"name": "../../evil"},
        {"name": "cards2"},
        {"embedder": "st:other"},
        {"dimension": 128},
        {"dimension": 0},
    ):
        refused(
            forge(target, generation(members, **change)), "packed file|not the one", (ArtifactError, CollectionError)
        )
    evil = f"sha256:{'0' * 64}", members["artifact/manifest.json"].replace(b'"cards"', b'"../evil"')
    refused(forge(target, {**members, "artifact/manifest.json": evil[1]}), "manifest.json: ")


def test_many_passages_of_another_collection_are_refused_unread(file, tmp_path, refused, monkeypatch):
    """By their number, their vectors' size and the fingerprint, whatever else is right."""
    monkeypatch.setattr("querywright.retrieval.collection.read_passages", lambda *_: pytest.fail("it was read"))
    members, target, count = members_of(file), tmp_path / "x.qw", 100_000
    lines = b"".join(b'{"id": "%d", "title": "", "text": "t", "metadata": {}}\n' % n for n in range(count))
    many = {**members, PASSAGES: lines}
    refused(forge(target, many), "the collection of the packed file is damaged")
    told = generation(many, count=count, passages_sha256=hashlib.sha256(lines).hexdigest())
    refused(forge(target, told), "not the one the program was compiled on")
    refused(forge(target, {**told, VECTORS: bytes(256 * 4 * (count + 1))}), "damaged")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e38])
def test_vectors_that_are_none_are_refused(value, file, tmp_path, refused):
    members = members_of(file)
    vectors = np.frombuffer(members[VECTORS], dtype="<f4").copy()
    vectors[256:512] = value
    forged = forge(tmp_path / "x.qw", {**members, VECTORS: vectors.tobytes()})
    refused(forged, "vectors of the packed file are damaged")
    for wrong in (vectors.tobytes()[:-4], members[VECTORS] + b"\0"):
        refused(forge(forged, {**members, VECTORS: wrong}), "is damaged")
