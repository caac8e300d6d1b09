"""The arms of a study: techniques, engines, knobs, prompts and readers, and how a trial chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from querywright.errors import InputError
from querywright.optimize.domains import Domain
from querywright.optimize.study.spec import AS_WRITTEN, SamplerSpec
from querywright.optimize.study.types import ArmConfig
from querywright.programs import technique_class
from querywright.programs.gate import GATE_DEPTH
from querywright.programs.hyperparameters import Knob, Value

if TYPE_CHECKING:
    from querywright.optimize.study.sampling import SeededSampler

MOST_COMBINATIONS = 3_000
"""Combinations of values that a grid goes through at most."""

Pick = Callable[[str, Domain, Value], Value]
"""Gives a parameter a value, from its name, its domain and its value as written."""


@dataclass(frozen=True, slots=True)
class TechniqueSpace:
    """The arms of one technique.

    Args:
        name: Its name.
        engines: What it may search with.
        given: The value of every knob where nothing is chosen.
        knobs: Its searched knobs, each after those that it depends on.
        domains: Their values.
        early: Prompt variants of early trials, ``as written`` first.
        late: Prompt variants that only late trials have besides.
    """

    name: str
    engines: tuple[str, ...]
    given: Mapping[str, Value]
    knobs: tuple[Knob, ...]
    domains: Mapping[str, Domain]
    early: tuple[str, ...] = (AS_WRITTEN,)
    late: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """Its engine as written."""
        own = technique_class(self.name).ENGINE or "dense"
        return own if own in self.engines else self.engines[0]

    @property
    def has_one_arm(self) -> bool:
        """Whether there is nothing to choose."""
        chosen = [len(self.engines) > 1, len(self.early) + len(self.late) > 1]
        return not any(chosen) and all(domain.single for domain in self.domains.values())


@dataclass(frozen=True, slots=True)
class Space:
    """All arms of a study, and which trial may choose which.

    A trial of the first ones is a technique as written, or with a prompt beside its numbers as written; then come early
    trials; the last ones are late. The technique of a late trial is settled by its place among them, so that its
    parameter has the same choices in every trial. A technique with a single arm is tried once, as written, and is no
    choice after that.

    Args:
        techniques: Those of the study, ``plain`` first.
        readers: Names of the readers, or None alone where none reads.
        trials: Trials in all.
        late_trials: How many of them are late.
        each_prompt: Whether each early prompt is in one of the first trials.
    """

    techniques: tuple[TechniqueSpace, ...]
    readers: tuple[str | None, ...]
    trials: int
    late_trials: int = 0
    each_prompt: bool = False

    def __getitem__(self, technique: str) -> TechniqueSpace:
        for one in self.techniques:
            if one.name == technique:
                return one
        known = ", ".join(one.name for one in self.techniques)
        raise InputError(f"the study has no technique {technique!r}; it has: {known}")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The techniques that trials choose from."""
        several = tuple(one.name for one in self.techniques if not one.has_one_arm or len(self.readers) > 1)
        return several or tuple(one.name for one in self.techniques)

    def variants(self, technique: str, *, late: bool = True) -> list[str]:
        """Prompt variants of a technique, ``as written`` first, those of late trials last.

        Args:
            technique: Its name.
            late: Whether those of late trials are among them. Default True.
        """
        own = self[technique]
        return [*own.early, *(own.late if late else ())]

    def is_late(self, number: int) -> bool:
        """Whether the trial of that number is a late one."""
        return number >= max(self.trials - self.late_trials, len(self._openings))

    @property
    def _openings(self) -> list[tuple[str, str | None, str]]:
        """Technique, reader and prompt of the first trials.

        Each technique as written, then no rewriting with the other readers, then the early prompts where each is tried.
        """
        first = [(one.name, self.readers[0], AS_WRITTEN) for one in self.techniques]
        first += [(self.techniques[0].name, reader, AS_WRITTEN) for reader in self.readers[1:]]
        if self.each_prompt:
            first += [(one.name, self.readers[0], prompt) for one in self.techniques for prompt in one.early[1:]]
        return first

    def suggest(self, trial: Any, number: int, survivors: Sequence[str] = ()) -> ArmConfig:
        """The arm of a trial; for one of the first, and for the technique of a late one, no sampler is asked.

        Args:
            trial: Optuna's, new or taken over.
            number: Its number.
            survivors: Techniques that go on to the late trials, in order.

        Raises:
            InputError: A late trial has no survivors, or the trial has parameters that are not this study's.
        """
        technique, reader, prompt = self._openings[number] if number < len(self._openings) else (None, None, AS_WRITTEN)
        opening = technique is not None
        if self.is_late(number):
            technique = self._surviving(number, survivors)

        def pick(name: str, domain: Domain, default: Value) -> Value:
            settled = domain.nearest(default) if opening or (technique and name == "technique") else None
            if settled is not None and not domain.single:
                # What enqueue_trial() would have left there; a sampler is not asked for these.
                trial._fixed_params = {**getattr(trial, "_fixed_params", {}), name: settled}
            value = domain.suggest(trial, name)
            if settled is not None and value != settled:
                raise InputError(
                    f"trial {number} has {name} = {value!r} where it should have {settled!r}; was the storage used for "
                    "another study?"
                )
            return value

        return self._walk(pick, technique, late=self.is_late(number), reader=reader, prompt=prompt)

    def as_written(self, technique: str) -> ArmConfig:
        """The arm of a technique whose numbers and prompts nobody chose."""
        own = self[technique]
        values = {**own.given, **{name: domain.nearest(own.given[name]) for name, domain in own.domains.items()}}
        return ArmConfig(technique, own.engine, values, AS_WRITTEN, self.readers[0])

    def distributions(self) -> dict[str, Any]:
        """Every parameter that some trial has, with Optuna's distribution of it."""
        return {name: domain.distribution() for name, domain in self._parameters().items()}

    def combinations(self) -> list[dict[str, Value]]:
        """The parameters of every arm of an early trial.

        Raises:
            InputError: There are too many, or a number has no step.
        """
        ways: _Ways = []
        for own in map(self.__getitem__, self.chosen):
            mine: _Ways = [({}, dict(own.given))]
            mine = _each(mine, "technique", Domain(choices=self.chosen), values=[own.name])
            mine = _each(mine, f"{own.name}.engine", Domain(choices=own.engines))
            for knob in own.knobs:
                mine = _each(mine, f"{own.name}.{knob.name}", own.domains[knob.name], knob)
            mine = _each(mine, f"{own.name}.prompt", Domain(choices=own.early))
            ways += _each(mine, "reader", Domain(choices=tuple(map(str, self.readers))))
        _check_count(ways)
        return [params for params, _ in ways]

    def deepest(self, engine: str) -> int:
        """The greatest number of hits that any arm asks of an engine; 0 where none asks it."""
        return max((_depth(one) for one in self.techniques if engine in one.engines), default=0)

    @property
    def engines(self) -> tuple[str, ...]:
        """All engines that some arm searches with."""
        return tuple(dict.fromkeys(engine for one in self.techniques for engine in one.engines))

    def _surviving(self, number: int, survivors: Sequence[str]) -> str:
        """The technique of a late trial."""
        if not survivors:
            raise InputError(f"trial {number} is a late one and needs techniques that survived, but got none")
        going = [self[name].name for name in survivors]
        going = [name for name in going if name in self.chosen] or going
        return going[(number - self.trials + self.late_trials) % len(going)]

    def _walk(
        self, pick: Pick, technique: str | None, *, late: bool, reader: str | None = None, prompt: str = AS_WRITTEN
    ) -> ArmConfig:
        """The arm that is chosen parameter by parameter."""
        name = technique or self.chosen[0]
        if name in self.chosen:
            name = str(pick("technique", Domain(choices=self.chosen), name))
        own = self[name]
        engine = str(pick(f"{name}.engine", Domain(choices=own.engines), own.engine))
        values = dict(own.given)
        for knob in own.knobs:
            if knob.acts(values):
                values[knob.name] = pick(f"{name}.{knob.name}", own.domains[knob.name], knob.default)
        late = late and bool(own.late)
        variants = Domain(choices=(*own.early, *own.late) if late else own.early)
        prompt = str(pick(f"{name}.late_prompt" if late else f"{name}.prompt", variants, prompt))
        reader = reader or self.readers[0]
        if reader is not None:
            reader = str(pick("reader", Domain(choices=tuple(map(str, self.readers))), reader))
        return ArmConfig(name, engine, values, prompt, reader)

    def _parameters(self) -> dict[str, Domain]:
        found: dict[str, Domain] = {"technique": Domain(choices=self.chosen)}
        for one in self.techniques:
            found[f"{one.name}.engine"] = Domain(choices=one.engines)
            found |= {f"{one.name}.{name}": domain for name, domain in one.domains.items()}
            found[f"{one.name}.prompt"] = Domain(choices=one.early)
            if one.late and self.late_trials:
                found[f"{one.name}.late_prompt"] = Domain(choices=(*one.early, *one.late))
        found["reader"] = Domain(choices=tuple(map(str, self.readers)))
        return {name: domain for name, domain in found.items() if not domain.single}


_Ways = list[tuple[dict[str, Value], dict[str, Value]]]
"""Parameters, and the knobs that they lead to."""


def _each(ways: _Ways, name: str, domain: Domain, knob: Knob | None = None, values: Sequence[Value] = ()) -> _Ways:
    """Every way on with every value of a parameter, where it makes a difference."""
    if domain.size is None:
        raise InputError(f"the sampler grid needs a step for {name}; give one, or take another sampler")
    found: _Ways = []
    for params, knobs in ways:
        if knob is not None and not knob.acts(knobs):
            found.append((params, knobs))
            continue
        for value in values or domain.values:
            chosen = {} if domain.single else {name: value}
            found.append(({**params, **chosen}, {**knobs, **({} if knob is None else {knob.name: value})}))
    _check_count(found)
    return found


def _check_count(ways: _Ways) -> None:
    if len(ways) > MOST_COMBINATIONS:
        raise InputError(
            f"the sampler grid would go through more than {MOST_COMBINATIONS:,} combinations; search fewer values, or "
            "take another sampler"
        )


def seeded_sampler(spec: SamplerSpec, seed: int, space: Space | None = None) -> SeededSampler:
    """What proposes trials: a sampler that is made anew for each, from the study's seed and the trial's number.

    Args:
        spec: Its name and arguments.
        seed: The study's.
        space: The study's arms; ``qmc`` and ``grid`` go through all of them evenly, and need it.

    Raises:
        InputError: There is no such sampler, an argument is wrong, or a grid is too large.
    """
    from querywright.optimize.study.sampling import make_sampler

    if space is None:
        return make_sampler(spec, seed)
    return make_sampler(spec, seed, union=space.distributions(), combinations=space.combinations)


def _depth(own: TechniqueSpace) -> int:
    """Hits that a technique asks for at most."""
    most: dict[str, Any] = dict(own.given) | {name: domain.highest for name, domain in own.domains.items()}
    technique = technique_class(own.name)(None, **most)
    asked = [technique.depth, int(most.get("depth", 0))]
    gate = own.domains["gate"].values if "gate" in own.domains else [most.get("gate", "off")]
    if any(rule != "off" for rule in gate):
        asked.append(max(GATE_DEPTH, technique.max_passages))
    return max(asked)
