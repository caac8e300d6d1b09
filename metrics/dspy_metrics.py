"""The measures as DSPy metrics ``(example, prediction, trace=None) -> float``.

The example has ``question``, ``options``, ``answer``, ``aliases`` and ``evidence`` (label by passage id), as
``Question.to_example`` makes it; the prediction has ``answer`` and ``passages``. Where an example lacks the
label that a metric needs the value is NaN: left out of a mean and counted. While a teleprompter picks
demonstrations (``trace`` is given) it is 0.0 instead: a NaN is true in Python and would pass for a success.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from querywright.data.types import Label
from querywright.errors import InputError
from querywright.metrics import answers, retrieval, usefulness

Metric = Callable[..., float]


def _metric(score: Callable[[Any, Any], float]) -> Metric:
    """The DSPy form of a score."""

    @wraps(score)
    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        value = score(example, prediction)
        return 0.0 if trace is not None and math.isnan(value) else value

    return metric


@_metric
def accuracy(example: Any, prediction: Any) -> float:
    """1.0 if the answer is right: the right option where there are options, else an exact match."""
    options = getattr(example, "options", None)
    if not options:
        return float(exact_match(example, prediction))
    if getattr(example, "answer", None) is None:
        return math.nan
    return answers.choice_accuracy(_given(prediction), options, example.answer)


@_metric
def exact_match(example: Any, prediction: Any) -> float:
    """1.0 if the answer equals an accepted one after normalisation."""
    return _compare(answers.exact_match, example, prediction)


@_metric
def token_f1(example: Any, prediction: Any) -> float:
    """F1 of the tokens shared with the nearest accepted answer."""
    return _compare(answers.token_f1, example, prediction)


@_metric
def recall(example: Any, prediction: Any) -> float:
    """Share of the helpful passages (ENTAILED or USEFUL) that were found, at any rank."""
    ids = _ids(prediction)
    return retrieval.recall_at_k(ids, _helpful(example), max(1, len(ids)))


@_metric
def exact_recovery(example: Any, prediction: Any) -> float:
    """1.0 if any helpful passage (ENTAILED or USEFUL) was found, at any rank."""
    ids = _ids(prediction)
    return retrieval.exact_recovery_at_k(ids, _helpful(example), max(1, len(ids)))


@_metric
def decision_useful(example: Any, prediction: Any) -> float:
    """1.0 if any passage found is labelled ENTAILED or USEFUL."""
    return usefulness.usefulness(_ids(prediction), getattr(example, "evidence", None) or {}).score


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "exact_match": exact_match,
    "token_f1": token_f1,
    "recall": recall,
    "exact_recovery": exact_recovery,
    "decision_useful": decision_useful,
}


RANKED: dict[str, Callable[..., float]] = {
    "recall": retrieval.recall_at_k,
    "full_recall": retrieval.all_found_at_k,
    "exact_recovery": retrieval.exact_recovery_at_k,
    "precision": retrieval.precision_at_k,
    "mrr": retrieval.reciprocal_rank,
    "ndcg": retrieval.ndcg_at_k,
}
"""Measures of the first k passages, named ``recall@5`` and so on; ``full_recall`` is 1.0 if all evidence is there."""


def metric_named(name: str) -> Metric:
    """The metric of a name in ``METRICS``, or of one in ``RANKED`` with ``@`` and a depth from 1 to 1000.

    Raises:
        InputError: There is no such metric.
    """
    if name in METRICS:
        return METRICS[name]
    measure, _, depth = name.partition("@")
    if measure in RANKED and depth.isascii() and depth.isdigit() and 1 <= int(depth) <= 1000:
        at_k, k = RANKED[measure], int(depth)
        return _metric(lambda example, prediction: at_k(_ids(prediction), _helpful(example), k))
    known = ", ".join([*METRICS, *(f"{measure}@K" for measure in RANKED)])
    raise InputError(f"unknown metric {name!r}; the metrics are: {known} (K from 1 to 1000)")


def _compare(score: Callable[[str, list[str]], float], example: Any, prediction: Any) -> float:
    """The score against all accepted answers; no answer given is wrong."""
    right = getattr(example, "answer", None)
    if right is None:
        return math.nan
    given = _given(prediction)
    return score(given, [right, *(getattr(example, "aliases", None) or ())]) if given else 0.0


def _given(prediction: Any) -> str:
    """The answer given; empty if the reader declined."""
    return "" if prediction.answer is None else str(prediction.answer).strip()


def _ids(prediction: Any) -> list[str]:
    return [passage.id for passage in prediction.passages]


def _helpful(example: Any) -> Collection[str]:
    evidence = getattr(example, "evidence", None) or {}
    labels = usefulness.passage_labels(evidence, evidence)
    return [key for key, label in zip(evidence, labels, strict=True) if label is not Label.NOT_USEFUL]
