from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.filters import matcher
from querywright.retrieval.index import build_collection

VALUES: list[Any] = [1, 2, -1, 0, 1.0, 2.5, -0.5, True, False, "1", "a", "b", "A", ""]
PASSAGES = [Passage(f"one-{number:02}", f"same {number}", "", {"x": value}) for number, value in enumerate(VALUES)]
PASSAGES += [
    Passage(f"two-{number:02}", f"same two {number}", "", {"x": x, "y": y})
    for number, (x, y) in enumerate(itertools.product([1, "a", True], [1, 2, "b"]))
]
PASSAGES += [Passage("none", "same none"), Passage("other", "same other", "", {"y": 1})]

COMPARISONS = [
    {"x": {name: value}}
    for name, value in itertools.product(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"], VALUES)
    # Chroma cuts fractions off before it compares with whole numbers; that is not ours to repeat.
    if (name in ("$eq", "$ne") or not isinstance(value, bool | str)) and value not in (2.5, -0.5)
]
OTHERS: list[dict[str, Any]] = [
    {"x": 1},
    {"x": "a", "y": "b"},
    {"x": {"$in": [1, 2]}},
    {"x": {"$in": ["a", "zzz"]}},
    {"x": {"$nin": [1, 2]}},
    {"x": {"$nin": ["a"]}},
    {"x": {"$in": [True]}},
    {"$and": [{"x": {"$gte": 1}}, {"y": {"$ne": 2}}]},
    {"$or": [{"x": "a"}, {"y": 2}, {"x": {"$lt": 0}}]},
    {"$or": [{"$and": [{"x": 1}, {"y": 1}]}, {"x": True}]},
    {"absent": 1},
    {"absent": {"$ne": 1}},
]


class AnyModel:
    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype=np.uint8) for text in texts]
        vectors = np.stack(rows).astype(np.float32) - 127.5
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    build_collection("mixed", PASSAGES, embedder=_embedder(home), home=home)
    yield home
    open_store(home).close()


def _embedder(home: Path) -> Embedder:
    return Embedder("any:16", AnyModel, dimension=16, store=open_store(home))


@pytest.mark.parametrize("where", [*COMPARISONS, *OTHERS], ids=repr)
def test_bm25_filters_as_chroma_does(home: Path, where: dict[str, Any]) -> None:
    dense = ChromaRetriever("mixed", embedder=_embedder(home), home=home, where=where)
    lexical = BM25Retriever("mixed", home=home, where=where)
    count = len(PASSAGES)
    ((near,), (sharing,)) = dense.search(["same"], count), lexical.search(["same"], count)
    assert {hit.passage.id for hit in sharing} == {hit.passage.id for hit in near}


def test_a_filter_does_not_change_scores(home: Path) -> None:
    every = {hit.passage.id: hit.score for hit in BM25Retriever("mixed", home=home).search(["same two"], 99)[0]}
    some = BM25Retriever("mixed", home=home, where={"y": 1}).search(["same two"], 99)[0]
    assert 0 < len(some) < len(every)
    assert all(every[hit.passage.id] == hit.score for hit in some)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"x": {"$near": 1}}, r"unknown operator '\$near'.*known: \$eq, \$ne"),
        ({"$not": [{"x": 1}]}, r"unknown operator '\$not'"),
        ({"x": {"$gt": 1, "$lt": 3}}, "one operator"),
        ({"x": {}}, "one operator"),
        ({"x": None}, "takes a text, a number"),
        ({"x": [1]}, "takes a text, a number"),
        ({"x": {"$in": []}}, "takes a list"),
        ({"x": {"$in": "ab"}}, "takes a list"),
        ({"x": {"$gt": "a"}}, "takes a number"),
        ({"x": {"$gt": True}}, "takes a number"),
        ({"$and": {"x": 1}}, "takes a list of filters"),
        ({"$or": []}, "takes a list of filters"),
        ({"$or": [{}]}, "an empty filter"),
    ],
)
def test_a_filter_of_another_form_is_refused(home: Path, where: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BM25Retriever("mixed", home=home, where=where)


def test_numbers_are_compared_by_value() -> None:
    metadata = [{"x": value} for value in (2, 2.0, 2.5, 3, "2.5", True)]

    def passing(where: dict[str, Any]) -> list[Any]:
        passes = matcher(where)
        assert passes is not None
        return [one["x"] for one in metadata if passes(one)]

    assert passing({"x": 2.5}) == [2.5]
    assert passing({"x": {"$lt": 2.5}}) == [2, 2.0]
    assert passing({"x": {"$gte": 2.5}}) == [2.5, 3]


def test_no_filter() -> None:
    assert matcher(None) is None
    assert matcher({}) is None
