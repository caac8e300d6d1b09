"""Optuna's samplers with a seed for each trial, so that a resumed study proposes the same trials.

Optuna's samplers keep the state of their random number generators in memory, so a resumed study would propose different
trials. Here the seed is derived from the study, the trial number, and, for a parameter that is sampled alone, its name.
If another worker takes over a trial, it gets the same parameters.
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
    # The space is conditional: a trial has the parameters of only one technique.
    "tpe": ("TPESampler", {"multivariate": True, "group": True}, None),
    "random": ("RandomSampler", {}, None),
    "nsga2": ("NSGAIISampler", {}, None),
    "nsga3": ("NSGAIIISampler", {}, None),
    "gp": ("GPSampler", _UNWARNED, "torch"),
    "cmaes": ("CmaEsSampler", _UNWARNED, "cmaes"),
}
"""By sampler name: Optuna's class, our default arguments, and the package that the class needs."""


class SeededSampler(BaseSampler):
    """A sampler whose proposals depend only on a seed, the trial number, and the finished trials.

    Args:
        make: Creates Optuna's sampler from a seed.
        seed: The seed of the study.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make, self._seed, self._number, self._relative = make, seed, -1, make(0)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """Return the parameters that are sampled together, and remember their groups for ``sample_relative``."""
        self._number, self._relative = trial.number, self._inner(trial.number)
        found: dict[str, BaseDistribution] = self._relative.infer_relative_search_space(study, trial)
        return found

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Return the values of the parameters that are sampled together."""
        if trial.number != self._number:  # another trial started in the meantime
            self.infer_relative_search_space(study, trial)
        values: dict[str, Any] = self._relative.sample_relative(study, trial, search_space)
        return values

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        """Return the value of a parameter that is sampled alone."""
        inner = self._inner(trial.number, param_name)
        return inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Sequence[float] | None) -> None:
        """Let the sampler store its data about a finished trial."""
        self._inner(trial.number).after_trial(study, trial, state, values)

    def _inner(self, *parts: Any) -> BaseSampler:
        return self._make(seed_of(self._seed, *parts))


def seed_of(*parts: Any) -> int:
    """Return a 32-bit seed that depends only on these parts."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int) -> SeededSampler:
    """Return the sampler with the given name.

    Args:
        name: ``tpe``, ``random``, ``nsga2``, ``nsga3``, ``gp`` or ``cmaes``.
        arguments: Arguments for Optuna's sampler, without the seed.
        seed: The seed of the study.

    Raises:
        InputError: The name is unknown, a package is missing, or the sampler does not accept an argument.
    """
    if name not in _SAMPLERS:
        raise InputError(unknown("sampler", name, _SAMPLERS))
    kind, defaults, package = _SAMPLERS[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(f"the sampler {name} requires the package {package}; install the package, or use tpe")

    def make(own: int) -> BaseSampler:
        with quiet_optuna():
            made: BaseSampler = getattr(optuna.samplers, kind)(seed=own, **{**defaults, **arguments})
            return made

    try:
        return SeededSampler(make, seed)
    except (ValueError, TypeError) as error:
        raise InputError(f"the sampler {name} does not accept these arguments: {error}") from error
