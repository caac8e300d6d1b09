from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, InputError
from querywright.models.embedder import Embedder, resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts import packed as form
from querywright.optimize.artifacts import unpack as unpack_module
from querywright.optimize.artifacts.files import artifact_files, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.pack import pack
from querywright.optimize.artifacts.packed import MEMBERS, open_packed
from querywright.optimize.artifacts.sign import make_keys, sign_artifact
from querywright.optimize.artifacts.unpack import unpack
from querywright.programs import make_program
from querywright.retrieval.collection import list_collections
from querywright.retrieval.index import build_collection


@pytest.fixture(scope="module")
def file(built, tmp_path_factory):
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
    done = unpack(tmp_path / "x.qw", tmp_path / "artifacts" / "b", home=other)
    assert done.built == (("cards-questions", "cards") if report.questions else ("cards",))
    assert word_model.loaded == []  # nothing was embedded
    assert artifact_files(tmp_path / "artifacts" / "b") == artifact_files(artifact)
    loaded = load(tmp_path / "artifacts" / "b", lm=make_lm(), home=other, verify=True)
    assert loaded("What of number 4?", ["wrong 4", "right 4"]).answer == "right 4"
    assert not [one.name for one in other.iterdir() if one.name.startswith(".")]


def test_a_packed_file_is_the_same_to_the_byte(saved, file, tmp_path):
    time.sleep(0.01)
    pack(saved[1], tmp_path / "again.qw", home=saved[0])
    assert (tmp_path / "again.qw").read_bytes() == file.read_bytes()
    with zipfile.ZipFile(file) as archive:  # any tool reads it
        assert archive.testzip() is None
        assert set(archive.namelist()) <= set(MEMBERS)
        vectors = np.frombuffer(archive.read("collection/vectors.f32"), dtype="<f4").reshape(48, 256)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


def test_a_program_that_searches_nothing_of_ours_is_packed_alone(place, write, other):
    write(place / "a", make_program("closed_book", None, reader="short_answer"))
    assert pack(place / "a", place / "a.qw", home=other).collection is None
    assert unpack(place / "a.qw", place / "b", home=other).built == ()
    assert artifact_files(place / "a") == artifact_files(place / "b")


def test_the_same_collection_is_left_as_it_is(file, other, tmp_path, word_model):
    unpack(file, tmp_path / "a", home=other)
    before = {path: path.stat().st_mtime_ns for path in (other / "collections").rglob("*.json*")}
    assert unpack(file, tmp_path / "b", home=other).built == ()
    assert {path: path.stat().st_mtime_ns for path in (other / "collections").rglob("*.json*")} == before
    assert artifact_files(tmp_path / "a") == artifact_files(tmp_path / "b")


def test_another_collection_of_the_name_is_never_replaced(file, other, tmp_path, word_model):
    embedder = resolve_embedder("words", store=open_store(other))
    build_collection("cards", [Passage("mine", "My own passage.")], embedder=embedder, home=other)
    before = {path: path.read_bytes() for path in (other / "collections").rglob("*") if path.is_file()}
    with pytest.raises(CollectionError, match=r"another collection of that name, and it is never replaced.*--home"):
        unpack(file, tmp_path / "a", home=other)
    assert {path: path.read_bytes() for path in (other / "collections").rglob("*") if path.is_file()} == before
    assert not (tmp_path / "a").exists()


def test_an_unfinished_collection_is_never_replaced(file, other, tmp_path):
    (other / "collections" / "cards").mkdir(parents=True)
    (other / "collections" / "cards" / "records.jsonl").write_text("work\n")
    with pytest.raises(CollectionError, match="holds something else"):
        unpack(file, tmp_path / "a", home=other)
    assert (other / "collections" / "cards" / "records.jsonl").read_text() == "work\n"


def test_a_folder_with_other_files_is_not_written_to(file, other, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match=r"thesis\.txt"):
        unpack(file, tmp_path / "a", home=other)
    assert not (other / "collections").exists()


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


def test_an_embedder_that_cannot_be_had_by_name_is_packed_from_the_store(tmp_path, make_lm, make_world, word_model):
    from querywright.optimize.artifacts.save import save_program
    from querywright.retrieval.engines import open_retriever

    home, world = tmp_path / "home", make_world()
    embedder = Embedder("mine@1", word_model, store=open_store(home))
    build_collection("cards", [*world.deciding.values(), *world.others], embedder=embedder, home=home)
    program = make_program("plain", open_retriever("cards", engine="bm25", home=home), reader="multiple_choice")
    save_program(tmp_path / "a", program, lm=make_lm(), asked=[], threads=1, made={}, card="")
    assert pack(tmp_path / "a", tmp_path / "x.qw", home=home).passages == 48
    open_store(home).close()
    for left in home.glob("store.sqlite*"):
        left.unlink()
    with pytest.raises(CollectionError, match="lacks vectors of 'mine@1' for the collection 'cards'"):
        pack(tmp_path / "a", tmp_path / "y.qw", home=home)
    assert not (tmp_path / "y.qw").exists()
    open_store(home).close()


def test_signatures_travel_and_are_asked_for(own, saved, keys, tmp_path, other):
    private, public = keys
    sign_artifact(own, private)
    pack(own, tmp_path / "half.qw", home=saved[0])
    with pytest.raises(ArtifactError, match="it is not signed"):
        unpack(tmp_path / "half.qw", tmp_path / "a", home=other, public_key=public)
    assert pack(own, tmp_path / "x.qw", home=saved[0], key=private).signed
    with pytest.raises(ArtifactError, match="signed by the key"):
        unpack(tmp_path / "x.qw", tmp_path / "a", home=other, public_key=make_keys(tmp_path / "z")[0])
    assert not other.exists()
    unpack(tmp_path / "x.qw", tmp_path / "a", home=other, public_key=public)
    read_artifact(tmp_path / "a", public_key=public)


# What a stranger may do to a packed file.


def members_of(file):
    with zipfile.ZipFile(file) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def seal(file):
    """Put the right digest at the end, as someone would who knows how."""
    data = file.read_bytes()[:-71]
    file.write_bytes(data + b"sha256:" + hashlib.sha256(data).hexdigest().encode())


def forge(file, members, *, facts=None, extra=()):
    """Write a packed file by hand, all of its digests right."""
    if facts is None:
        facts = json.loads(members["pack.json"])
    facts["files"] = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in sorted(members.items())
        if name not in ("pack.json", "pack-signature.json")
    }
    members = {**members, "pack.json": (json.dumps(facts, ensure_ascii=False, indent=2) + "\n").encode()}
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = bytes(71)
        for name, data in [*members.items(), *extra]:
            info = name if isinstance(name, zipfile.ZipInfo) else entry(name)
            archive.writestr(info, data)
    seal(file)


def entry(name, mode=stat.S_IFREG | 0o600, kind=zipfile.ZIP_DEFLATED):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr, info.compress_type = 3, mode << 16, kind
    return info


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
        before = sorted(tmp_path.iterdir())
        with pytest.raises(error, match=message):
            unpack(file, tmp_path / "unpacked", home=other, **given)
        assert not (tmp_path / "unpacked").exists()
        assert not other.exists() or list_collections(other) == []
        assert not vectors_in(other)
        assert [one for one in sorted(tmp_path.iterdir()) if one != other] == [one for one in before if one != other]

    return refuse


def test_a_forged_file_that_is_right_is_read(file, tmp_path, other):
    forge(tmp_path / "x.qw", members_of(file))
    assert unpack(tmp_path / "x.qw", tmp_path / "a", home=other).built == ("cards",)


def test_every_changed_byte_is_refused(file, tmp_path):
    whole, target, chance = file.read_bytes(), tmp_path / "x.qw", random.Random(3)
    for turn in range(400):
        place = len(whole) - 1 - turn if turn < 100 else chance.randrange(len(whole))
        head, old, tail = whole[:place], whole[place], whole[place + 1 :]
        changed = (bytes([old ^ 1 << turn % 8]), bytes([old, turn % 256]), b"")[turn % 3]
        target.write_bytes(head + changed + tail)
        with pytest.raises(ArtifactError), open_packed(target):
            pass
    target.write_bytes(whole)
    with open_packed(target) as packed:
        assert packed.facts.collection is not None


def test_a_changed_byte_with_the_digest_at_the_end_put_right_changes_nothing_or_is_refused(file, tmp_path):
    whole, target, chance = file.read_bytes(), tmp_path / "x.qw", random.Random(5)
    right, read = members_of(file), 0
    for turn in range(300):
        place = chance.randrange(len(whole) - 1500, len(whole) - 71) if turn % 2 else chance.randrange(len(whole) - 71)
        target.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << turn % 8]) + whole[place + 1 :])
        seal(target)
        try:
            with open_packed(target) as packed:  # a date in the zip's own records, for instance
                assert {name: packed.read(name) for name in packed.facts.files} == {
                    name: data for name, data in right.items() if name != "pack.json"
                }
                read += 1
        except ArtifactError:
            pass
    assert read < 200


@pytest.mark.parametrize(
    "name",
    [
        "../evil", "/etc/evil", "artifact/../../evil", "artifact/evil", "evil", "collection/chroma.sqlite3",
        "artifact/", "artifact\\manifest.json", "ARTIFACT/manifest.json",
        "questions/vectors.f32", "collection/index_metadata.pickle",
    ],
)  # fmt: skip
def test_a_member_that_does_not_belong_is_refused(name, file, tmp_path, refused):
    forge(tmp_path / "x.qw", members_of(file), extra=[(name, b"evil")])
    refused(tmp_path / "x.qw", "no part of one|does not hold what|no plain file")
    assert not list(tmp_path.rglob("evil"))


def test_a_name_with_a_nul_is_refused(file, tmp_path, refused):
    target = tmp_path / "x.qw"
    target.write_bytes(file.read_bytes().replace(b"artifact/README.md", b"artifact/README.md"[:-3] + b"\0md"))
    seal(target)
    refused(target, "no part of one")


def test_a_member_under_another_name_in_its_own_header_is_refused(file, tmp_path, refused):
    data = file.read_bytes()
    target = tmp_path / "x.qw"
    target.write_bytes(data.replace(b"artifact/README.md", b"artifact/../../x.m", 1))
    seal(target)
    refused(target, "damaged")


@pytest.mark.parametrize(
    "mode", [stat.S_IFLNK | 0o777, stat.S_IFDIR | 0o700, stat.S_IFIFO | 0o600, stat.S_IFREG | 0o4755, 0]
)
def test_a_member_that_is_no_plain_file_is_refused(mode, file, tmp_path, refused):
    members = members_of(file)
    readme = members.pop("artifact/README.md")
    forge(tmp_path / "x.qw", members, extra=[(entry("artifact/README.md", mode), readme)])
    refused(tmp_path / "x.qw", "artifact/README.md of the packed file is a link, locked, or no plain file")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["artifact/README.md", "pack.json"])
def test_a_member_that_is_there_twice_is_refused(name, file, tmp_path, refused):
    forge(tmp_path / "x.qw", members_of(file), extra=[(name, b"{}")])
    refused(tmp_path / "x.qw", f"holds {name} twice")


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_another_compression_is_refused(kind, file, tmp_path, refused):
    members = members_of(file)
    readme = members.pop("artifact/README.md")
    forge(tmp_path / "x.qw", members, extra=[(entry("artifact/README.md", kind=kind), readme)])
    refused(tmp_path / "x.qw", "compressed in a way that is not read")


def test_a_bomb_is_not_blown_up(file, tmp_path, refused, monkeypatch):
    members = members_of(file)
    forge(tmp_path / "x.qw", {**members, "artifact/README.md": bytes(2**20 + 1)})
    refused(tmp_path / "x.qw", "artifact/README.md of the packed file has more than the 1048576 bytes")
    monkeypatch.setattr(form, "LARGEST", 100_000)
    forge(tmp_path / "x.qw", {**members, "artifact/README.md": bytes(90_000)})
    refused(tmp_path / "x.qw", "holds more than the 100000 bytes")
    monkeypatch.setattr(form, "LARGEST", 1000)
    refused(file, "has more than the 1000 bytes")


def test_a_line_without_an_end_is_not_waited_for(file, tmp_path, refused, saved, monkeypatch):
    members = members_of(file)
    noise = random.Random(3).randbytes(3 * 2**18).hex().encode()  # 1.5 MiB that hardly shrink
    forge(tmp_path / "x.qw", {**members, "collection/passages.jsonl": noise * 11})
    refused(tmp_path / "x.qw", "has a line of more than the 16777216 bytes that are read")
    lines = members["collection/passages.jsonl"].splitlines(keepends=True)
    monkeypatch.setattr(form, "LONGEST_LINE", max(map(len, lines)))
    assert unpack(file, tmp_path / "a", home=tmp_path / "home").passages == 48
    monkeypatch.setattr(form, "LONGEST_LINE", max(map(len, lines)) - 1)
    refused(file, "has a line of more than")
    with pytest.raises(ArtifactError, match=r"cut the passage into smaller ones"):
        pack(saved[1], tmp_path / "y.qw", home=saved[0])
    assert not (tmp_path / "y.qw").exists()


def test_lines_are_put_together_from_pieces(file, monkeypatch):
    lines = members_of(file)["collection/passages.jsonl"].splitlines(keepends=True)
    monkeypatch.setattr(form.Packed.pieces, "__defaults__", (7,))
    with open_packed(file) as packed:
        assert list(packed.lines("collection/passages.jsonl")) == lines


def test_a_member_that_shrinks_as_no_text_does_is_refused(file, tmp_path, refused):
    members = members_of(file)
    forge(tmp_path / "x.qw", {**members, "collection/passages.jsonl": bytes(2**22)})
    refused(tmp_path / "x.qw", "collection/passages.jsonl of the packed file has more than 200 times its compressed")
    writer = form.PackWriter(tmp_path / "y.qw")
    with pytest.raises(ArtifactError, match="more than 200 times"):
        writer.add("collection/passages.jsonl", iter([bytes(2**22)]))
    writer.close()


def test_a_size_that_lies_is_refused(file, tmp_path, refused):
    data = bytearray(file.read_bytes())
    place = data.rindex(b"PK\x01\x02", 0, data.rindex(b"artifact/README.md"))
    struct.pack_into("<L", data, place + 24, 10**6)  # what the directory says of the size of the member
    (tmp_path / "x.qw").write_bytes(data)
    seal(tmp_path / "x.qw")
    refused(tmp_path / "x.qw", "README.md of the packed file is not what")
    facts = json.loads(members_of(file)["pack.json"])
    members = members_of(file)
    facts["files"]["artifact/README.md"]["size"] += 1
    members["pack.json"] = (json.dumps(facts, ensure_ascii=False, indent=2) + "\n").encode()
    with zipfile.ZipFile(tmp_path / "x.qw", "w") as archive:
        archive.comment = bytes(71)
        for name, content in members.items():
            archive.writestr(entry(name), content)
    seal(tmp_path / "x.qw")
    refused(tmp_path / "x.qw", "README.md of the packed file is not what")


def test_a_directory_that_is_huge_is_not_read(tmp_path, refused):
    with (tmp_path / "x.qw").open("wb") as file:
        file.truncate(10 * 2**20)
        file.seek(0, os.SEEK_END)
        file.write(b"PK\x05\x06" + struct.pack("<HHHHLLH", 0, 0, 60_000, 60_000, 10 * 2**20, 0, 71) + bytes(71))
    seal(tmp_path / "x.qw")
    refused(tmp_path / "x.qw", "its directory is too large")


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


def test_swapped_passages_are_refused(file, tmp_path, refused):
    members = members_of(file)
    swapped = members["collection/passages.jsonl"].replace(b"Decides 7.", b"Decides 8.", 1)
    forge(tmp_path / "x.qw", {**members, "collection/passages.jsonl": swapped})
    refused(tmp_path / "x.qw", "holds other passages than it declares")


def test_a_swapped_collection_with_every_digest_right_is_refused(file, tmp_path, refused):
    from querywright.retrieval.collection import content_hash

    members = members_of(file)
    lines = members["collection/passages.jsonl"].replace(b"Decides 7.", b"Decides 8 also.", 1)
    passages = [
        Passage(row["id"], row["text"], row["title"], row["metadata"]) for row in map(json.loads, lines.splitlines())
    ]
    facts = json.loads(members["pack.json"])
    facts["collection"]["content_hash"] = content_hash(passages)
    forge(tmp_path / "x.qw", {**members, "collection/passages.jsonl": lines}, facts=facts)
    refused(
        tmp_path / "x.qw",
        "'cards' is not the one the program was compiled on.*, compile again, or load it with retriever=",
    )


def test_a_refused_file_plants_no_vector_for_a_question(file, tmp_path, other, refused, word_model):
    from querywright.retrieval.collection import content_hash

    members, text = members_of(file), "Which test shows my average sugar?"
    row = np.zeros(256, dtype="<f4")
    row[7] = 1
    facts = json.loads(members["pack.json"])
    facts["collection"] |= {"vectors": 1, "count": 1, "content_hash": content_hash([Passage("x", text)])}
    line = json.dumps({"id": "x", "title": "", "text": text, "metadata": {}}).encode() + b"\n"
    planted = {"collection/passages.jsonl": line, "collection/vectors.f32": row.tobytes()}
    forge(tmp_path / "x.qw", {**members, **planted}, facts=facts)
    refused(
        tmp_path / "x.qw",
        "'cards' is not the one the program was compiled on.*, compile again, or load it with retriever=",
    )
    given = resolve_embedder("words", store=open_store(other)).encode([text])
    assert np.allclose(given, resolve_embedder("words").encode([text]))


@pytest.mark.parametrize("engine", ["bm25", "hybrid", "questions"])
def test_vectors_of_a_file_that_is_taken_serve_its_own_collection_alone(
    engine, built, keys, tmp_path, other, word_model
):
    home, artifact = built(engine)
    pack(artifact, tmp_path / "x.qw", home=home, key=keys[0])
    for turn, public_key in (("a", None), ("b", keys[1])):  # the second finds the collection there
        unpack(tmp_path / "x.qw", tmp_path / turn, home=other, public_key=public_key)
        assert vectors_in(other) == 0
    assert word_model.loaded == []


def test_a_collection_whose_vectors_are_not_its_embedders_is_not_searched(file, tmp_path, other, word_model, make_lm):
    members = members_of(file)
    rows = np.frombuffer(members["collection/vectors.f32"], dtype="<f4").reshape(-1, 256)
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": rows[::-1].tobytes()})
    unpack(tmp_path / "x.qw", tmp_path / "a", home=other)
    with pytest.raises(CollectionError, match="by their own vector"):
        load(tmp_path / "a", lm=make_lm(), home=other)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]\n", "damaged"), (b"{}\n", "damaged"), (b"\xff\n", "damaged"), (b"[" * 50_000, "damaged"),
        (b'{"id": "x", "title": 1, "text": "t", "metadata": {}}\n', "damaged"),
        (b'{"id": "x", "title": "", "text": "t", "metadata": {"a": [1]}}\n', "damaged"),
        (b'{"id": "x", "title": "", "text": "t", "metadata": {}}\n', "other passages"),
    ],
)  # fmt: skip
def test_passages_of_another_form_are_refused(line, message, file, tmp_path, refused):
    members = members_of(file)
    members["collection/passages.jsonl"] += line
    forge(tmp_path / "x.qw", members)
    refused(tmp_path / "x.qw", f"collection/passages.jsonl of the packed file .*{message}")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e38])
def test_vectors_that_are_none_are_refused(value, file, tmp_path, refused):
    members = members_of(file)
    vectors = np.frombuffer(members["collection/vectors.f32"], dtype="<f4").copy()
    vectors[256:512] = value
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": vectors.tobytes()})
    refused(tmp_path / "x.qw", "collection/vectors.f32 of the packed file is damaged")
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": vectors.tobytes()[:-4]})
    refused(tmp_path / "x.qw", "has not the shape it declares")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "../../evil", "another collection than its artifact names"),
        ("name", "cards2", "another collection than its artifact names"),
        ("embedder", "st:other", "another embedder"),
        ("dimension", 2**40, "pack.json of the packed file is damaged"),
        ("dimension", 128, "shape"),
        ("count", "48", "pack.json of the packed file is damaged"),
        ("path", "/etc", "pack.json of the packed file is damaged"),
    ],
)
def test_facts_that_lie_are_refused(key, value, message, file, tmp_path, refused):
    members = members_of(file)
    facts = json.loads(members["pack.json"])
    facts["collection"][key] = value
    forge(tmp_path / "x.qw", members, facts=facts)
    refused(tmp_path / "x.qw", message)


def test_another_format_is_refused_with_the_way_out(file, tmp_path, refused):
    members = members_of(file)
    forge(tmp_path / "x.qw", members, facts={**json.loads(members["pack.json"]), "format": 9})
    refused(tmp_path / "x.qw", "has format 9, this version of querywright reads 1 and 2; pack the artifact again")


def test_a_manifest_in_a_packed_file_cannot_name_a_place_outside(place, write, tmp_path, refused, file):
    write(place / "a", collection="../evil", engine="dense", embedder="st:words")
    members = members_of(file)
    for name, data in artifact_files(place / "a").items():
        members[f"artifact/{name}"] = data
    facts = json.loads(members["pack.json"])
    facts["collection"]["name"] = "../evil"
    forge(tmp_path / "x.qw", members, facts=facts)
    refused(tmp_path / "x.qw", "'../evil' cannot be a collection's name")


def test_swapped_vectors_are_refused_where_all_of_it_is_signed(own, saved, keys, tmp_path, refused):
    pack(own, tmp_path / "x.qw", home=saved[0], key=keys[0])
    members = members_of(tmp_path / "x.qw")
    rows = np.frombuffer(members["collection/vectors.f32"], dtype="<f4").reshape(-1, 256)
    forge(tmp_path / "x.qw", {**members, "collection/vectors.f32": rows[::-1].tobytes()})
    refused(tmp_path / "x.qw", "the signature does not fit", public_key=keys[1])


# Killed on the way.


@pytest.mark.parametrize("step", ["_keep_vectors", "_make", "_check_built", "_move", "replace_folder"])
def test_what_ends_midway_leaves_nothing_half_there(step, built, tmp_path, other, monkeypatch, word_model, make_lm):
    home, artifact = built("questions")
    pack(artifact, tmp_path / "x.qw", home=home)
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == (2 if step in ("_make", "_move") else 1):
            raise KeyboardInterrupt
        return real(*arguments)

    real = getattr(unpack_module, step)
    with monkeypatch.context() as patch:
        patch.setattr(unpack_module, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            unpack(tmp_path / "x.qw", tmp_path / "a", home=other)
    assert not (tmp_path / "a").exists()
    assert not list(other.glob(".unpacking-*"))
    unpack(tmp_path / "x.qw", tmp_path / "a", home=other)
    load(tmp_path / "a", lm=make_lm(), home=other, verify=True)


KILLED = """
import sys
from pathlib import Path
from querywright.optimize.artifacts.unpack import unpack
import querywright.retrieval.chroma_index, chromadb
print("ready", flush=True)
sys.stdin.readline()
for turn in range(1000):
    unpack(Path(sys.argv[1]), Path(sys.argv[2]), home=Path(f"{sys.argv[3]}{turn}"))
"""


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
        for name in list_collections(home):  # what is there is whole
            assert name == "cards"
        unpack(file, tmp_path / "a", home=home)
        assert not list(home.glob(".unpacking-*"))
        load(tmp_path / "a", lm=make_lm(), home=home, verify=True)
        open_store(home).close()
        shutil.rmtree(home)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a"]
