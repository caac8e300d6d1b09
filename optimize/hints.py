"""Where a result cannot mean anything: one line each, told as soon as it can be known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from querywright.data.types import Label, Question
from querywright.metrics.statistics import minimum_detectable
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.significance import ALPHA

if TYPE_CHECKING:
    from querywright.optimize.objectives import Objective

ONE_WILL_DO = ("decision_useful", "hit", "mrr", "judged_useful")
"""Metrics that one deciding passage satisfies."""


def hints(
    questions: Sequence[Question], metrics: Collection[str], *, asked: int | None = None, tests: int = 1
) -> Iterator[str]:
    """What is wrong with questions and metrics before anything is asked.

    ``asked`` is the number of questions of the test (all), ``tests`` that of arms held against the baseline.
    """
    n = len(questions) if asked is None else asked
    if tests and n and minimum_detectable(n, alpha=ALPHA / tests) is None:
        needed = next(more for more in range(n, 10**6) if minimum_detectable(more, alpha=ALPHA / tests) is not None)
        yield f"{n} questions are too few to show any lead: it takes {needed} at least, with all of them won"
    loose = [name for name in metrics if name.partition("@")[0] in ONE_WILL_DO]
    several = sum(not one.jointly and _deciding(one) > 1 for one in questions)
    if loose and 2 * several > len(questions) and not any(name.startswith("full_recall") for name in metrics):
        yield (
            f"{several} of {len(questions)} questions have several deciding passages, and {loose[0]} asks for one of "
            'them: where an answer takes all, say so in the data ("jointly": true), or measure full_recall@5'
        )


def ceiling(plain: Evaluation, aim: Objective) -> str:
    """That nothing can be better than no rewriting on dev, where it has all there is; else empty."""
    if not aim.metrics or not aim.value(plain) >= 1:
        return ""
    return (
        f"no rewriting has {aim.name} 100 on dev, so nothing can be shown to be better: give harder questions, fewer "
        "passages (max_passages) or a stricter objective, such as full_recall@5"
    )


def _deciding(question: Question) -> int:
    return sum(label is Label.ENTAILED for label in question.evidence.values())
