from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.types import Hit, Retriever, VectorRetriever, kind_of


class Listed:
    """Finds the same list for every query."""

    def __init__(self, ids: str, fingerprint: str = "") -> None:
        self.ids = ids.split()
        self.fingerprint = fingerprint or ids
        self.asked: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked.append((list(queries), k))
        return [[Hit(_passage(id), 9.0 - rank, rank) for rank, id in enumerate(self.ids[:k], 1)] for _ in queries]


def _passage(id: str) -> Passage:
    return Passage(id, f"text of {id}")


def _found(retriever: HybridRetriever, k: int = 10) -> list[tuple[str, float, int]]:
    return [(hit.passage.id, hit.score, hit.rank) for hit in retriever.search(["q"], k)[0]]


def test_fusion_by_hand() -> None:
    """a: 1/61 + 1/63; b: 1/62 + 1/61; c: 1/63; d: 1/62."""
    found = _found(HybridRetriever([Listed("a b c"), Listed("b d a")]))
    assert [(id, rank) for id, _, rank in found] == [("b", 1), ("a", 2), ("d", 3), ("c", 4)]
    assert [score for _, score, _ in found] == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62, 1 / 63])


def test_weights_and_smoothing() -> None:
    parts = [Listed("a b"), Listed("b a")]
    assert [id for id, *_ in _found(HybridRetriever(parts, weights=[2, 1]))] == ["a", "b"]
    assert [id for id, *_ in _found(HybridRetriever(parts, weights=[1, 2]))] == ["b", "a"]
    assert _found(HybridRetriever(parts, weights=[3, 1], rrf_k=0))[0] == ("a", pytest.approx(3 + 1 / 2), 1)


def test_one_of_weight_0_is_not_asked() -> None:
    silent = Listed("x y")
    assert [id for id, *_ in _found(HybridRetriever([Listed("a b"), silent], weights=[1, 0]))] == ["a", "b"]
    assert silent.asked == []


def test_each_is_asked_once_and_deep_enough() -> None:
    parts = [Listed("a b c"), Listed("c d")]
    retriever = HybridRetriever(parts, depth=7)
    assert [len(hits) for hits in retriever.search(["one", "two"], 2)] == [2, 2]
    retriever.search(["three"], 9)
    for part in parts:
        assert part.asked == [(["one", "two"], 7), (["three"], 9)]
    assert retriever.search([], 3) == []
    assert len(parts[0].asked) == 2


def test_what_a_retriever_tells_about_itself() -> None:
    parts = [Listed("a"), Listed("b")]
    retriever = HybridRetriever(parts)
    assert isinstance(retriever, Retriever)
    assert not isinstance(retriever, VectorRetriever)
    assert kind_of(retriever) == "hybrid"
    assert copy.copy(retriever) is retriever
    assert copy.deepcopy([retriever])[0] is retriever
    same = HybridRetriever([Listed("a"), Listed("b")])
    others = [
        HybridRetriever(parts[::-1]),
        HybridRetriever([Listed("a", "other"), parts[1]]),
        HybridRetriever(parts, weights=[1, 2]),
        HybridRetriever(parts, rrf_k=10),
        HybridRetriever(parts, depth=10),
    ]
    assert same.fingerprint == retriever.fingerprint
    assert len({retriever.fingerprint, *(one.fingerprint for one in others)}) == 6


@pytest.mark.parametrize(
    ("count", "settings", "message"),
    [
        (1, {}, "two or more retrievers, but got 1"),
        (2, {"weights": [1]}, "as many finite weights of 0 or more"),
        (2, {"weights": [1, -1]}, "as many finite weights of 0 or more"),
        (2, {"weights": [0, 0]}, "not all of them 0"),
        (2, {"weights": [1, math.nan]}, "as many finite weights"),
        (2, {"rrf_k": -1}, "rrf_k of 0 or more"),
        (2, {"rrf_k": math.inf}, "rrf_k of 0 or more"),
        (2, {"depth": 0}, "depth of 1 or more"),
    ],
)
def test_settings_out_of_range(count: int, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        HybridRetriever([Listed("a")] * count, **settings)


def test_bad_requests() -> None:
    retriever = HybridRetriever([Listed("a"), Listed("b")])
    with pytest.raises(InputError, match="a list of queries"):
        retriever.search("text", 3)
    with pytest.raises(InputError, match="k must be 1 or more"):
        retriever.search(["text"], 0)
