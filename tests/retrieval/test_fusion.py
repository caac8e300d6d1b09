from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.retrieval.fusion import FUSIONS, fuse, interleave, rrf, shares, union
from querywright.retrieval.types import Hit


def _hits(ids: Sequence[str], scores: Sequence[float] | None = None) -> list[Hit]:
    used = scores or [1 - position / 100 for position in range(len(ids))]
    return [
        Hit(Passage(id, f"text of {id}"), score, rank)
        for rank, (id, score) in enumerate(zip(ids, used, strict=True), start=1)
    ]


def _ids(hits: Sequence[Hit]) -> str:
    return " ".join(hit.passage.id for hit in hits)


AB_BC = [_hits(["a", "b"]), _hits(["b", "c"])]


def test_rrf_by_hand() -> None:
    scores = {hit.passage.id: hit.score for hit in rrf(AB_BC)}
    assert scores["b"] == pytest.approx(1 / 62 + 1 / 61)
    assert scores["b"] == pytest.approx(0.0325225, abs=5e-8)
    assert scores["a"] == pytest.approx(0.0163934, abs=5e-8)
    assert scores["c"] == pytest.approx(0.0161290, abs=5e-8)
    assert _ids(rrf(AB_BC)) == "b a c"
    assert [hit.rank for hit in rrf(AB_BC)] == [1, 2, 3]


def test_rrf_weights() -> None:
    weighted = rrf([_hits(["a"]), _hits(["b"])], weights=[1, 3], k=1)
    assert [(hit.passage.id, hit.score) for hit in weighted] == [("b", 1.5), ("a", 0.5)]
    without = rrf([_hits(["a"]), _hits(["b"])], weights=[0, 1])
    assert [(hit.passage.id, hit.score) for hit in without] == [("b", 1 / 61), ("a", 0.0)]


def test_rrf_ties_go_to_the_better_rank_then_the_first_list_then_the_id() -> None:
    assert _ids(rrf([_hits(["z"]), _hits(["a"])])) == "z a"
    # p: ranks 2 and 2, q: rank 1 with half the weight and the same sum when k is 0: 1/2 + 1/2 = 1/1.
    assert _ids(rrf([_hits(["x", "p"]), _hits(["y", "p"]), _hits(["q"])], k=0)) == "x y q p"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1]}, "one finite, nonnegative weight per list"),
        ({"weights": [1, -1]}, "one finite, nonnegative weight per list"),
        ({"weights": [1, math.nan]}, "one finite, nonnegative weight per list"),
        ({"k": -1}, "k must be 0 or more"),
        ({"k": math.inf}, "k must be 0 or more"),
        ({"limit": 0}, "limit must be 1 or more, but got 0"),
    ],
)
def test_rrf_refuses_values_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rrf(AB_BC, **options)  # type: ignore[arg-type]


RANX = """
import json, sys, warnings
warnings.simplefilter("ignore")
from ranx import Run, fuse
answers = []
for lists in json.load(sys.stdin):
    runs = [Run({"q": scores}) for scores in lists]
    rrf = fuse(runs=runs, norm=None, method="rrf", params={"k": 60})["q"]
    best = fuse(runs=runs, norm=None, method="max")["q"]
    answers.append({name: {id: float(score) for id, score in fused.items()}
                    for name, fused in (("rrf", rrf), ("best_score", best))})
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_equal_to_ranx() -> None:
    rng = np.random.default_rng(7)
    cases = []
    for _ in range(30):
        lists = []
        for size in rng.integers(1, 15, size=rng.integers(2, 6)):
            ids = [f"d{number:02}" for number in rng.permutation(30)[:size]]
            lists.append(_hits(ids, sorted(rng.random(size).tolist(), reverse=True)))
        cases.append(lists)
    scores = [[{hit.passage.id: hit.score for hit in hits} for hits in lists] for lists in cases]
    # Compiling ranx takes a minute; its code also runs as it stands, in a process of its own.
    done = subprocess.run(
        [sys.executable, "-c", RANX],
        input=json.dumps(scores),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    for lists, expected in zip(cases, json.loads(done.stdout), strict=True):
        for name in ("rrf", "best_score"):
            fused = fuse(name, lists)
            assert {hit.passage.id: hit.score for hit in fused} == pytest.approx(expected[name])
            assert [hit.score for hit in fused] == sorted((hit.score for hit in fused), reverse=True)


def test_interleave_takes_turns() -> None:
    lists = [_hits(["a1", "a2", "a3"]), _hits(["b1"]), _hits(["c1", "a2", "c3"])]
    assert _ids(interleave(lists)) == "a1 b1 c1 a2 a3 c3"
    assert _ids(interleave(lists, limit=4)) == "a1 b1 c1 a2"
    assert interleave(lists)[1].score == 1.0


def test_union_keeps_the_order_of_the_lists() -> None:
    lists = [_hits(["a", "b"]), _hits(["b", "c"], [0.7, 0.6]), _hits(["d"])]
    fused = union(lists)
    assert [(hit.passage.id, hit.score, hit.rank) for hit in fused] == [
        ("a", 1.0, 1),
        ("b", 0.99, 2),
        ("c", 0.6, 3),
        ("d", 1.0, 4),
    ]


@pytest.mark.parametrize("name", FUSIONS)
def test_passages_that_read_the_same_count_once(name: str) -> None:
    one = Hit(Passage("one", "Take  it\nDAILY.", "Dose"), 0.9, 1)
    two = Hit(Passage("two", "take it daily.", "dose"), 0.9, 1)
    other = Hit(Passage("other", "take it daily.", "Another title"), 0.8, 2)
    fused = fuse(name, [[one], [two, other]])
    assert [hit.passage.id for hit in fused] == ["one", "other"]
    if name == "rrf":
        assert fused[0].score == pytest.approx(2 / 61)


@pytest.mark.parametrize("name", FUSIONS)
def test_a_repeated_passage_counts_at_its_best_place_of_a_list(name: str) -> None:
    fused = fuse(name, [_hits(["a", "b", "a"])])
    assert _ids(fused) == "a b"
    if name == "rrf":
        assert fused[0].score == 1 / 61


_lists = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8).map(_hits), max_size=5)


@given(_lists, st.sampled_from(sorted(FUSIONS)), st.integers(1, 10))
def test_every_rule_keeps_each_passage_once_up_to_a_limit(lists: list[list[Hit]], name: str, limit: int) -> None:
    fused = fuse(name, lists)
    ids = [hit.passage.id for hit in fused]
    assert sorted(ids) == sorted({hit.passage.id for hits in lists for hit in hits})
    assert [hit.rank for hit in fused] == list(range(1, len(ids) + 1))
    cut = fuse(name, lists, limit=limit)
    if name == "shares":  # with a limit each list has its share of it
        assert {hit.passage.id for hit in cut} <= set(ids)
        assert len(cut) == min(limit, len(ids))
    else:
        assert cut == fused[:limit]
    assert fuse(name, lists) == fused


@pytest.mark.parametrize(
    ("lists", "limit", "expected"),
    [
        (["abcde", "vwxyz"], 4, "a b v w"),
        (["abcde", "vwxyz"], 5, "a b c v w"),
        (["a", "vwxyz"], 4, "a v w x"),
        (["abcde", "v"], 4, "a b c v"),
        (["abcde", "cbv"], 4, "a b c v"),
        (["ab", "ab", "c"], 3, "a b c"),
        (["abc", "abc"], 4, "a b c"),
        (["ab", "cd"], 10, "a b c d"),
        (["ab", "cd"], None, "a b c d"),
        ([], 3, ""),
        (["", ""], 3, ""),
    ],
)
def test_shares(lists: list[str], limit: int | None, expected: str) -> None:
    fused = shares([_hits(list(ids)) for ids in lists], limit=limit)
    assert _ids(fused) == expected
    assert [hit.rank for hit in fused] == list(range(1, len(fused) + 1))
