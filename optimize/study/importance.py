"""What mattered in a study: how much each parameter tells the best trials from the others."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.objectives import Objective
from querywright.optimize.study.status import ended, of_technique
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
    found = [_importance(None, trials, aim)]
    for name in techniques:
        mine = of_technique(trials, name)
        if any(_own(one.params, name) for one in mine):
            found.append(_importance(name, mine, aim))
    return found


def _importance(technique: str | None, trials: Sequence[TrialRecord], aim: Objective) -> Importance:
    scored = [one for one in ended(trials, "complete") if not math.isnan(one.values.get(aim.name, math.nan))]
    n, values = len(scored), [one.values[aim.name] for one in scored]
    if n < FEWEST:
        return Importance(technique, n, {}, f"complete trials: {n}, and it takes {FEWEST}")
    params = [dict(one.params) if technique is None else _own(one.params, technique) for one in scored]
    names = dict.fromkeys(name for one in params for name in one)
    spaces = {name: _distribution([one[name] for one in params if name in one]) for name in names}
    searched = {name: space for name, space in spaces.items() if not space.single()}
    if not searched:
        return Importance(technique, n, {}, "no parameter has two values")
    share = min(0.5, max(0.1, TOP / n))
    ordered = sorted(values, reverse=aim.direction == "maximize")
    if ordered[math.ceil(share * n) - 1] == ordered[-1]:  # the best share holds all trials
        return Importance(technique, n, {}, "the best trials cannot be told from the others")
    return Importance(technique, n, _shares(params, values, searched, share, aim))


def _shares(
    params: Sequence[Mapping[str, Any]],
    values: Sequence[float],
    searched: Mapping[str, Any],
    share: float,
    aim: Objective,
) -> dict[str, float]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with quiet_optuna(), warnings.catch_warnings():
        # That values with a single trial are not told well is said in the report, of all of it.
        warnings.filterwarnings("ignore", message="Some regimes for parameter", category=UserWarning)
        study = optuna.create_study(direction=aim.direction)
        for mine, value in zip(params, values, strict=True):
            kept = {name: one for name, one in mine.items() if name in searched}
            spaces = {name: searched[name] for name in kept}
            study.add_trial(optuna.trial.create_trial(value=value, params=kept, distributions=spaces))
        evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
        found = get_param_importances(study, evaluator=evaluator, params=list(searched))
    return {name: round(float(value), 6) for name, value in sorted(found.items(), key=lambda one: (-one[1], one[0]))}


def _own(params: Mapping[str, Any], technique: str) -> dict[str, Any]:
    """The parameters of one technique, and the reader."""
    return {name: value for name, value in params.items() if name.startswith(f"{technique}.") or name == "reader"}


def _distribution(values: Sequence[Any]) -> Any:
    """The space that these values span."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return (IntDistribution if kinds == {int} else FloatDistribution)(min(values), max(values))
    return CategoricalDistribution(sorted(dict.fromkeys(values), key=lambda value: (str(type(value)), str(value))))
