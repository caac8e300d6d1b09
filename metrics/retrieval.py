"""Metrics for ranked passage ids, best first.

In all metrics, a repeated id counts once, at its first position, and later ids move up. ``relevant`` is a set of
relevant ids, or a mapping from judged ids to grades. A grade above 0 means relevant, and an id without a grade is not
relevant. Without relevant ids, the value is NaN. A single string instead of a sequence of ids raises TypeError; a grade
that is NaN or infinite raises ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

Relevant = Collection[str] | Mapping[str, float]
Groups = Collection[Collection[str]]
"""Groups of relevant ids; any one id in a group is enough."""


def recall_at_k(ids: Sequence[str], relevant: Relevant, k: int, alternatives: Groups = ()) -> float:
    """Return the share of relevant ids that are among the first k: |top k and relevant| / |relevant|.

    Args:
        ids: Passage ids, best first.
        relevant: Relevant ids, or grades by id.
        k: Depth, 1 or more.
        alternatives: Groups of interchangeable relevant ids. A group counts as one id and is found if any of its
            members is. Default none.

    Returns:
        A value in [0, 1]; NaN without relevant ids.

    Raises:
        ValueError: k is below 1.
    """
    gains = _gains(ids, relevant, k)
    if gains is None:
        return math.nan
    groups, top = groups_of(_grades(relevant), alternatives), set(list(dict.fromkeys(ids))[:k])
    return sum(not group.isdisjoint(top) for group in groups) / len(groups)


def precision_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """Return the share of the first k ids that are relevant: |top k and relevant| / k, even if the list is shorter.

    Arguments, range, and errors are as in `recall_at_k`.
    """
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else sum(gain > 0 for gain in gains) / k


def exact_recovery_at_k(ids: Sequence[str], relevant: Relevant, k: int) -> float:
    """Return 1.0 if any relevant id is among the first k, else 0.0; NaN without relevant ids.

    Arguments and errors are as in `recall_at_k`.

    Source: QB-RAG, arXiv:2407.18044, where each question has exactly one source.
    """
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else float(any(gains))


def all_found_at_k(ids: Sequence[str], relevant: Relevant, k: int, alternatives: Groups = ()) -> float:
    """Return 1.0 if every relevant id is among the first k (full evidence), else 0.0; NaN without relevant ids.

    Arguments and errors are as in `recall_at_k`.
    """
    recall = recall_at_k(ids, relevant, k, alternatives)
    return recall if math.isnan(recall) else float(recall == 1.0)


def reciprocal_rank(ids: Sequence[str], relevant: Relevant, k: int | None = None) -> float:
    """Return 1 / rank of the first relevant id, or 0.0 if none is among the first k; NaN without relevant ids.

    Arguments and errors are as in `recall_at_k`, except that k is None by default, which means the whole list.
    """
    gains = _gains(ids, relevant, k)
    return math.nan if gains is None else next((1 / rank for rank, gain in enumerate(gains, 1) if gain), 0.0)


def ndcg_at_k(ids: Sequence[str], relevant: Relevant, k: int, alternatives: Groups = ()) -> float:
    """Return the normalized discounted cumulative gain: DCG@k divided by DCG@k of the best possible order.

    DCG@k is the sum over ranks 1..k of grade / log2(rank + 1), as in trec_eval. The best possible order uses all judged
    ids, not only the ids found. Relevant ids without grades have grade 1; grades below 0 count as 0. A group of
    alternatives contributes its gain only once, at the first of its ids that is found.

    Arguments, range, and errors are as in `recall_at_k`.

    Source: Järvelin and Kekäläinen 2002, doi:10.1145/582415.582418; with alternatives, alpha-nDCG at alpha = 1, Clarke
    et al. 2008, doi:10.1145/1390334.1390446.
    """
    gains = _gains(ids, relevant, k)
    if gains is None:
        return math.nan
    grades = _grades(relevant)
    ideal = sorted(grades.values(), reverse=True)[:k]
    if alternatives:
        groups = groups_of(grades, alternatives)
        gains = _first_gains(list(dict.fromkeys(ids))[:k], grades, groups)
        ideal = _first_gains(_best_order(grades, groups)[:k], grades, groups)
    found, best = (
        math.fsum(value / math.log2(rank + 1) for rank, value in enumerate(values, 1)) for values in (gains, ideal)
    )
    return found / best


def groups_of(relevant: Collection[str], alternatives: Groups = ()) -> list[frozenset[str]]:
    """Return groups of relevant ids, with one id needed from each; an id without alternatives is its own group.

    Args:
        relevant: Relevant ids.
        alternatives: Groups of ids in which any one is enough; ids that are not relevant are ignored.
    """
    for group in alternatives:
        _check_listed("a group of alternatives", group)
    groups = [found for group in alternatives if (found := frozenset(group).intersection(relevant))]
    grouped = frozenset[str]().union(*groups)
    return groups + [frozenset([key]) for key in relevant if key not in grouped]


def _first_gains(order: Iterable[str], grades: Mapping[str, float], groups: Iterable[frozenset[str]]) -> list[float]:
    """Return each id's gain: its grade times the number of its groups to which no earlier id belongs."""
    left, gains = list(groups), []
    for key in order:
        gains.append(grades.get(key, 0.0) * sum(key in group for group in left))
        left = [group for group in left if key not in group]
    return gains


def _best_order(grades: Mapping[str, float], groups: Iterable[frozenset[str]]) -> list[str]:
    """Return the order of ids in which each adds the largest remaining gain, until all groups are found."""
    left, order = list(groups), list[str]()
    while left:
        order.append(max(grades, key=lambda key: grades[key] * sum(key in group for group in left)))
        left = [group for group in left if order[-1] not in group]
    return order


def _gains(ids: Sequence[str], relevant: Relevant, k: int | None) -> list[float] | None:
    """Return the grades of the first k distinct ids (0 for irrelevant ids), or None if there are no relevant ids."""
    if k is not None and k < 1:
        raise ValueError(f"k must be 1 or more, but got {k}")
    _check_listed("ids", ids)
    grades = _grades(relevant)
    return [grades.get(key, 0.0) for key in list(dict.fromkeys(ids))[:k]] if grades else None


def _grades(relevant: Relevant) -> dict[str, float]:
    """Return the grade of each relevant id; all of these grades are above 0."""
    _check_listed("relevant", relevant)
    if not isinstance(relevant, Mapping):
        return dict.fromkeys(relevant, 1.0)
    for key, grade in relevant.items():
        if not math.isfinite(grade):
            raise ValueError(
                f"a grade must be a finite number, but got {grade} for {key!r}; omit IDs that were not judged"
            )
    return {key: float(grade) for key, grade in relevant.items() if grade > 0}


def _check_listed(name: str, ids: Collection[str]) -> None:
    if isinstance(ids, str):
        raise TypeError(f"{name} must be a collection of IDs, but got the string {ids!r}; put the string in a list")
