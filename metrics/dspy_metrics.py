"""The metrics in DSPy's form ``(example, prediction, trace=None) -> float``.

The example has ``question``, ``options``, ``answer``, ``aliases``, ``evidence`` (label by passage id), ``assessors``,
and ``alternatives``, as created by ``Question.to_example``. The prediction has ``answer`` and ``passages``. If the
reader names the passages that support its answer, the prediction also has ``support``, a list of passage ids. The right
support is the helpful passages in ``evidence``.

If an example or a prediction lacks a part that a metric needs, the value is NaN: the question is left out of the mean
and counted as unscored. While an optimizer picks demonstrations (``trace`` is given), the value is 0.0 instead, because
NaN is truthy in Python and would count as a success.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

from querywright.errors import InputError, unknown
from querywright.imports import imported
from querywright.metrics import answers, retrieval, support, usefulness

Metric = Callable[..., float]

METRICS: dict[str, Metric] = {}
"""The metrics by name. Metrics for the first k passages, such as ``recall@5``, are in ``RANKED``."""

RANKED: dict[str, Callable[..., float]] = {
    "recall": retrieval.recall_at_k,
    "full_recall": retrieval.all_found_at_k,
    "exact_recovery": retrieval.exact_recovery_at_k,
    "precision": retrieval.precision_at_k,
    "mrr": retrieval.reciprocal_rank,
    "ndcg": retrieval.ndcg_at_k,
}
"""Metrics for the first k passages, such as ``recall@5``; ``full_recall`` is 1.0 if all evidence was found."""

_BY_GROUP = ("recall", "full_recall", "ndcg")
"""Metrics that count a group of alternatives as one passage."""

_NEEDS: dict[str, frozenset[str]] = dict.fromkeys(RANKED, frozenset({"evidence"}))

_OF_JUDGES = "judged_"
"""Prefix of the names of judge metrics."""

_LABELS = {
    "answer": "a right answer",
    "evidence": "labeled evidence with at least one helpful passage (with none for abstention_recall)",
    "options": "options",
}


def _dspy_form(score: Callable[[Any, Any], float]) -> Metric:
    @wraps(score)
    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        value = score(example, prediction)
        return 0.0 if trace is not None and math.isnan(value) else value

    return metric


def _metric(*needs: str) -> Callable[[Callable[[Any, Any], float]], Metric]:
    """Register a scoring function as a DSPy metric in ``METRICS`` under its own name."""

    def listed(score: Callable[[Any, Any], float]) -> Metric:
        METRICS[score.__name__], _NEEDS[score.__name__] = _dspy_form(score), frozenset(needs)
        return METRICS[score.__name__]

    return listed


@_metric("answer", "reader")
def accuracy(example: Any, prediction: Any) -> float:
    """Return 1.0 if the answer picks the right option or, for a question without options, is an exact match.

    If the reader names passage ids as its ``support``, the answer is a full sentence. Without options, such an answer
    is right if it contains an accepted answer (``contains_answer``).
    """
    options = getattr(example, "options", None)
    if not options:
        return float((exact_match if _named(prediction) is None else contains_answer)(example, prediction))
    if getattr(example, "answer", None) is None:
        return math.nan
    return answers.choice_accuracy(_given(prediction), options, example.answer)


@_metric("answer", "reader")
def exact_match(example: Any, prediction: Any) -> float:
    """Return 1.0 if the answer equals an accepted answer; numbers are compared as numbers, and signs are kept."""
    return _compare(answers.exact_match, example, prediction)


@_metric("answer", "reader")
def token_f1(example: Any, prediction: Any) -> float:
    """Return the token F1 of the answer and the closest accepted answer."""
    return _compare(answers.token_f1, example, prediction)


@_metric("answer", "reader")
def contains_answer(example: Any, prediction: Any) -> float:
    """Return 1.0 if an accepted answer occurs in the answer as whole words; yes and no must be its first word."""
    return _compare(answers.contains_answer, example, prediction)


@_metric("answer", "reader")
def squad_exact_match(example: Any, prediction: Any) -> float:
    """Return SQuAD's exact match, for comparison with papers; it deletes punctuation, so 2.5 equals 25."""
    return _compare(answers.squad_exact_match, example, prediction)


@_metric("answer", "reader")
def squad_f1(example: Any, prediction: Any) -> float:
    """Return SQuAD's token F1, for comparison with papers."""
    return _compare(answers.squad_f1, example, prediction)


@_metric("answer", "options", "reader")
def mmlu_accuracy(example: Any, prediction: Any) -> float:
    """Return 1.0 if the answer's first line is the right option's letter or text; for comparison with MMLU papers."""
    options, right = getattr(example, "options", None), getattr(example, "answer", None)
    return answers.mmlu_accuracy(_given(prediction), options, right) if options and right is not None else math.nan


@_metric("answer", "evidence", "reader", "support")
def joint_passage_exact_match(example: Any, prediction: Any) -> float:
    """Return 1.0 if the answer contains an accepted answer and the support is exactly the helpful passages."""
    return _joint_passages(example, prediction)[0]


@_metric("answer", "evidence", "reader", "support")
def joint_passage_f1(example: Any, prediction: Any) -> float:
    """Return the joint F1 of answer and supporting passages, similar to HotpotQA's joint F1.

    ``joint_passage_score`` lists the differences.
    """
    return _joint_passages(example, prediction)[1]


@_metric("evidence", "reader", "support")
def support_passage_f1(example: Any, prediction: Any) -> float:
    """Return the F1 of the support compared with the helpful passages, regardless of the answer."""
    return support.support_passage_f1(_named(prediction), _helpful(example), _alternatives(example))


@_metric("options", "reader")
def hypothesis_agreement(example: Any, prediction: Any) -> float:
    """Return 1.0 if the reader picks the option that the technique guessed before searching (``best_guess``).

    The value does not show whether that option is right. It is NaN if there was no guess, or if the guess or the answer
    picks no option.
    """
    options = getattr(example, "options", None) or ()
    asked = [step.made for step in getattr(prediction, "steps", ()) if step.kind == "lm" and step.made is not None]
    guess = next((made["best_guess"] for made in asked if "best_guess" in made), None)
    if not options or guess is None:
        return math.nan
    picked = [answers.extract_option(str(text), options) for text in (guess, _given(prediction))]
    return math.nan if None in picked else float(picked[0] == picked[1])


@_metric("answer")
def hit(example: Any, prediction: Any) -> float:
    """Return 1.0 if an accepted answer occurs, as whole words, in a passage that the reader was given."""
    return answers.hit([passage.content for passage in prediction.passages], _accepted(example))


@_metric("evidence")
def recall(example: Any, prediction: Any) -> float:
    """Return the share of helpful passages (ENTAILED or USEFUL) found at any rank; alternatives count as one."""
    return _ranked("recall", example, prediction, max(1, len(prediction.passages)))


@_metric("evidence")
def exact_recovery(example: Any, prediction: Any) -> float:
    """Return 1.0 if any helpful passage (ENTAILED or USEFUL) was found at any rank."""
    return retrieval.exact_recovery_at_k(_ids(prediction), _helpful(example), max(1, len(prediction.passages)))


@_metric("evidence")
def decision_useful(example: Any, prediction: Any) -> float:
    """Return 1.0 if any passage found is labeled ENTAILED or USEFUL; NaN if none is and some are unjudged.

    If the evidence says that no passage helps, the value is 0.0 for every program; use ``abstention_recall`` for such
    questions.
    """
    return usefulness.usefulness(_ids(prediction), _evidence(example), pooled=_pooled(example)).score


@_metric("evidence")
def abstention_recall(example: Any, prediction: Any) -> float:
    """Return 1.0 if no passage helps and none is shown, 0.0 if some are shown; NaN if a passage helps or might help."""
    return usefulness.abstention(_ids(prediction), _evidence(example), pooled=_pooled(example))


def needs(name: str) -> frozenset[str]:
    """Return what a metric requires; the result for a custom metric is empty, because its needs are unknown.

    Questions may need an ``answer``, ``options``, or ``evidence``; the program may need a ``reader``, or a reader that
    names its ``support``.
    """
    if name.startswith(_OF_JUDGES):
        from querywright.metrics.judges import JUDGED

        return frozenset({"reader"} if name in JUDGED and "response" in JUDGED[name].needs() else ())
    return _NEEDS.get(name.partition("@")[0], frozenset())


def metric_named(name: str) -> Metric:
    """Return the metric with the given name.

    Args:
        name: A name in ``METRICS``; a name in ``RANKED`` followed by ``@`` and a depth from 1 to 1000; a judge's
            metric, such as ``judged_useful``, which calls the LM in the DSPy settings; or ``module:function`` for a
            custom metric.

    Raises:
        InputError: There is no such metric.
    """
    if name in METRICS:
        return METRICS[name]
    measure, _, depth = name.partition("@")
    if measure in RANKED and depth.isascii() and depth.isdigit() and 1 <= int(depth) <= 1000:
        return _dspy_form(lambda example, prediction: _ranked(measure, example, prediction, int(depth)))
    if ":" in name:
        return _imported(name)
    from querywright.metrics.judge import JudgedMetric
    from querywright.metrics.judges import JUDGED

    if name in JUDGED:
        return JudgedMetric(JUDGED[name]()).of(name)
    known = [*METRICS, *(f"{measure}@K" for measure in RANKED), *JUDGED, "MODULE:FUNCTION"]
    raise InputError(f"{unknown('metric', name, known)} (K from 1 to 1000)")


def _imported(name: str) -> Metric:
    """Import the function named by ``module:function``; modules in the current folder are found, too."""
    found = imported(name, "metric")
    if not callable(found):
        raise InputError(
            f"the metric {name!r} must be a function of (example, prediction, trace=None), but got {found!r:.80}"
        )
    return cast("Metric", found)


def scorable(metric: str, examples: Sequence[Any]) -> list[Any]:
    """Return the examples that a metric can score, for ``dspy.Evaluate`` and DSPy's optimizers.

    DSPy cannot handle questions that cannot be scored: a single NaN makes the mean in ``dspy.Evaluate`` NaN, and then
    ``MIPROv2`` never finds a better program. So these examples are left out, with a ``UserWarning`` that reports their
    number and the reason.

    Args:
        metric: A name that ``metric_named`` accepts.
        examples: Questions, as created by ``Question.to_example``.

    Raises:
        InputError: There is no such metric, or it can score none of the examples.
    """
    import dspy

    score, asked = metric_named(metric), needs(metric) & set(_LABELS)
    nothing = dspy.Prediction(answer="", support=[], passages=[], steps=[])
    kept = []
    for example in examples:
        labelled = all(getattr(example, need, None) for need in asked)
        if labelled and ("reader" in needs(metric) or not math.isnan(score(example, nothing))):
            kept.append(example)
    lacking = f"{metric} requires " + " and ".join(_LABELS[need] for need in sorted(asked))
    if not kept:
        raise InputError(
            f"none of the {len(examples)} examples can be scored: {lacking}; add labels, or use a different metric"
        )
    if len(kept) < len(examples):
        left = len(examples) - len(kept)
        warnings.warn(f"skipping {left} of {len(examples)} examples that cannot be scored: {lacking}", stacklevel=2)
    return kept


def _compare(score: Callable[[str, list[str]], float], example: Any, prediction: Any) -> float:
    """Score the answer against all accepted answers; an empty answer is wrong."""
    right = _accepted(example)
    if not right:
        return math.nan
    given = _given(prediction)
    return score(given, right) if given else 0.0


def _joint_passages(example: Any, prediction: Any) -> tuple[float, float]:
    given, named = _given(prediction), _named(prediction)
    return support.joint_passage_score(given, _accepted(example), named, _helpful(example), _alternatives(example))


def _ranked(measure: str, example: Any, prediction: Any, k: int) -> float:
    more = {"alternatives": _alternatives(example)} if measure in _BY_GROUP else {}
    return RANKED[measure](_ids(prediction), _helpful(example), k, **more)


def _named(prediction: Any) -> Any:
    """Return the passage ids that the reader names as its support; None if it reports no ids."""
    named = getattr(prediction, "support", None)
    return None if named is None or not all(isinstance(one, str) for one in named) else named


def _accepted(example: Any) -> list[str]:
    """Return all accepted answers; empty if the right answer is unknown."""
    right = getattr(example, "answer", None)
    return [] if right is None else [right, *(getattr(example, "aliases", None) or ())]


def _given(prediction: Any) -> str:
    """Return the program's answer; empty if the reader declined."""
    return "" if prediction.answer is None else str(prediction.answer).strip()


def _ids(prediction: Any) -> list[str]:
    return [passage.id for passage in prediction.passages]


def _helpful(example: Any) -> list[str]:
    return usefulness.helpful_ids(_evidence(example))


def _evidence(example: Any) -> Any:
    return getattr(example, "evidence", None) or {}


def _alternatives(example: Any) -> Any:
    return getattr(example, "alternatives", None) or ()


def _pooled(example: Any) -> bool:
    return bool(getattr(example, "assessors", None))
