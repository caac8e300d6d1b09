"""Rankings that are kept: what is found is what the retriever finds, and it is asked for nothing twice."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.models.store import Store
from querywright.programs import TECHNIQUES
from querywright.retrieval.callable import CallableRetriever, as_retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.engines import Opened, open_retriever, opened
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.question_match import Matching
from querywright.retrieval.replay import ReplayRetriever, searched_by
from querywright.retrieval.types import Hit, VectorRetriever, kind_of

WORDS = [
    "aspirin",
    "insulin",
    "warfarin",
    "heparin",
    "ibuprofen",
    "statin",
    "sugar",
    "blood",
    "heart",
    "liver",
    "dose",
    "tablet",
]
QUERIES = ["aspirin and blood", "sugar", "heart dose", "liver tablet statin", "insulin"]


class Embedder:
    """Counts the words, with a little noise, so that no two passages are equally near; remembers what it embedded."""

    id, dimension = "words", len(WORDS)

    def __init__(self):
        self.encoded = []

    def encode(self, texts, /):
        self.encoded += texts
        rows = [
            [text.split().count(word) + 0.2 * random.Random(text + word).random() for word in WORDS] for text in texts
        ]
        vectors = np.array(rows, dtype=np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


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
        unknown = [id for id in ids if id not in self.held]
        if unknown:
            raise InputError(f"unknown: {unknown}")
        return [self.held[id] for id in ids]

    def __contains__(self, id):
        return id in self.held


@pytest.fixture
def store(tmp_path):
    opened_store = Store(tmp_path / "kept" / "store.sqlite")
    yield opened_store
    opened_store.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A collection of eighty passages, three questions for each."""
    home, rng = tmp_path_factory.mktemp("home"), random.Random(1)
    passages = [Passage(f"p{n:02}", " ".join(rng.choices(WORDS, k=9)) + f" {n}") for n in range(80)]
    build_collection("c", passages, embedder=Embedder(), home=home)
    records = [
        PassageRecord(p.id, p.text_digest(), "s", tuple(
            WrittenQuestion(f"{' '.join(rng.choices(WORDS, k=3))} of {p.id} {n}?", COMPLETE) for n in range(3)
        ))
        for p in passages
    ]  # fmt: skip
    publish_questions("c", records, embedder=Embedder(), home=home)
    return home


def found(lists):
    return [[(hit.passage.id, id(hit.passage), hit.score, hit.rank) for hit in hits] for hits in lists]


@pytest.mark.parametrize("engine", ["dense", "bm25", "hybrid", "questions", "expanded"])
def test_every_engine_finds_what_it_finds(engine, home, store):
    embedder = Embedder()
    inner = open_retriever("c", engine=engine, embedder=embedder, home=home)
    rng = random.Random(engine)
    for kept in (store, None):
        replays = [ReplayRetriever(inner, store=kept, deepest=deepest) for deepest in (1, 10, 50)]
        for _ in range(12):
            replay, k, queries = rng.choice(replays), rng.choice([1, 3, 10, 40, 80, 150]), rng.sample(QUERIES, 3)
            assert found(replay.search(queries, k)) == found(inner.search(queries, k))
            if isinstance(inner, VectorRetriever):
                vectors = np.concatenate([replay.embed(queries), -replay.embed(queries[:1])])
                assert np.array_equal(vectors[:3], inner.embed(queries))
                assert found(replay.search_vectors(vectors, k)) == found(inner.search_vectors(vectors, k))
    expected = found(inner.search(QUERIES, 7))
    ReplayRetriever(inner, store=store, deepest=50).search(QUERIES, 7)
    before = len(embedder.encoded)
    assert found(ReplayRetriever(inner, store=store, deepest=50).search(QUERIES, 7)) == expected
    assert len(embedder.encoded) == before


def test_a_query_is_searched_once_and_new_ones_together():
    inner = Listed()
    replay = ReplayRetriever(inner, store=None, deepest=20)
    replay.search(["a"], 5)
    replay.search(["b", "a", "c", "b"], 20)
    lists = replay.search(["c", "b"], 3)

    assert inner.asked == [(["a"], 25), (["b", "c"], 25)]
    assert found(lists) == found(inner.search(["c", "b"], 3))
    assert replay.search([], 3) == []


def test_deeper_than_before_is_searched_again_and_replaces_it(store):
    inner = Listed(size=300)
    replay = ReplayRetriever(inner, store=store, deepest=20)
    assert len(replay.search(["a"], 5)[0]) == 5
    assert len(replay.search(["a"], 60)[0]) == 60
    assert len(replay.search(["a"], 90)[0]) == 90
    assert [k for _, k in inner.asked] == [25, 100]

    other = ReplayRetriever(inner, store=store, deepest=60)
    assert found(other.search(["a"], 80)) == found(replay.search(["a"], 80))
    assert found(other.search(["a"], 10)) == found(replay.search(["a"], 10))
    assert len(inner.asked) == 2


def test_rankings_that_memory_has_no_room_for_come_from_the_store(store, monkeypatch):
    monkeypatch.setattr("querywright.retrieval.replay.MOST_RANKINGS", 2)
    inner = Listed()
    replay = ReplayRetriever(inner, store=store, deepest=10)
    for _ in range(3):
        for query in "abc":
            replay.search([query], 3)
    assert len(inner.asked) == 3


def test_another_process_finds_rankings_in_the_store(store):
    inner = Listed()
    ReplayRetriever(inner, store=store, deepest=10).search(["a", "b"], 4)
    again = Listed()
    replay = ReplayRetriever(again, store=store, deepest=10)

    assert [[hit.passage.id for hit in hits] for hits in replay.search(["b", "c", "a"], 6)] == [
        [hit.passage.id for hit in hits] for hits in inner.search(["b", "c", "a"], 6)
    ]
    assert again.asked == [(["c"], 25)]
    hit = replay.search(["a"], 1)[0][0]
    assert hit.passage is again.held[hit.passage.id]


@pytest.mark.parametrize(
    "value",
    [b"{", b"{}x", b'[["p1"]]', b'[["gone", 1.0]]', b"[3]", b'[["p1", "high"]]', b"\xff"],
)  # fmt: skip
def test_what_is_damaged_is_searched_again(value, store):
    inner = Listed()
    ReplayRetriever(inner, store=store, deepest=10).search(["a"], 4)
    kind = "ranking:listed"
    (key,) = [
        row[0] for row in store.transact(lambda c: list(c.exec_driver_sql("SELECT key FROM querywright_entries")))
    ]
    store.delete_many(kind, [key])
    store.put(kind, key, value)

    again = ReplayRetriever(inner, store=store, deepest=10)
    assert found(again.search(["a"], 4)) == found(inner.search(["a"], 4))
    again.search(["a"], 4)
    assert [k for _, k in inner.asked] == [25, 25, 4]


def test_what_cannot_be_told_apart_is_kept_in_memory_only(store):
    asked = []

    def search(query, k):
        asked.append((query, k))
        return [Passage("p", "text")]

    for retriever in (CallableRetriever(search), HybridRetriever([CallableRetriever(search), Listed()])):
        asked.clear()
        for _ in range(2):
            replay = ReplayRetriever(retriever, store=store, deepest=10)
            assert not replay.is_known
            replay.search(["a"], 4)
            replay.search(["a"], 4)
        assert len(asked) == 2
    assert store.transact(lambda c: c.exec_driver_sql("SELECT COUNT(*) FROM querywright_entries").scalar()) == 0


def test_a_retriever_whose_passages_cannot_be_had_by_id_is_kept_in_memory_only(store):
    class Fresh(Listed):
        def get(self, ids):
            return [Passage(id, "another text") for id in ids]

    ReplayRetriever(Fresh(), store=store, deepest=10).search(["a"], 4)
    assert store.count("ranking:listed") == 0


def test_a_foreign_retriever_is_searched_for_each_k():
    """What it gives for three need not begin what it gives for five."""

    def search(query, k):
        return [Passage(f"{k}-{n}", "text") for n in range(k)]

    inner = CallableRetriever(search, fingerprint="1")
    replay = ReplayRetriever(inner, store=None, deepest=10)
    for k in (3, 5, 3, 12):
        assert [hit.passage.id for hit in replay.search(["a"], k)[0]] == [f"{k}-{n}" for n in range(k)]


def test_a_hybrid_beyond_its_own_depth_is_searched_for_each_k():
    inner = HybridRetriever([Listed(), Listed(fingerprint="other")], depth=10)
    replay = ReplayRetriever(inner, store=None, deepest=30)
    for k in (2, 10, 11, 30, 11, 5):
        assert found(replay.search(["a", "b"], k)) == found(inner.search(["a", "b"], k))


def test_wrong_input_is_refused_as_it_is_without(home):
    for inner in (Listed(), ChromaRetriever("c", embedder=Embedder(), home=home)):
        replay = ReplayRetriever(inner, store=None, deepest=10)
        for queries, k in (("one text", 3), (["a"], 0)):
            with pytest.raises(InputError):
                replay.search(queries, k)
    for vectors in ([[1.0]], [1.0] * len(WORDS), [[0.0] * len(WORDS)], [[float("nan")] * len(WORDS)]):
        with pytest.raises(InputError):
            replay.search_vectors(vectors, 3)
    with pytest.raises(InputError):
        replay.embed("one text")
    assert replay.search_vectors([], 3) == []


def test_a_retriever_that_forgets_a_query_is_refused():
    class Short(Listed):
        def search(self, queries, k):
            return super().search(queries, k)[:-1]

    with pytest.raises(InputError, match="gave 1 lists for 2 queries"):
        ReplayRetriever(Short(), store=None, deepest=10).search(["a", "b"], 3)


@pytest.mark.parametrize("way", [{}, {"match": "hybrid"}, {"match": "hybrid", "weight": 0.2, "depth": 20},
                                 {"match": "prototypes"}, {"coverage": 1}, {"keep_partial": True}])  # fmt: skip
def test_questions_are_matched_as_they_are(way, home, store):
    embedder = Embedder()
    index = QuestionIndex("c", embedder=embedder, home=home)
    matching = Matching(**way)
    for _ in range(2):  # the second one from the store
        replay = ReplayRetriever(index, store=store, deepest=10)
        for k in (10, 3, 25, 4):
            assert replay.match(QUERIES, k, matching) == index.match(QUERIES, k, matching)
        searched = len(embedder.encoded)
        replay.match(QUERIES[::-1], 2, matching)
        assert len(embedder.encoded) == searched
    with pytest.raises(InputError, match="filled"):
        replay.match(QUERIES, 3, Matching(match="filled"))


def test_it_passes_for_what_it_wraps(home, store):
    for engine in ("dense", "bm25", "hybrid", "questions", "expanded"):
        inner = open_retriever("c", engine=engine, embedder=Embedder(), home=home)
        replay = ReplayRetriever(ReplayRetriever(inner, store=store, deepest=5), store=store, deepest=10)
        assert opened(replay) == opened(inner) != Opened()
        assert searched_by(replay) is replay.inner is inner
        assert (replay.fingerprint, replay.kind, replay.count) == (inner.fingerprint, inner.kind, inner.count)
        assert kind_of(replay) == kind_of(inner)
        assert hasattr(replay, "search_vectors") == isinstance(inner, VectorRetriever)
        assert as_retriever(replay) is replay is copy.deepcopy(replay) is copy.copy(replay)
        assert list(replay.passages()) == list(inner.passages())
        assert replay.get(["p01"]) == inner.get(["p01"])
        assert "p01" in replay
        assert "nowhere" not in replay
        assert not hasattr(replay, "no_such_thing")
        for name, technique in TECHNIQUES.items():
            made = []
            for retriever in (inner, replay):
                try:
                    made.append(type(technique(retriever)))
                except InputError as error:
                    made.append(str(error).replace(f"({type(retriever).__name__})", ""))
            assert made[0] == made[1], name
