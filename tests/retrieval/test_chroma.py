"""Dense search: against exact search, over damage, beside builders, and over a Chroma collection of the user's own."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder
from querywright.models.store import open_store
from querywright.retrieval.chroma import ChromaRetriever

PASSAGES = [
    Passage(f"p{n:03}", f"text {n}", "Title" if n % 2 else "", {"n": n, "third": n % 3 == 0}) for n in range(400)
]


@pytest.fixture(scope="module")
def books(tmp_path_factory, build):
    home = tmp_path_factory.mktemp("home")
    build(home, "books", PASSAGES)
    yield home
    open_store(home).close()


@pytest.fixture
def own_books(books, home):
    """A copy that a test may damage."""
    open_store(books).close()
    shutil.copytree(books, home)
    return home


@pytest.fixture
def opened_in(hashed):
    return lambda home, **options: ChromaRetriever("books", home=home, **{"embedder": hashed(), **options})


def exact(embedder, query, k, passages=PASSAGES):
    """Ids and scores by exact search."""
    scores = embedder.encode([passage.content for passage in passages]) @ embedder.encode([query])[0]
    best = sorted(range(len(passages)), key=lambda row: (-scores[row], passages[row].id))[:k]
    return [passages[row].id for row in best], pytest.approx(scores[best].tolist(), abs=1e-4)


def ids_and_scores(hits):
    return [hit.passage.id for hit in hits], [hit.score for hit in hits]


def test_search_equals_exact_search_in_one_batch(books, hashed, opened_in):
    embedder, queries = hashed(), [f"query {number}" for number in range(100)]
    retriever = opened_in(books, embedder=embedder)
    embedder.batches.clear()
    lists = retriever.search(queries, 10)
    assert embedder.batches == [queries]
    for query, hits in zip(queries, lists, strict=True):
        assert ids_and_scores(hits) == exact(embedder, query, 10)
        assert [hit.rank for hit in hits] == list(range(1, 11))
    longer = retriever.search_vectors(3 * retriever.embed(queries), 10)
    assert [[hit.passage for hit in hits] for hits in longer] == [[hit.passage for hit in hits] for hits in lists]


def test_equal_passages_come_in_the_order_of_their_ids(home, build, opened_in):
    build(home, "books", [*(Passage(f"twin-{letter}", "the same words") for letter in "dbeac"), *PASSAGES[:50]])
    for k in range(1, 6):
        (hits,) = opened_in(home).search(["the same words"], k)
        assert [hit.passage.id for hit in hits] == [f"twin-{letter}" for letter in "abcde"[:k]]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r: r.embed("a"), r"list of strings.*pass \[text\]"),
        (lambda r: r.search_vectors(np.ones((1, 5)), 3), r"shape \(n, 16\), but got \(1, 5\)"),
        (lambda r: r.search_vectors(np.ones(16), 3), r"but got \(16,\)"),
        (lambda r: r.search_vectors(np.zeros((1, 16)), 3), "finite and nonzero"),
        (lambda r: r.search_vectors(np.full((1, 16), np.nan), 3), "finite and nonzero"),
    ],
)
def test_bad_requests(books, opened_in, ask, message):
    with pytest.raises(InputError, match=message):
        ask(opened_in(books))


def test_a_fingerprint_is_of_the_passages_and_the_filter(books, build, hashed, opened_in):
    retriever = opened_in(books)
    build(books, "fewer", PASSAGES[1:])
    build(books, "other", PASSAGES)
    others = [ChromaRetriever(name, embedder=hashed(), home=books) for name in ("fewer", "other")]
    every = [retriever, opened_in(books, where={"third": True}), *others]
    assert opened_in(books).fingerprint == retriever.fingerprint
    assert len({one.fingerprint for one in every}) == 4


def test_another_embedder_and_a_missing_collection_are_told(books, opened_in, hashed, monkeypatch):
    def load():
        raise AssertionError("the model was loaded")

    with pytest.raises(CollectionError, match=r"embedder 'hashed', but got 'other'"):
        opened_in(books, embedder=Embedder("other", load, dimension=16))
    with pytest.raises(CollectionError, match=r"have 16 dimensions, but the embedder 'hashed' makes vectors with 8"):
        opened_in(books, embedder=hashed(8))
    with pytest.raises(
        CollectionError, match=r"no collection 'bookz' in .* \(known: .*books.*\); build the collection with"
    ):
        ChromaRetriever("bookz", embedder=hashed(), home=books)
    with pytest.raises(CollectionError, match="embedder 'hashed', but this embedder cannot be loaded by name; pass"):
        ChromaRetriever("books", home=books)
    monkeypatch.setattr("querywright.retrieval.chroma.embedder_of", lambda id, store: hashed())
    again = ChromaRetriever("books", home=books)
    assert pickle.loads(pickle.dumps(again)).fingerprint == again.fingerprint == opened_in(books).fingerprint


def segment(folder):
    (found,) = folder.glob("generation-1/chroma/*/index_metadata.pickle")
    return found.parent


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def sql(folder, statement):
    connection = sqlite3.connect(folder / "generation-1" / "chroma" / "chroma.sqlite3")
    connection.execute(statement)
    connection.commit()
    connection.close()


def edit_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "embedder": "other"}))


DAMAGES = {
    "segment deleted": (lambda f: shutil.rmtree(segment(f)), "damaged or missing"),
    "one bit of the vectors": (lambda f: flip(segment(f) / "data_level0.bin"), "damaged or missing"),
    "database empty": (lambda f: (f / "generation-1/chroma/chroma.sqlite3").write_bytes(b""), "damaged or missing"),
    "rows deleted": (lambda f: sql(f, "DELETE FROM embeddings WHERE id % 2 = 0"), "damaged or missing"),
    "passages edited": (lambda f: flip(f / "generation-1/passages.jsonl"), "of the collection 'books' is damaged"),
    "passages deleted": (lambda f: (f / "generation-1/passages.jsonl").unlink(), "collection 'books' is missing"),
    "manifest edited": (edit_manifest, "wrong checksum"),
    "manifest cut": (lambda f: os.truncate(f / "manifest.json", 100), "manifest of the collection 'books' is damaged"),
    "all deleted": (lambda f: shutil.rmtree(f / "generation-1"), "the files of the collection 'books' are missing"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_refused_and_named(own_books, opened_in, damage, message):
    damage(own_books / "collections" / "books")
    with pytest.raises(CollectionError, match=message) as caught:
        opened_in(own_books)
    assert "querywright index" in str(caught.value)


KILLED = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # changed pages reach the file before the end of the transaction
database.execute("BEGIN IMMEDIATE")
database.execute("CREATE TABLE unfinished (text)")
database.executemany("INSERT INTO unfinished VALUES (?)", [("x" * 1000,)] * 2000)
os._exit(0)
"""


def test_an_index_that_a_killed_process_was_writing_to_is_as_before(own_books, opened_in, hashed):
    before = opened_in(own_books).search(["query 1"], 5)
    (database,) = (own_books / "collections" / "books").rglob("chroma.sqlite3")
    subprocess.run([sys.executable, "-c", KILLED, database], check=True)
    assert database.with_name("chroma.sqlite3-journal").stat().st_size > 0
    after = opened_in(own_books)
    assert ids_and_scores(after.search(["query 1"], 5)[0]) == ids_and_scores(before[0])
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT name FROM sqlite_master WHERE name = 'unfinished'").fetchall() == []


def test_readers_keep_their_generation_while_a_new_one_is_published(own_books, opened_in, build):
    folder, changed = own_books / "collections" / "books", Passage("p000", "changed")
    old = opened_in(own_books)
    build(own_books, "books", [changed])
    new = opened_in(own_books)
    assert old.search([PASSAGES[0].content], 1)[0][0].passage == PASSAGES[0]
    assert new.search(["changed"], 1)[0][0].passage == changed
    assert old.fingerprint != new.fingerprint
    assert (folder / "generation-1").exists()
    del old
    gc.collect()
    build(own_books, "books", [changed])
    assert [path.name for path in folder.glob("*-*")] == ["generation-2"]
    assert new.search(["changed"], 1)[0][0].score == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused_at_once(books, opened_in):
    retriever = opened_in(books)
    child = os.fork()
    if child == 0:
        refused = 0
        for ask in (lambda: retriever.search(["query"], 1), lambda: opened_in(books)):
            try:
                ask()
            except CollectionError as error:
                refused += "'spawn'" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert retriever.search(["query"], 1)


# A collection of the user's own.

TEXTS = {f"d{n:02}": f"fact number {n}" for n in range(40)}


@pytest.fixture(scope="module")
def own(tmp_path_factory, hashed):
    """Makes a collection of chromadb with an embedding function."""
    import chromadb

    class Function:
        def __call__(self, input):
            return list(hashed().encode(input))

        embed_query = __call__
        name = staticmethod(lambda: "test")
        is_legacy = lambda self: True  # noqa: E731
        default_space = lambda self: "cosine"  # noqa: E731
        supported_spaces = lambda self: ["cosine", "l2", "ip"]  # noqa: E731

    client = chromadb.PersistentClient(str(tmp_path_factory.mktemp("chroma")))

    def make(space="cosine"):
        settings = {"configuration": {"hnsw": {"space": space}}, "embedding_function": Function()}
        table = client.get_or_create_collection(f"mine-{space}", **settings)
        if not table.count():
            told = [{"title": f"T{n}", "n": n} for n in range(len(TEXTS))]
            vectors = hashed().encode(list(TEXTS.values()))
            table.add(ids=list(TEXTS), documents=list(TEXTS.values()), embeddings=vectors, metadatas=told)
        return table

    return make


@pytest.mark.parametrize("space", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("embedded_by", ["collection", "embedder"])
def test_a_collection_of_ones_own_is_searched_exactly(own, space, embedded_by, hashed):
    retriever = ChromaRetriever(own(space), embedder=hashed() if embedded_by == "embedder" else None)
    passages, queries = [Passage(id, text) for id, text in TEXTS.items()], [f"query {n}" for n in range(20)]
    lists = retriever.search(queries, 5)
    for query, hits in zip(queries, lists, strict=True):
        assert ids_and_scores(hits) == exact(hashed(), query, 5, passages)
    assert retriever.search_vectors(retriever.embed(queries), 5) == lists
