"""Packed artifacts: on another machine nothing is embedded again, and what a stranger changed is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts import pack as module
from querywright.optimize.artifacts.files import artifact_files
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.pack import MEMBERS, pack, unpack
from querywright.programs import make_program
from querywright.retrieval.collection import Generation, content_hash, list_collections
from querywright.retrieval.index import build_collection


@pytest.fixture(scope="module")
def file(built, word_model, tmp_path_factory):
    home, artifact = built()
    out = tmp_path_factory.mktemp("packed") / "x.qw"
    pack(artifact, out, home=home)
    return out


@pytest.fixture
def other(tmp_path):
    """Another machine's working folder."""
    yield tmp_path / "other"
    if (tmp_path / "other").exists():
        open_store(tmp_path / "other").close()


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
    assert artifact_files(tmp_path / "artifacts" / "b") == artifact_files(artifact)
    loaded = load(tmp_path / "artifacts" / "b", lm=make_lm(), home=other, verify=True)
    assert loaded("What of number 4?", ["wrong 4", "right 4"]).answer == "right 4"
    assert not list(other.glob(".unpacking-*"))
    assert unpack(tmp_path / "x.qw", tmp_path / "c", home=other).built == ()  # it is there


def test_a_packed_file_is_the_same_to_the_byte(saved, file, tmp_path):
    pack(saved[1], tmp_path / "again.qw", home=saved[0])
    assert (tmp_path / "again.qw").read_bytes() == file.read_bytes()
    with tarfile.open(file) as archive:  # any tool reads it
        assert set(archive.getnames()) <= set(MEMBERS)
        vectors = np.frombuffer(archive.extractfile("collection/vectors.f32").read(), dtype="<f4").reshape(48, 256)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again.qw"]


def test_a_program_that_searches_nothing_of_ours_is_packed_alone(place, write, other):
    write(place / "a", make_program("closed_book", None, reader="short_answer"))
    assert pack(place / "a", place / "a.qw", home=other).collection is None
    assert unpack(place / "a.qw", place / "b", home=other).built == ()
    assert artifact_files(place / "a") == artifact_files(place / "b")


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
    with pytest.raises(ArtifactError, match="not the one the program was compiled on"):
        pack(saved[1], tmp_path / "x.qw", home=home)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["home"]
    with pytest.raises(CollectionError, match="there is no collection 'cards'"):
        pack(saved[1], tmp_path / "x.qw", home=tmp_path / "none")
    with pytest.raises(InputError, match=r"ends in \.qw, not 'x\.zip'"):
        pack(saved[1], tmp_path / "x.zip", home=saved[0])
    open_store(home).close()


# What a stranger may do to a packed file.


def members_of(file):
    with tarfile.open(file) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive.getmembers()}


def seal(file, tar):
    """Put the right digest at the end, as someone would who knows how."""
    file.write_bytes(tar + b"sha256:" + hashlib.sha256(tar).hexdigest().encode())


def forge(file, members, *, extra=(), form=tarfile.USTAR_FORMAT):
    """Write a packed file by hand, its digest right; ``extra`` are members as tarfile takes them."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=form) as archive:
        for name, data in [*members.items(), *extra]:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    seal(file, tar.getvalue())


def generation(members, **changes):
    """What is said of the collection, otherwise, with its checksum right."""
    made = Generation.from_bytes(members["collection/manifest.json"])
    return {**members, "collection/manifest.json": made.model_copy(update=changes).to_bytes()}


def swapped(members, lines):
    """Other passages, every digest right."""
    rows = [json.loads(line) for line in lines.splitlines()]
    passages = [Passage(row["id"], row["text"], row["title"], row["metadata"]) for row in rows]
    return generation(
        {**members, "collection/passages.jsonl": lines}, count=len(passages), content_hash=content_hash(passages),
        passages_sha256=hashlib.sha256(lines).hexdigest(),
    )  # fmt: skip


def vectors_in(home):
    """How many vectors of any embedder the store of a working folder has."""
    if not (home / "store.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(home / "store.sqlite")) as connection:
        return connection.execute("SELECT COUNT(*) FROM querywright_entries WHERE kind LIKE 'vector:%'").fetchone()[0]


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
    rows = np.frombuffer(members["collection/vectors.f32"], dtype="<f4").reshape(-1, 256)
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": rows[::-1].tobytes()})
    right = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    refused(tmp_path / "x.qw", "is asked for; get the file again", digest=right)
    forge(tmp_path / "y.qw", members)
    assert unpack(tmp_path / "y.qw", tmp_path / "a", home=other).built == ("cards",)


def test_every_changed_byte_is_refused(file, tmp_path, refused):
    whole, target, chance = file.read_bytes(), tmp_path / "x.qw", random.Random(3)
    for turn in range(60):
        place = len(whole) - 1 - turn if turn < 20 else chance.randrange(len(whole))
        head, old, tail = whole[:place], whole[place], whole[place + 1 :]
        target.write_bytes(head + (bytes([old ^ 1 << turn % 8]), bytes([old, turn]), b"")[turn % 3] + tail)
        refused(target, "is no packed file, was cut off or changed")


def info_of(name, **changes):
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize(
    "info",
    [
        *map(info_of, ("../evil", "/etc/evil", "artifact/../../evil", "artifact/evil", "evil", "ARTIFACT/manifest.json",
                       "artifact\\manifest.json", "collection/chroma.sqlite3", "collection/x.pickle", "a" * 300)),
        *(info_of("collection/records.jsonl", type=kind, linkname="/etc/passwd")
          for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE,
                       tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE)),
    ],
    ids=lambda info: f"{info.name[:20]}-{info.type.decode()}",
)  # fmt: skip
def test_a_member_that_does_not_belong_is_refused(info, file, tmp_path, refused):
    forge(tmp_path / "x.qw", members_of(file), extra=[(info, b"")], form=tarfile.GNU_FORMAT)
    refused(tmp_path / "x.qw", "no part of one|is damaged")
    assert not list(tmp_path.rglob("evil"))


def test_sizes_that_lie_and_members_that_are_there_twice_are_refused(file, tmp_path, refused):
    members, target = members_of(file), tmp_path / "x.qw"
    forge(target, members, extra=[("artifact/README.md", b"{}")])
    refused(target, r"holds artifact/README\.md twice")
    forge(target, {**members, "artifact/README.md": bytes(2**20 + 1)})
    refused(target, r"artifact/README\.md has more than the 1048576 bytes")
    tar = bytearray(file.read_bytes()[:-71])
    header = tarfile.TarInfo("questions/vectors.f32")
    header.size = 2**31
    seal(target, header.tobuf(tarfile.USTAR_FORMAT) + bytes(tar))
    refused(target, "is damaged, or holds")
    seal(target, bytes(tar[: len(tar) // 2]))
    refused(target, "is damaged")
    seal(target, b"")
    refused(target, "is no packed file|is damaged")


@pytest.mark.parametrize("what", ["folder", "pipe", "text", "empty", "missing"])
def test_what_is_no_packed_file_is_refused(what, tmp_path, refused):
    path = tmp_path / "x.qw"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "missing":
        path.write_bytes(b"" if what == "empty" else b"x" * 500)
    refused(path, r"'x\.qw' (is no packed file|is no file|cannot be read)|the packed file 'x\.qw' cannot be read")


def test_other_passages_are_refused_also_with_every_digest_right(file, tmp_path, refused):
    members = members_of(file)
    lines = members["collection/passages.jsonl"].replace(b"Decides 7.", b"Decides 8 too.", 1)
    forge(tmp_path / "x.qw", {**members, "collection/passages.jsonl": lines})
    refused(tmp_path / "x.qw", "the collection of the packed file is damaged")
    forge(tmp_path / "x.qw", swapped(members, lines))
    refused(tmp_path / "x.qw", "'cards' is not the one the program was compiled on")
    forge(tmp_path / "x.qw", {name: data for name, data in members.items() if "vectors" not in name})
    refused(tmp_path / "x.qw", "is damaged")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e38])
def test_vectors_that_are_none_are_refused(value, file, tmp_path, refused):
    members = members_of(file)
    vectors = np.frombuffer(members["collection/vectors.f32"], dtype="<f4").copy()
    vectors[256:512] = value
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": vectors.tobytes()})
    refused(tmp_path / "x.qw", "vectors of the packed file are damaged")
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": vectors.tobytes()[:-4]})
    refused(tmp_path / "x.qw", "has not a vector for each text")


@pytest.mark.parametrize(
    "change",
    [{"name": "../../evil"}, {"name": "cards2"}, {"embedder": "st:other"}, {"dimension": 128}, {"dimension": 0}],
)
def test_facts_that_lie_are_refused(change, file, tmp_path, refused):
    forge(tmp_path / "x.qw", generation(members_of(file), **change))
    refused(tmp_path / "x.qw", "packed file is|not the one", (ArtifactError, CollectionError))


def test_a_manifest_in_a_packed_file_cannot_name_a_place_outside(place, write, tmp_path, refused, file):
    write(place / "a", collection="../evil", engine="dense", embedder="st:words")
    members = members_of(file)
    for name, data in artifact_files(place / "a").items():
        members[f"artifact/{name}"] = data
    forge(tmp_path / "x.qw", members)
    refused(tmp_path / "x.qw", "'../evil' cannot be a collection's name")


# Killed on the way.


@pytest.mark.parametrize("step", ["build_collection", "open_compiled_on", "write_files"])
def test_what_ends_midway_leaves_nothing_half_there(step, built, tmp_path, other, monkeypatch, word_model, make_lm):
    home, artifact = built("questions")
    pack(artifact, tmp_path / "x.qw", home=home)

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            unpack(tmp_path / "x.qw", tmp_path / "a", home=other)
    assert not (tmp_path / "a").exists()
    assert not list(other.glob(".unpacking-*"))
    unpack(tmp_path / "x.qw", tmp_path / "a", home=other)
    load(tmp_path / "a", lm=make_lm(), home=other, verify=True)


KILLED = """
import sys
from pathlib import Path
from querywright.optimize.artifacts.pack import unpack
import querywright.retrieval.chroma_index, chromadb
print("ready", flush=True)
sys.stdin.readline()
for turn in range(1000):
    unpack(Path(sys.argv[1]), Path(sys.argv[2]), home=Path(f"{sys.argv[3]}{turn}"))
"""


@pytest.mark.slow
def test_killed_while_it_unpacks_nothing_is_half_there(file, tmp_path, word_model, make_lm):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file), str(tmp_path / "a"), str(tmp_path / "home")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("\n")
        child.stdin.flush()
        time.sleep(1.0)
        child.send_signal(signal.SIGKILL)
    homes = sorted(tmp_path.glob("home*"))
    assert homes
    for home in homes:
        assert set(list_collections(home)) <= {"cards"}  # what is there is whole
        unpack(file, tmp_path / "a", home=home)
        assert not list(home.glob(".unpacking-*"))
        load(tmp_path / "a", lm=make_lm(), home=home, verify=True)
        open_store(home).close()
