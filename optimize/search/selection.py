"""Decisions on dev: the better of two arms, the best arm and its winner's curse, and when to prune a trial."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, TypeVar

import numpy as np

from querywright.data.types import Label
from querywright.errors import QuerywrightError
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.objectives import Objective
from querywright.optimize.search.trials import TrialRecord, ended, front, points

FEWEST = 6
"""Minimum number of questions; with fewer, no exact test is significant at 5%, even if all are won."""

ALPHA = 0.05
"""Significance level of the one-sided test that prunes a trial."""

RESAMPLES = 1000

T = TypeVar("T", bound=Any)
"""Any object whose ``dev`` attribute has results on dev."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice on dev.

    Args:
        plain: The baseline.
        best: The best other arm, which may be plain retrieval with different knobs; None if no other trial completed.
        winner: ``best`` if it beats the baseline, otherwise the baseline.
        front: Arms that no other arm beats in every objective, sorted by the first objective, best first.
        corrected: The best arm's value on dev, corrected for the winner's curse; see ``winners_curse``.
        too_few: Why the baseline is chosen although an arm was ahead; empty if there are enough questions.
        repeated: Number of trials whose arm an earlier trial had evaluated, if all trials completed; otherwise 0.
    """

    plain: TrialRecord
    best: TrialRecord | None
    winner: TrialRecord
    front: tuple[TrialRecord, ...]
    corrected: dict[str, float] | None
    too_few: str = ""
    repeated: int = 0


def choose(trials: Sequence[TrialRecord], objectives: Sequence[Objective], n_test: int) -> Selection:
    """Return the best arm by the first objective; with several objectives, the best arm on the front.

    Args:
        trials: The trials.
        objectives: The objectives; the first one measures quality.
        n_test: The number of test questions.

    Raises:
        QuerywrightError: The baseline has no result, so no arm can be compared with it.
    """
    first, arms, complete = objectives[0], dict[str, TrialRecord](), ended(trials, "complete")
    for one in complete:
        arms.setdefault(one.arm.key, one)
    distinct = list(arms.values())
    plain = next((one for one in distinct if one.number == 0), None)  # plain retrieval with different knobs is an arm
    if plain is None:
        raise QuerywrightError(
            "the baseline has no result, so no program can be chosen; see trial 0 in `querywright study status`"
        )
    values, numbers = points(distinct, objectives), front(distinct, objectives)
    kept = [one for one in distinct if one.number in numbers]
    kept.sort(key=lambda one: ([-value for value in values[one.number]], one.number))
    rivals = [one for one in distinct if one is not plain]
    others = [one for one in rivals if one in kept] if len(objectives) > 1 else []
    leader = best_of(others or rivals, first) if rivals else None
    winner, too_few = plain, ""
    if leader is not None and beats(leader.dev, plain.dev, first):
        winner, n_dev = leader, len(first.scores(plain.dev))
        if min(n_dev, n_test) < FEWEST:
            too_few = (
                f"{n_dev} dev and {n_test} test questions are too few to choose a different program (at least "
                f"{FEWEST} of each are required to show a difference)"
            )
            winner = plain
    repeated = len(complete) - len(distinct) if len(complete) == len(ended(trials)) else 0
    return Selection(plain, leader, winner, tuple(kept), winners_curse(distinct, first), too_few, repeated)


def best_of(arms: Sequence[T], objective: Objective) -> T:
    """Return the arm that is ahead of the most other arms by a quality objective; the first one if arms are equal.

    Each pair of arms is compared on the questions that both scored, so that an arm cannot win by failing on hard
    questions. The arm with the higher objective is ahead; ties are broken by more questions with a deciding passage,
    then by fewer LM calls. An arm without a value is omitted, unless no arm has a value.
    """
    running = [arm for arm in arms if not math.isnan(objective.value(arm.dev))] or list(arms)
    alike: dict[Any, list[int]] = {}  # arms that scored the same questions
    for number, arm in enumerate(running):
        alike.setdefault(tuple((row.id, *objective.scored(row)) for row in arm.dev.rows), []).append(number)
    ranks = [_rank(arm.dev, objective) for arm in running]
    leads = [0] * len(running)
    for group in alike.values():
        order = sorted(ranks[number] for number in group)
        for number in group:
            leads[number] = bisect_left(order, ranks[number]) - len(order) + bisect_right(order, ranks[number])
    for group, others in permutations(alike.values(), 2):
        for number, other in product(group, others):
            pair = objective.paired(running[number].dev, running[other].dev)
            mine, theirs = (_rank(one, objective) for one in pair)
            leads[number] += (mine > theirs) - (mine < theirs)
    return running[max(range(len(running)), key=leads.__getitem__)]


def beats(arm: Evaluation, other: Evaluation, objective: Objective) -> bool:
    """Return whether the first arm has the higher objective on the questions that both scored."""
    if math.isnan(objective.value(other)):
        return not math.isnan(objective.value(arm))
    mine, theirs = (objective.value(one) for one in objective.paired(arm, other))
    return round(mine, 9) > round(theirs, 9)


def _rank(evaluation: Evaluation, objective: Objective) -> tuple[float, float, float]:
    value, entailed = objective.value(evaluation), evaluation.label_share(Label.ENTAILED)
    return (
        -math.inf if math.isnan(value) else round(value, 9),
        0.0 if math.isnan(entailed) else round(entailed, 9),
        -float(evaluation.cost.asked),
    )


def winners_curse(trials: Sequence[TrialRecord], objective: Objective, seed: int = 0) -> dict[str, float] | None:
    """Estimate the value of the best arm on new questions.

    The best arm is chosen again on each of 1,000 resamples of the dev questions and evaluated on the questions outside
    the resample (the bootstrap bias correction of Tsamardinos et al., arXiv 1708.07180). The estimate is conservative,
    because a resample contains fewer distinct questions.

    Returns:
        ``dev``, the measured value; ``corrected``, the mean value on the questions outside the resamples; ``arms``, the
        number of arms; and ``n``, the number of questions. None if there are fewer than two arms or fewer than six
        questions that all arms scored.
    """
    tables = [objective.scores(one.dev) for one in trials]
    shared = [key for key in (tables[0] if tables else {}) if all(key in table for table in tables)]
    if len(tables) < 2 or len(shared) < FEWEST:
        return None
    values = np.array([[table[key] for key in shared] for table in tables])
    drawn = np.random.default_rng(seed)
    left_out = []
    for _ in range(RESAMPLES):
        inside = drawn.integers(len(shared), size=len(shared))
        outside = np.setdiff1d(np.arange(len(shared)), inside)
        if len(outside):
            chosen = int(values[:, inside].mean(axis=1).argmax())
            left_out.append(values[chosen, outside].mean())
    counts = {"arms": len(tables), "n": len(shared)}
    return {"dev": float(values.mean(axis=1).max()), "corrected": float(np.mean(left_out)), **counts}


def worse_than(
    tried: Evaluation, finished: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> TrialRecord | None:
    """Return the finished trial with the highest value if it is shown to be better than the given trial, else None.

    Like Optuna's ``WilcoxonPruner``, this compares the two trials on the questions on which the given trial was
    evaluated so far, with a one-sided Wilcoxon test. With several objectives, nothing is pruned, as in Optuna.
    """
    from scipy.stats import wilcoxon

    values = points(finished, objectives[:1])
    if not values or len(objectives) > 1:
        return None
    leader = max((one for one in finished if one.number in values), key=lambda one: values[one.number])
    mine, theirs = objectives[0].scores(tried), objectives[0].scores(leader.dev)
    differences = [mine[key] - theirs[key] for key in mine if key in theirs]
    ahead = sum(mine.values()) * len(theirs) > sum(theirs.values()) * len(mine)
    if len(differences) < FEWEST or ahead or sum(differences) > 0:
        return None
    p = wilcoxon(differences, alternative="less", zero_method="zsplit").pvalue
    return leader if p < ALPHA else None
