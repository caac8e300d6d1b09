"""What mattered in a study: how much each parameter tells the best trials from the others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.status import of_technique, ranked
from querywright.optimize.study.types import TrialRecord

FEWEST = 8
"""Complete trials below which nothing is said."""

TOP = 5
"""Trials that are the best ones at the least; the share of them is never below a tenth nor above a half."""


@dataclass(frozen=True, slots=True)
class Importance:
    """The parameters of a study, or of one technique in it.

    Args:
        of: The technique; None for the study.
        n: Complete trials that it rests on.
        shares: By parameter, the greatest first; their sum is 1. Empty where nothing can be said.
        why: What is said in place of shares.
    """

    of: str | None
    n: int
    shares: Mapping[str, float]
    why: str = ""


def importances(trials: Sequence[TrialRecord], aim: Objective, techniques: Sequence[str]) -> list[Importance]:
    """What mattered overall, then within each technique that has parameters, by PED-ANOVA.

    Args:
        trials: Of the study.
        aim: The objective.
        techniques: Those that are looked into.

    Source: Watanabe et al. 2023, arXiv:2304.10255, as Optuna has it.
    """
    scored = ranked(trials, aim)
    found = [_importance(None, [(dict(one.params), one.values[aim.name]) for one in scored], aim)]
    for name in techniques:
        mine = [
            ({key: value for key, value in one.params.items() if key.startswith(f"{name}.") or key == "reader"}, one)
            for one in of_technique(scored, name)
        ]
        if any(params for params, _ in mine):
            found.append(_importance(name, [(params, one.values[aim.name]) for params, one in mine], aim))
    return found


def _importance(technique: str | None, trials: Sequence[tuple[dict[str, Any], float]], aim: Objective) -> Importance:
    """That of parameters by trials, the best first."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    n = len(trials)
    if n < FEWEST:
        return Importance(technique, n, {}, f"complete trials: {n}, and it takes {FEWEST}")
    names = dict.fromkeys(name for params, _ in trials for name in params)
    spaces = {name: _distribution([params[name] for params, _ in trials if name in params]) for name in names}
    searched = {name: space for name, space in spaces.items() if not space.single()}
    if not searched:
        return Importance(technique, n, {}, "no parameter has two values")
    share = min(0.5, max(0.1, TOP / n))
    if trials[math.ceil(share * n) - 1][1] == trials[-1][1]:  # the best share holds all trials
        return Importance(technique, n, {}, "the best trials cannot be told from the others")
    with quiet_optuna(), warnings.catch_warnings():
        # That values with a single trial are not told well is said in the report, of all of it.
        warnings.filterwarnings("ignore", message="Some regimes for parameter", category=UserWarning)
        study = optuna.create_study(direction=aim.direction)
        for params, value in trials:
            kept = {name: one for name, one in params.items() if name in searched}
            own = {name: searched[name] for name in kept}
            study.add_trial(optuna.trial.create_trial(value=value, params=kept, distributions=own))
        evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
        found = get_param_importances(study, evaluator=evaluator, params=list(searched))
    by_size = sorted(found.items(), key=lambda one: (-one[1], one[0]))
    return Importance(technique, n, {name: round(float(value), 6) for name, value in by_size})


def _distribution(values: Sequence[Any]) -> Any:
    """The space that these values span."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return (IntDistribution if kinds == {int} else FloatDistribution)(min(values), max(values))
    return CategoricalDistribution(sorted(dict.fromkeys(values), key=lambda value: (str(type(value)), str(value))))
