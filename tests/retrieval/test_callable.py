from __future__ import annotations

import pickle
from types import SimpleNamespace
from uuid import uuid4

import dspy
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.retrieval.callable import CallableRetriever, as_retriever
from querywright.retrieval.types import Hit, Retriever


def test_a_function_of_query_and_k():
    asked = []

    def search(query, k):
        asked.append((query, k))
        return [Passage(f"{query}{number}", f"text {number}") for number in range(k + 3)]

    retriever = as_retriever(search)
    assert isinstance(retriever, Retriever)
    first, second = retriever.search(["a", "b"], 2)
    assert asked == [("a", 2), ("b", 2)]
    assert [hit.passage.id for hit in first] == ["a0", "a1"]
    assert [(hit.score, hit.rank) for hit in second] == [(1.0, 1), (0.5, 2)]


def test_what_a_function_may_give():
    given = [
        "x",
        "x",
        {"id": 7, "text": "y", "title": "T", "metadata": {"n": 1, "tags": []}},
        ({"text": "z", "id": "z"}, 0.4),
    ]
    first, second, third = as_retriever(lambda query: given).search(["q"], 5)[0]
    assert first.passage == as_retriever(lambda query: ["x"]).search(["other"], 1)[0][0].passage
    assert second.passage == Passage("7", "y", "T", {"n": 1})
    assert third == Hit(Passage("z", "z"), 1 / 3, 3)  # one score is missing, so none counts
    (blank,) = as_retriever(lambda query: [SimpleNamespace(text="", content="abc")]).search(["q"], 5)[0]
    assert blank.passage.text == "abc"
    scored = as_retriever(lambda query: [("x", 3), {"text": "y", "score": 2.5}]).search(["q"], 5)[0]
    assert [hit.score for hit in scored] == [3.0, 2.5]


class LangChainRetriever:
    """Has what langchain_core's BaseRetriever has."""

    def __init__(self):
        self.asked = []

    def invoke(self, query, config=None, **options):
        self.asked.append((query, options))
        return [
            SimpleNamespace(page_content="first", metadata={"source": "s", "tags": ["x"]}, id="d1"),
            SimpleNamespace(page_content="second", metadata={}, id=None),
        ]


def test_langchain():
    retriever = LangChainRetriever()
    hits = as_retriever(retriever).search(["q"], 5)[0]
    assert hits[0].passage == Passage("d1", "first", "", {"source": "s"})
    assert hits[1].passage.id.startswith("text:")
    retriever.search_kwargs = {"k": 4}  # over a vector store, which is told k
    assert len(as_retriever(retriever).search(["q"], 1)[0]) == 1
    assert retriever.asked == [("q", {}), ("q", {"k": 1})]


@pytest.mark.parametrize("key", ["id", "doc_id", "_id", "chunk_id"])
def test_an_id_in_the_metadata_is_the_id_of_a_passage_that_has_none(key):
    for item in (
        SimpleNamespace(page_content="first", metadata={key: 7}, id=None),
        SimpleNamespace(content="first", meta={key: 7}, id=""),  # a document of Haystack
        {"text": "first", "metadata": {key: "7"}},
        {"text": "first", key: 7},
    ):
        (hit,) = as_retriever(lambda query, item=item: [item]).search(["q"], 5)[0]
        assert hit.passage.id == "7"


def test_chunks_with_the_id_of_their_document_all_stay():
    chunks = [{"text": text, "metadata": {"doc_id": "d"}} for text in ("one", "two", "one")]
    first, second = as_retriever(lambda query: chunks).search(["q"], 5)[0]
    assert (first.passage.id, first.passage.text) == ("d", "one")
    assert (second.passage.id.partition("#")[0], second.passage.text) == ("d", "two")


@pytest.mark.parametrize(("metadata", "id"), [({"id": "tyre"}, "tyre"), ({}, "text:")])
def test_a_uuid_that_is_new_at_each_call_is_no_id(metadata, id):
    asked = []

    def search(query):
        asked.append(query)
        return [{"id": uuid4(), "text": "about tyres", "metadata": metadata}]

    retriever = as_retriever(search)
    found = [retriever.search([query], 5)[0][0].passage.id for query in "abc"]
    assert len({*found}) == 1
    assert found[0].startswith(id)
    assert asked == ["a", "a", "b", "c"]  # once more, the first time


def test_a_uuid_that_stays_is_an_id():
    own = str(uuid4())
    retriever = as_retriever(lambda query: [{"id": own, "text": "about tyres", "metadata": {"id": "tyre"}}])
    assert retriever.search(["a"], 5)[0][0].passage.id == own


class LlamaIndexRetriever:
    def retrieve(self, query):
        node = SimpleNamespace(node_id="n1", metadata={"page": 3}, get_content=lambda: "node text")
        return [SimpleNamespace(node=node, score=0.7)]


def test_llamaindex():
    (hit,) = as_retriever(LlamaIndexRetriever()).search(["q"], 5)[0]
    assert hit == Hit(Passage("n1", "node text", "", {"page": 3}), 0.7, 1)


def test_dspy_retrieve():
    class Answers(dspy.Retrieve):
        def forward(self, query, k=None, **options):
            return dspy.Prediction(passages=[f"{query} {number}" for number in range(k or self.k)])

    hits = as_retriever(Answers(k=2)).search(["q"], 4)[0]
    assert [hit.passage.text for hit in hits] == ["q 0", "q 1", "q 2", "q 3"]


def nothing(query, k):
    return []


def other(query, k):
    return []


def test_fingerprints():
    told = [
        CallableRetriever(nothing),
        CallableRetriever(other),
        *(CallableRetriever(other, fingerprint=n) for n in "12"),
    ]
    assert len({one.fingerprint for one in told}) == 4
    assert CallableRetriever(nothing).fingerprint == told[0].fingerprint
    assert CallableRetriever(nothing, fingerprint="1").fingerprint == told[2].fingerprint
    assert [one.is_known for one in told] == [False, False, True, True]
    assert [pickle.loads(pickle.dumps(one)).fingerprint for one in told] == [one.fingerprint for one in told]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned NoneType"),
        ("text", "returned str"),
        ({"text": "x"}, "returned dict"),
        ([None], "item of type NoneType without text"),
        (["  "], "item of type str without text"),
        ([{"title": "x"}], "item of type dict without text"),
        ([{"text": 7}], "item of type dict without text"),
        ([("x", "high")], "returned the score 'high'"),
        ([("x", float("nan"))], "returned the score nan"),
    ],
)
def test_answers_that_cannot_be_read(answer, message):
    with pytest.raises(InputError, match=message):
        CallableRetriever(lambda query, k: answer).search(["q"], 3)


@pytest.mark.parametrize("thing", [7, None, "name", Passage])
def test_things_that_are_no_retriever(thing):
    with pytest.raises(InputError, match=r"is not a retriever; pass a function|is a class; pass an instance") as said:
        as_retriever(thing)
    assert ("; to search a collection, pass ChromaRetriever('name')" in str(said.value)) == (thing == "name")
