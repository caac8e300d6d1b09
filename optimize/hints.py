"""One-line warnings, given as early as possible, about questions and metrics that make a result meaningless."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from querywright.data.splits import Splits, asked_of, folded, repeated
from querywright.data.types import Label, Question
from querywright.metrics.retrieval import groups_of
from querywright.metrics.statistics import minimum_detectable
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.significance import ALPHA

if TYPE_CHECKING:
    from querywright.optimize.objectives import Objective

ONE_WILL_DO = ("decision_useful", "hit", "mrr", "judged_useful")
"""Metrics for which one deciding passage is enough."""


def hints(
    questions: Sequence[Question], metrics: Collection[str], *, asked: int | None = None, tests: int = 1
) -> Iterator[str]:
    """Yield warnings about questions and metrics, before the first LM call.

    Args:
        questions: The questions.
        metrics: Names of the metrics.
        asked: Number of test questions. Default: all.
        tests: Number of programs to compare with the baseline. Default 1.
    """
    n = len(questions) if asked is None else asked
    if tests and n and minimum_detectable(n, alpha=ALPHA / tests) is None:
        needed = next(more for more in range(n, 10**6) if minimum_detectable(more, alpha=ALPHA / tests) is not None)
        are = "question is" if n == 1 else "questions are"
        yield f"{n} {are} too few to show any lead, even if all are won; use at least {needed}"
    loose = [name for name in metrics if name.partition("@")[0] in ONE_WILL_DO]
    several = sum(not one.jointly and _deciding(one) > 1 for one in questions)
    if loose and 2 * several > len(questions) and not any(name.startswith("full_recall") for name in metrics):
        yield (
            f"{several} of {len(questions)} questions have several deciding passages, but {loose[0]} requires only one "
            'of them. If an answer needs all of them, set "jointly": true for these questions, or use the metric '
            "full_recall@5; if they are copies, list them in 'alternatives'"
        )


def repeats(questions: Sequence[Question] | Splits) -> Iterator[str]:
    """Yield a line for each way in which repeated questions distort a result, with their number and an example.

    Questions are the same if their texts, options, and histories are the same. Repeats within train do no harm.
    """
    splits = questions._asdict() if isinstance(questions, Splits) else {"": questions}
    before: dict[str, tuple[str, Question]] = {}
    for name, part in splits.items():
        again = [one for one in part if asked_of(one) in before]
        twice = repeated(part) if name != "train" else []
        count, kind = sum(len(same) - 1 for same in twice), f"{len(part)} {name} questions".replace("  ", " ")
        if again:
            split, first = before[asked_of(again[0])]
            yield (
                f"{len(again)} of {kind} also occur in {' or '.join(list(splits)[: list(splits).index(name)])}, such "
                f"as {again[0].id!r} ({first.id!r} in {split}), so {name} is too easy. Remove these questions, or "
                "pass all questions as one list so that duplicates are in the same split"
            )
        if count:
            yield (
                f"{count} of {kind} are duplicates, such as {twice[0][0].id!r} and {twice[0][1].id!r}. Duplicates are "
                "not independent, so intervals are too narrow and p-values too small; remove the duplicates"
            )
        for one in part:
            before.setdefault(asked_of(one), (name, one))
    pairs = [(one, same[0]) for same in repeated(one for part in splits.values() for one in part) for one in same[1:]]
    if differing := [pair for pair in pairs if _differ(*pair)]:
        told = " and ".join(f"{one.id!r} ({one.answer!r})" for one in reversed(differing[0]))
        yield (
            f"identical questions must have the same right answers, but the answers differ in {len(differing)} "
            f"pair{'s' * (len(differing) != 1)}, such as {told}; correct the answers, or list all right answers in "
            "both questions"
        )


def ceiling(plain: Evaluation, aim: Objective) -> str:
    """If the baseline scores 100 on dev, return a hint that no program can beat it; otherwise, an empty string."""
    if not aim.metrics or not aim.value(plain) >= 1:
        return ""
    return (
        f"the baseline has a {aim.name} score of 100 on dev, so no program can be better; use harder questions, "
        "fewer passages (max_passages), or a stricter objective, such as full_recall@5"
    )


def _differ(one: Question, other: Question) -> bool:
    """Return whether both questions have right answers but share none."""
    first, second = (set(map(folded, each.answers)) for each in (one, other))
    return bool(first and second) and first.isdisjoint(second)


def _deciding(question: Question) -> int:
    deciding = [key for key, label in question.evidence.items() if label is Label.ENTAILED]
    return len(groups_of(deciding, question.alternatives))
