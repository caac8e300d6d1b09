"""Rankings that are kept: what is found is what the retriever finds, and it is asked for nothing twice."""

from __future__ import annotations

import random

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.models.store import Store
from querywright.retrieval.callable import CallableRetriever
from querywright.retrieval.engines import ENGINES, open_retriever
from querywright.retrieval.generated_questions import COMPLETE
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.types import Hit, Matching

WORDS = ["aspirin", "insulin", "warfarin", "statin", "sugar", "blood", "heart", "liver", "dose"]
QUERIES = ["aspirin and blood", "sugar", "heart dose", "liver tablet statin", "insulin"]


class Listed:
    """Passages in an order that depends on the query; remembers what it was asked."""

    kind = "lexical"

    def __init__(self, size=60, fingerprint="listed"):
        self.held = {f"p{n}": Passage(f"p{n}", f"Text {n}.") for n in range(size)}
        self.fingerprint = fingerprint
        self.asked = []

    def search(self, queries, k):
        self.asked.append((list(queries), k))
        lists = []
        for query in queries:
            ids = sorted(self.held, key=lambda id: random.Random(query + id).random())[:k]
            lists.append([Hit(self.held[id], 1 / 3 / rank, rank) for rank, id in enumerate(ids, 1)])
        return lists

    def get(self, ids):
        if unknown := [id for id in ids if id not in self.held]:
            raise InputError(f"unknown: {unknown}")
        return [self.held[id] for id in ids]


@pytest.fixture
def store(tmp_path):
    kept = Store(tmp_path / "kept" / "store.sqlite")
    yield kept
    kept.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory, build, publish, hashed):
    """Opens a collection of eighty passages, three questions for each."""
    home, rng = tmp_path_factory.mktemp("home"), random.Random(1)
    passages = [Passage(f"p{n:02}", " ".join(rng.choices(WORDS, k=9)) + f" {n}") for n in range(80)]
    build(home, "c", passages)
    asked = [[f"{' '.join(rng.choices(WORDS, k=3))} of {one.id} {n}?" for n in range(3)] for one in passages]
    publish(
        home, "c", *((one, [(text, COMPLETE) for text in texts]) for one, texts in zip(passages, asked, strict=True))
    )
    return lambda name, embedder=None: open_retriever("c", engine=name, embedder=embedder or hashed(), home=home)


def found(lists):
    return [[(hit.passage.id, id(hit.passage), hit.score, hit.rank) for hit in hits] for hits in lists]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_finds_what_it_finds(engine, name, store, hashed):
    embedder = hashed()
    inner, rng = engine(name, embedder), random.Random(name)
    for kept in (store, None):
        replays = [ReplayRetriever(inner, store=kept, deepest=deepest) for deepest in (1, 10, 50)]
        for _ in range(12):
            replay, k, queries = rng.choice(replays), rng.choice([1, 3, 10, 40, 80, 150]), rng.sample(QUERIES, 3)
            assert found(replay.search(queries, k)) == found(inner.search(queries, k))
            if hasattr(inner, "search_vectors"):
                vectors = np.concatenate([replay.embed(queries), -replay.embed(queries[:1])])
                assert found(replay.search_vectors(vectors, k)) == found(inner.search_vectors(vectors, k))
    expected = found(inner.search(QUERIES, 7))
    ReplayRetriever(inner, store=store, deepest=50).search(QUERIES, 7)
    before = len(embedder.batches)
    assert found(ReplayRetriever(inner, store=store, deepest=50).search(QUERIES, 7)) == expected
    assert len(embedder.batches) == before


def test_a_query_is_searched_once_and_new_ones_together(store):
    inner = Listed(size=300)
    replay = ReplayRetriever(inner, store=store, deepest=20)
    replay.search(["a"], 5)
    replay.search(["b", "a", "c", "b"], 20)
    lists = replay.search(["c", "b"], 3)
    assert inner.asked == [(["a"], 25), (["b", "c"], 25)]
    assert found(lists) == found(inner.search(["c", "b"], 3))
    assert replay.search([], 3) == []
    inner.asked.clear()
    assert [len(replay.search(["a"], k)[0]) for k in (60, 90)] == [60, 90]  # deeper than before, once
    again = Listed(size=300)  # as another process has it
    other = ReplayRetriever(again, store=store, deepest=60)
    assert found(other.search(["a"], 80)) == found(Listed.search(again, ["a"], 80))
    assert found(ReplayRetriever(again, store=store, deepest=10).search(["b"], 6)) == found(again.search(["b"], 6))
    assert [k for _, k in inner.asked] == [100]
    assert [k for _, k in again.asked] == [80, 6]  # those of this test


@pytest.mark.parametrize("value", [b"{", b'[["p1"]]', b'[["gone", 1.0, ""]]', b'[["p1", "high", ""]]'])
def test_what_is_damaged_is_searched_again(value, store):
    inner = Listed()
    ReplayRetriever(inner, store=store, deepest=10).search(["a"], 4)
    (key,) = store.transact(lambda c: list(c.exec_driver_sql("SELECT key FROM querywright_entries")))
    store.delete_many("ranking:listed", list(key))
    store.put("ranking:listed", key[0], value)
    again = ReplayRetriever(inner, store=store, deepest=10)
    assert found(again.search(["a"], 4)) == found(inner.search(["a"], 4))
    assert [k for _, k in inner.asked] == [25, 25, 4]


class Fresh(Listed):
    def get(self, ids):
        return [Passage(id, "another text") for id in ids]


@pytest.mark.parametrize(
    "inner",
    [
        lambda: CallableRetriever(lambda query, k: [Passage("p", "text")]),
        lambda: HybridRetriever([CallableRetriever(lambda query, k: [Passage("p", "text")]), Listed()]),
        Fresh,
    ],
    ids=["unknown fingerprint", "part with one", "passages that are others by their ids"],
)
def test_what_would_not_come_back_the_same_is_kept_in_memory_only(inner, store):
    retriever = inner()
    replay = ReplayRetriever(retriever, store=store, deepest=10)
    assert replay.is_known == isinstance(retriever, Fresh)
    assert replay.search(["a"], 4) == replay.search(["a"], 4)
    assert store.transact(lambda c: c.exec_driver_sql("SELECT COUNT(*) FROM querywright_entries").scalar()) == 0


def test_where_a_prefix_would_not_be_the_same_each_k_is_searched():
    own = CallableRetriever(lambda query, k: [Passage(f"{k}-{n}", "text") for n in range(k)], fingerprint="1")
    replay = ReplayRetriever(own, store=None, deepest=10)
    for k in (3, 5, 3, 12):
        assert [hit.passage.id for hit in replay.search(["a"], k)[0]] == [f"{k}-{n}" for n in range(k)]
    hybrid = HybridRetriever([Listed(), Listed(fingerprint="other")], depth=10)
    replay = ReplayRetriever(hybrid, store=None, deepest=30)
    for k in (2, 10, 11, 30, 11, 5):
        assert found(replay.search(["a", "b"], k)) == found(hybrid.search(["a", "b"], k))


@pytest.mark.parametrize(
    "way", [{"coverage": 1}, {"match": "hybrid", "weight": 0.2, "depth": 20}, {"match": "prototypes"}]
)
def test_questions_are_matched_as_they_are(way, engine, store, hashed):
    embedder, matching = hashed(), Matching(**way)
    index = engine("questions", embedder)
    for _ in range(2):  # the second one from the store
        replay = ReplayRetriever(index, store=store, deepest=10)
        for k in (10, 3, 25, 4):
            assert replay.match(QUERIES, k, matching) == index.match(QUERIES, k, matching)
        searched = len(embedder.batches)
        replay.match(QUERIES[::-1], 2, matching)
        assert len(embedder.batches) == searched
    with pytest.raises(InputError, match="filled"):
        replay.match(QUERIES, 3, Matching(match="filled"))
