"""What dev decides: which of two arms is better, when a trial may end early, the best arm and how lucky it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from querywright.data.types import Label
from querywright.errors import QuerywrightError
from querywright.metrics.statistics import PairedTest
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.status import front, points
from querywright.optimize.study.types import TrialRecord

FEWEST = 6
"""Questions without which no exact test can show anything at the level of 5 per cent, even if all were won."""

ALPHA = 0.05
"""Level of each one-sided test that ends a trial. With one objective the threshold of Optuna's ``WilcoxonPruner``."""

RESAMPLES = 1000

T = TypeVar("T", bound=Any)
"""What was tried on dev: it has a ``dev``, its results there."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """The best value on dev without the luck of having been chosen there.

    Args:
        dev: The value as it was measured.
        corrected: What an arm that is chosen on a resample of the questions gets on those left out of it, on average.
        arms: Arms that were chosen from.
        n: Questions.
    """

    dev: float
    corrected: float
    arms: int
    n: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """What dev decides.

    Args:
        plain: No rewriting, with the reader of the best arm.
        best: The best other arm, plain retrieval with other knobs among them; None where none was complete.
        winner: ``best`` where it beats no rewriting, else no rewriting.
        front: Arms that no other beats in all objectives, the first objective's best first.
        corrected: The winner's curse of the best arm.
        test: The best arm against no rewriting, on the dev questions that both scored.
        too_few: Why no arm is crowned although one was ahead; empty where questions suffice.
        values: The first objective of the best arm and of no rewriting on the dev questions that both scored; NaN
            where there is none.
    """

    plain: TrialRecord
    best: TrialRecord | None
    winner: TrialRecord
    front: tuple[TrialRecord, ...]
    corrected: Corrected | None
    test: PairedTest | None
    too_few: str = ""
    values: tuple[float, float] = (math.nan, math.nan)


def choose(trials: Sequence[TrialRecord], objectives: Sequence[Objective], n_test: int) -> Chosen:
    """The best arm by the first objective, out of the front where there are several.

    Args:
        trials: Of the study.
        objectives: Its objectives; the first is one of quality.
        n_test: Questions of the test.

    Raises:
        QuerywrightError: No rewriting could not be scored, so nothing can be held against it.
    """
    complete = [one for one in trials if one.state == "complete" and one.arm is not None and one.dev is not None]
    distinct = list({one.arm.key: one for one in complete[::-1] if one.arm is not None}.values())[::-1]
    # With other knobs, where a study searches them, plain retrieval is an arm to choose like any other.
    knobs = next((one.arm.knobs for one in complete if one.arm is not None and one.arm.is_plain), None)
    plains = [one for one in distinct if one.arm is not None and one.arm.is_plain and one.arm.knobs == knobs]
    if not plains:
        raise QuerywrightError(
            "no rewriting has no result, so nothing can be chosen; `querywright study status` tells of trial 0"
        )
    first = objectives[0]
    kept = pareto(distinct, objectives)
    rivals = [one for one in distinct if one not in plains]
    others = [one for one in rivals if one in kept] if len(objectives) > 1 else []
    best = best_of(others or rivals, first) if rivals else None
    # No rewriting with the reader of the best arm, so that a reader's gain is not taken for rewriting's.
    reader = None if best is None or best.arm is None else best.arm.reader
    plain = next((one for one in plains if one.arm is not None and one.arm.reader == reader), plains[0])
    winner, test, values = plain, None, (math.nan, math.nan)
    assert plain.dev is not None
    if best is not None:
        assert best.dev is not None
        winner = best if beats(best.dev, plain.dev, first) else plain
        mine, theirs = paired(best.dev, plain.dev, first)
        values = first.value(mine), first.value(theirs)
        test = mine.against(theirs, first.metrics[0]) if mine.rows else None
    too_few = ""
    n_dev = len(first.scores(plain.dev))
    if winner is not plain and min(n_dev, n_test) < FEWEST:
        too_few = (
            f"{n_dev} dev and {n_test} test questions are too few to crown an arm: with fewer than {FEWEST} no test "
            "can show a difference"
        )
        winner = plain
    return Chosen(plain, best, winner, tuple(kept), winners_curse(distinct, first), test, too_few, values)


def best_of(arms: Sequence[T], objective: Objective) -> T:
    """The arm that is ahead of the most others and behind the fewest; the first of equals.

    Any two are held against each other on the questions that both scored. The one with the higher objective is ahead,
    then the one with the larger share of questions with a deciding passage, then the one with fewer LM calls. An arm
    that failed on hard questions wins nothing by that, and costs the comparisons between other arms nothing. Where
    nothing failed this is the order of the objective.

    Args:
        arms: One or more, on the same questions. One without a value is out of the running, unless all are.
        objective: One of quality.
    """
    running = [arm for arm in arms if not math.isnan(objective.value(arm.dev))] or list(arms)

    def lead(arm: T) -> int:
        ranks = (tuple(_rank(one, objective) for one in paired(arm.dev, other.dev, objective)) for other in running)
        return sum((mine > theirs) - (mine < theirs) for mine, theirs in ranks)

    return max(running, key=lead)


def beats(arm: Evaluation, other: Evaluation, objective: Objective) -> bool:
    """Whether the objective itself is higher, on the questions that both scored; no value beats any."""
    if math.isnan(objective.value(other)):
        return not math.isnan(objective.value(arm))
    mine, theirs = (objective.value(one) for one in paired(arm, other, objective))
    return round(mine, 9) > round(theirs, 9)


def paired(arm: Evaluation, other: Evaluation, objective: Objective) -> tuple[Evaluation, Evaluation]:
    """Both arms without the questions of which a metric of the objective scored only one."""

    def scored(row: Any) -> list[bool]:
        return [not math.isnan(row.scores.get(metric, math.nan)) for metric in objective.metrics]

    rows = [(a, b) for a, b in zip(arm.rows, other.rows, strict=True) if scored(a) == scored(b)]
    mine, theirs = (tuple(pair[side] for pair in rows) for side in (0, 1))
    return Evaluation(arm.name, mine, arm.seconds), Evaluation(other.name, theirs, other.seconds)


def _rank(evaluation: Evaluation, objective: Objective) -> tuple[float, float, float]:
    value, entailed = objective.value(evaluation), evaluation.label_share(Label.ENTAILED)
    return (
        -math.inf if math.isnan(value) else round(value, 9),
        0.0 if math.isnan(entailed) else round(entailed, 9),
        -float(evaluation.cost.asked),
    )


def pareto(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """The trials of the front, best by the first objective first."""
    kept, values = set(front(trials, objectives)), points(trials, objectives)
    found = [one for one in trials if one.number in kept]
    return sorted(found, key=lambda one: ([-value for value in values[one.number]], one.number))


def winners_curse(trials: Sequence[TrialRecord], objective: Objective, seed: int = 0) -> Corrected | None:
    """How good the best arm is likely to be on other questions.

    The choice is made again on 1,000 resamples of the dev questions; each time the chosen arm is looked at on the
    questions that the resample left out (the bootstrap bias correction of Tsamardinos et al., arXiv 1708.07180; it
    errs towards caution, because a resample holds fewer different questions).

    Args:
        trials: Complete trials of different arms.
        objective: What was chosen by; larger is better.
        seed: Of the resamples.

    Returns:
        None with fewer than two arms or six questions that all of them scored.
    """
    tables = [objective.scores(one.dev) for one in trials if one.dev is not None]
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
    return Corrected(float(values.mean(axis=1).max()), float(np.mean(left_out)), len(tables), len(shared))


def surviving(trials: Sequence[TrialRecord], objective: Objective, number: int) -> list[str]:
    """The techniques that go on to the late trials, best first.

    Args:
        trials: Those of the first phase. Where none was complete those that ended early are looked at.
        objective: The study's first.
        number: How many go on at most. No rewriting, which has no prompts to tune, is not counted.
    """
    tried = [one for one in trials if one.dev is not None and one.arm is not None and one.arm.technique != "plain"]
    left = [one for one in tried if one.state == "complete"] or tried
    found: list[str] = []
    while left and len(found) < number:
        arm = best_of(left, objective).arm
        assert arm is not None
        found.append(arm.technique)
        left = [one for one in left if one.arm is not None and one.arm.technique != arm.technique]
    return found


def worse_than(met: Evaluation, finished: Sequence[TrialRecord], objectives: Sequence[Objective]) -> TrialRecord | None:
    """The finished trial that shows another to be worse, on the questions that it has met.

    With one objective Optuna's ``WilcoxonPruner`` decides, against the best trial. It compares the scores of each
    question with those of the best trial. With several, for which Optuna prunes nothing, a trial is worse than one on
    the front that is better in some objective of quality (one-sided Wilcoxon test), behind it in none, and no cheaper
    in any objective of cost.

    Args:
        met: The trial's results so far, in the order of the dev questions.
        finished: Complete trials.
        objectives: Of the study.
    """
    rivals = [one for one in finished if one.state == "complete" and one.dev is not None]
    if len(met.rows) < FEWEST or not rivals:
        return None
    if len(objectives) == 1:
        values = {number: point[0] for number, point in points(rivals, objectives).items()}
        best = max(rivals, key=lambda one: (values.get(one.number, -math.inf), -one.number))
        return best if objectives[0].metrics and _wilcoxon_prunes(met, best, objectives[0]) else None
    return next((one for one in rivals if one.dev is not None and _dominated(met, one.dev, objectives)), None)


def _wilcoxon_prunes(met: Evaluation, best: TrialRecord, objective: Objective) -> bool:
    """What Optuna's pruner says; it is shown both trials in memory, so that nothing is written a question."""
    import optuna

    assert best.dev is not None
    places = {row.id: place for place, row in enumerate(best.dev.rows)}
    mine, theirs = (
        {places[key]: value for key, value in objective.scores(one).items() if key in places} for one in (met, best.dev)
    )
    with quiet_optuna():
        study = optuna.create_study(direction=objective.direction)
        study.add_trial(optuna.trial.create_trial(value=best.values[objective.name], intermediate_values=theirs))
        running = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=mine)
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=ALPHA, n_startup_steps=FEWEST)
        return bool(mine) and bool(pruner.prune(study, running))


def _dominated(met: Evaluation, rival: Evaluation, objectives: Sequence[Objective]) -> bool:
    from scipy.stats import wilcoxon

    by_id = {row.id: row for row in rival.rows}
    theirs = Evaluation(rival.name, tuple(by_id[row.id] for row in met.rows if row.id in by_id), 0.0)
    shown = False
    for objective in objectives:
        if not objective.metrics:  # a cost
            if not objective.value(met) >= objective.value(theirs):
                return False
            continue
        a, b = objective.scores(met), objective.scores(theirs)
        differences = [a[key] - b[key] for key in a if key in b]
        if sum(differences) > 0:
            return False
        moved = [one for one in differences if one]
        is_behind = len(moved) >= FEWEST - 1 and wilcoxon(moved, alternative="less", method="auto").pvalue < ALPHA
        shown = shown or bool(is_behind)
    return shown
