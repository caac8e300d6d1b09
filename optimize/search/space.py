"""The search space (techniques, engines, knobs, prompts, and writers) and the program that a trial chooses from it.

An *arm* is a program that a trial can choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from querywright.errors import InputError, TechniqueError
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.search.spec import PLAIN, UNTUNED, KnobRange, KnobSpace, PromptSpec, SearchSpec
from querywright.optimize.search.trials import ArmConfig
from querywright.programs import READERS, CustomProgram, make_program, technique_class
from querywright.programs.base import FUSION, GATE_DEPTH
from querywright.programs.hyperparameters import Knob, Value
from querywright.programs.selection import SELECT, SELECT_BY

_COUNTS = ("n_queries", "n_sub_questions")
"""Knobs for how many of the ``n_written`` texts are used."""

_STEP = 0.25
"""Step between the values of a fractional knob, if the knob's range and default are multiples of it."""

_WIDE = 50
"""Ranges of integers are sampled on a logarithmic scale if the ratio of the largest to the smallest is at least this.
"""


Domain: TypeAlias = BaseDistribution
"""An Optuna distribution: values to choose from, or a range of numbers."""


def of_choices(values: Iterable[Value | None]) -> CategoricalDistribution:
    """Return the domain with these values, in this order."""
    return CategoricalDistribution(list(values))


def of_numbers(low: float, high: float, *, step: float | None = None, log: bool = False, whole: bool = False) -> Domain:
    """Return the domain for a range of floats or integers; ``high`` is lowered to the last multiple of ``step``."""
    if step is not None:  # Optuna does the same, but warns each time
        first, each = Decimal(str(low)), Decimal(str(step))
        high = float(first + (Decimal(str(high)) - first) // each * each)
    if whole:
        return IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return FloatDistribution(low, high, log=log, step=step)


def nearest(domain: Domain, value: Value) -> Value:
    """Return the value if the domain contains it, otherwise the nearest number, or the first choice if not numeric."""
    numbers: Any = domain
    choices: Sequence[Any] = getattr(domain, "choices", ())
    if choices:
        chosen: Value = choices[0]
        if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in choices):
            chosen = value
        elif not any(isinstance(one, (str, bool)) for one in (value, *choices)):
            chosen = min(choices, key=lambda one: abs(float(one) - float(value)))
        return chosen
    number: float = min(max(float(value), numbers.low), numbers.high)
    if numbers.step is not None:
        low, step = Decimal(str(numbers.low)), Decimal(str(numbers.step))
        number = float(low + round((Decimal(str(number)) - low) / step) * step)
    return round(number) if isinstance(domain, IntDistribution) else number


def largest(domain: Domain) -> Value:
    """Return the largest number in a domain, or its last choice if the choices are not numbers."""
    numbers: Any = domain
    choices: Sequence[Any] = getattr(domain, "choices", ())
    words = any(isinstance(one, (str, bool)) for one in choices)
    most: Value = numbers.high if not choices else choices[-1] if words else max(choices)
    return most


Pick = Callable[[str, Domain, Value], Value]
"""Chooses the value of a parameter, given its name, its domain, and its default."""


@dataclass(frozen=True, slots=True)
class TechniqueSpace:
    """The search space of one technique.

    Args:
        name: The technique.
        engines: Engines or named retrievers to choose from.
        given: The default value for every knob.
        knobs: The searched knobs, each after the knobs that it depends on.
        domains: The domain for each searched knob.
        prompts: Prompt variants, ``untuned`` first.
        writers: Names of the LMs that may write for the technique; empty for the study's LM.
    """

    name: str
    engines: tuple[str, ...]
    given: Mapping[str, Value]
    knobs: tuple[Knob, ...]
    domains: Mapping[str, Domain]
    prompts: tuple[str, ...] = (UNTUNED,)
    writers: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """The default engine."""
        return "dense" if "dense" in self.engines else self.engines[0]

    @property
    def has_one_arm(self) -> bool:
        """Whether the technique has only one arm."""
        return max(len(self.engines), len(self.prompts), len(self.writers)) < 2 and all(
            domain.single() for domain in self.domains.values()
        )

    @property
    def depth(self) -> int:
        """The maximum number of hits that an arm requests from a retriever."""
        most: dict[str, Any] = dict(self.given) | {name: largest(domain) for name, domain in self.domains.items()}
        technique = technique_class(self.name)(None, **most)
        searched: Any = self.domains.get("gate")
        gate = [most.get("gate", "off")] if searched is None else searched.choices
        gated = max(GATE_DEPTH, technique.max_passages) if set(gate) != {"off"} else 0
        return max(technique.depth, int(most.get("depth", 0)), gated)


@dataclass(frozen=True, slots=True)
class Space:
    """All arms of a study.

    The first trials are the untuned techniques and, if ``each_prompt`` is set, each prompt with default knobs. A
    technique with a single arm is tried once and is not a choice after that.

    Args:
        techniques: The techniques in the study, ``plain`` first.
        reader: The name of the reader; None if no reader runs.
        each_prompt: Whether each prompt is in one of the first trials.
    """

    techniques: tuple[TechniqueSpace, ...]
    reader: str | None
    each_prompt: bool = False

    def __getitem__(self, technique: str) -> TechniqueSpace:
        return next(one for one in self.techniques if one.name == technique)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The techniques that the sampler chooses from."""
        several = tuple(one.name for one in self.techniques if not one.has_one_arm)
        return several or tuple(one.name for one in self.techniques)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines and named retrievers that the arms use."""
        return tuple(dict.fromkeys(engine for one in self.techniques for engine in one.engines))

    @property
    def openings(self) -> list[tuple[str, str]]:
        """Technique and prompt for the first trials: each technique untuned, then each prompt if ``each_prompt`` is
        set.
        """
        first = [(one.name, UNTUNED) for one in self.techniques]
        if self.each_prompt:
            first += [(one.name, prompt) for one in self.techniques for prompt in one.prompts[1:]]
        return first

    def suggest(self, trial: Any, number: int) -> ArmConfig:
        """Return the arm for a trial; the first trials are fixed, and the sampler chooses the others."""
        openings = self.openings
        opening = number < len(openings)
        technique, prompt = openings[number] if opening else (None, UNTUNED)

        def pick(name: str, domain: Domain, default: Value) -> Value:
            if domain.single():  # a single value does not become a parameter of the trial
                return nearest(domain, default)
            if opening:
                # Like enqueue_trial(), this bypasses the sampler.
                settled = {name: nearest(domain, default)}
                trial._fixed_params = {**getattr(trial, "_fixed_params", {}), **settled}
            chosen: Value = trial._suggest(name, domain)
            return int(chosen) if isinstance(domain, IntDistribution) else chosen

        return self._walk(pick, technique, prompt)

    def untuned(self, technique: str) -> ArmConfig:
        """Return the technique's arm with default knobs and prompts."""
        return self._walk(lambda name, domain, default: nearest(domain, default), technique)

    def deepest(self, engine: str) -> int:
        """Return the maximum number of hits that an arm requests from an engine; 0 if no arm uses it."""
        return max((one.depth for one in self.techniques if engine in one.engines), default=0)

    def _walk(self, pick: Pick, technique: str | None = None, prompt: str = UNTUNED) -> ArmConfig:
        """Return the arm whose parameters ``pick`` chooses one by one."""
        name = technique or self.chosen[0]
        if name in self.chosen:
            name = str(pick("technique", of_choices(self.chosen), name))
        own = self[name]
        engine = str(pick(f"{name}.engine", of_choices(own.engines), own.engine))
        writer = str(pick(f"{name}.writer", of_choices(own.writers), own.writers[0])) if own.writers else None
        values = dict(own.given)
        for knob in own.knobs:
            if knob.acts(values):
                key, domain = _without_union(f"{name}.{knob.name}", own.domains[knob.name], values)
                values[knob.name] = pick(key, domain, knob.default)
        prompt = str(pick(f"{name}.prompt", of_choices(own.prompts), prompt))
        return ArmConfig(name, engine, values, prompt, self.reader, writer)


def build_space(
    spec: SearchSpec,
    reader: str | None,
    searched: Mapping[str, Sequence[Knob]] | None = None,
    writers: Sequence[str] = (),
) -> Space:
    """Return the space that a search covers.

    Args:
        spec: The search.
        reader: The reader from ``reader_for``; None if no reader runs.
        searched: The knobs whose values depend on the retriever, by technique.
        writers: Names of the LMs that may write for techniques. Default: only the LM of the search.

    Raises:
        InputError: A value is not allowed.
    """
    found = []
    for name, asked in spec.techniques.items():
        narrowed = {knob.name: knob for knob in (searched or {}).get(name, ())}
        knobs = {key: narrowed.get(key, knob) for key, knob in knobs_of(name).items()}
        ranges = {key for key, value in asked.knobs.items() if isinstance(value, (list, KnobRange))}
        wanted = ranges | {key for key, knob in knobs.items() if asked.search == "all" and knob.search}
        wanted -= (set(spec.fixed) | set(asked.knobs) | {"n_written"}) - ranges
        domains = {key: domain_for(knobs[key], asked.knobs.get(key)) for key in knobs if key in wanted}
        given = _given(spec, name, knobs, domains)
        acting = tuple(knob for key, knob in knobs.items() if key in domains and _can_act(knob, domains, given))
        domains = {knob.name: domains[knob.name] for knob in acting}
        own = tuple(writers) if technique_class(name).LM_STAGES else ()
        variants = variants_of(spec, name)
        found.append(TechniqueSpace(name, engines_of(spec, name), given, acting, domains, variants, own))
    return Space(tuple(found), reader, spec.each_prompt)


def _without_union(key: str, domain: Domain, values: Mapping[str, Any]) -> tuple[str, Domain]:
    """Return a parameter's name and domain, without the fusion ``union`` if the first list alone fills the budget."""
    choices: Sequence[Any] = getattr(domain, "choices", ())
    budget = values["select_pool"] if values.get("select") else values.get("max_passages", 0)
    if key.endswith(f".{FUSION.name}") and "union" in choices and values.get("top_k", 0) >= budget and len(choices) > 1:
        return f"{key}_of_full_lists", of_choices(one for one in choices if one != "union")
    return key, domain


def engines_of(spec: SearchSpec, name: str) -> tuple[str, ...]:
    """Return a technique's engines or named retrievers; the baseline's always include the first retriever."""
    kind, first = technique_class(name), next(iter(spec.retrievers), "dense")
    own = first if issubclass(kind, CustomProgram) else kind.ENGINE  # a custom program has its own retriever
    named = spec.techniques[name].engines
    if name == PLAIN:
        return tuple(dict.fromkeys([first, *(named or ())]))
    return tuple(named or ([own] if own else spec.retrievers or [first]))


def knobs_of(name: str) -> dict[str, Knob]:
    """Return a technique's knobs, keyed by name, each after the knobs that it depends on."""
    return {knob.name: knob for knob in sorted(technique_class(name).KNOBS, key=lambda knob: len(knob.when))}


def domain_for(knob: Knob, asked: KnobSpace | None) -> Domain:
    """Return a knob's domain: the values that the study lists, or the knob's full range if ``asked`` is None.

    Raises:
        InputError: A value is not allowed, or the range is empty.
    """
    if asked is None:
        return domain_of(knob)
    if not isinstance(asked, KnobRange):
        if knob.name in (SELECT.name, SELECT_BY.name) and isinstance(asked, list) and len(asked) > 1:
            raise InputError(f"must be a single value ({knob.range}), because the predictors depend on this value")
        return of_choices(map(knob.check, asked if isinstance(asked, list) else [asked]))
    if knob.choices or isinstance(knob.default, bool):
        raise InputError(
            f"got a range, but this knob is not numeric; use one value, or a list of values, from {knob.range}"
        )
    whole = isinstance(knob.default, int)
    for end in ("low", "high"):
        try:
            knob.check(getattr(asked, end))
        except TechniqueError as error:
            raise InputError(f"{end}: {error}") from error
    low, high, step = float(asked.low), float(asked.high), asked.step
    if low >= high:
        raise InputError(
            f"low must be less than high, but got {asked.low} and {asked.high}; use a single value to fix the knob"
        )
    if step is not None and (step <= 0 or step > high - low or (whole and step != int(step))):
        rule = "an integer of at least 1" if whole else "greater than 0"
        raise InputError(f"step must be {rule} and at most high - low, but got {step}")
    if asked.log and (low <= 0 or step is not None):
        raise InputError("log requires a low greater than 0 and cannot be combined with step")
    if step is None and not whole and not asked.log:
        own: Any = domain_of(knob)
        step = own.step and own_step(low, high)
    return of_numbers(low, high, step=step, log=asked.log, whole=whole)


def domain_of(knob: Knob) -> Domain:
    """Return a knob's full range; wide ranges of integers are sampled on a logarithmic scale."""
    if knob.choices or isinstance(knob.default, bool):
        return of_choices(knob.choices or (False, True))
    low, high = float(knob.low or 0.0), float(knob.high or 0.0)
    if isinstance(knob.default, int):
        return of_numbers(low, high, log=low > 0 and high / low >= _WIDE, whole=True)
    return of_numbers(low, high, step=own_step(low, high, float(knob.default)))


def own_step(low: float, *others: float) -> float | None:
    """Return the step between the values of a fractional knob; None if every value is allowed."""
    return _STEP if all((other - low) % _STEP == 0 for other in others) else None


def variants_of(spec: SearchSpec, name: str) -> tuple[str, ...]:
    """Return a technique's prompt variants, ``untuned`` first."""
    named = spec.techniques[name].prompts
    found = [UNTUNED]
    for key, prompt in spec.prompts.items():
        suits = key in named if named is not None else lacking(spec, name, prompt) is None
        found += [key] if suits and not prompt.last else []
    return tuple(found)


def reads_for(prompt: PromptSpec) -> bool:
    """Return whether making a prompt variant needs a reader, regardless of the objectives."""
    return prompt.part != "technique" or (prompt.metric is not None and "reader" in needs(prompt.metric))


def lacking(spec: SearchSpec, name: str, prompt: PromptSpec) -> str | None:
    """Return why a prompt variant does not suit a technique; None if it does."""
    known = predictors_of(spec, name)
    absent = [key for key in prompt.instructions if key not in known]
    if absent:
        return f"{name} has no predictor {', '.join(absent)}"
    if prompt.optimizer is not None and not any(key.partition(".")[0] in prompt.parts for key in known):
        return f"{name} does not call an LM" if prompt.part == "technique" else "there is no reader"
    if prompt.optimizer == "labelled_few_shot" and prompt.part == "technique":
        return "labelled_few_shot shows labeled answers, but only readers write answers; set part: reader"
    return None


def predictors_of(spec: SearchSpec, name: str) -> list[str]:
    """Return the names of a technique's predictors, such as ``technique.write_queries`` and ``reader.predict``."""
    reader = "short_answer" if spec.reader == "auto" else spec.reader  # all readers have the same predictors
    asked = {**spec.fixed, **spec.techniques[name].knobs} if name in spec.techniques else {}
    selects: dict[str, Any] = {"select": asked["select"]} if isinstance(asked.get("select"), bool) else {}
    program = make_program(name, None, reader=reader if reader in READERS else None, **selects)
    return [key for key, _ in program.named_predictors()]


def _given(spec: SearchSpec, name: str, knobs: Mapping[str, Knob], domains: Mapping[str, Domain]) -> dict[str, Value]:
    """Return the default value for every knob."""
    values: dict[str, Any] = {key: value for key, value in spec.fixed.items() if key in knobs}
    asked = spec.techniques[name].knobs
    values |= {key: value for key, value in asked.items() if not isinstance(value, (list, KnobRange))}
    values |= {key: nearest(domain, knobs[key].default) for key, domain in domains.items()}
    counted = next((key for key in _COUNTS if key in domains and not domains[key].single()), None)
    if "n_written" in knobs and counted is not None:
        values.setdefault("n_written", largest(domains[counted]))  # smaller numbers use only the first of these texts
    return dict(technique_class(name)(None, **values).knobs)


def _can_act(knob: Knob, domains: Mapping[str, Domain], given: Mapping[str, Value]) -> bool:
    """Return whether the values of other knobs allow a knob to have an effect."""
    return all(
        any(nearest(domains[other], one) == one for one in allowed) if other in domains else given[other] in allowed
        for other, allowed in knob.when.items()
    )
