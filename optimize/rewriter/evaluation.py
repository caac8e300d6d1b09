"""What a rewriter is worth on questions, beside no rewriting, the untrained model and the teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.usefulness import usefulness
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.types import Episode
from querywright.optimize.significance import ALPHA, against

UNTRAINED, WARMED_UP, TRAINED, TEACHER, IN_USE, AS_IT_COMES = (
    "untrained",
    "warmed up",
    "trained",
    "teacher",
    "trained, in use",
    "untrained, in use",
)
"""Arms: the policy as it was, after each stage, who taught it, and what runs when the rewriter is used by its name."""

METRICS = ("exact_recovery@1", "recall@5", "ndcg@10", "decision_useful")
"""What every rewriter is measured by, where evidence is labelled."""

DEEPEST = 10
"""Passages that the deepest of them looks at."""


def evaluation_of(name: str, episodes: Sequence[Episode], metrics: Mapping[str, Metric]) -> Evaluation:
    """Episodes, one a question, as an arm; a failed one is unscored.

    Args:
        name: The arm.
        episodes: From ``run_episodes``.
        metrics: DSPy metrics by name.
    """
    return Evaluation(name, tuple(_row(one, metrics) for one in episodes), 0.0)


def measured_by(metric: str, questions: Sequence[Question]) -> list[str]:
    """The metrics of a training: the one it is for first, and those that the questions allow."""
    labelled = any(question.evidence for question in questions)
    return list(dict.fromkeys([metric, *(METRICS if labelled else ())]))


def compared(arms: Sequence[Evaluation], questions: Sequence[Question]) -> Compared:
    """All arms against no rewriting, Holm-corrected within a metric."""
    return Compared(tuple(arms), NO_REWRITING, tuple(against(arms, NO_REWRITING)), questions=tuple(questions))


@dataclass(frozen=True, slots=True)
class Standing:
    """How a trained rewriter stands against no rewriting.

    Args:
        verdict: ``better``, ``worse`` or ``no difference shown``, by the paired test; ``not measured`` where no
            question could be scored.
        sentence: Of the test.
        lower: Whether its mean is below that of no rewriting, whatever the test says.
    """

    verdict: str
    sentence: str
    lower: bool

    @property
    def warning(self) -> str | None:
        """What must be said of a rewriter that is no gain."""
        if self.verdict == "worse":
            return "WORSE than the question as it is written: do not use this rewriter"
        if self.lower:
            return "its mean is below that of the question as it is written"
        if self.verdict == "better":
            return None
        return "no gain over the question as it is written was shown"


def standing(found: Compared, metric: str, arm: str = TRAINED) -> Standing:
    """How an arm stands against no rewriting in a metric.

    Args:
        found: Arms on the same questions.
        metric: The one that was trained for.
        arm: Default the trained policy.
    """
    one = next((c for c in found.comparisons if c.metric == metric and c.arm == arm), None)
    if one is None or not one.test.n:
        return Standing("not measured", f"{metric}: no question was scored", lower=False)
    test = one.test
    shown = test.p_two_sided < ALPHA and test.difference != 0
    verdict = "no difference shown" if not shown else "better" if test.difference > 0 else "worse"
    return Standing(verdict, one.sentence, lower=test.difference < 0)


def _row(episode: Episode, metrics: Mapping[str, Metric]) -> Row:
    question, prediction = episode.question, episode.prediction
    if prediction is None:
        return Row(id=question.id, scores=dict.fromkeys(metrics, math.nan), failure=episode.error or "bug")
    example = question.to_example()
    ids = tuple(passage.id for passage in prediction.passages)
    return Row(
        id=question.id,
        scores={name: float(metric(example, prediction)) for name, metric in metrics.items()},
        label=usefulness(ids, question.evidence, jointly=question.jointly).label if question.evidence else None,
        passages=ids,
        queries=tuple((query.role, query.text) for query in prediction.queries),
        fallbacks=tuple(prediction.fallbacks),
    )
