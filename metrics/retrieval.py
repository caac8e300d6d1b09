"""Did the search find what it should: measures over passage ids, best first.

Common to all of them: an id that occurs twice counts once, at its first place, and the ids after it move up.
``relevant`` names the relevant ids, or maps judged ids to grades, where a grade above 0 is relevant; an id that is
not judged is not relevant. Without any relevant id there is nothing to find and the value is NaN. One text in the
place of several ids is a TypeError, a grade that is NaN or infinite a ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

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
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else sum(gain > 0 for gain in gains) / len(_grades(relevant))


def precision_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """Share of the first k places that hold a relevant id: |top k and relevant| / k, also for a shorter list.

    Arguments, range and errors are those of `recall_at_k`.
    """
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else sum(gain > 0 for gain in gains) / k


def exact_recovery_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """1.0 if any relevant id is among the first k, else 0.0; NaN without relevant ids.

    Arguments and errors are those of `recall_at_k`.

    Source: QB-RAG, arXiv:2407.18044, where each question has one source content.
    """
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else float(any(gains))


def all_found_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """1.0 if every relevant id is among the first k (full evidence), else 0.0; NaN without relevant ids.

    Arguments and errors are those of `recall_at_k`.
    """
    recall = recall_at_k(ids, relevant, k)
    return recall if math.isnan(recall) else float(recall == 1.0)


def reciprocal_rank(ids: Sequence[str], relevant: Relevant, k: int | None = None) -> float:
    """1 / rank of the first relevant id, 0.0 if there is none within k; NaN without relevant ids.

    Arguments and errors are those of `recall_at_k`, but that k is None by default: the whole list.
    """
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else next((1 / rank for rank, gain in enumerate(gains, 1) if gain), 0.0)


def ndcg_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """Normalised discounted cumulative gain: DCG@k / DCG@k of the best possible order.

    DCG@k = sum over ranks 1..k of grade / log2(rank + 1), as in trec_eval. The best possible order is made of all
    judged ids, not only of those found. Relevant ids without a grade have 1 each; grades below 0 count as 0.

    Arguments, range and errors are those of `recall_at_k`.

    Source: Järvelin and Kekäläinen 2002, doi:10.1145/582415.582418.
    """
    gains = _gains(ids, relevant, k)
    if gains is None:
        return math.nan
    found, best = (
        math.fsum(value / math.log2(rank + 1) for rank, value in enumerate(values, 1))
        for values in (gains, sorted(_grades(relevant).values(), reverse=True)[:k])
    )
    return found / best


def _gains(ids: Sequence[str], relevant: Relevant, k: int | None) -> list[float] | None:
    """The grade of each of the first k different ids, 0 for what is not relevant; None without relevant ids."""
    if k is not None and k < 1:
        raise ValueError(f"k must be 1 or more, but got {k}")
    _check_listed("ids", ids)
    grades = _grades(relevant)
    return [grades.get(key, 0.0) for key in list(dict.fromkeys(ids))[:k]] if grades else None


def _grades(relevant: Relevant) -> dict[str, float]:
    """Grade of each relevant id; all of them are above 0."""
    _check_listed("relevant", relevant)
    if not isinstance(relevant, Mapping):
        return dict.fromkeys(relevant, 1.0)
    for key, grade in relevant.items():
        if not math.isfinite(grade):
            raise ValueError(f"a grade must be a finite number, but {key!r} has {grade}; leave out what is not judged")
    return {key: float(grade) for key, grade in relevant.items() if grade > 0}


def _check_listed(name: str, ids: Collection[str]) -> None:
    if isinstance(ids, str):
        raise TypeError(f"{name} must be a collection of ids, but got the text {ids!r}; put it in a list")
