from __future__ import annotations

import math

import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.retrieval.hybrid import HybridRetriever
from querywright.retrieval.types import Hit


class Listed:
    """Finds the same list for every query."""

    def __init__(self, ids, fingerprint=""):
        self.ids, self.fingerprint, self.asked = ids.split(), fingerprint or ids, []

    def search(self, queries, k):
        self.asked.append((list(queries), k))
        hits = [Hit(Passage(id, f"text of {id}"), 9.0 - rank, rank) for rank, id in enumerate(self.ids[:k], 1)]
        return [hits for _ in queries]


def found(*parts, **settings):
    return {hit.passage.id: hit.score for hit in HybridRetriever(parts, **settings).search(["q"], 10)[0]}


def test_fusion_by_hand():
    scores = found(Listed("a b c"), Listed("b d a"))
    assert list(scores) == ["b", "a", "d", "c"]
    assert scores == pytest.approx({"a": 1 / 61 + 1 / 63, "b": 1 / 62 + 1 / 61, "c": 1 / 63, "d": 1 / 62})
    assert list(found(Listed("a b"), Listed("b a"), weights=[1, 2])) == ["b", "a"]
    assert found(Listed("a b"), Listed("b a"), weights=[3, 1], rrf_k=0)["a"] == pytest.approx(3 + 1 / 2)


def test_each_is_asked_once_and_deep_enough_and_one_of_weight_0_is_not():
    first, second, silent = parts = [Listed("a b c"), Listed("c d"), Listed("x")]
    retriever = HybridRetriever(parts, weights=[1, 1, 0], depth=7)
    assert [len(hits) for hits in retriever.search(["one", "two"], 2)] == [2, 2]
    retriever.search(["three"], 9)
    assert not any(hasattr(retriever, name) for name in ("count", "passages", "get"))  # which its parts lack
    assert retriever.search([], 3) == []
    assert first.asked == second.asked == [(["one", "two"], 7), (["three"], 9)]
    assert silent.asked == []


def test_a_fingerprint_is_of_the_parts_in_their_order_and_the_settings():
    parts = [Listed("a"), Listed("b")]
    retriever = HybridRetriever(parts)
    others = [
        HybridRetriever(parts[::-1]),
        HybridRetriever([Listed("a", "other"), parts[1]]),
        *(HybridRetriever(parts, **one) for one in ({"weights": [1, 2]}, {"rrf_k": 10}, {"depth": 10})),
    ]
    assert HybridRetriever([Listed("a"), Listed("b")]).fingerprint == retriever.fingerprint
    assert len({retriever.fingerprint, *(one.fingerprint for one in others)}) == 6


@pytest.mark.parametrize(
    ("count", "settings", "message"),
    [
        (1, {}, "two or more retrievers, but got 1"),
        (2, {"weights": [0, 0]}, "at least one positive weight"),
        (2, {"weights": [1, math.nan]}, "one finite, nonnegative weight per retriever"),
        (2, {"rrf_k": math.inf}, "rrf_k must be 0 or more"),
        (2, {"depth": 0}, "depth must be 1 or more"),
    ],
)
def test_settings_out_of_range(count, settings, message):
    with pytest.raises(InputError, match=message):
        HybridRetriever([Listed("a")] * count, **settings)
