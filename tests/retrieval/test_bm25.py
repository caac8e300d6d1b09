"""Search by words: scores against the formula, the index in the store, and passages with their questions appended."""

from __future__ import annotations

import io
import math
import os
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.models.store import open_store
from querywright.retrieval import bm25
from querywright.retrieval.bm25 import BM25Retriever, ExpandedRetriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.generated_questions import COMPLETE, NONE, PARTIAL, questions_folder
from querywright.retrieval.words import query_terms, terms

THREE = [
    Passage("a", "Salt, salt water"),
    Passage("b", "water cuff"),
    Passage("c", "cuff CUFF cuff", "Arm", {"source": "nih"}),
]
DRAW = random.Random(5)
WORDS = [f"w{number}" for number in range(60)]
RANDOM = [
    Passage(
        f"p{number:03}",
        " ".join(DRAW.choices(WORDS, weights=range(1, 61), k=DRAW.randint(1, 40))),
        DRAW.choice(["", "title w3"]),
    )
    for number in range(300)
]


@pytest.fixture
def three(home, build):
    build(home, "three", THREE)
    return home


def exact(query, k1, b):
    """BM25 by its formula, passage by passage."""
    rows = [terms(passage.content) for passage in RANDOM]
    mean = sum(map(len, rows)) / len(rows)
    held = {word: sum(word in row for row in rows) for word in set(query_terms(query))}
    scores = {}
    for passage, row in zip(RANDOM, rows, strict=True):
        often = [
            (math.log(1 + (len(rows) - held[w] + 0.5) / (held[w] + 0.5)), row.count(w)) for w in query_terms(query)
        ]
        scores[passage.id] = sum(idf * n / (n + k1 * (1 - b + b * len(row) / mean)) for idf, n in often)
    return {id: score for id, score in scores.items() if score > 0}


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 1.0)])
def test_random_lists_equal_the_formula(home, build, k1, b):
    build(home, "random", RANDOM)
    retriever, chosen = BM25Retriever("random", home=home, k1=k1, b=b), random.Random(7)
    for length in range(1, 13):
        query = " ".join(chosen.choices([*WORDS, "unknown", "title"], k=length))
        scores = exact(query, k1, b)
        (hits,) = retriever.search([query], 300)
        assert {hit.passage.id: hit.score for hit in hits} == pytest.approx(scores, rel=1e-5)
        assert [(-hit.score, hit.passage.id) for hit in hits] == sorted((-hit.score, hit.passage.id) for hit in hits)
        for k in (1, 5, len(hits)):
            assert retriever.search([query], k)[0] == hits[:k]


def test_a_collection_without_any_word(home, build):
    build(home, "marks", [Passage("a", "!!!"), Passage("b", "...")])
    for _ in range(2):  # built, then from the store
        assert BM25Retriever("marks", home=home).search(["!!!", "a"], 2) == [[], []]


def test_a_fingerprint_is_of_settings_and_passages_and_those_of_another_are_shared(three, build, hashed):
    build(three, "other", RANDOM)
    found = [BM25Retriever("three", home=three, **one).fingerprint for one in ({}, {"k1": 1.2}, {"b": 0.5})]
    dense = ChromaRetriever("three", embedder=hashed(), home=three)
    assert len({*found, dense.fingerprint, BM25Retriever("other", home=three).fingerprint}) == 5
    beside = BM25Retriever("three", home=three, beside=dense)
    assert beside.fingerprint == found[0]
    assert beside.get(["a"])[0] is dense.get(["a"])[0]
    assert pickle.loads(pickle.dumps(beside)).search(["cuff"], 3) == beside.search(["cuff"], 3)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda r, home: BM25Retriever("three", home=home, k1=-1), "k1 must be 0 or more"),
        (lambda r, home: BM25Retriever("three", home=home, b=1.1), "b must be from 0 to 1"),
    ],
)
def test_bad_requests(three, ask, message):
    retriever = BM25Retriever("three", home=three)
    assert retriever.search([], 3) == []
    with pytest.raises(InputError, match=message):
        ask(retriever, three)


@pytest.fixture
def builds(monkeypatch):
    """How many passages each build had."""
    counted, built = [], bm25._built

    def counting(passages, *rest):
        passages = list(passages)
        counted.append(len(passages))
        return built(passages, *rest)

    monkeypatch.setattr(bm25, "_built", counting)
    return counted


def test_it_is_built_once_for_the_same_passages(three, build, builds):
    old, again = (BM25Retriever("three", home=three) for _ in range(2))
    assert builds == [3]
    assert old.search(["salt", "cuff"], 3) == again.search(["salt", "cuff"], 3)
    build(three, "three", [Passage("d", "arm arm")])
    new = BM25Retriever("three", home=three)
    assert builds == [3, 4]
    assert [hit.passage.id for hit in old.search(["arm"], 3)[0]] == ["c"]
    assert [hit.passage.id for hit in new.search(["arm"], 3)[0]] == ["d", "c"]
    assert open_store(three).count("bm25") == 1


class Payload:
    def __reduce__(self):
        return os.mkdir, (os.environ["QUERYWRIGHT_HOME"] + "/owned",)


def pickled():
    file = io.BytesIO()
    np.savez(file, words=np.array([Payload()], dtype=object))
    return file.getvalue()


@pytest.mark.parametrize("value", [b"", b"no archive", pickled], ids=["empty", "other", "pickle"])
def test_an_index_that_is_none_is_built_again_and_nothing_is_unpickled(three, builds, value, working_folder):
    """Also where someone who knows the store's checksums put it there."""
    expected = BM25Retriever("three", home=three).search(["water cuff"], 3)
    store = open_store(three)
    (key,) = store.transact(lambda c: list(c.exec_driver_sql("SELECT key FROM querywright_entries WHERE kind='bm25'")))
    store.delete_many("bm25", list(key))
    store.put("bm25", key[0], value() if callable(value) else value)
    for _ in range(2):
        assert BM25Retriever("three", home=three).search(["water cuff"], 3) == expected
    assert builds == [3, 3]
    assert not (working_folder / "owned").exists()


# With questions appended.

TEA = Passage("tea", "Tannins bind iron in the gut.", "Tea", {"source": "nih"})
FOODS = [TEA, Passage("salt", "Sodium raises blood pressure."), Passage("milk", "Calcium hinders iron; calcium too.")]
ASKED = [
    ("Why avoid a cuppa with dinner?", COMPLETE),
    ("Does coffee do it as well?", PARTIAL),
    ("Who discovered radium?", NONE),
    ("Is zebra edible?", ""),
]


@pytest.fixture
def foods(home, build, publish):
    build(home, "foods", FOODS)
    publish(home, "foods", (TEA, ASKED), (FOODS[1], []))
    return home


def expanded(home, query):
    return [hit.passage for hit in ExpandedRetriever("foods", home=home).search([query], 5)[0]]


def test_a_passage_is_found_by_the_words_of_its_complete_questions_and_given_as_it_is(foods):
    assert BM25Retriever("foods", home=foods).search(["a cuppa"], 5) == [[]]
    assert expanded(foods, "cuppa") == [TEA]
    assert expanded(foods, "radium zebra coffee") == []  # of the other labels
    (questions_folder("foods", foods) / "records.jsonl").unlink()
    assert expanded(foods, "cuppa") == [TEA]  # what is published counts


def test_scores_are_those_of_bm25_over_the_texts_with_their_questions(foods, home, build):
    appended = [replace(TEA, text=f"{TEA.text}\n{ASKED[0][0]}"), *FOODS[1:]]
    build(home, "appended", appended)
    queries = ["iron", "calcium", "dinner in the gut"]
    found, same = ExpandedRetriever("foods", home=foods), BM25Retriever("appended", home=home)
    assert [[(hit.passage.id, hit.score) for hit in hits] for hits in found.search(queries, 5)] == [
        [(hit.passage.id, hit.score) for hit in hits] for hits in same.search(queries, 5)
    ]


def test_the_fingerprint_changes_with_the_texts_of_questions_and_with_nothing_else(foods, publish):
    one = ExpandedRetriever("foods", home=foods).fingerprint
    assert BM25Retriever("foods", home=foods).fingerprint != one
    publish(foods, "foods", (TEA, [(*ASKED[0], "another reason"), *ASKED[1:]]))
    assert ExpandedRetriever("foods", home=foods).fingerprint == one
    publish(foods, "foods", (TEA, ASKED[1:]))
    assert ExpandedRetriever("foods", home=foods).fingerprint != one
