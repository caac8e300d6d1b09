"""What a rewriter is worth on questions, beside no rewriting, the untrained model and the teacher."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import Metric
from querywright.metrics.usefulness import usefulness
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.keeping import read_json, write_json
from querywright.optimize.rewriter.types import Episode
from querywright.optimize.significance import ALPHA, against
from querywright.programs import make_program

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
    """Episodes as an arm.

    Args:
        name: The arm.
        episodes: One a question; a failed one is unscored.
        metrics: DSPy metrics by name.
    """
    return Evaluation(name, tuple(_row(one, metrics) for one in episodes), 0.0)


def without_rewriting(
    questions: Sequence[Question], retriever: Any, metrics: Mapping[str, Metric], max_passages: int
) -> Evaluation:
    """The questions searched as they are written.

    Args:
        questions: What is asked.
        retriever: What is searched.
        metrics: DSPy metrics by name.
        max_passages: As many as the technique shows.
    """
    program = make_program("plain", retriever, max_passages=max_passages)
    asked = [program(question=one.question, options=list(one.options)) for one in questions]
    episodes = [Episode(one, (), (), made) for one, made in zip(questions, asked, strict=True)]
    return evaluation_of(NO_REWRITING, episodes, metrics)


@dataclass(frozen=True, slots=True)
class Measured:
    """An arm and what the guards say of what it wrote."""

    evaluation: Evaluation
    guards: Mapping[str, float]


def kept(path: Path, name: str, make: Callable[[], Measured]) -> Measured:
    """An arm, read from its file where it was measured before.

    Args:
        path: The file.
        name: The arm.
        make: Measures it.
    """
    known = read_json(path)
    if known is None:
        made = make()
        known = {
            "rows": [row.to_json() for row in made.evaluation.rows],
            "guards": dict(made.guards),
            "seconds": made.evaluation.seconds,
        }
        write_json(path, known)
    rows = tuple(Row.from_json(row) for row in known["rows"])
    guards = {key: math.nan if value is None else float(value) for key, value in known["guards"].items()}
    return Measured(Evaluation(name, rows, known["seconds"]), guards)


def compared(arms: Sequence[Evaluation]) -> Compared:
    """All arms against no rewriting, Holm-corrected within a metric."""
    return Compared(tuple(arms), NO_REWRITING, tuple(against(arms, NO_REWRITING)))


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
