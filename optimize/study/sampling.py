"""Optuna's samplers, made anew for each trial, so that what is proposed depends on no worker's past.

A sampler of Optuna's has random numbers of its own, which no storage keeps: a study that was interrupted goes on with
others than an undisturbed one. Here the numbers of a trial follow from the study's seed and the number of the trial,
those of a parameter that is sampled by itself from its name too, so that a trial that another worker takes over gets
the parameters that it would have got.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler

from querywright.errors import InputError, unknown
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.space import Space

_UNWARNED = {"warn_independent_sampling": False}
_SAMPLERS: Mapping[str, tuple[str, Mapping[str, Any], str | None]] = {
    # A study's space is conditional: parameters of different techniques never meet in a trial.
    "tpe": ("TPESampler", {"multivariate": True, "group": True}, None),
    "random": ("RandomSampler", {}, None),
    "nsga2": ("NSGAIISampler", {}, None),
    "nsga3": ("NSGAIIISampler", {}, None),
    "qmc": ("QMCSampler", _UNWARNED, None),
    "gp": ("GPSampler", _UNWARNED, "torch"),
    "cmaes": ("CmaEsSampler", _UNWARNED, "cmaes"),
}
"""Optuna's class, our defaults and the package that it imports when it is first asked, by name."""

_OURS = frozenset({"self", "seed", "independent_sampler", "qmc_independent_sampler"})


class SeededSampler(BaseSampler):
    """A sampler whose proposals for a trial follow from a seed, the trial's number and the finished trials.

    It makes Optuna's sampler from a seed and a trial's number. ``union`` is every parameter, for a sampler that takes
    them all together whether a trial has them or not.
    """

    def __init__(
        self,
        make: Callable[[int, int], BaseSampler],
        seed: int,
        union: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        self._make, self._seed, self._union = make, seed, union

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """The parameters that are sampled together."""
        if self._union is not None:
            return dict(self._union)
        found: dict[str, BaseDistribution] = self._inner(trial.number).infer_relative_search_space(study, trial)
        return found

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Their values. Those that a trial turns out not to have are not used."""
        inner = self._inner(trial.number)
        if self._union is None:
            inner.infer_relative_search_space(study, trial)  # it notes groups of parameters there
        values: dict[str, Any] = inner.sample_relative(study, trial, search_space)
        return values

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        """The value of one parameter by itself."""
        inner = self._inner(trial.number, param_name)
        return inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Sequence[float] | None) -> None:
        """Let the sampler note what it notes in the storage."""
        self._inner(trial.number).after_trial(study, trial, state, values)

    def _inner(self, *parts: Any) -> BaseSampler:
        return self._make(seed_of(self._seed, *parts), parts[0])


class _Numbered(QMCSampler):
    """Gives a trial the point of its number, so that no count is kept anywhere."""

    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(**options)
        self._number = number

    def _find_sample_id(self, study: Any, search_space: Any) -> int:
        return self._number


class _Grid(RandomSampler):
    """Gives a trial the combination of its number, out of all of them in an order that follows from the seed."""

    def __init__(self, number: int, combinations: Sequence[Mapping[str, Any]], seed: int) -> None:
        super().__init__(seed=seed)
        self._chosen = combinations[number % len(combinations)]

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return {name: value for name, value in self._chosen.items() if name in search_space}


def seed_of(*parts: Any) -> int:
    """A seed of 32 bits that follows from these parts."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def make_sampler(name: str, arguments: Mapping[str, Any], seed: int, space: Space | None = None) -> SeededSampler:
    """What proposes the trials of a study.

    ``qmc`` and ``grid`` go through the arms of a space evenly, and need it; without one it is seen whether a sampler
    can be made.

    Raises:
        InputError: There is no such sampler, an argument is unknown, not allowed or lacks a package, or the
            combinations of a grid cannot be counted or are too many.
    """
    union = {} if space is None else space.distributions()
    if name == "grid":
        if arguments:
            raise InputError(f"the sampler grid takes no arguments, but got {', '.join(arguments)}")
        rows = [{}] if space is None else space.combinations()
        random.Random(seed_of(seed)).shuffle(rows)
        return SeededSampler(lambda own, number: _Grid(number, rows, own), seed, union)
    if name not in _SAMPLERS:
        raise InputError(unknown("sampler", name, (*_SAMPLERS, "grid")))
    kind, defaults, package = _SAMPLERS[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(f"the sampler {name} needs the package {package}, which is not there; install it, or take tpe")
    known = [one for one in inspect.signature(getattr(optuna.samplers, kind).__init__).parameters if one not in _OURS]
    for given in arguments:
        if given == "seed":
            raise InputError("the sampler's seed is the study's; give seed beside sampler, not among its arguments")
        if given not in known:
            raise InputError(unknown(f"argument of the sampler {name}", given, known))
    options: dict[str, Any] = {**defaults, **arguments}

    def make(own: int, number: int) -> BaseSampler:
        with quiet_optuna():
            if name == "qmc":  # one sequence for all trials
                alone = RandomSampler(seed=own)
                return _Numbered(number, seed=seed_of(seed), independent_sampler=alone, **options)
            made: BaseSampler = getattr(optuna.samplers, kind)(seed=own, **options)
            return made

    try:
        make(0, 0)
    except (ValueError, TypeError) as error:
        raise InputError(f"the sampler {name} refuses its arguments: {error}") from error
    return SeededSampler(make, seed, union if name == "qmc" else None)
