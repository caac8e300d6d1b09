"""The arms of a study: techniques, engines, knobs, prompts, readers and writers, and how a trial chooses one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError, TechniqueError
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.study.spec import AS_WRITTEN, PLAIN, KnobRange, KnobSpace, PromptSpec, StudySpec
from querywright.optimize.study.types import ArmConfig
from querywright.programs import READERS, make_program, technique_class
from querywright.programs.gate import GATE_DEPTH
from querywright.programs.hyperparameters import Knob, Value
from querywright.programs.selection import SELECT

MOST_COMBINATIONS = 3_000
"""Combinations of values that a grid goes through at most."""

_COUNTS = ("n_queries", "n_sub_questions")
"""Knobs that say how many of the ``n_written`` texts are used."""

_STEP = 0.25
"""Between two values of a knob that is no whole number, where its range and its default allow it."""

_WIDE = 50
"""Times that the largest whole number is the smallest from which a range is looked at by its logarithm."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Values to choose from, or a range of numbers with both ends.

    A range is looked at by its logarithm where that is said. Its high end, where no step leads to it, is lowered to
    the last that one does; without a step it has every number, or every whole one.
    """

    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if self.step is not None and not self.choices:
            # Optuna does the same, and warns each time that it does.
            low, step = Decimal(str(self.low)), Decimal(str(self.step))
            object.__setattr__(self, "high", float(low + (Decimal(str(self.high)) - low) // step * step))

    @property
    def single(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.choices) == 1 or (not self.choices and self.low == self.high)

    @property
    def size(self) -> int | None:
        """How many values there are; None where they cannot be counted."""
        counted = self.choices or self.step is not None or self.whole or self.single
        return len(self.values) if counted else None

    @property
    def values(self) -> list[Value]:
        """All values in order; only where they can be counted."""
        if self.choices:
            return list(self.choices)
        low, high, step = (Decimal(str(one)) for one in (self.low, self.high, self.step or 1))
        return [self._typed(float(low + step * place)) for place in range(int((high - low) // step) + 1)]

    @property
    def highest(self) -> Value:
        """The largest number, or the last of choices that are no numbers."""
        if self.choices:
            return max(self.choices, key=float) if self._counts else self.choices[-1]
        return self._typed(self.high)

    @property
    def lowest(self) -> Value:
        """The smallest number, or the first of the choices."""
        return self.choices[0] if self.choices else self._typed(self.low)

    @property
    def _counts(self) -> bool:
        """Whether all choices are numbers."""
        return not any(isinstance(value, (str, bool)) for value in self.choices)

    def nearest(self, value: Value) -> Value:
        """The value itself where it is among them, else the number nearest to it, else the first."""
        if self.choices:
            if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.choices):
                return value
            if self._counts and not isinstance(value, (str, bool)):
                return min(self.choices, key=lambda one: abs(float(one) - float(value)))
            return self.choices[0]
        number = min(max(float(value), self.low), self.high)
        if self.step is not None or self.whole:
            low, step = Decimal(str(self.low)), Decimal(str(self.step or 1))
            number = float(low + round((Decimal(str(number)) - low) / step) * step)
        return self._typed(number)

    def suggest(self, trial: Any, name: str) -> Value:
        """A value in a trial; a value that is the only one is no parameter of it."""
        if self.single:
            return self.lowest
        if self.choices:
            value: Value = trial.suggest_categorical(name, list(self.choices))
        elif self.whole:
            value = trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        else:
            value = trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)
        return value

    def distribution(self) -> Any:
        """What Optuna calls it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(list(self.choices))
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def _typed(self, number: float) -> Value:
        return round(number) if self.whole else number


Pick = Callable[[str, Domain, Value], Value]
"""Gives a parameter a value, from its name, its domain and its value as written."""


@dataclass(frozen=True, slots=True)
class TechniqueSpace:
    """The arms of one technique: what searches, its searched knobs and their values, prompts and LMs that write.

    Args:
        given: The value of every knob where nothing is chosen.
        knobs: Its searched knobs, each after those that it depends on.
        early: Prompt variants of early trials, ``as written`` first.
        late: Prompt variants that only late trials have besides.
        writers: Names of the LMs that may write for it; none for the LM of the study, or where it asks none.
    """

    name: str
    engines: tuple[str, ...]
    given: Mapping[str, Value]
    knobs: tuple[Knob, ...]
    domains: Mapping[str, Domain]
    early: tuple[str, ...] = (AS_WRITTEN,)
    late: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """Its engine as written."""
        own = technique_class(self.name).ENGINE or "dense"
        return own if own in self.engines else self.engines[0]

    @property
    def has_one_arm(self) -> bool:
        """Whether there is nothing to choose."""
        chosen = [len(self.engines) > 1, len(self.early) + len(self.late) > 1, len(self.writers) > 1]
        return not any(chosen) and all(domain.single for domain in self.domains.values())

    @property
    def depth(self) -> int:
        """Hits that it asks for at most."""
        most: dict[str, Any] = dict(self.given) | {name: domain.highest for name, domain in self.domains.items()}
        technique = technique_class(self.name)(None, **most)
        gate = self.domains["gate"].values if "gate" in self.domains else [most.get("gate", "off")]
        gated = max(GATE_DEPTH, technique.max_passages) if set(gate) != {"off"} else 0
        return max(technique.depth, int(most.get("depth", 0)), gated)


@dataclass(frozen=True, slots=True)
class Space:
    """All arms of a study, and which trial may choose which.

    A trial of the first ones is a technique as written, or with a prompt beside its numbers as written; then come early
    trials; the last ones are late. The technique of a late trial is settled by its place among them, so that its
    parameter has the same choices in every trial. A technique with a single arm is tried once, as written, and is no
    choice after that. Techniques are those of the study, ``plain`` first; readers are names, or None alone where none
    reads; with ``each_prompt`` each early prompt is in one of the first trials.
    """

    techniques: tuple[TechniqueSpace, ...]
    readers: tuple[str | None, ...]
    trials: int
    late_trials: int = 0
    each_prompt: bool = False

    def __getitem__(self, technique: str) -> TechniqueSpace:
        return next(one for one in self.techniques if one.name == technique)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The techniques that trials choose from."""
        several = tuple(one.name for one in self.techniques if not one.has_one_arm or len(self.readers) > 1)
        return several or tuple(one.name for one in self.techniques)

    @property
    def engines(self) -> tuple[str, ...]:
        """All engines that some arm searches with."""
        return tuple(dict.fromkeys(engine for one in self.techniques for engine in one.engines))

    @property
    def openings(self) -> list[tuple[str, str | None, str]]:
        """Technique, reader and prompt of the first trials.

        Each technique as written, then no rewriting with the other readers, then the early prompts where each is tried.
        """
        first = [(one.name, self.readers[0], AS_WRITTEN) for one in self.techniques]
        first += [(self.techniques[0].name, reader, AS_WRITTEN) for reader in self.readers[1:]]
        if self.each_prompt:
            first += [(one.name, self.readers[0], prompt) for one in self.techniques for prompt in one.early[1:]]
        return first

    def is_late(self, number: int) -> bool:
        """Whether the trial of that number is a late one."""
        return number >= max(self.trials - self.late_trials, len(self.openings))

    def suggest(self, trial: Any, number: int, survivors: Sequence[str] = ()) -> ArmConfig:
        """The arm of a trial; for one of the first, and for the technique of a late one, no sampler is asked."""
        openings = self.openings
        opening, late = number < len(openings), self.is_late(number)
        technique, reader, prompt = openings[number] if opening else (None, None, AS_WRITTEN)
        if late:
            going = [name for name in survivors if name in self.chosen] or survivors
            technique = going[(number - self.trials + self.late_trials) % len(going)]

        def pick(name: str, domain: Domain, default: Value) -> Value:
            if (opening or (technique and name == "technique")) and not domain.single:
                # What enqueue_trial() would have left there; a sampler is not asked for these.
                settled = {name: domain.nearest(default)}
                trial._fixed_params = {**getattr(trial, "_fixed_params", {}), **settled}
            return domain.suggest(trial, name)

        return self._walk(pick, technique, late=late, reader=reader, prompt=prompt)

    def as_written(self, technique: str) -> ArmConfig:
        """The arm of a technique whose numbers and prompts nobody chose."""
        return self._walk(lambda name, domain, default: domain.nearest(default), technique)

    def distributions(self) -> dict[str, Any]:
        """Every parameter that some trial has, with Optuna's distribution of it."""
        found = {"technique": Domain(choices=self.chosen), "reader": Domain(choices=tuple(map(str, self.readers)))}
        for one in self.techniques:
            found[f"{one.name}.engine"] = Domain(choices=one.engines)
            found |= {f"{one.name}.writer": Domain(choices=one.writers)} if one.writers else {}
            found |= {f"{one.name}.{name}": domain for name, domain in one.domains.items()}
            found[f"{one.name}.prompt"] = Domain(choices=one.early)
            if one.late and self.late_trials:
                found[f"{one.name}.late_prompt"] = Domain(choices=(*one.early, *one.late))
        return {name: domain.distribution() for name, domain in found.items() if not domain.single}

    def combinations(self) -> list[dict[str, Value]]:
        """The parameters of every arm of an early trial.

        Raises:
            InputError: There are too many, or a number has no step.
        """
        found: list[dict[str, Value]] = []
        ways: list[dict[str, Value]] = [{}]
        while ways:
            params = ways.pop()

            def pick(name: str, domain: Domain, default: Value, params: dict[str, Value] = params) -> Value:
                if domain.single:
                    return domain.lowest
                if domain.size is None:
                    raise InputError(f"the sampler grid needs a step for {name}; give one, or take another sampler")
                if name not in params:
                    first, *others = domain.values
                    ways.extend({**params, name: other} for other in others)
                    params[name] = first
                return params[name]

            self._walk(pick)
            found.append(params)
            if len(found) + len(ways) > MOST_COMBINATIONS:
                raise InputError(
                    f"the sampler grid would go through more than {MOST_COMBINATIONS:,} combinations; search fewer "
                    "values, or take another sampler"
                )
        return found

    def deepest(self, engine: str) -> int:
        """The greatest number of hits that any arm asks of an engine; 0 where none asks it."""
        return max((one.depth for one in self.techniques if engine in one.engines), default=0)

    def _walk(
        self,
        pick: Pick,
        technique: str | None = None,
        *,
        late: bool = False,
        reader: str | None = None,
        prompt: str = AS_WRITTEN,
    ) -> ArmConfig:
        """The arm that is chosen parameter by parameter."""
        name = technique or self.chosen[0]
        if name in self.chosen:
            name = str(pick("technique", Domain(choices=self.chosen), name))
        own = self[name]
        engine = str(pick(f"{name}.engine", Domain(choices=own.engines), own.engine))
        writer = str(pick(f"{name}.writer", Domain(choices=own.writers), own.writers[0])) if own.writers else None
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
        return ArmConfig(name, engine, values, prompt, reader, writer)


def build_space(
    spec: StudySpec,
    readers: Sequence[str | None],
    searched: Mapping[str, Sequence[Knob]] | None = None,
) -> Space:
    """The arms of a study, with readers as ``readers_for`` settles them, and knobs as a retriever narrows them.

    Raises:
        InputError: A value is not allowed.
    """
    found = []
    for name, asked in spec.techniques.items():
        narrowed = {knob.name: knob for knob in (searched or {}).get(name, ())}
        knobs = {key: narrowed.get(key, knob) for key, knob in knobs_of(name).items()}
        ranges = {key for key, value in asked.knobs.items() if isinstance(value, (list, KnobRange))}
        wanted = ranges | {key for key, knob in knobs.items() if asked.search == "all" and knob.search}
        wanted -= set(spec.fixed) | (set(asked.knobs) - ranges) | ({"n_written"} - ranges)
        domains = {key: domain_for(knobs[key], asked.knobs.get(key)) for key in knobs if key in wanted}
        given = _given(spec, name, knobs, domains)
        acting = tuple(knob for key, knob in knobs.items() if key in domains and _can_act(knob, domains, given))
        domains = {knob.name: domains[knob.name] for knob in acting}
        writers = tuple(one.name for one in spec.writers) if technique_class(name).LM_STAGES else ()
        variants = variants_of(spec, name)
        found.append(TechniqueSpace(name, engines_of(spec, name), given, acting, domains, *variants, writers))
    return Space(tuple(found), tuple(readers), spec.trials, late_trials_of(spec), spec.each_prompt)


def readers_for(spec: StudySpec, questions: Sequence[Question]) -> list[str | None]:
    """The readers of a study; ``auto`` chooses between options where every one of its questions has them."""
    if isinstance(spec.reader, list):
        return list(spec.reader)
    if spec.reader == "auto":
        return ["multiple_choice" if all(question.options for question in questions) else "short_answer"]
    return [None if spec.reader == "none" else spec.reader]


def engines_of(spec: StudySpec, name: str) -> tuple[str, ...]:
    """The engines of a technique; no rewriting always has dense."""
    named = spec.techniques[name].engines or [technique_class(name).ENGINE or "dense"]
    return tuple(dict.fromkeys(["dense", *named] if name == PLAIN else named))


def late_trials_of(spec: StudySpec) -> int:
    """How many trials are late."""
    if spec.late_trials is not None:
        return spec.late_trials
    return spec.trials // 4 if any(variants_of(spec, name)[1] for name in spec.techniques) else 0


def knobs_of(name: str) -> dict[str, Knob]:
    """The knobs of a technique by name, each after those that it depends on."""
    return {knob.name: knob for knob in sorted(technique_class(name).KNOBS, key=lambda knob: len(knob.when))}


def domain_for(knob: Knob, asked: KnobSpace | None) -> Domain:
    """The values of a knob that a study asks for; None is the knob's own range.

    Raises:
        InputError: A value is not allowed, or a range is none.
    """
    if asked is None:
        return domain_of(knob)
    if not isinstance(asked, KnobRange):
        if knob.name == SELECT.name and isinstance(asked, list) and len(asked) > 1:
            raise InputError("must be true or false, for programs with and without it have other predictors")
        return Domain(choices=tuple(knob.check(value) for value in (asked if isinstance(asked, list) else [asked])))
    if knob.choices or isinstance(knob.default, bool):
        raise InputError(f"must be a list or one of {knob.range}, for it is no number, but got a range")
    whole = isinstance(knob.default, int)
    for end in ("low", "high"):
        try:
            knob.check(getattr(asked, end))
        except TechniqueError as error:
            raise InputError(f"{end}: {error}") from error
    low, high, step = float(asked.low), float(asked.high), asked.step
    if low >= high:
        raise InputError(f"low must be smaller than high, but got {asked.low} and {asked.high}; one value is fixed")
    if step is not None and (step <= 0 or step > high - low or (whole and step != int(step))):
        rule = "a whole number from 1" if whole else "more than 0"
        raise InputError(f"step must be {rule}, and no more than high - low, but got {step}")
    if asked.log and (low <= 0 or step is not None):
        raise InputError("log needs a low of more than 0 and no step")
    if step is None and not whole and not asked.log:
        step = domain_of(knob).step and own_step(low, high)
    return Domain(low=low, high=high, step=None if step is None else float(step), log=asked.log, whole=whole)


def domain_of(knob: Knob) -> Domain:
    """A knob's own range; whole numbers over a wide range by their logarithm."""
    if knob.choices or isinstance(knob.default, bool):
        return Domain(choices=knob.choices or (False, True))
    low, high = float(knob.low or 0.0), float(knob.high or 0.0)
    if isinstance(knob.default, int):
        return Domain(low=low, high=high, log=low > 0 and high / low >= _WIDE, whole=True)
    return Domain(low=low, high=high, step=own_step(low, high, float(knob.default)))


def own_step(low: float, *others: float) -> float | None:
    """The distance between values of a knob that is no whole number; None for any value."""
    return _STEP if all((other - low) % _STEP == 0 for other in others) else None


def variants_of(spec: StudySpec, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The prompt variants of a technique: those of early trials, "as written" first, and those of late ones alone."""
    named = spec.techniques[name].prompts
    early: list[str] = [AS_WRITTEN]
    late: list[str] = []
    for key, prompt in spec.prompts.items():
        suits = key in named if named is not None else lacking(spec, name, prompt) is None
        if suits and not prompt.last:
            (late if prompt.is_late else early).extend(prompt.names(key))
    return tuple(early), tuple(late)


def reads_for(prompt: PromptSpec) -> bool:
    """Whether a prompt takes a reader to be made, whatever the objectives are."""
    return prompt.part != "technique" or (prompt.metric is not None and "reader" in needs(prompt.metric))


def lacking(spec: StudySpec, name: str, prompt: PromptSpec) -> str | None:
    """Why a prompt is none for a technique; None where there is something to tune, and what it instructs is there."""
    known = predictors_of(spec, name)
    absent = [key for key in prompt.instructions if key not in known]
    if absent:
        return f"{name} has no predictor {', '.join(absent)}"
    if prompt.optimizer is not None and not any(key.partition(".")[0] in prompt.parts for key in known):
        return f"{name} asks no LM" if prompt.part == "technique" else "there is no reader"
    if prompt.optimizer == "labelled_few_shot" and prompt.part == "technique":
        return "labelled_few_shot shows answers that are labelled, which only a reader gives; say part: reader"
    return None


def predictors_of(spec: StudySpec, name: str) -> list[str]:
    """The predictors of a technique's programs by name, such as ``technique.write_queries`` and ``reader.predict``."""
    reader = spec.reader[0] if isinstance(spec.reader, list) else spec.reader
    if reader == "auto":
        reader = "short_answer"  # every reader has the same predictors
    asked = {**spec.fixed, **spec.techniques[name].knobs} if name in spec.techniques else {}
    selects: dict[str, Any] = {"select": asked["select"]} if isinstance(asked.get("select"), bool) else {}
    program = make_program(name, None, reader=reader if reader in READERS else None, **selects)
    return [key for key, _ in program.named_predictors()]


def _given(spec: StudySpec, name: str, knobs: Mapping[str, Knob], domains: Mapping[str, Domain]) -> dict[str, Value]:
    """The value of every knob where nothing is chosen."""
    values: dict[str, Any] = {key: value for key, value in spec.fixed.items() if key in knobs}
    asked = spec.techniques[name].knobs
    values |= {key: value for key, value in asked.items() if not isinstance(value, (list, KnobRange))}
    values |= {key: domain.nearest(knobs[key].default) for key, domain in domains.items()}
    counted = next((key for key in _COUNTS if key in domains and not domains[key].single), None)
    if "n_written" in knobs and counted is not None:
        values.setdefault("n_written", domains[counted].highest)  # smaller numbers are the first of the same texts
    return dict(technique_class(name)(None, **values).knobs)


def _can_act(knob: Knob, domains: Mapping[str, Domain], given: Mapping[str, Value]) -> bool:
    """Whether some choice of the others lets a knob make a difference."""
    return all(
        any(value in allowed for value in (domains[other].values if other in domains else [given[other]]))
        for other, allowed in knob.when.items()
    )
