"""Optuna's samplers, made anew for each trial, so that what is proposed depends on no worker's past.

A sampler of Optuna's has random numbers of its own, which no storage keeps: a study that was interrupted goes on with
others than an undisturbed one. Here the numbers of a trial follow from the study's seed and the number of the trial,
those of a parameter that is sampled by itself from its name too, so that a trial that another worker takes over gets
the parameters that it would have got.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler

from querywright.errors import InputError
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.study.spec import SamplerSpec

Union = Mapping[str, BaseDistribution]
"""Every parameter that some trial has, with its distribution."""

INDEPENDENT = frozenset({"random", "qmc", "grid"})
"""Samplers whose proposals follow from the number of a trial alone, whatever other trials found."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # A study's space is conditional: parameters of different techniques never meet in a trial.
    "tpe": {"multivariate": True, "group": True},
    "qmc": {"warn_independent_sampling": False},
    "gp": {"warn_independent_sampling": False},
    "cmaes": {"warn_independent_sampling": False},
}
_CLASSES = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "nsga2": "NSGAIISampler",
    "nsga3": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
}
SAMPLERS = (*_CLASSES, "grid")
_PACKAGES = {"cmaes": "cmaes", "gp": "torch"}
"""What a sampler imports when it is first asked."""

_OURS = frozenset({"seed", "independent_sampler", "qmc_independent_sampler"})


class SeededSampler(BaseSampler):
    """A sampler whose proposals for a trial follow from a seed, the trial's number and the finished trials.

    Args:
        make: Makes Optuna's sampler from a seed and the number of a trial.
        seed: The study's.
        independent: Whether proposals depend on no other trial.
        union: Every parameter, for a sampler that takes them all together whether a trial has them or not.
    """

    def __init__(
        self,
        make: Callable[[int, int], BaseSampler],
        seed: int,
        *,
        independent: bool = False,
        union: Union | None = None,
    ) -> None:
        self._make, self._seed, self._union = make, seed, union
        self.independent = independent
        self._asked = threading.local()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """The parameters that are sampled together."""
        inner = self._inner(trial.number)
        self._asked.inner = (trial.number, inner)
        if self._union is not None:
            return {name: one for name, one in self._union.items() if not one.single()}
        found: dict[str, BaseDistribution] = inner.infer_relative_search_space(study, trial)
        return found

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Their values. Those that a trial turns out not to have are not used."""
        number, inner = getattr(self._asked, "inner", (None, None))
        if inner is None or number != trial.number:
            inner = self._inner(trial.number)
        values: dict[str, Any] = inner.sample_relative(study, trial, search_space)
        return values

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        """The value of one parameter by itself."""
        inner = self._inner(trial.number, param_name)
        return inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Any, trial: Any) -> None:
        """Do nothing: a sampler made for one trial has nothing to prepare."""

    def after_trial(self, study: Any, trial: Any, state: Any, values: Sequence[float] | None) -> None:
        """Let the sampler note what it notes in the storage."""
        self._inner(trial.number).after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Do nothing: the seed of a trial is its own."""

    def _inner(self, *parts: Any) -> BaseSampler:
        return self._make(seed_of(self._seed, *parts), parts[0])


class _Numbered(QMCSampler):
    """Gives a trial the point of its number, so that no count is kept anywhere."""

    def __init__(self, number: int, **options: Any) -> None:
        super().__init__(**options)
        self._number = number

    def _find_sample_id(self, study: Any, search_space: Any) -> int:
        return self._number


class _Grid(BaseSampler):
    """Gives a trial the combination of its number, out of all of them in an order that follows from the seed."""

    def __init__(self, number: int, combinations: Sequence[Mapping[str, Any]], seed: int) -> None:
        places = list(range(len(combinations)))
        random.Random(seed).shuffle(places)
        self._chosen = dict(combinations[places[number % len(places)]]) if places else {}
        self._fallback = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return {name: value for name, value in self._chosen.items() if name in search_space}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution) -> Any:
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)


def seed_of(*parts: Any) -> int:
    """A seed of 32 bits that follows from these parts."""
    text = "\n".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def make_sampler(
    spec: SamplerSpec,
    seed: int,
    *,
    union: Union | None = None,
    combinations: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
) -> SeededSampler:
    """The sampler of a study.

    Args:
        spec: Its name and arguments.
        seed: The study's.
        union: Every parameter of the study.
        combinations: All combinations of its values, for ``grid``.

    Raises:
        InputError: There is no such sampler, or an argument is unknown, not allowed or lacks a package.
    """
    if spec.name not in SAMPLERS:
        near = difflib.get_close_matches(spec.name, SAMPLERS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"unknown sampler {spec.name!r}{hint}; the samplers are: {', '.join(SAMPLERS)}")
    if spec.name == "grid":
        if spec.arguments:
            raise InputError(f"the sampler grid takes no arguments, but got {', '.join(spec.arguments)}")
        rows = [] if combinations is None else list(combinations())

        def grid(seed_of_trial: int, number: int) -> BaseSampler:
            return _Grid(number, rows, seed_of(seed))

        return SeededSampler(grid, seed, independent=True, union=union or {})
    package = _PACKAGES.get(spec.name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise InputError(
            f"the sampler {spec.name} needs the package {package}, which is not there; install it, or take tpe"
        )
    options = {**_DEFAULTS.get(spec.name, {}), **spec.arguments}
    _check_arguments(spec)

    def make(seed_of_trial: int, number: int) -> BaseSampler:
        with quiet_optuna():
            if spec.name == "qmc":  # one sequence for all trials
                alone = RandomSampler(seed=seed_of_trial)
                return _Numbered(number, seed=seed_of(seed), independent_sampler=alone, **options)
            made: BaseSampler = getattr(optuna.samplers, _CLASSES[spec.name])(seed=seed_of_trial, **options)
            return made

    try:
        make(0, 0)
    except (ValueError, TypeError) as error:
        raise InputError(f"the sampler {spec.name} refuses its arguments: {error}") from error
    together = union or {} if spec.name == "qmc" else None
    return SeededSampler(make, seed, independent=spec.name in INDEPENDENT, union=together)


def _check_arguments(spec: SamplerSpec) -> None:
    """Whether the sampler has these arguments; those that are ours are not given."""
    taken = inspect.signature(getattr(optuna.samplers, _CLASSES[spec.name]).__init__).parameters
    known = [name for name in taken if name not in {"self", *_OURS}]
    for name in spec.arguments:
        if name == "seed":
            raise InputError("the sampler's seed is the study's; give seed beside sampler, not among its arguments")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InputError(
                f"the sampler {spec.name} has no argument {name!r}{hint}; it has: {', '.join(known) or 'none'}"
            )
