from __future__ import annotations

import copy
import re
import subprocess
import sys

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.retrieval.bm25 import BM25Retriever, ExpandedRetriever
from querywright.retrieval.callable import CallableRetriever, as_retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.engines import ENGINES, LEXICAL, open_retriever, opened, with_engine
from querywright.retrieval.generated_questions import COMPLETE
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.types import Retriever, VectorRetriever, kind_of

NORTH, SOUTH, SUN = PASSAGES = [
    Passage("north", "north wind", "", {"degrees": 0}),
    Passage("south", "south wind", "", {"warm": True, "degrees": 180}),
    Passage("sun", "south sun", "", {"warm": True}),
]
KINDS = {
    "dense": ChromaRetriever,
    "bm25": BM25Retriever,
    "hybrid": HybridRetriever,
    "questions": QuestionIndex,
    "expanded": ExpandedRetriever,
}


class Compass:
    """North and south are opposite; nothing else counts."""

    dimension = 4

    def __init__(self, id="compass"):
        self.id = id

    def encode(self, texts, /):
        rows = np.full((len(texts), 4), 0.1, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for place, word in enumerate(("north", "south", "sun")):
                row[place] += len(re.findall(word, text))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def weather(home, build, publish):
    """Opens a retriever over three passages, each with a question."""
    build(home, "weather", PASSAGES, Compass())
    asked = {"north": "is north?", "south": "is south?", "sun": "is south sun?"}
    publish(home, "weather", *((one, [(asked[one.id], COMPLETE)]) for one in PASSAGES), embedder=Compass())
    return lambda engine="dense", **options: open_retriever(
        "weather", engine=engine, home=home, **{"embedder": Compass(), **options}
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_opens_its_retriever_which_tells_of_itself(weather, engine):
    retriever = weather(engine)
    assert type(retriever) is KINDS[engine]
    assert isinstance(retriever, Retriever)
    assert isinstance(retriever, VectorRetriever) == (engine in ("dense", "questions"))
    assert retriever.search(["south sun"], 1)[0][0].passage == SUN
    assert retriever.search([], 3) == []
    assert (retriever.count, list(retriever.passages())) == (3, PASSAGES)
    assert retriever.get(["sun", "north"]) == [SUN, NORTH]
    assert "sun" in retriever
    assert "is south sun?" not in retriever
    assert copy.deepcopy([retriever])[0] is copy.copy(retriever) is retriever
    assert weather(engine).fingerprint == retriever.fingerprint
    told = {weather(one, where=where).fingerprint for one in ENGINES for where in (None, {"warm": True})}
    assert len(told) == 2 * len(ENGINES)
    for ask, said in (
        (
            lambda: retriever.search("sun", 3),
            r"queries must be a list of strings, but got the string 'sun'; pass \[query\]",
        ),
        (lambda: retriever.search(["sun"], 0), "k must be 1 or more, but got 0"),
        (lambda: retriever.get(["sun", "x", "y"]), "not in the collection 'weather': 'x', 'y'"),
    ):
        with pytest.raises(InputError, match=said):
            ask()


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ({"warm": True}, {"south", "sun"}),
        ({"warm": True, "degrees": {"$gt": 90}}, {"south"}),
        ({"$or": [{"degrees": 0}, {"degrees": {"$in": [180, 270]}}]}, {"north", "south"}),
        ({"warm": {"$ne": True}}, {"north"}),
        ({"degrees": 7}, set()),
        ({}, {"north", "south", "sun"}),
    ],
)
def test_a_filter_holds_in_every_engine(weather, where, ids):
    for engine in ENGINES:
        retriever = weather(engine, where=where)
        assert {hit.passage.id for hit in retriever.search(["north south sun wind"], 3)[0]} == ids
        assert not where or retriever.passing(retriever.where) == ids
    scores = {hit.passage.id: hit.score for hit in weather("bm25").search(["south wind"], 3)[0]}
    filtered = weather("bm25", where=where).search(["south wind"], 3)[0]
    assert {hit.passage.id: hit.score for hit in filtered} == {id: scores[id] for id in ids}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_filter_of_another_form_is_refused(weather, engine):
    with pytest.raises(InputError, match="Chroma rejected the search"):
        weather(engine, where={"warm": {"$near": 1}}).search(["wind"], 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_an_embedder_it_is_the_one_that_the_collection_names(weather, engine):
    if engine in LEXICAL:  # which need none
        assert weather(engine, embedder=None).count == weather(engine, embedder=Compass("other")).count == 3
        return
    with pytest.raises(CollectionError, match="the embedder 'compass', but this embedder cannot be loaded by name"):
        weather(engine, embedder=None)
    with pytest.raises(CollectionError, match="was built with the embedder 'compass'"):
        weather(engine, embedder=Compass("other"))


def test_what_is_needed_to_open_a_retriever_again(weather):
    for engine in ENGINES:
        told = {"collection": "weather", "engine": engine, "embedder": None if engine in LEXICAL else "compass"}
        assert opened(weather(engine)) == {**told, "where": None}
        filtered = weather(engine, where={"warm": True, "degrees": {"$gt": 90}})
        assert weather(engine, where=opened(filtered)["where"]).fingerprint == filtered.fingerprint
    dense, lexical, questions = weather(), weather("bm25"), weather("questions")
    own = CallableRetriever(lambda query, k: [])
    for parts in ([lexical, dense], [dense, own], [dense, lexical, lexical], [questions, lexical]):
        assert not any(opened(HybridRetriever(parts)).values())
    for foreign in (own, as_retriever(lambda query, k: []), None):
        assert not any(opened(foreign).values())
    kinds = [kind_of(one) for one in (*map(weather, ENGINES), own, object())]
    assert kinds == ["dense", "lexical", "hybrid", "dense", "lexical", "foreign", "foreign"]


def test_bm25_loads_neither_chroma_nor_a_model(weather, home):
    code = (
        "import sys; from pathlib import Path; from querywright.retrieval.engines import open_retriever; "
        "open_retriever('weather', engine='bm25', home=Path(sys.argv[1])).search(['wind'], 2); "
        "print(sorted({'torch', 'sentence_transformers', 'chromadb', 'dspy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home)], capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_open_collection_is_searched_with_another_engine_after_a_rebuild(weather, build, home, engine):
    held, expected = weather(where={"warm": True}), weather(engine, where={"warm": True})
    build(home, "weather", [Passage("sun", "moon", "", {"warm": True})], Compass(), prune=True)
    assert held.is_rebuilt
    assert with_engine(held, "dense") is held
    found = with_engine(held, engine)
    assert (type(found), found.fingerprint) == (KINDS[engine], expected.fingerprint)
    assert [[hit.passage for hit in hits] for hits in found.search(["south sun", "north"], 3)] == [
        [hit.passage for hit in hits] for hits in expected.search(["south sun", "north"], 3)
    ]
    assert with_engine(found, engine) is found
    if engine not in LEXICAL:
        other = open_retriever(found, engine="bm25")
        assert (type(other), other.fingerprint) == (BM25Retriever, with_engine(held, "bm25").fingerprint)
    with pytest.raises(InputError, match="where= works only with a collection's name"):
        open_retriever(held, engine=engine, where={"warm": False})


def test_a_retriever_that_is_no_open_collection_is_kept_for_every_engine(weather):
    own, lexical = CallableRetriever(lambda query, k: []), weather("bm25")
    several = HybridRetriever([weather(), own])
    weighted = HybridRetriever([weather(), lexical], weights=[2, 1])
    for one in (own, lexical, several):
        assert {with_engine(one, engine) for engine in ENGINES} == {one}
        with pytest.raises(InputError, match=f"collection must be .* but got {type(one).__name__}"):
            open_retriever(one, engine="bm25")
    assert with_engine(weighted, "hybrid") is weighted
    assert with_engine(weighted, "bm25").fingerprint == lexical.fingerprint
    assert with_engine(weather("questions"), "bm25").fingerprint == lexical.fingerprint
