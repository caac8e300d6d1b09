"""The specification of a search: techniques, prompts, objectives, and limits, as checked plain data."""

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
"""Default number of passages that each program may show its reader."""


def checked(check: Callable[[Any], Any]) -> Any:
    """Return a pydantic validator from a function that raises an ``InputError``."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except InputError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(validate)


def one_of(what: str, names: Collection[str]) -> Any:
    """Return a pydantic validator that accepts only these names."""

    def check(name: str) -> None:
        if name not in names:
            raise InputError(unknown(what, name, names))

    return checked(check)


def once(values: Any) -> Any:
    """Validate that no value occurs twice."""
    twice = [one for place, one in enumerate(values or ()) if one in values[:place]]
    if twice:
        raise ValueError(f"must hold each value once, but {twice[0]!r} occurs twice")
    return values


def _searching(name: str) -> str:
    if technique_class(name).SEARCHES == "0":
        raise ValueError("retrieves no passages, so a study cannot search it; leave it out")
    return name


def _finite(value: Any) -> Any:
    json.dumps(value, allow_nan=False)  # raises ValueError for NaN and infinity
    return value


class StrictModel(BaseModel):
    """Frozen plain data without unknown keys and without type conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_Number = Annotated[int | float, Field(union_mode="left_to_right")]
Json = Annotated[JsonValue, AfterValidator(_finite)]


class KnobRange(StrictModel):
    """A range of a numeric knob, with both ends.

    Args:
        low: Smallest value.
        high: Largest value.
        step: Distance between values. Default None: the default of the knob.
        log: Whether to sample on a logarithmic scale. Default False.
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
"""A range, a list of values to choose from, or one fixed value."""


class PromptSpec(StrictModel):
    """A prompt variant: an optimizer with its arguments, or instructions written by hand.

    Args:
        optimizer: A name in ``OPTIMIZERS``; None if only ``instructions`` are given.
        arguments: Arguments of the optimizer.
        instructions: Instructions by predictor (``technique.write_queries``), set before the optimizer runs.
        part: The predictors that are tuned: those in the technique, in the reader, or ``all``.
        metric: The metric that the optimizer uses. Default: the first objective.
        last: Whether the variant is tried after all trials, on the program that dev chose, and kept if the reader is
            right more often with it. Only for ``part: reader``. Default False.
    """

    optimizer: Annotated[str, one_of("optimizer", OPTIMIZERS)] | None = None
    arguments: dict[str, Json] = Field(default_factory=dict)
    instructions: dict[str, Annotated[str, Field(pattern=r"\S")]] = Field(default_factory=dict)
    part: Literal["technique", "reader", "all"] = "technique"
    metric: Annotated[str, checked(metric_named)] | None = None
    last: bool = False

    @property
    def parts(self) -> set[str]:
        """The parts of the program that are tuned: ``technique``, ``reader``, or both."""
        return {"technique", "reader"} if self.part == "all" else {self.part}

    @model_validator(mode="after")
    def _fits_together(self) -> PromptSpec:
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        if self.optimizer is None:
            if not self.instructions:
                yield "has neither an optimizer nor instructions; give one of them"
            if self.arguments:
                yield "has arguments but no optimizer; name the optimizer"
        else:
            try:
                OPTIMIZERS[self.optimizer].check(self.arguments)
            except InputError as error:
                yield f"arguments: {error}"
        if not self.last:
            return
        # The variant must fit the reader of every program.
        if self.part != "reader":
            yield "last: only reader prompts can be tried last; give part: reader"
        if self.optimizer in {"knn_few_shot", "ensemble"}:
            yield f"last: {self.optimizer} changes the structure of the program; use another optimizer"
        for name in self.instructions:
            if not name.startswith("reader."):
                yield f"instructions.{name} is not a predictor of the reader, and last tunes the reader only"


_Engines = Annotated[list[str], Field(min_length=1), AfterValidator(once)]


class TechniqueSpec(StrictModel):
    """The search space of a technique.

    Args:
        engines: Engines of the collection, or names in the study's ``retrievers``. Default: the engine that the
            technique requires, else all ``retrievers``, else ``dense``.
        knobs: Values by knob. A knob that is missing here is searched over its full range, unless ``search`` is
            ``named``.
        search: ``all``: search every searchable knob; ``named``: search only the knobs in ``knobs``. Default ``all``.
        prompts: Names in the study's ``prompts``; ``untuned`` is always a choice. Default None: all that fit.
    """

    engines: _Engines | None = None
    knobs: dict[str, KnobSpace] = Field(default_factory=dict)
    search: Literal["all", "named"] = "all"
    prompts: list[str] | None = None


class SamplerSpec(StrictModel):
    """The Optuna sampler that proposes trials.

    Args:
        name: ``tpe``, ``random``, ``nsga2``, ``nsga3``, ``gp`` or ``cmaes``. Default ``tpe``.
        arguments: Arguments of the sampler, without its seed, which follows from the study and the trial.
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
    """Limits of a study, counted over all workers and resumed runs. None: no limit.

    Args:
        calls: LM calls, each attempt counted.
        tokens: Input and output tokens of the calls.
        dollars: Estimated US dollars of the calls.
    """

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0)


_Technique = Annotated[str, one_of("technique", TECHNIQUES), AfterValidator(_searching)]
_Objective = Annotated[str, checked(objective_named)]


def _prompt_name(name: str) -> None:
    if name == UNTUNED:
        raise InputError(f"the name must not be {UNTUNED!r}, which means the default prompts; use another name")


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
_PromptName = Annotated[_Name, checked(_prompt_name)]


class SearchSpec(StrictModel):
    """A search over techniques, prompts, and knobs.

    Args:
        name: The name of the search, for its storage and report.
        reader: The name of a reader, ``auto`` or ``none``. Default ``auto``.
        objectives: Metrics and costs, as ``objective_named`` takes them. The first one decides between programs of the
            front. Default ``decision_useful``.
        techniques: Search spaces by technique; the baseline ``plain`` is always one of them.
        retrievers: Collections to choose from, by name, such as those of several passage lengths or embedders. The
            baseline searches the first. Default: the study's collection alone.
        prompts: Prompt variants by name (letters, digits, ``-`` and ``_``). An optimizer with two names runs twice,
            with different seeds.
        fixed: Values of knobs, for every technique that has the knob. ``max_passages``, the number of passages that
            each program may show, is 5 if it is missing. A technique may name its own number, list, or range of it.
        trials: Number of trials. Default 50.
        each_prompt: Whether each prompt variant is tried once with default knobs before the sampler proposes trials.
            Default False.
        seed: Seed of the split, the prompts, and the search. Default 0.
        sampler: The sampler that proposes trials.
        pruner: ``paired`` stops a trial when a paired test shows that it is worse than the best (with one objective);
            ``none`` runs all trials to the end. Default ``paired``.
        budget: Limits of the study.
        threads: Questions that each worker evaluates at a time, and calls of a remote LM. Default None: 4, or up to the
            limit of the LM's server.
        max_failures: Share of a trial's questions that may fail, 0 to 1. Default 0.05.
        allow_copies: Whether prompts that copy training text may be tried and recommended. Default False.
        slices: Columns of the questions, and ``known``, to show the results on test by. Default none.
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
    allow_copies: bool = False
    seed: int = 0
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    pruner: Literal["paired", "none"] = "paired"
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    threads: int | None = Field(default=None, ge=1)
    max_failures: float = Field(default=0.05, ge=0, le=1)
    slices: Annotated[list[str], AfterValidator(once)] = Field(default_factory=list)

    @field_validator("techniques")
    @classmethod
    def _baseline_first(cls, named: dict[str, TechniqueSpec]) -> dict[str, TechniqueSpec]:
        """Add the baseline with its default knobs if the search does not name it."""
        return {PLAIN: named.get(PLAIN, TechniqueSpec(search="named")), **named}

    @field_validator("fixed")
    @classmethod
    def _with_a_budget(cls, fixed: dict[str, Any]) -> dict[str, Any]:
        return {"max_passages": BUDGET, **fixed} if fixed else fixed

    @property
    def aims(self) -> tuple[Objective, ...]:
        """The objectives; the first one decides."""
        return objectives_of(self.objectives)

    @property
    def reads(self) -> bool:
        """Whether an objective needs a reader."""
        return any(one.reads for one in self.aims)

    @property
    def last_prompts(self) -> list[str]:
        """The prompt variants that are tried after all trials."""
        return [key for key, prompt in self.prompts.items() if prompt.last]

    def prompt_of(self, variant: str) -> PromptSpec | None:
        """Return the prompt variant of that name; None for untuned prompts."""
        return None if variant == UNTUNED else self.prompts[variant]

    def to_json(self) -> dict[str, Any]:
        """Return the specification as plain data, with defaults."""
        return self.model_dump(mode="json")
