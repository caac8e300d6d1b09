"""The question index over a real collection, with vectors that can be worked out by hand."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.usage import metered
from querywright.retrieval.chroma_index import ChromaIndex
from querywright.retrieval.generated_questions import (
    COMPLETE,
    NONE,
    PARTIAL,
    AnswerPair,
    question_id,
    questions_folder,
    write_pairs,
)
from querywright.retrieval.question_index import (
    Answers,
    Matching,
    QuestionIndex,
    time_of,
    walk,
)

ANGLES = {
    "ask 0": 0, "bread 10": 10, "bread 12": 12, "meals 14": 14, "boots 20": 20, "shoes 25": 25, "green 30": 30,
    "arm 45": 45, "arm? 2": 2, "none 1": 1,
    "about salt": 80, "about feet": 60, "about tea": 5, "about cuff": 90, "about rest": 40,
}  # fmt: skip
"""Degrees of the texts' vectors: the query is at 0, so a similarity is the cosine of these."""
SALT, FEET, TEA, CUFF, REST = PASSAGES = [
    Passage("salt", "about salt", "", {"date": "2020"}),
    Passage("feet", "about feet", "", {"warm": True}),
    Passage("tea", "about tea"),
    Passage("cuff", "about cuff"),
    Passage("rest", "about rest"),
]
WRITTEN = [
    (SALT, [("bread 10", COMPLETE), ("bread 12", COMPLETE), ("meals 14", COMPLETE)]),
    (FEET, [("boots 20", COMPLETE), ("shoes 25", COMPLETE)]),
    (TEA, [("green 30", COMPLETE), ("none 1", NONE)]),
    (CUFF, [("arm 45", COMPLETE), ("arm? 2", PARTIAL)]),
]


class Angles:
    """Knows each text's angle."""

    dimension = 2

    def __init__(self, id="angles"):
        self.id = id

    def encode(self, texts, /):
        turned = np.deg2rad([ANGLES.get(text, 0) for text in texts])
        return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)


@pytest.fixture
def body(home, build, publish):
    """Publishes passages and the questions written for them, and opens both."""

    def make(written=WRITTEN, passages=PASSAGES, answers=None):
        build(home, "body", passages, Angles(), prune=True)
        publish(home, "body", *written, embedder=Angles())
        if answers is not None:
            digests = {one.id: one.text_digest() for one in passages}
            write_pairs(
                questions_folder("body", home), [AnswerPair(*pair, digests[pair[1]], 1, True) for pair in answers]
            )
        return QuestionIndex("body", embedder=Angles(), home=home)

    return make


def cosine(*degrees):
    return pytest.approx(np.cos(np.deg2rad(degrees)).tolist(), abs=1e-5)


def found(index, k=5, **matching):
    return [one.passage.id for one in index.match(["ask 0"], k, Matching(**matching))[0]]


def test_the_nearest_questions_lead_to_their_passages(body):
    index = body()
    (hits,) = index.search(["ask 0"], 3)
    assert [(hit.passage, hit.rank) for hit in hits] == [(SALT, 1), (FEET, 2), (TEA, 3)]
    assert [hit.score for hit in hits] == cosine(10, 20, 30)
    assert [hit.question for hit in hits] == ["bread 10", "boots 20", "green 30"]
    assert index.match(["ask 0"], 3) == [hits]
    assert found(index, 50) == ["salt", "feet", "tea", "cuff"]  # rest has no question
    assert found(index, keep_partial=True) == ["cuff", "salt", "feet", "tea"]
    assert len(found(index, coverage=0.4)) <= 2  # two questions take part


def test_a_hybrid_weighs_questions_and_passages(body):
    # Half the cosine of the question, half that of the passage, the least question (cuff's, 45) for rest:
    # tea 30 and 5: .931; rest 45 and 40: .737; feet 20 and 60: .720; salt 10 and 80: .579; cuff 45 and 90: .354.
    index = body()
    (matched,) = index.match(["ask 0"], 5, Matching("hybrid"))
    assert [one.passage.id for one in matched] == ["tea", "rest", "feet", "salt", "cuff"]
    assert [one.score for one in matched] == pytest.approx([0.9311, 0.7366, 0.7198, 0.5792, 0.3536], abs=1e-4)
    assert [one.question for one in matched] == ["green 30", "", "boots 20", "bread 10", "arm 45"]
    assert found(index, match="hybrid", weight=1) == [hit.passage.id for hit in index.plain.search(["ask 0"], 5)[0]]
    assert found(index, match="hybrid", weight=0) == found(index)
    assert len(found(index, 5, match="hybrid", depth=1)) == 5  # as many as are wanted, however small the depth


def test_filled_matching_follows_every_known_answer(body):
    with pytest.raises(InputError, match="no answers are stored; run querywright questions fill body, or"):
        found(body(), match="filled")
    with pytest.raises(InputError, match="all stored answers are outdated"):
        found(body(answers=[]), match="filled")
    before = body().fingerprint
    index = body(answers=[(question_id("salt", "bread 12"), "rest"), (question_id("cuff", "arm? 2"), "feet")])
    assert index.matches == ("nearest", "hybrid", "filled", "prototypes")
    assert found(index, match="filled") == ["salt", "rest", "feet", "tea", "cuff"]
    assert found(index, match="filled", keep_partial=True) == ["feet", "cuff", "salt", "rest", "tea"]
    assert found(index) == ["salt", "feet", "tea", "cuff"]
    assert index.fingerprint != before


@pytest.mark.parametrize("match", ["nearest", "prototypes", "hybrid"])
def test_a_search_is_recorded_for_the_collection_and_not_for_its_questions(body, match):
    index = body()
    with metered() as ledger:
        found(index, match=match)
    assert index in ledger.searched
    assert {one.name for one in ledger.searched} == {"body"}


def test_prototypes_are_of_all_questions_and_give_what_their_cells_hold(body):
    # Nine questions in three cells, of which the query's own holds the angles up to 20 and so salt and feet.
    index = body()
    (near,) = index.match(["ask 0"], 2, Matching("prototypes"))
    assert [(one.passage.id, one.question) for one in near] == [("salt", "bread 10"), ("feet", "boots 20")]
    assert [one.score for one in near] == cosine(10, 20)
    assert found(index, match="prototypes") == found(index)  # as many cells as it takes


def test_the_walk_goes_deeper_until_there_are_k_passages(body, monkeypatch):
    """One passage has 30 questions that are nearer to the query than any other."""
    crowd = {f"crowd {n}": n / 4 for n in range(30)}
    monkeypatch.setitem(globals(), "ANGLES", {**ANGLES, **crowd})
    index = body([(REST, [(text, COMPLETE) for text in crowd]), WRITTEN[1], WRITTEN[2]], [REST, FEET, TEA])
    depths, query = [], ChromaIndex.query
    monkeypatch.setattr(ChromaIndex, "query", lambda *given: depths.append((len(given[1]), given[2])) or query(*given))
    # Two queries are one search a round; what is settled is not searched again.
    lists = index.search(["ask 0", "arm 45"], 2)
    assert [[hit.passage.id for hit in hits] for hits in lists] == [["rest", "feet"], ["tea", "feet"]]
    assert depths == [(2, 16), (1, 32)]


def test_stale_questions_lead_nowhere_and_are_told(body, build, home, caplog):
    before = body()
    build(home, "body", [replace(SALT, title="Salt"), *PASSAGES[2:]], Angles(), prune=True)
    with caplog.at_level(logging.WARNING):
        index = QuestionIndex("body", embedder=Angles(), home=home)
    assert "5 of 8 questions for the collection 'body'" in caplog.text  # salt has a title now, feet is gone
    assert "querywright questions build body" in caplog.text
    assert (found(index), found(before)) == (["tea", "cuff"], ["salt", "feet", "tea", "cuff"])
    assert index.fingerprint != before.fingerprint


def test_no_questions_and_questions_of_another_embedder(home, build, body):
    build(home, "body", PASSAGES, Angles())
    with pytest.raises(
        CollectionError, match=r"no collection 'body-questions' .*build the collection with querywright quest"
    ):
        QuestionIndex("body", embedder=Angles(), home=home)
    body()
    other = Angles("other")
    build(home, "body", PASSAGES, other)
    with pytest.raises(
        CollectionError, match=r"built with the embedder 'angles', but got 'other'.*questions build body"
    ):
        QuestionIndex("body", embedder=other, home=home)


def test_it_is_searched_by_vector_as_by_text(body):
    index = body()
    assert index.search_vectors(index.embed(["ask 0", "arm 45"]), 2) == index.search(["ask 0", "arm 45"], 2)
    assert index.search_vectors(np.empty((0, 2)), 2) == []
    with pytest.raises(InputError):
        index.search_vectors([[1.0]], 1)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("unknown", "1066-10-14"),
        ("2020", " 2020-02 "),
        ("2020-02-02T10:00+02:00", "2020-02-02T09:00"),
        (999999999, 1000000000.5),
        (math.nan, -1),
    ],
)
def test_dates_are_in_order(older, newer):
    level = [("q3", 0.5), ("q4", 0.5)]
    for dates in ({"feet": older, "tea": newer}, {"tea": older, "feet": newer}):
        answers = Answers({"q3": ["feet"], "q4": ["tea"]}, {passage: time_of(date) for passage, date in dates.items()})
        assert walk(level, answers)[0].passage == list(dates)[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"match": "furthest"}, "match must be one of nearest, hybrid, filled, prototypes, but got 'furthest'"),
        ({"coverage": math.nan}, "coverage must be 0 or more, but got nan"),
        ({"weight": 1.5}, "weight must be from 0 to 1, but got 1.5"),
        ({"depth": 0}, "depth must be 1 or more, but got 0"),
    ],
)
def test_a_matching_that_is_none_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        Matching(**values)


def test_questions_are_embedded_as_the_queries_that_they_are_compared_with(home, build, publish, hashed):
    class TwoSided(hashed):
        def encode_query(self, texts, /):
            return self.encode([f"query: {text}" for text in texts])

    two = TwoSided(id="two")
    build(home, "sides", PASSAGES, two)
    publish(home, "sides", *WRITTEN, embedder=two)
    index = QuestionIndex("sides", embedder=two, home=home)
    asked = ["shoes 25", "boots 20"]
    for matching in (Matching(), Matching("prototypes"), Matching("hybrid", weight=0)):
        best = [found[0] for found in index.match(asked, 5, matching)]
        assert [(hit.passage, hit.score > 0.9999) for hit in best] == [(FEET, True)] * 2, matching
    np.testing.assert_array_equal(index.embed(asked), two.encode_query(asked))
    np.testing.assert_array_equal(index.embed_documents(asked), two.encode(asked))
    (found,) = index.plain.search_vectors(index.embed_documents([CUFF.content]), 1)
    assert (found[0].passage, found[0].score > 0.9999) == (CUFF, True)
