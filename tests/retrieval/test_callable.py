from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.retrieval.callable import CallableRetriever, as_retriever
from querywright.retrieval.types import Hit, Retriever


def _ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


def test_a_function_of_query_and_k() -> None:
    asked: list[tuple[str, int]] = []

    def search(query: str, k: int) -> list[Passage]:
        asked.append((query, k))
        return [Passage(f"{query}{number}", f"text {number}") for number in range(k + 3)]

    retriever = as_retriever(search)
    assert isinstance(retriever, Retriever)
    first, second = retriever.search(["a", "b"], 2)
    assert asked == [("a", 2), ("b", 2)]
    assert _ids(first) == ["a0", "a1"]
    assert [(hit.score, hit.rank) for hit in second] == [(1.0, 1), (0.5, 2)]


def test_texts_get_ids_and_count_once() -> None:
    retriever = CallableRetriever(lambda query, k: ["x", "y", "x"])
    hits = retriever.search(["q"], 5)[0]
    assert [hit.passage.text for hit in hits] == ["x", "y"]
    assert _ids(hits) == _ids(retriever.search(["other"], 5)[0])
    assert len(set(_ids(hits))) == 2


class LangChainRetriever:
    """Has what langchain_core's BaseRetriever has."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def invoke(self, query: str, config: object = None, **options: Any) -> list[SimpleNamespace]:
        self.asked.append((query, options))
        return [
            SimpleNamespace(page_content="first", metadata={"source": "s", "tags": ["x"]}, id="d1"),
            SimpleNamespace(page_content="second", metadata={}, id=None),
        ]


def test_langchain() -> None:
    retriever = LangChainRetriever()
    hits = as_retriever(retriever).search(["q"], 5)[0]
    assert hits[0].passage == Passage("d1", "first", "", {"source": "s"})
    assert hits[1].passage.id.startswith("text:")
    assert retriever.asked == [("q", {})]
    assert len(as_retriever(retriever).search(["q"], 1)[0]) == 1


def test_langchain_over_a_vector_store_is_told_k() -> None:
    class VectorStoreRetriever(LangChainRetriever):
        def __init__(self) -> None:
            super().__init__()
            self.search_kwargs = {"k": 4}

    retriever = VectorStoreRetriever()
    as_retriever(retriever).search(["q"], 9)
    assert retriever.asked == [("q", {"k": 9})]


class LlamaIndexNode:
    node_id = "n1"

    def __init__(self) -> None:
        self.metadata = {"page": 3}

    def get_content(self) -> str:
        return "node text"


def test_llamaindex() -> None:
    class LlamaIndexRetriever:
        def retrieve(self, query: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(node=LlamaIndexNode(), score=0.7)]

    (hit,) = as_retriever(LlamaIndexRetriever()).search(["q"], 5)[0]
    assert hit == Hit(Passage("n1", "node text", "", {"page": 3}), 0.7, 1)


def test_dspy_retrieve() -> None:
    import dspy

    def rm(query: str, k: int, **options: object) -> list[dict[str, str]]:
        return [{"long_text": f"{query} {number}"} for number in range(k)]

    class Answers(dspy.Retrieve):
        def forward(self, query: str, k: int | None = None, **options: Any) -> dspy.Prediction:
            return dspy.Prediction(passages=[row["long_text"] for row in rm(query, k or self.k)])

    hits = as_retriever(Answers(k=2)).search(["q"], 4)[0]
    assert [hit.passage.text for hit in hits] == ["q 0", "q 1", "q 2", "q 3"]


def test_fingerprints() -> None:
    def search(query: str, k: int) -> list[str]:
        return []

    def other(query: str, k: int) -> list[str]:
        return []

    assert CallableRetriever(search).fingerprint == CallableRetriever(search).fingerprint
    assert CallableRetriever(search).fingerprint != CallableRetriever(other).fingerprint
    assert (
        CallableRetriever(search, fingerprint="1").fingerprint == CallableRetriever(other, fingerprint="1").fingerprint
    )
    assert (
        CallableRetriever(search, fingerprint="1").fingerprint != CallableRetriever(search, fingerprint="2").fingerprint
    )


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returned NoneType"),
        ("text", "returned str"),
        ({"text": "x"}, "returned dict"),
        (7, "returned int"),
        ([None], "item of type NoneType without a text"),
        ([7], "item of type int without a text"),
        (["  "], "item of type str without a text"),
        ([{"title": "x"}], "item of type dict without a text"),
        ([{"text": 7}], "item of type dict without a text"),
        ([("x", "high")], "returned the score 'high'"),
        ([("x", float("nan"))], "returned the score nan"),
    ],
)
def test_answers_that_cannot_be_read(answer: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CallableRetriever(lambda query, k: answer).search(["q"], 3)


@pytest.mark.parametrize("thing", [7, None, "name", Passage])
def test_things_that_are_no_retriever(thing: object) -> None:
    with pytest.raises(InputError, match=r"is no retriever: give a function|is a class; give an instance"):
        as_retriever(thing)
