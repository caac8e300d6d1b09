"""A Chroma collection of the user's own, and building from what users have: rows, frames, datasets, files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError
from querywright.models.store import open_store
from querywright.programs import TECHNIQUES, HyDE
from querywright.retrieval.chroma import ChromaRetriever, ForeignChromaRetriever
from querywright.retrieval.engines import Opened, opened
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.types import Hit, VectorRetriever

DIMENSION = 16
TEXTS = {f"d{n:02}": f"fact number {n}" for n in range(40)}


def vectors(texts):
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
    rows = np.stack([np.random.default_rng(seed).normal(size=DIMENSION) for seed in seeds]).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Function:
    """An embedding function as chromadb has it."""

    def __call__(self, input):
        return list(vectors(input))

    def embed_query(self, input):
        return self(input)

    @staticmethod
    def name():
        return "test"

    def is_legacy(self):
        return True

    def default_space(self):
        return "cosine"

    def supported_spaces(self):
        return ["cosine", "l2", "ip"]


class Own:
    id, dimension = "own", DIMENSION

    def encode(self, texts, /):
        return vectors(texts)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    import chromadb

    return chromadb.PersistentClient(str(tmp_path_factory.mktemp("chroma")))


def made(client, space, *, function=True):
    name = f"mine-{space}-{function}"
    table = client.get_or_create_collection(
        name, configuration={"hnsw": {"space": space}}, embedding_function=Function() if function else None
    )
    if not table.count():
        table.add(
            ids=list(TEXTS),
            documents=list(TEXTS.values()),
            embeddings=vectors(TEXTS.values()),
            metadatas=[{"title": f"T{n}", "n": n} for n in range(len(TEXTS))],
        )
    return table


def exact(query, k):
    scores = vectors(TEXTS.values()) @ vectors([query])[0]
    best = sorted(range(len(TEXTS)), key=lambda row: (-scores[row], row))[:k]
    return [(f"d{row:02}", float(scores[row])) for row in best]


@pytest.mark.parametrize("space", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("embedder", [None, Own()])
def test_search_equals_exact_search_in_every_space(client, space, embedder):
    retriever = ChromaRetriever(made(client, space), embedder=embedder)
    queries = [f"query {n}" for n in range(20)]
    for query, hits in zip(queries, retriever.search(queries, 5), strict=True):
        expected = exact(query, 5)
        assert [hit.passage.id for hit in hits] == [id for id, _ in expected]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    by_vector = retriever.search_vectors(retriever.embed(queries), 5)
    assert [[hit.passage for hit in hits] for hits in by_vector] == [
        [hit.passage for hit in hits] for hits in retriever.search(queries, 5)
    ]


def test_what_it_tells_of_itself_and_that_nothing_is_written(client):
    table = made(client, "cosine")
    retriever = ChromaRetriever(table)
    assert isinstance(retriever, ForeignChromaRetriever)
    assert isinstance(retriever, VectorRetriever)
    assert (retriever.count, retriever.kind, opened(retriever)) == (40, "dense", Opened())
    assert retriever.get(["d03", "d01"]) == [
        Passage("d03", "fact number 3", "T3", {"n": 3}),
        Passage("d01", "fact number 1", "T1", {"n": 1}),
    ]
    assert [passage.id for passage in retriever.passages()] == list(TEXTS)
    assert "d03" in retriever
    assert "none" not in retriever
    with pytest.raises(InputError, match="not in the collection 'mine-cosine-True': 'none'"):
        retriever.get(["d01", "none"])
    (hits,) = ChromaRetriever(table, where={"n": {"$lt": 3}}).search(["query"], 9)
    assert sorted(hit.passage.id for hit in hits) == ["d00", "d01", "d02"]
    before = table.get(include=["documents", "metadatas"])
    assert len(TECHNIQUES["plain"](retriever)(question="What?").passages) == 5
    HyDE(retriever)
    assert table.get(include=["documents", "metadatas"]) == before


def test_rankings_are_stored_only_where_a_fingerprint_was_given(client, tmp_path):
    store = open_store(tmp_path)
    table = made(client, "cosine")
    for given, kept in ((None, 0), ("version 1", 1)):
        retriever = ChromaRetriever(table, fingerprint=given)
        assert retriever.fingerprint == ChromaRetriever(table, fingerprint=given).fingerprint
        replay = ReplayRetriever(retriever, store=store, deepest=5)
        assert isinstance(replay.search(["query"], 3)[0][0], Hit)
        assert store.count(f"ranking:{retriever.fingerprint}") == kept
    fingerprints = {ChromaRetriever(table, fingerprint=one).fingerprint for one in (None, "1", "2")}
    assert len(fingerprints | {ChromaRetriever(table, where={"n": 1}).fingerprint}) == 4


def test_wrong_use_is_told(client):
    with pytest.raises(InputError, match=r"or a collection of chromadb .* but got int: 7"):
        ChromaRetriever(7)
    retriever = ChromaRetriever(made(client, "cosine"))
    for call in (lambda: retriever.search("one", 3), lambda: retriever.search(["a"], 0), lambda: retriever.embed("a")):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError, match=r"Chroma refused the search \(where="):
        ChromaRetriever(made(client, "cosine"), where={"n": {"$near": 3}}).search(["a"], 3)
    assert retriever.search([], 3) == []
    empty = client.get_or_create_collection("no-texts", embedding_function=Function())
    empty.add(ids=["a"], embeddings=vectors(["a"]))
    with pytest.raises(InputError, match="'a' of the collection has no document"):
        ChromaRetriever(empty).search(["a"], 1)


ROWS = [{"id": "a", "text": "Tea is drunk hot."}, {"id": "b", "text": "Iron is taken in with food."}]


def from_file(folder: Path):
    path = folder / "passages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize(
    "source",
    [
        lambda _: ROWS,
        lambda _: pandas.DataFrame(ROWS),
        lambda _: pytest.importorskip("datasets").Dataset.from_list(ROWS),
        from_file,
        lambda folder: str(from_file(folder)),
        lambda _: [Passage(row["id"], row["text"]) for row in ROWS],
        lambda _: (Passage(row["id"], row["text"]) for row in ROWS),
    ],
    ids=["dicts", "frame", "dataset", "path", "text", "passages", "generator"],
)
def test_a_collection_is_built_from_what_there_is(tmp_path, source):
    retriever = ChromaRetriever.build("shop", source(tmp_path), embedder=Own(), home=tmp_path)
    assert list(retriever.passages()) == [
        Passage("a", "Tea is drunk hot."),
        Passage("b", "Iron is taken in with food."),
    ]
    assert retriever.search(["Tea is drunk hot."], 1)[0][0].passage.id == "a"


def test_building_again_replaces_unless_told_to_add(tmp_path):
    def build(*ids, **options):
        passages = [Passage(id, f"About {id}.") for id in ids]
        return ChromaRetriever.build("shop", passages, embedder=Own(), home=tmp_path, **options)

    assert build("a", "b").count == 2
    assert build("c").count == 1
    assert build("d", prune=False).count == 2
    with pytest.raises(DataError, match="found no rows"):
        build()


def test_the_embedder_is_the_one_that_the_collection_names(tmp_path, monkeypatch):
    made = ChromaRetriever.build("shop", ROWS, embedder=Own(), home=tmp_path)
    with pytest.raises(CollectionError, match="embedder 'own', which cannot be had by its name alone; give it"):
        ChromaRetriever("shop", home=tmp_path)
    monkeypatch.setattr("querywright.retrieval.chroma.embedder_of", lambda id, store: Own() if id == "own" else None)
    found = ChromaRetriever("shop", home=tmp_path)
    assert found.fingerprint == made.fingerprint
    assert found.search(["Tea is drunk hot."], 1)[0][0].passage.id == "a"
