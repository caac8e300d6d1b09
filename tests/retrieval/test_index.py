from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import querywright.retrieval.index as index_module
from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import list_collections
from querywright.retrieval.index import IndexReport, build_collection

DIMENSION = 16
MODEL = """
import hashlib
import numpy as np

class HashModel:
    def encode(self, texts, **options):
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=16).astype(np.float32) for seed in seeds])
"""


class HashModel:
    """The same vectors as MODEL gives in another process."""

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32) for seed in seeds])


class Builder:
    """Builds and opens the collection ``books`` in a working folder."""

    def __init__(self, home: Path, id: str = "hash:16") -> None:
        self.home = home
        self.folder = home / "collections" / "books"
        self.embedder = Embedder(id, HashModel, dimension=DIMENSION, store=open_store(home))

    def build(self, passages: Sequence[Passage], *, prune: bool = False) -> IndexReport:
        return build_collection("books", passages, embedder=self.embedder, home=self.home, prune=prune)

    def open(self) -> ChromaRetriever:
        return ChromaRetriever("books", embedder=self.embedder, home=self.home)

    def check(self, passages: Sequence[Passage]) -> None:
        """That exactly these passages are in it, and each is found by its own text."""
        retriever = self.open()
        assert sorted(retriever.passages(), key=lambda one: one.id) == sorted(passages, key=lambda one: one.id)
        found = retriever.search([passage.content for passage in passages], 1)
        assert [hits[0].passage.content for hits in found] == [passage.content for passage in passages]
        assert min(hits[0].score for hits in found) > 0.9999

    def left(self) -> list[str]:
        """What lies in the folder besides the builder's lock."""
        return sorted(path.name for path in self.folder.iterdir() if path.name != "building.lock")


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    yield Builder(tmp_path)
    open_store(tmp_path).close()


def _passages(count: int, word: str = "text") -> list[Passage]:
    return [Passage(f"p{number:04}", f"{word} {number}", metadata={"n": number}) for number in range(count)]


def _generation(number: int) -> list[str]:
    return [f"generation-{number}", "manifest.json"]


def test_a_new_collection(builder: Builder) -> None:
    report = builder.build(_passages(30))

    expected = IndexReport("books", 30, 30, 0, 0, 30, 0, 1, True, report.seconds)
    assert report == expected
    assert 0 < report.seconds < 60
    assert builder.left() == _generation(1)
    assert list_collections(builder.home) == ["books"]
    builder.check(_passages(30))
    manifest = json.loads((builder.folder / "manifest.json").read_text())
    assert (manifest["embedder"], manifest["count"]) == ("hash:16", 30)
    assert str(builder.home) not in (builder.folder / "manifest.json").read_text()


def test_building_again_does_nothing(builder: Builder) -> None:
    builder.build(_passages(30))
    before = (builder.folder / "manifest.json").read_bytes()

    report = builder.build(list(reversed(_passages(30))))

    assert (report.rebuilt, report.embedded, report.added, report.changed, report.removed) == (
        False,
        0,
        0,
        0,
        0,
    )
    assert (builder.folder / "manifest.json").read_bytes() == before


def test_what_is_not_named_stays_and_what_changed_is_replaced(builder: Builder) -> None:
    old = _passages(30)
    builder.build(old)
    changed = replace(old[3], text="another text")
    retitled = replace(old[4], metadata={"n": -4})
    new = Passage("new", "a new text")

    report = builder.build([changed, retitled, new, old[5]])

    assert (report.count, report.added, report.changed, report.removed) == (31, 1, 2, 0)
    assert (report.embedded, report.generation) == (2, 2)
    assert builder.left() == _generation(2)
    builder.check([*old[:3], changed, retitled, *old[5:], new])


def test_bad_passages_are_named_all_at_once_and_nothing_is_embedded(builder: Builder) -> None:
    bad = [
        Passage("twice", "one"),
        Passage("twice", "two"),
        Passage("again", "same", metadata={"n": 1}),
        Passage("again", "same", metadata={"n": 2}),
        Passage("", "text"),
        Passage("empty", "  \n"),
        Passage("half", "half \ud83d a pair"),
        Passage("key", "text", metadata={"$and": 1}),
        Passage("value", "text", metadata={"n": [1]}),  # type: ignore[dict-item]
        Passage("nan", "text", metadata={"n": float("nan")}),
        Passage("huge", "text", metadata={"n": 2**64}),
        Passage("number", 7),  # type: ignore[arg-type]
    ]
    with pytest.raises(DataError) as caught:
        builder.build([*_passages(3), *bad])
    assert caught.value.problems == (
        "passage 'twice': two passages with different content have this id",
        "passage 'again': two passages with different content have this id",
        "passage '': its id must be a text that is not empty, without NUL",
        "passage 'empty': its text is empty",
        "passage 'half': it is not valid Unicode (surrogates not allowed)",
        "passage 'key': metadata key '$and' must be a text that does not begin with $, # or chroma:",
        "passage 'value': metadata 'n' must be a text, a finite number, true or false, but is [1]",
        "passage 'nan': metadata 'n' must be a text, a finite number, true or false, but is nan",
        "passage 'huge': metadata 'n' is larger than 64 bits: 18446744073709551616",
        "passage 'number': its text is empty",
    )
    assert builder.embedder.n_embedded == 0
    assert list_collections(builder.home) == []


@pytest.mark.parametrize("name", ["", "Books", "-books", "a/b", "..", "a" * 64, "bücher", "a\n"])
def test_bad_names(builder: Builder, name: str) -> None:
    with pytest.raises(InputError, match="a collection's name is 1 to 63"):
        build_collection(name, _passages(1), embedder=builder.embedder, home=builder.home)


@pytest.mark.slow
def test_more_than_one_batch_of_chroma(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    passages = _passages(5600)
    encode, sizes = builder.embedder.encode, list[int]()
    monkeypatch.setattr(builder.embedder, "encode", lambda texts, **_: (sizes.append(len(texts)), encode(texts))[1])
    builder.build(passages)
    assert max(sizes) < 5600  # the vectors of all passages are never in memory together
    assert sum(sizes) > 2 * 5600
    assert builder.open().count == 5600
    builder.check(passages)


WORKER = (
    MODEL
    + """
import sys, time
from pathlib import Path
from typing import Any
import querywright.retrieval.index as index
from querywright.data.types import Passage
from querywright.models.embedder import Embedder
from querywright.models.store import open_store

stop_at = sys.argv[2]

def stop(*_, **__):
    print("stopped", flush=True)
    time.sleep(600)

class Slow(HashModel):
    n = 0
    def encode(self, texts, **options):
        self.n += 1
        if stop_at == "embedding" and self.n == 3:
            stop()
        return super().encode(texts)

if stop_at != "embedding":
    setattr(index, stop_at, stop)
home = Path(sys.argv[1])
word = sys.argv[3]
passages = [Passage(f"p{number:04}", f"{word} {number}", metadata={"n": number}) for number in range(2500)]
embedder = Embedder("hash:16", Slow, dimension=16, store=open_store(home))
index.build_collection("books", passages, embedder=embedder, home=home)
"""
)


def _stopped(home: Path, stop_at: str, word: str = "text") -> subprocess.Popen[str]:
    """A builder in another process, standing still at some point."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(home), stop_at, word],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "stopped\n"
    return worker


@pytest.mark.parametrize(
    ("stop_at", "embedded"),
    [
        pytest.param("embedding", 2048, marks=pytest.mark.slow),
        pytest.param("ChromaIndex", 2500, marks=pytest.mark.slow),
        ("sync", 2500),
    ],
)
def test_kill_9_at_any_point_then_building_again_completes(builder: Builder, stop_at: str, embedded: int) -> None:
    builder.build(_passages(20, "old"))
    worker = _stopped(builder.home, stop_at)
    worker.kill()
    worker.communicate(timeout=30)

    builder.check(_passages(20, "old"))
    report = builder.build(_passages(2500))

    assert (report.embedded, report.cached, report.count) == (2500 - embedded, embedded, 2500)
    assert [name for name in builder.left() if name.startswith((".", "tmp"))] == []
    assert len(builder.left()) == 2
    builder.check(_passages(2500))


def test_a_second_builder_is_refused_at_once_and_told_so(builder: Builder) -> None:
    worker = _stopped(builder.home, "ChromaIndex")
    with pytest.raises(CollectionError, match="'books' is being built by another process; wait"):
        builder.build(_passages(5))
    worker.kill()
    worker.communicate(timeout=30)
    assert builder.build(_passages(5)).count == 5


def test_a_damaged_index_is_built_again_without_embedding(builder: Builder, caplog: pytest.LogCaptureFixture) -> None:
    builder.build(_passages(30))
    for damage in range(4):
        chroma = next(builder.folder.glob("generation-*/chroma"))
        segment = next(chroma.glob("*/index_metadata.pickle")).parent
        if damage == 0:
            shutil.rmtree(segment)
        elif damage == 1:
            shutil.rmtree(chroma)
        elif damage == 2:
            os.truncate(segment / "data_level0.bin", 1000)
        else:
            (chroma / "chroma.sqlite3").write_bytes(b"x" * 5000)
        with caplog.at_level(logging.WARNING):
            report = builder.build(_passages(30)[:1])
        assert (report.rebuilt, report.embedded, report.added, report.count) == (True, 0, 0, 30)
        assert "is built again" in caplog.text
        builder.check(_passages(30))


def test_damaged_passages_are_not_dropped_in_silence(builder: Builder) -> None:
    builder.build(_passages(30))
    truth = builder.folder / "generation-1" / "passages.jsonl"
    truth.write_text(truth.read_text().replace("text 7", "tEXT 7"))

    with pytest.raises(CollectionError, match=r"passages.jsonl of the collection 'books' is damaged.*--prune"):
        builder.build(_passages(3))
    assert builder.build(_passages(30)).rebuilt is True
    builder.check(_passages(30))

    (builder.folder / "generation-2" / "passages.jsonl").unlink()
    report = builder.build(_passages(3), prune=True)
    assert (report.count, report.embedded) == (3, 0)
    builder.check(_passages(3))


def test_a_damaged_manifest_needs_prune(builder: Builder) -> None:
    builder.build(_passages(30))
    (builder.folder / "manifest.json").write_text('{"count": 1')

    with pytest.raises(CollectionError, match=r"manifest of the collection 'books' is damaged.*--prune"):
        builder.build(_passages(30))
    assert builder.build(_passages(30), prune=True).embedded == 0
    builder.check(_passages(30))
    assert builder.left() == _generation(2)


def test_an_index_that_loses_passages_is_never_published(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    builder.build(_passages(30, "old"))
    write = index_module.write_index
    attempts: list[Path] = []

    def loses(path: Path, passages: Sequence[Passage], vectors_of: Any) -> dict[str, str]:
        attempts.append(path)
        return write(path, passages, vectors_of if len(attempts) > 2 else lambda part: vectors_of(part)[::-1])

    monkeypatch.setattr(index_module, "write_index", loses)
    assert builder.build(_passages(30)).generation == 2
    assert len(attempts) == 3
    builder.check(_passages(30))

    attempts.clear()
    monkeypatch.setattr(index_module, "ATTEMPTS", 2)
    with pytest.raises(
        CollectionError, match=r"2 attempts .* does not find all of its passages; nothing was published"
    ):
        builder.build(_passages(31))
    builder.check(_passages(30))
    assert builder.left() == _generation(2)


def test_a_disk_without_room_is_a_clear_error_and_keeps_what_was_published(tmp_path, monkeypatch):
    from chromadb.errors import InternalError

    from querywright.retrieval import chroma_index

    builder = Builder(tmp_path)
    builder.build([Passage("a", "one"), Passage("b", "two")])

    def no_room(path):
        raise InternalError("database or disk is full")

    monkeypatch.setattr(chroma_index, "_client", no_room)
    with pytest.raises(CollectionError, match=r"disk is full.*Make room"):
        builder.build([Passage("c", "three")])
    monkeypatch.undo()
    assert builder.open().count == 2
