"""What a search is asked for: techniques, prompts, objectives and limits, as plain data that is checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)

from querywright.errors import InputError, unknown
from querywright.metrics.dspy_metrics import metric_named
from querywright.optimize.objectives import Objective, objective_named, objectives_of
from querywright.optimize.optimizers import OPTIMIZERS
from querywright.optimize.results import PLAIN as PLAIN
from querywright.optimize.results import UNTUNED as UNTUNED
from querywright.programs import READERS, TECHNIQUES, technique_class

BUDGET = 5
"""Passages that every arm may show its reader, unless the search says otherwise."""


def checked(check: Callable[[Any], Any]) -> Any:
    """Return a validator from a function that raises an ``InputError``."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except InputError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(validate)


def one_of(what: str, names: Collection[str]) -> Any:
    """Return a validator of names."""

    def check(name: str) -> None:
        if name not in names:
            raise InputError(unknown(what, name, names))

    return checked(check)


def once(values: Any) -> Any:
    """Validate that each value is there once."""
    twice = [one for place, one in enumerate(values or ()) if one in values[:place]]
    if twice:
        raise ValueError(f"must hold each value once, but {twice[0]!r} stands there twice")
    return values


def _searching(name: str) -> str:
    if technique_class(name).SEARCHES == "0":
        raise ValueError("finds no passages, so there is nothing to search; leave it out")
    return name


def _finite(value: Any) -> Any:
    json.dumps(value, allow_nan=False)  # a ValueError where JSON has no such number
    return value


class StrictModel(BaseModel):
    """Plain data: no further keys, no conversion, no change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_Number = Annotated[int | float, Field(union_mode="left_to_right")]
Json = Annotated[JsonValue, AfterValidator(_finite)]


class KnobRange(StrictModel):
    """Values of a number that are searched, both ends included.

    Args:
        low: Smallest value.
        high: Largest value.
        step: Distance between values; None for the knob's own.
        log: Whether small values are looked at more closely. Default False.
    """

    low: _Number
    high: _Number
    step: _Number | None = None
    log: bool = False


def _values(asked: Any) -> Any:
    if isinstance(asked, Mapping):
        return KnobRange.model_validate(asked, strict=True)
    if isinstance(asked, (KnobRange, int, float, str, bool)):
        return asked
    if not isinstance(asked, list) or not all(isinstance(one, (int, float, str, bool)) for one in asked):
        raise ValueError(f"must be a value, a list of values or a range (low, high), but got {asked!r}")
    if not asked:
        raise ValueError("must be a list of one value or more, but got []")
    return once(asked)


KnobSpace = Annotated[
    KnobRange | list[Any] | int | float | str | bool,
    PlainValidator(_values),
    PlainSerializer(lambda asked: asked.model_dump() if isinstance(asked, KnobRange) else asked),
]
"""A range, a list of values to choose from, or one value that is fixed."""


class PromptSpec(StrictModel):
    """A way to prompts: an optimizer with its arguments, or instructions written by hand.

    Args:
        optimizer: A name in ``OPTIMIZERS``, or None where only ``instructions`` are given.
        arguments: Passed to the optimizer.
        instructions: Instructions by the predictor's name (``technique.write_queries``), set before the optimizer.
        part: Predictors that are tuned: the technique's, the reader's, or both.
        metric: What runs are scored by while it is made. Default the first objective.
        last: Whether it is left out of the trials, and tried at their end on the program that dev chose: it is kept
            where the reader is right more often with it. Only for the reader's own demonstrations or instructions.
    """

    optimizer: Annotated[str, one_of("optimizer", OPTIMIZERS)] | None = None
    arguments: dict[str, Json] = Field(default_factory=dict)
    instructions: dict[str, Annotated[str, Field(pattern=r"\S")]] = Field(default_factory=dict)
    part: Literal["technique", "reader", "all"] = "technique"
    metric: Annotated[str, checked(metric_named)] | None = None
    last: bool = False

    @property
    def parts(self) -> set[str]:
        """The parts that are tuned: ``technique``, ``reader``, or both."""
        return {"technique", "reader"} if self.part == "all" else {self.part}

    @model_validator(mode="after")
    def _fits_together(self) -> PromptSpec:
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        if self.optimizer is None:
            if not self.instructions:
                yield "names neither an optimizer nor instructions; give one of them"
            if self.arguments:
                yield "arguments are for an optimizer, but none is named"
        else:
            try:
                OPTIMIZERS[self.optimizer].check(self.arguments)
            except InputError as error:
                yield f"arguments: {error}"
        if not self.last:
            return
        # What is tried on the reader of every arm has to suit the reader of every arm.
        if self.part != "reader":
            yield "last tunes the reader alone; say part: reader"
        if self.optimizer in {"knn_few_shot", "ensemble"}:
            yield f"last: {self.optimizer} makes a program of another shape; take another optimizer"
        for name in self.instructions:
            if not name.startswith("reader."):
                yield f"instructions.{name} is no predictor of the reader, and the prompt is for last"


_Engines = Annotated[list[str], Field(min_length=1), AfterValidator(once)]


class TechniqueSpec(StrictModel):
    """What of a technique is searched.

    Args:
        engines: Engines of the collection, or names out of the study's ``retrievers``, to choose from. Default the
            technique's own engine, else all ``retrievers``, else dense.
        knobs: By name. A knob that is not named is searched over its own range, as ``compile`` does, unless
            ``search`` is ``named``.
        search: ``all``: every knob that its declaration lets a study search; ``named``: only those in ``knobs``.
        prompts: Names out of the study's ``prompts`` to choose from besides ``untuned``. None: all of them.
    """

    engines: _Engines | None = None
    knobs: dict[str, KnobSpace] = Field(default_factory=dict)
    search: Literal["all", "named"] = "all"
    prompts: list[str] | None = None


class SamplerSpec(StrictModel):
    """What proposes trials.

    Args:
        name: ``tpe``, ``random``, ``nsga2``, ``nsga3``, ``gp`` or ``cmaes``, which are Optuna's samplers.
        arguments: Passed to it; its seed is the study's, mixed with the number of the trial.
    """

    name: str = "tpe"
    arguments: dict[str, Json] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_made(self) -> SamplerSpec:
        from querywright.optimize.search.sampling import make_sampler

        try:
            make_sampler(self.name, self.arguments, 0)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self


class BudgetSpec(StrictModel):
    """Where a study stops, counted over all workers and resumed runs. None: no limit.

    Args:
        calls: Attempts at LM calls that are sent.
        tokens: Input and output tokens of calls made.
        dollars: Estimated US dollars of calls made.
    """

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0)


_Technique = Annotated[str, one_of("technique", TECHNIQUES), AfterValidator(_searching)]
_Objective = Annotated[str, checked(objective_named)]


def _prompt_name(name: str) -> None:
    if name == UNTUNED:
        raise InputError(f"the name must not be {UNTUNED!r}, which means a technique's own prompts; use another name")


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
_PromptName = Annotated[_Name, checked(_prompt_name)]


class SearchSpec(StrictModel):
    """A search over techniques, prompts and numbers, whatever it searches in and wherever its trials are kept.

    Args:
        name: Of the search, in its storage and report.
        reader: A reader's name, ``auto`` or ``none``.
        objectives: One or several names out of ``OBJECTIVES``; the first decides between programs of the front.
        techniques: By name; the baseline ``plain`` is always among them.
        retrievers: Collections to choose from, by name, such as those of several passage lengths or embedders. The
            baseline searches the first. Default: the study's collection alone.
        prompts: Ways to prompts, by a name of one's own: letters, digits, ``-`` and ``_``. An optimizer under two names
            is run twice, each time with a seed of its own.
        fixed: Knobs of every technique that has them, not searched. ``max_passages`` is the budget of all arms, 5 where
            it is not given; with ``fixed: {}`` there is none, and techniques may search it.
        trials: Trials in all.
        each_prompt: Whether each prompt is tried once with the technique's default knobs, before the sampler
            proposes. Default False.
        seed: Of the split, the prompts and the search.
        sampler: What proposes trials.
        pruner: ``paired`` stops a trial that paired tests show to be worse; ``none`` runs all to the end.
        budget: Where it stops.
        threads: Questions, and calls of a remote LM, under way at a time in each worker. None: 4, and up to what its
            server takes.
        max_failures: Share of a trial's questions that may fail.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    reader: Annotated[str, one_of("reader", (*READERS, "none"))] = "auto"
    objectives: Annotated[list[_Objective], Field(min_length=1), AfterValidator(once)] = ["decision_useful"]
    techniques: dict[_Technique, TechniqueSpec] = Field(min_length=1)
    retrievers: dict[_Name, str] = Field(default_factory=dict)
    prompts: dict[_PromptName, PromptSpec] = Field(default_factory=dict)
    fixed: dict[str, Json] = {"max_passages": BUDGET}
    trials: int = Field(default=50, ge=1)
    each_prompt: bool = False
    seed: int = 0
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    pruner: Literal["paired", "none"] = "paired"
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    threads: int | None = Field(default=None, ge=1)
    max_failures: float = Field(default=0.05, ge=0, le=1)

    @field_validator("techniques")
    @classmethod
    def _baseline_first(cls, named: dict[str, TechniqueSpec]) -> dict[str, TechniqueSpec]:
        """If a search does not name the baseline, it is tried once, with its default knobs."""
        return {PLAIN: named.get(PLAIN, TechniqueSpec(search="named")), **named}

    @field_validator("fixed")
    @classmethod
    def _with_a_budget(cls, fixed: dict[str, Any]) -> dict[str, Any]:
        return {"max_passages": BUDGET, **fixed} if fixed else fixed

    @property
    def aims(self) -> tuple[Objective, ...]:
        """The objectives, the one that decides first."""
        return objectives_of(self.objectives)

    @property
    def reads(self) -> bool:
        """Whether some objective takes a reader."""
        return any(one.reads for one in self.aims)

    @property
    def last_prompts(self) -> list[str]:
        """The prompt variants that are tried at the end, on the reader of what dev chose."""
        return [key for key, prompt in self.prompts.items() if prompt.last]

    def prompt_of(self, variant: str) -> PromptSpec | None:
        """The prompt of a variant; None for untuned prompts."""
        return None if variant == UNTUNED else self.prompts[variant]

    def to_json(self) -> dict[str, Any]:
        """The specification as plain data, defaults filled in."""
        return self.model_dump(mode="json")
