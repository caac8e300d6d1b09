"""The question index over a real collection, with vectors that can be worked out by hand."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval.chroma_index import ChromaIndex
from querywright.retrieval.generated_questions import (
    COMPLETE,
    NONE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    question_id,
    questions_folder,
)
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_index import QuestionIndex
from querywright.retrieval.question_match import Matching
from querywright.retrieval.types import Retriever, VectorRetriever, kind_of

ANGLES = {
    "ask 0": 0, "bread 10": 10, "bread 12": 12, "meals 14": 14, "boots 20": 20, "shoes 25": 25, "green 30": 30,
    "arm 45": 45, "arm? 2": 2, "none 1": 1,
    "about salt": 80, "about feet": 60, "about tea": 5, "about cuff": 90, "about rest": 40,
}  # fmt: skip
"""Degrees of the texts' vectors: the query is at 0, so a similarity is the cosine of these."""
PASSAGES = [
    Passage("salt", "about salt", "", {"date": "2020"}),
    Passage("feet", "about feet", "", {"warm": True}),
    Passage("tea", "about tea"),
    Passage("cuff", "about cuff"),
    Passage("rest", "about rest"),
]
WRITTEN = {
    "salt": [("bread 10", COMPLETE), ("bread 12", COMPLETE), ("meals 14", COMPLETE)],
    "feet": [("boots 20", COMPLETE), ("shoes 25", COMPLETE)],
    "tea": [("green 30", COMPLETE), ("none 1", NONE)],
    "cuff": [("arm 45", COMPLETE), ("arm? 2", PARTIAL)],
}


class AngleModel:
    """Knows each text's angle."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        self.batches.append(list(texts))
        turned = np.deg2rad([ANGLES.get(text, 0) for text in texts])
        return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)


def embedder(home: Path, id: str = "angle:2", model: AngleModel | None = None) -> Embedder:
    return Embedder(id, lambda: model or AngleModel(), dimension=2, store=open_store(home))


def publish(home: Path, name: str, written: Mapping[str, Sequence[tuple[str, str]]], *passages: Passage) -> None:
    """Publishes passages and the questions written for them."""
    digests = {passage.id: passage.text_digest() for passage in passages or PASSAGES}
    build_collection(name, passages or PASSAGES, embedder=embedder(home), home=home)
    records = [
        PassageRecord(id, digests[id], "s", tuple(WrittenQuestion(*pair) for pair in pairs))
        for id, pairs in written.items()
    ]
    publish_questions(name, records, embedder=embedder(home), home=home)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    publish(home, "body", WRITTEN)
    yield home
    open_store(home).close()


@pytest.fixture
def index(home: Path) -> QuestionIndex:
    return QuestionIndex("body", embedder=embedder(home), home=home)


def cosine(*degrees: float) -> object:
    return pytest.approx(np.cos(np.deg2rad(degrees)).tolist(), abs=1e-5)


def found(index: QuestionIndex, k: int = 5, **matching: object) -> list[str]:
    return [one.hit.passage.id for one in index.match(["ask 0"], k, Matching(**matching))[0]]  # type: ignore[arg-type]


def test_the_nearest_questions_lead_to_their_passages(index: QuestionIndex) -> None:
    (hits,) = index.search(["ask 0"], 3)
    assert [hit.passage.id for hit in hits] == ["salt", "feet", "tea"]
    assert [hit.score for hit in hits] == cosine(10, 20, 30)
    assert [hit.rank for hit in hits] == [1, 2, 3]
    assert hits[0].passage == PASSAGES[0]
    (matched,) = index.match(["ask 0"], 3)
    assert [one.hit for one in matched] == hits
    assert [one.question for one in matched] == ["bread 10", "boots 20", "green 30"]


def test_a_passage_without_a_question_is_not_reached_however_many_are_asked_for(index: QuestionIndex) -> None:
    assert found(index, 50) == ["salt", "feet", "tea", "cuff"]


def test_a_hybrid_weighs_questions_and_passages(index: QuestionIndex) -> None:
    # Half the cosine of the question, half that of the passage, the least question (cuff's, 45) for rest:
    # tea 30 and 5: .931; rest 45 and 40: .737; feet 20 and 60: .720; salt 10 and 80: .579; cuff 45 and 90: .354.
    (matched,) = index.match(["ask 0"], 5, Matching("hybrid"))
    assert [one.hit.passage.id for one in matched] == ["tea", "rest", "feet", "salt", "cuff"]
    assert [one.hit.score for one in matched] == pytest.approx([0.9311, 0.7366, 0.7198, 0.5792, 0.3536], abs=1e-4)
    assert [one.question for one in matched] == ["green 30", "", "boots 20", "bread 10", "arm 45"]
    assert found(index, match="hybrid", weight=1) == [hit.passage.id for hit in index.plain.search(["ask 0"], 5)[0]]
    assert found(index, match="hybrid", weight=0) == found(index)
    assert found(index, 2, match="hybrid", depth=2) == found(index, 2, match="hybrid", depth=1)
    assert len(found(index, 5, match="hybrid", depth=1)) == 5  # as many as are wanted, however small the depth


def test_filled_matching_follows_every_known_answer(home: Path) -> None:
    answers = {question_id("salt", "bread 12"): ["rest", "gone", "rest"], question_id("cuff", "arm? 2"): ["feet"]}
    index = QuestionIndex("body", embedder=embedder(home), home=home, answers=answers)
    assert index.matches == ("nearest", "hybrid", "filled", "prototypes")
    assert found(index, match="filled") == ["salt", "rest", "feet", "tea", "cuff"]
    assert found(index, match="filled", keep_partial=True) == ["feet", "cuff", "salt", "rest", "tea"]
    assert found(index) == ["salt", "feet", "tea", "cuff"]


def test_prototypes_are_of_all_questions_and_give_what_their_cells_hold(index: QuestionIndex) -> None:
    # Nine questions in three cells, of which the query's own holds the angles up to 20 and so salt and feet.
    (near,) = index.match(["ask 0"], 2, Matching("prototypes"))
    assert [(one.hit.passage.id, one.question) for one in near] == [("salt", "bread 10"), ("feet", "boots 20")]
    assert [one.hit.score for one in near] == cosine(10, 20)
    assert found(index, match="prototypes") == found(index)  # as many cells as it takes
    whole = found(index, match="prototypes", keep_partial=True)
    assert sorted(whole) == ["cuff", "feet", "salt", "tea"]
    assert [found(index, k, match="prototypes", keep_partial=True) for k in (1, 2, 3)] == [
        whole[:1],
        whole[:2],
        whole[:3],
    ]


def test_equal_scores_are_in_the_order_of_date_number_and_id(tmp_path: Path) -> None:
    same = [("bread 10", COMPLETE)]
    dated = [
        Passage("a", "about tea"), Passage("b", "about tea"), Passage("c", "about tea"),
        Passage("d", "about tea", "", {"date": "2021-03"}), Passage("e", "about tea", "", {"date": "2021-02-28"}),
    ]  # fmt: skip
    written = {"a": same, "b": [*same, ("arm 45", COMPLETE)], "c": same, "d": same, "e": same}
    publish(tmp_path, "same", written, *dated)
    index = QuestionIndex("same", embedder=embedder(tmp_path), home=tmp_path)
    for k in range(1, 6):
        assert found(index, k) == ["d", "e", "b", "a", "c"][:k]
    open_store(tmp_path).close()


def test_the_walk_goes_deeper_until_there_are_k_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passage ``near`` has 30 questions that are nearer to the query than any other."""
    crowd = {f"crowd {n}": n / 4 for n in range(30)}
    monkeypatch.setitem(globals(), "ANGLES", {**ANGLES, **crowd})
    written = {"near": [(text, COMPLETE) for text in crowd], "feet": WRITTEN["feet"], "tea": WRITTEN["tea"]}
    publish(tmp_path, "crowd", written, Passage("near", "about rest"), *PASSAGES[1:3])
    index = QuestionIndex("crowd", embedder=embedder(tmp_path), home=tmp_path)
    depths: list[tuple[int, int]] = []
    query = ChromaIndex.query

    def counted(self: ChromaIndex, vectors: Vectors, k: int, where: object = None) -> object:
        depths.append((len(vectors), k))
        return query(self, vectors, k)

    monkeypatch.setattr(ChromaIndex, "query", counted)
    assert [hit.passage.id for hit in index.search(["ask 0"], 2)[0]] == ["near", "feet"]
    assert depths == [(1, 16), (1, 32)]
    depths.clear()
    # Two queries are one search a round; what is settled is not searched again.
    lists = index.search(["ask 0", "arm 45"], 2)
    assert [[hit.passage.id for hit in hits] for hits in lists] == [["near", "feet"], ["tea", "feet"]]
    assert depths == [(2, 16), (1, 32)]
    open_store(tmp_path).close()


def test_stale_questions_lead_nowhere_and_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    publish(tmp_path, "body", WRITTEN)
    before = QuestionIndex("body", embedder=embedder(tmp_path), home=tmp_path)
    changed = replace(PASSAGES[0], title="Salt")
    build_collection("body", [changed, *PASSAGES[2:]], embedder=embedder(tmp_path), home=tmp_path, prune=True)
    with caplog.at_level(logging.WARNING):
        index = QuestionIndex("body", embedder=embedder(tmp_path), home=tmp_path)
    assert index.stale == 5  # three of salt, which has a title now, two of feet, which is gone
    assert "5 of 8 questions of the collection 'body'" in caplog.text
    assert "querywright questions build body" in caplog.text
    assert found(index) == ["tea", "cuff"]
    assert (before.stale, found(before)) == (0, ["salt", "feet", "tea", "cuff"])
    assert index.fingerprint != before.fingerprint
    open_store(tmp_path).close()


def test_a_filter_is_one_over_passages(home: Path) -> None:
    index = QuestionIndex("body", embedder=embedder(home), home=home, where={"warm": True})
    assert found(index) == found(index, match="hybrid") == ["feet"]
    assert index.count == 5


def test_no_questions_and_questions_of_another_embedder(tmp_path: Path) -> None:
    build_collection("body", PASSAGES, embedder=embedder(tmp_path), home=tmp_path)
    with pytest.raises(CollectionError, match="no questions for the collection 'body'; write some: querywright quest"):
        QuestionIndex("body", embedder=embedder(tmp_path), home=tmp_path)
    publish(tmp_path, "body", WRITTEN)
    other = embedder(tmp_path, "other:2")
    build_collection("body", PASSAGES, embedder=other, home=tmp_path)
    with pytest.raises(
        CollectionError, match=r"built with the embedder 'angle:2'.*given is 'other:2'.*questions build body"
    ):
        QuestionIndex("body", embedder=other, home=tmp_path)
    with pytest.raises(CollectionError, match="was built with the embedder 'other:2'"):
        QuestionIndex("body", embedder=embedder(tmp_path), home=tmp_path)
    open_store(tmp_path).close()


@pytest.mark.parametrize("damaged", ["manifest.json", "generation-1/passages.jsonl"])
def test_damaged_questions_are_told_with_the_remedy(tmp_path: Path, damaged: str) -> None:
    publish(tmp_path, "body", WRITTEN)
    (questions_folder("body", tmp_path) / damaged).write_text("{")
    with pytest.raises(CollectionError) as caught:
        QuestionIndex("body", embedder=embedder(tmp_path), home=tmp_path)
    assert "querywright questions build body" in str(caught.value)
    assert "querywright index" not in str(caught.value)
    open_store(tmp_path).close()


def test_it_is_a_dense_retriever_of_passages(index: QuestionIndex) -> None:
    assert isinstance(index, Retriever)
    assert isinstance(index, VectorRetriever)
    assert kind_of(index) == "dense"
    assert (index.name, index.count, len(list(index.passages()))) == ("body", 5, 5)
    assert index.get(["tea"]) == [PASSAGES[2]]
    assert "tea" in index
    assert question_id("tea", "green 30") not in index
    assert copy.deepcopy(index) is index
    assert index.search_vectors(index.embed(["ask 0", "arm 45"]), 2) == index.search(["ask 0", "arm 45"], 2)
    assert index.search([], 2) == index.search_vectors(np.empty((0, 2)), 2) == []
    with pytest.raises(InputError, match="k must be 1 or more"):
        index.search(["ask 0"], 0)
    with pytest.raises(InputError, match="a list of queries"):
        index.search("ask 0", 1)
    with pytest.raises(InputError, match="shape"):
        index.search_vectors([[1.0, 2.0, 3.0]], 1)
