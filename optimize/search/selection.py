"""Decisions on dev: which of two arms is better, when a trial may end early, the best arm and how lucky it was."""

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
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.objectives import Objective
from querywright.optimize.search.trials import TrialRecord, best, ended, front, points

FEWEST = 6
"""Questions without which no exact test can show anything at the level of 5 per cent, even if all were won."""

ALPHA = 0.05
"""Level of each one-sided test that ends a trial."""

RESAMPLES = 1000

T = TypeVar("T", bound=Any)
"""What was tried on dev: it has a ``dev``, its results there."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What dev decides.

    Args:
        plain: The baseline.
        best: The best other arm, plain retrieval with other knobs among them; None if no other trial completed.
        winner: ``best`` if it beats the baseline, else the baseline.
        front: Arms that no other beats in all objectives, the first objective's best first.
        corrected: The winner's curse of the best arm, as ``winners_curse`` gives it.
        too_few: Why no arm is crowned although one was ahead; empty where questions suffice.
    """

    plain: TrialRecord
    best: TrialRecord | None
    winner: TrialRecord
    front: tuple[TrialRecord, ...]
    corrected: dict[str, float] | None
    too_few: str = ""


def choose(trials: Sequence[TrialRecord], objectives: Sequence[Objective], n_test: int) -> Selection:
    """The best arm by the first objective, one of quality, out of the front where there are several.

    Raises:
        QuerywrightError: The baseline could not be scored, so nothing can be compared with it.
    """
    first, arms = objectives[0], dict[str, TrialRecord]()
    for one in ended(trials, "complete"):
        arms.setdefault(one.arm.key, one)
    distinct = list(arms.values())
    plain = next((one for one in distinct if one.number == 0), None)  # plain retrieval with other knobs is an arm
    if plain is None:
        raise QuerywrightError(
            "the baseline has no result, so nothing can be chosen; `querywright study status` shows trial 0"
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
                f"{n_dev} dev and {n_test} test questions are too few to crown an arm: with fewer than {FEWEST} no "
                "test can show a difference"
            )
            winner = plain
    return Selection(plain, leader, winner, tuple(kept), winners_curse(distinct, first), too_few)


def best_of(arms: Sequence[T], objective: Objective) -> T:
    """The arm that is ahead of the most others and behind the fewest by an objective of quality; the first of equals.

    Any two are compared on the questions that both scored. The one with the higher objective is ahead,
    then the one with the larger share of questions with a deciding passage, then the one with fewer LM calls. An arm
    that failed on hard questions wins nothing by that, and costs the comparisons between other arms nothing. Where
    nothing failed this is the order of the objective. One without a value is out of the running, unless all are.
    """
    running = [arm for arm in arms if not math.isnan(objective.value(arm.dev))] or list(arms)
    alike: dict[Any, list[int]] = {}  # those that scored the same questions
    for number, arm in enumerate(running):
        alike.setdefault(tuple((row.id, *_scored(row, objective)) for row in arm.dev.rows), []).append(number)
    ranks = [_rank(arm.dev, objective) for arm in running]
    leads = [0] * len(running)
    for group in alike.values():
        order = sorted(ranks[number] for number in group)
        for number in group:
            leads[number] = bisect_left(order, ranks[number]) - len(order) + bisect_right(order, ranks[number])
    for group, others in permutations(alike.values(), 2):
        for number, other in product(group, others):
            pair = paired(running[number].dev, running[other].dev, objective)
            mine, theirs = (_rank(one, objective) for one in pair)
            leads[number] += (mine > theirs) - (mine < theirs)
    return running[max(range(len(running)), key=leads.__getitem__)]


def beats(arm: Evaluation, other: Evaluation, objective: Objective) -> bool:
    """Whether the objective itself is higher, on the questions that both scored; no value beats any."""
    if math.isnan(objective.value(other)):
        return not math.isnan(objective.value(arm))
    mine, theirs = (objective.value(one) for one in paired(arm, other, objective))
    return round(mine, 9) > round(theirs, 9)


def paired(arm: Evaluation, other: Evaluation, objective: Objective) -> tuple[Evaluation, Evaluation]:
    """Both arms without the questions of which a metric of the objective scored only one."""
    theirs_by_id = {row.id: row for row in other.rows}  # a trial that was pruned has met fewer
    both = [(row, theirs_by_id[row.id]) for row in arm.rows if row.id in theirs_by_id]
    rows = [(a, b) for a, b in both if _scored(a, objective) == _scored(b, objective)]
    mine, theirs = (tuple(pair[side] for pair in rows) for side in (0, 1))
    return Evaluation(arm.name, mine, arm.seconds), Evaluation(other.name, theirs, other.seconds)


def _scored(row: Row, objective: Objective) -> list[bool]:
    """Which metrics of an objective could be scored."""
    return [not math.isnan(row.scores.get(metric, math.nan)) for metric in objective.metrics]


def _rank(evaluation: Evaluation, objective: Objective) -> tuple[float, float, float]:
    value, entailed = objective.value(evaluation), evaluation.label_share(Label.ENTAILED)
    return (
        -math.inf if math.isnan(value) else round(value, 9),
        0.0 if math.isnan(entailed) else round(entailed, 9),
        -float(evaluation.cost.asked),
    )


def winners_curse(trials: Sequence[TrialRecord], objective: Objective, seed: int = 0) -> dict[str, float] | None:
    """How good the best arm is likely to be on other questions.

    The choice is made again on 1,000 resamples of the dev questions; each time the chosen arm is looked at on the
    questions that the resample left out (the bootstrap bias correction of Tsamardinos et al., arXiv 1708.07180; it
    errs towards caution, because a resample holds fewer different questions).

    Returns:
        ``dev``, the value as it was measured; ``corrected``, what an arm that is chosen on a resample gets on the
        questions left out of it, on average; the number of ``arms`` chosen from and ``n``, of questions. None with
        fewer than two arms or six questions that all of them scored.
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
    """Return the best finished trial if it shows that another trial is worse, else None.

    The two are compared on the questions that the other trial was evaluated on so far, by a one-sided Wilcoxon test, as
    Optuna's ``WilcoxonPruner`` does. With several objectives nothing is pruned, as in Optuna.
    """
    from scipy.stats import wilcoxon

    leader = best(ended(finished, "complete"), objectives[0])
    if leader is None or len(objectives) > 1:
        return None
    mine, theirs = objectives[0].scores(tried), objectives[0].scores(leader.dev)
    differences = [mine[key] - theirs[key] for key in mine if key in theirs]
    ahead = sum(mine.values()) * len(theirs) > sum(theirs.values()) * len(mine)
    if len(differences) < FEWEST or ahead or sum(differences) > 0:
        return None
    p = wilcoxon(differences, alternative="less", zero_method="zsplit").pvalue
    return leader if p < ALPHA else None
