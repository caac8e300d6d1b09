"""What is measured: answers, retrieval, usefulness for the decision, and how sure the numbers are.

The pure functions know nothing of DSPy. What needs it (the judge) is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from querywright.metrics.agreement import Figure
from querywright.metrics.answers import (
    choice_accuracy,
    contains_answer,
    exact_match,
    extract_option,
    hit,
    is_invalid_choice,
    token_f1,
)
from querywright.metrics.calibration import Calibration
from querywright.metrics.decisions import (
    AccuracyGivenLabel,
    Flips,
    LabelShares,
    accuracy_by_label,
    flips,
    label_shares,
)
from querywright.metrics.dspy_metrics import METRICS, metric_named, scorable
from querywright.metrics.retrieval import (
    all_found_at_k,
    exact_recovery_at_k,
    ndcg_at_k,
    precision_at_k,
    recall_at_k,
    reciprocal_rank,
)
from querywright.metrics.statistics import (
    Mean,
    PairedTest,
    bootstrap_interval,
    holm,
    mean_with_interval,
    minimum_detectable,
    paired_exact_test,
    questions_needed,
    verdict,
    wilson_interval,
)
from querywright.metrics.support import joint_passage_score, support_passage_f1
from querywright.metrics.tokens import answer_tokens, normalize_answer
from querywright.metrics.usefulness import (
    Usefulness,
    decision_useful,
    passage_labels,
    question_label,
    usefulness,
)

if TYPE_CHECKING:
    from querywright.metrics.judge import Judge, JudgedMetric
    from querywright.metrics.judges import JUDGES, UsefulnessJudge, make_judge

__all__ = [
    "JUDGES",
    "METRICS",
    "AccuracyGivenLabel",
    "Calibration",
    "Figure",
    "Flips",
    "Judge",
    "JudgedMetric",
    "LabelShares",
    "Mean",
    "PairedTest",
    "Usefulness",
    "UsefulnessJudge",
    "accuracy_by_label",
    "all_found_at_k",
    "answer_tokens",
    "bootstrap_interval",
    "choice_accuracy",
    "contains_answer",
    "decision_useful",
    "exact_match",
    "exact_recovery_at_k",
    "extract_option",
    "flips",
    "hit",
    "holm",
    "is_invalid_choice",
    "joint_passage_score",
    "label_shares",
    "make_judge",
    "mean_with_interval",
    "metric_named",
    "minimum_detectable",
    "ndcg_at_k",
    "normalize_answer",
    "paired_exact_test",
    "passage_labels",
    "precision_at_k",
    "question_label",
    "questions_needed",
    "recall_at_k",
    "reciprocal_rank",
    "scorable",
    "support_passage_f1",
    "token_f1",
    "usefulness",
    "verdict",
    "wilson_interval",
]

_JUDGE = {
    **dict.fromkeys(("Judge", "JudgedMetric"), "judge"),
    **dict.fromkeys(("JUDGES", "UsefulnessJudge", "make_judge"), "judges"),
}


def __getattr__(name: str) -> Any:
    if name in _JUDGE:
        return getattr(importlib.import_module(f"querywright.metrics.{_JUDGE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
