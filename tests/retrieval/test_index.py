"""Building a collection: what is in it afterwards, whatever was killed, damaged or wrong on the way."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

import querywright.retrieval.index as index_module
from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError
from querywright.models.embedder import resolve_embedder
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import delete_collection, list_collections
from querywright.retrieval.generated_questions import COMPLETE
from querywright.retrieval.index import IndexReport


class Builder:
    """Builds and opens the collection ``books`` in a working folder."""

    def __init__(self, home, build, hashed):
        self.home, self._build, self.hashed = home, build, hashed
        self.folder = home / "collections" / "books"

    def build(self, passages, **options):
        return self._build(self.home, "books", passages, **options)

    def check(self, passages):
        """That exactly these passages are in it, and each is found by its own text."""
        retriever = ChromaRetriever("books", embedder=self.hashed(), home=self.home)
        assert sorted(retriever.passages(), key=lambda one: one.id) == sorted(passages, key=lambda one: one.id)
        found = retriever.search([passage.content for passage in passages], 1)
        assert [hits[0].passage.content for hits in found] == [passage.content for passage in passages]
        assert min(hits[0].score for hits in found) > 0.9999

    def left(self):
        """What lies in the folder besides the builder's lock."""
        return sorted(path.name for path in self.folder.iterdir() if path.name != "building.lock")


@pytest.fixture
def builder(home, build, hashed):
    return Builder(home, build, hashed)


def some(count, word="text"):
    return [Passage(f"p{number:04}", f"{word} {number}", metadata={"n": number}) for number in range(count)]


def test_a_new_collection_and_the_same_again(builder):
    report = builder.build(some(30))
    assert report == IndexReport("books", 30, 30, 0, 0, 0, 30, 0, 1, True, report.seconds)
    assert builder.left() == ["generation-1", "manifest.json"]
    assert list_collections(builder.home) == ["books"]
    builder.check(some(30))
    before = (builder.folder / "manifest.json").read_text()
    assert (json.loads(before)["embedder"], json.loads(before)["count"]) == ("hashed", 30)
    assert str(builder.home) not in before
    report = builder.build(some(30)[::-1])
    assert report == IndexReport("books", 30, 0, 0, 0, 0, 0, 0, 1, False, report.seconds)
    assert (builder.folder / "manifest.json").read_text() == before


def test_what_is_not_named_stays_and_what_changed_is_replaced(builder):
    old = some(30)
    builder.build(old)
    changed, retitled, new = (
        replace(old[3], text="another text"),
        replace(old[4], metadata={"n": -4}),
        Passage("new", "a new text"),
    )
    report = builder.build([changed, retitled, new, old[5]])
    assert report == IndexReport("books", 31, 1, 2, 0, 27, 2, 29, 2, True, report.seconds)
    assert builder.left() == ["generation-2", "manifest.json"]
    builder.check([*old[:3], changed, retitled, *old[5:], new])
    report = builder.build([new], prune=True)
    assert (report.count, report.removed) == (1, 30)
    builder.check([new])


def test_texts_with_several_ids_are_counted_at_every_build(builder):
    rows = [
        Passage("a", "Tea."),
        Passage("b", "tea."),
        Passage("c", "TEA."),
        Passage("d", "Milk."),
        Passage("e", "Milk."),
    ]
    for _ in range(2):
        (line,) = builder.build(rows).notes
        assert line.startswith("2 texts have two or more IDs, such as 'a' and 'b'")
    assert builder.build(rows[::3], prune=True).notes == ()


def test_passages_longer_than_the_embedder_reads_are_counted(home, build):
    rows = [Passage("long", "tea " * 255), Passage("fits", "tea " * 254)]  # and two tokens that begin and end a text
    embedder = resolve_embedder()
    (line,) = build(home, "teas", rows, embedder).notes
    assert line.startswith("1 of 2 passages is too long for the embedder (limit: 256 tokens), such as 'long'")
    assert build(home, "again", rows, resolve_embedder()).notes == (line,)  # its vectors are in the store
    assert build(home, "short", rows[1:], embedder).notes == ()


def test_bad_passages_are_named_all_at_once_and_nothing_is_embedded(builder):
    bad = [
        Passage("twice", "one"),
        Passage("twice", "two"),
        Passage("", "text"),
        Passage("empty", "  \n"),
        Passage("half", "half \ud83d a pair"),
        Passage("key", "text", metadata={"$and": 1}),
        Passage("value", "text", metadata={"n": [1]}),
        Passage("nan", "text", metadata={"n": float("nan")}),
        Passage("huge", "text", metadata={"n": 2**64}),
    ]
    with pytest.raises(DataError) as caught:
        builder.build([*some(3), *bad])
    assert caught.value.problems == (
        "passage 'twice': two passages with different content have this ID",
        "passage '': its ID must be a non-empty string without NUL characters",
        "passage 'empty': its text is empty",
        "passage 'half': its content is not valid Unicode (surrogates not allowed)",
        "passage 'key': metadata key '$and' must be a string that does not start with '$', '#', or 'chroma:'",
        "passage 'value': metadata 'n' must be a string, a finite number, true, or false, but got [1]",
        "passage 'nan': metadata 'n' must be a string, a finite number, true, or false, but got nan",
        "passage 'huge': metadata 'n' must fit in 64 bits, but got 18446744073709551616",
    )
    assert list_collections(builder.home) == []


@pytest.mark.parametrize("name", ["", "Books", "-books", "a/b", "..", "a" * 64, "bücher", "a\n", "books-questions"])
def test_bad_names(home, build, name):
    with pytest.raises(InputError, match=r"use 1 to 63 characters|names that end in -questions are reserved"):
        build(home, name, some(1))


def test_what_a_killed_build_left_is_removed_before_the_next_and_not_after(home, build, hashed):
    class Broken(hashed):
        def encode(self, texts, /):
            raise RuntimeError("broken")

    left = home / "collections" / "books" / "tmp-0"
    left.mkdir(parents=True)
    with pytest.raises(RuntimeError, match="broken"):
        build(home, "books", some(3), Broken())
    assert list((home / "collections").iterdir()) == []  # and a build that failed leaves nothing


def test_a_collection_goes_with_its_questions_and_not_while_it_is_searched(home, build, publish, hashed):
    passages = some(3)
    for name in ("books", "others"):
        build(home, name, passages)
    publish(home, "books", (passages[0], [("What?", COMPLETE)]))
    retriever = ChromaRetriever("books", embedder=hashed(), home=home)
    with pytest.raises(CollectionError, match="'books' is being searched; stop the search"):
        delete_collection("books", home)
    assert len(list_collections(home)) == 3
    assert retriever.search(["x"], 1)
    del retriever
    gc.collect()
    delete_collection("books", home)
    assert [one.name for one in (home / "collections").iterdir()] == ["others"]
    with pytest.raises(CollectionError, match=r"no collection 'books' in .* \(known: others\)"):
        delete_collection("books", home)


@pytest.mark.slow
def test_more_than_one_batch_of_chroma(builder):
    builder.build(some(5600))
    builder.check(some(5600))


def damage_database(chroma):
    (chroma / "chroma.sqlite3").write_bytes(b"x" * 5000)


@pytest.mark.parametrize(
    "damage",
    [
        shutil.rmtree,
        lambda chroma: os.truncate(next(chroma.glob("*/data_level0.bin")), 1000),
        damage_database,
    ],
)
def test_a_damaged_index_is_built_again_without_embedding(builder, caplog, damage):
    builder.build(some(30))
    damage(builder.folder / "generation-1" / "chroma")
    with caplog.at_level(logging.WARNING):
        report = builder.build(some(30)[:1])
    assert (report.rebuilt, report.embedded, report.added, report.count) == (True, 0, 0, 30)
    assert "rebuilding the collection" in caplog.text
    builder.check(some(30))


def test_damaged_passages_are_not_dropped_in_silence(builder):
    builder.build(some(30))
    truth = builder.folder / "generation-1" / "passages.jsonl"
    truth.write_text(truth.read_text().replace("text 7", "tEXT 7"))
    with pytest.raises(CollectionError, match=r"passages.jsonl of the collection 'books' is damaged.*--prune"):
        builder.build(some(3))
    assert builder.build(some(30)).rebuilt is True
    builder.check(some(30))
    (builder.folder / "manifest.json").write_text('{"count": 1')
    with pytest.raises(CollectionError, match=r"manifest of the collection 'books' is damaged.*--prune"):
        builder.build(some(30))
    report = builder.build(some(3), prune=True)
    assert (report.count, report.embedded) == (3, 0)
    builder.check(some(3))
    assert builder.left() == ["generation-3", "manifest.json"]


def test_an_index_that_loses_passages_is_never_published(builder, monkeypatch):
    builder.build(some(30, "old"))
    write = index_module.write_index

    def loses(path, passages, encode, *more):
        return write(path, passages, lambda texts: encode(texts)[::-1], *more)

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "write_index", loses)
        with pytest.raises(CollectionError, match=r"the new index was not published: .* does not find this passage"):
            builder.build(some(30))
    builder.check(some(30, "old"))
    assert builder.left() == ["generation-1", "manifest.json"]
    assert builder.build(some(30)).generation == 2


def test_clumps_of_vectors_that_are_almost_the_same_are_found_all(home, build, hashed):
    """Six clumps of 150: with few links between vectors, most of them are out of reach from the others."""

    class Clumped(hashed):
        def encode(self, texts):
            rows = []
            for text in texts:
                number = int(text.rpartition(" ")[2])
                place = np.random.default_rng(number % 6).random(384) ** 8
                rows.append(place + (np.arange(384) == number % 384) * 0.1)
            rows = np.array(rows, dtype=np.float32)
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    assert build(home, "books", some(900), Clumped(384)).count == 900
