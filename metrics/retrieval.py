"""Did the search find what it should: measures over passage ids, best first.

Common to all of them: an id that occurs twice counts once, at its first place, and the ids after it move up.
``relevant`` names the relevant ids, or maps judged ids to grades, where a grade above 0 is relevant; an id that is
not judged is not relevant. Without any relevant id there is nothing to find and the value is NaN. One text in the
place of several ids is a TypeError, a grade that is NaN or infinite a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

Relevant = Collection[str] | Mapping[str, float]


def recall_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """Share of the relevant ids that are among the first k: |top k and relevant| / |relevant|.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids, or grades by id.
        k: Depth, 1 or more.

    Returns:
        A value in [0, 1]; NaN without relevant ids.

    Raises:
        ValueError: k is below 1.
    """
    hits, wanted = _count(ids, relevant, k)
    return hits / wanted if wanted else math.nan


def precision_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """Share of the first k places that hold a relevant id: |top k and relevant| / k, also for a shorter list.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids, or grades by id.
        k: Depth, 1 or more.

    Returns:
        A value in [0, 1]; NaN without relevant ids.

    Raises:
        ValueError: k is below 1.
    """
    hits, wanted = _count(ids, relevant, k)
    return hits / k if wanted else math.nan


def exact_recovery_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """1.0 if any relevant id is among the first k, else 0.0.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids, or grades by id.
        k: Depth, 1 or more.

    Returns:
        0.0 or 1.0; NaN without relevant ids.

    Raises:
        ValueError: k is below 1.

    Source: QB-RAG, arXiv:2407.18044, where each question has one source content.
    """
    hits, wanted = _count(ids, relevant, k)
    return float(hits > 0) if wanted else math.nan


def all_found_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """1.0 if every relevant id is among the first k (full evidence), else 0.0.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids, or grades by id.
        k: Depth, 1 or more.

    Returns:
        0.0 or 1.0; NaN without relevant ids.

    Raises:
        ValueError: k is below 1.
    """
    hits, wanted = _count(ids, relevant, k)
    return float(hits == wanted) if wanted else math.nan


def reciprocal_rank(ids: Sequence[str], relevant: Relevant, k: int | None = None) -> float:
    """1 / rank of the first relevant id, 0.0 if there is none within k.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids, or grades by id.
        k: Depth, 1 or more. Default None: the whole list.

    Returns:
        A value in [0, 1]; NaN without relevant ids.

    Raises:
        ValueError: k is below 1.
    """
    grades = _grades(relevant)
    if not grades:
        _check_depth(k)
        return math.nan
    ranks = (rank for rank, key in enumerate(_first(ids, k), 1) if key in grades)
    first = next(ranks, None)
    return 0.0 if first is None else 1 / first


def ndcg_at_k(
    ids: Sequence[str], relevant: Relevant, k: int, *, gain: Literal["linear", "exponential"] = "linear"
) -> float:
    """Normalised discounted cumulative gain: DCG@k / DCG@k of the best possible order.

    DCG@k = sum over ranks 1..k of gain / log2(rank + 1). The best possible order is made of all judged ids,
    not only of those found.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids (grade 1 each), or grades by id; grades below 0 count as 0.
        k: Depth, 1 or more.
        gain: "linear" = grade, as trec_eval; "exponential" = 2^grade - 1. Equal for grades 0 and 1.
            Default "linear".

    Returns:
        A value in [0, 1]; NaN without relevant ids.

    Raises:
        ValueError: k is below 1, or gain is unknown.

    Source: Järvelin and Kekäläinen 2002, doi:10.1145/582415.582418; the exponential gain is Burges et al.
    2005, doi:10.1145/1102351.1102363.
    """
    if gain not in ("linear", "exponential"):
        raise ValueError(f"gain must be 'linear' or 'exponential', but got {gain!r}")
    grades = _grades(relevant)
    gains = {key: grade if gain == "linear" else 2.0**grade - 1 for key, grade in grades.items()}
    found = _dcg([gains.get(key, 0.0) for key in _first(ids, k)])
    return found / _dcg(sorted(gains.values(), reverse=True)[:k]) if gains else math.nan


def _dcg(gains: Sequence[float]) -> float:
    return math.fsum(value / math.log2(rank + 1) for rank, value in enumerate(gains, 1))


def _count(ids: Sequence[str], relevant: Relevant, k: int) -> tuple[int, int]:
    """How many relevant ids are among the first k, and how many there are."""
    grades = _grades(relevant)
    return sum(key in grades for key in _first(ids, k)), len(grades)


def _first(ids: Sequence[str], k: int | None) -> list[str]:
    """The first k different ids."""
    _check_depth(k)
    _check_listed("ids", ids)
    return list(dict.fromkeys(ids))[:k]


def _check_depth(k: int | None) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k must be 1 or more, but got {k}")


def _check_listed(name: str, ids: Collection[str]) -> None:
    if isinstance(ids, str):
        raise TypeError(f"{name} must be a collection of ids, but got the text {ids!r}; put it in a list")


def _grades(relevant: Relevant) -> dict[str, float]:
    """Grade of each relevant id; all of them are above 0."""
    _check_listed("relevant", relevant)
    if isinstance(relevant, Mapping):
        odd = [(key, grade) for key, grade in relevant.items() if not math.isfinite(grade)]
        if odd:
            raise ValueError(
                f"a grade must be a finite number, but {odd[0][0]!r} has {odd[0][1]}; leave out what is not judged"
            )
        return {key: float(grade) for key, grade in relevant.items() if grade > 0}
    return dict.fromkeys(relevant, 1.0)
