"""Optuna's samplers, made anew for each trial, so that what is proposed depends on no worker's past.

A sampler of Optuna's has random numbers of its own, which no storage keeps: a study that was interrupted goes on with
others than an undisturbed one. Here the numbers of a trial follow from the study's seed and the number of the trial,
those of a parameter that is sampled by itself from its name too, so that a trial that another worker takes over gets
the parameters that it would have got.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler

from querywright.errors import InputError, unknown
from querywright.optimize.contexts import quiet_optuna

_UNWARNED = {"warn_independent_sampling": False}
_SAMPLERS: Mapping[str, tuple[str, Mapping[str, Any], str | None]] = {
    # A study's space is conditional: parameters of different techniques never meet in a trial.
    "tpe": ("TPESampler", {"multivariate": True, "group": True}, None),
    "random": ("RandomSampler", {}, None),
    "nsga2": ("NSGAIISampler", {}, None),
    "nsga3": ("NSGAIIISampler", {}, None),
    "gp": ("GPSampler", _UNWARNED, "torch"),
    "cmaes": ("CmaEsSampler", _UNWARNED, "cmaes"),
}
"""Optuna's class, our defaults and the package that it imports when it is first asked, by name."""


class SeededSampler(BaseSampler):
    """A sampler whose proposals for a trial follow from a seed, the trial's number and the finished trials.

    It makes Optuna's sampler from a seed.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed, self._number, self._relative = make, seed, -1, make(0)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """The parameters that are sampled together; the sampler notes their groups for ``sample_relative``."""
        self._number, self._relative = trial.number, self._inner(trial.number)
        found: dict[str, BaseDistribution] = self._relative.infer_relative_search_space(study, trial)
        return found

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Their values. Those that a trial turns out not to have are not used."""
        if trial.number != self._number:  # others were begun since
            self.infer_relative_search_space(study, trial)
        values: dict[str, Any] = self._relative.sample_relative(study, trial, search_space)
        return values

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        """The value of one parameter by itself."""
        inner = self._inner(trial.number, param_name)
        return inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Sequence[float] | None) -> None:
        """Let the sampler note what it notes in the storage."""
        self._inner(trial.number).after_trial(study, trial, state, values)

    def _inner(self, *parts: Any) -> BaseSampler:
        return self._make(seed_of(self._seed, *parts))


def seed_of(*parts: Any) -> int:
    """A seed of 32 bits that follows from these parts."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int) -> SeededSampler:
    """What proposes the trials of a study.

    Raises:
        InputError: There is no such sampler, it lacks a package, or refuses an argument; the seed is the study's.
    """
    if name not in _SAMPLERS:
        raise InputError(unknown("sampler", name, _SAMPLERS))
    kind, defaults, package = _SAMPLERS[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(f"the sampler {name} needs the package {package}, which is not there; install it, or take tpe")

    def make(own: int) -> BaseSampler:
        with quiet_optuna():
            made: BaseSampler = getattr(optuna.samplers, kind)(seed=own, **{**defaults, **arguments})
            return made

    try:
        return SeededSampler(make, seed)
    except (ValueError, TypeError) as error:
        raise InputError(f"the sampler {name} refuses its arguments: {error}") from error
