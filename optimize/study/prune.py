"""When a trial may end early: a paired test on the questions it has met says that it is worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from querywright.optimize.evaluate import Evaluation
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.types import TrialRecord

ALPHA = 0.05
"""Level of each one-sided test. With one objective it is the threshold of Optuna's ``WilcoxonPruner``."""

FEWEST = 6
"""Questions before a trial may end: fewer that all differ the same way show nothing at this level."""


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
        best = max(rivals, key=lambda one: (_signed(one, objectives[0]), -one.number))
        return best if objectives[0].metrics and _wilcoxon_prunes(met, best, objectives[0]) else None
    return next((one for one in rivals if _dominated(met, one, objectives)), None)


def _signed(record: TrialRecord, objective: Objective) -> float:
    value = record.values.get(objective.name, math.nan)
    value = value if objective.direction == "maximize" else -value
    return -math.inf if math.isnan(value) else value


def scores(evaluation: Evaluation, objective: Objective) -> dict[str, float]:
    """The objective's value of each question that it could be scored on."""
    found = {}
    for row in evaluation.rows:
        values = [row.scores.get(metric, math.nan) for metric in objective.metrics]
        mean = sum(values) / len(values)
        if not math.isnan(mean):
            found[row.id] = mean
    return found


def _wilcoxon_prunes(met: Evaluation, best: TrialRecord, objective: Objective) -> bool:
    """What Optuna's pruner says; it is shown both trials in memory, so that nothing is written a question."""
    import optuna

    assert best.dev is not None
    places = {row.id: place for place, row in enumerate(best.dev.rows)}
    mine, theirs = (
        {places[key]: value for key, value in scores(one, objective).items() if key in places}
        for one in (met, best.dev)
    )
    with quiet_optuna():
        study = optuna.create_study(direction=objective.direction)
        study.add_trial(optuna.trial.create_trial(value=best.values[objective.name], intermediate_values=theirs))
        running = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, intermediate_values=mine)
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=ALPHA, n_startup_steps=FEWEST)
        return bool(mine) and bool(pruner.prune(study, running))


def _dominated(met: Evaluation, rival: TrialRecord, objectives: Sequence[Objective]) -> bool:
    assert rival.dev is not None
    theirs_by_id = {row.id: row for row in rival.dev.rows}
    rows = tuple(theirs_by_id[row.id] for row in met.rows if row.id in theirs_by_id)
    theirs = Evaluation(rival.name, rows, 0.0)
    shown = False
    for objective in objectives:
        if not objective.metrics:  # a cost
            mine, other = objective.value(met), objective.value(theirs)
            if not mine >= other:
                return False
            continue
        a, b = scores(met, objective), scores(theirs, objective)
        differences = [a[key] - b[key] for key in a if key in b]
        if objective.direction == "minimize":
            differences = [-one for one in differences]
        if sum(differences) > 0:
            return False
        shown = shown or _is_below_zero(differences)
    return shown


def _is_below_zero(differences: Sequence[float]) -> bool:
    from scipy.stats import wilcoxon

    moved = [one for one in differences if one]
    if len(moved) < FEWEST - 1:
        return False
    return bool(wilcoxon(moved, alternative="less", method="auto").pvalue < ALPHA)


def values_of(evaluation: Evaluation, objectives: Sequence[Objective]) -> Mapping[str, float]:
    """The value of each objective; NaN where it has none."""
    return {objective.name: objective.value(evaluation) for objective in objectives}
