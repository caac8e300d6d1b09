"""The specification of a search: techniques, prompts, objectives, and limits, as validated plain data."""

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
    ValidationInfo,
    field_validator,
    model_validator,
)

from querywright.errors import InputError, unknown
from querywright.metrics.dspy_metrics import metric_named
from querywright.optimize.objectives import Objective, objective_named
from querywright.optimize.optimizers import OPTIMIZERS
from querywright.optimize.results import PLAIN as PLAIN
from querywright.optimize.results import UNTUNED as UNTUNED
from querywright.programs import PLACES, READERS, technique_class
from querywright.retrieval.engines import ENGINES, check_engine, split_engine
from querywright.technique_names import names_code, technique_named

BUDGET = 5
"""Default number of passages that each program may show its reader."""


STORED = "stored"
"""Key of the validation context: whether a search is only shown, so that the user's code is not needed."""


def checked(check: Callable[[Any], Any], *, may_be_code: bool = False) -> Any:
    """Make a pydantic validator from a function that raises an ``InputError``.

    Args:
        check: The function.
        may_be_code: Whether the value can name the user's code; it is then not checked in a search that is only shown.
    """

    def validate(value: Any, info: ValidationInfo) -> Any:
        if may_be_code and (info.context or {}).get(STORED):
            return value
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
        raise ValueError(f"must contain each value only once, but {twice[0]!r} occurs twice")
    return values


def _technique(name: str) -> None:
    base, _, rest = name.partition("@")
    if rest:
        engine = rest.partition(":")[0]
        raise InputError(f"must be only the technique; write {base}: {{engines: [{engine}], knobs: {{NAME: VALUE}}}}")
    if names_code(name):
        PLACES[name] = technique_named(name)
    if technique_class(name).SEARCHES == "0":
        raise InputError("retrieves no passages, so a study cannot tune this technique; remove it")


def _finite(value: Any) -> Any:
    json.dumps(value, allow_nan=False)  # raises ValueError for NaN and infinity
    return value


class StrictModel(BaseModel):
    """Frozen plain data that rejects unknown keys and does not convert types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_Number = Annotated[int | float, Field(union_mode="left_to_right")]
Json = Annotated[JsonValue, AfterValidator(_finite)]


class KnobRange(StrictModel):
    """A range of values for a numeric knob; both ends are included.

    Args:
        low: Smallest value.
        high: Largest value.
        step: Step between values. Default None: the knob's default.
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
        raise ValueError(f"must be a value, a list of values, or a range (low, high), but got {asked!r}")
    if not asked:
        raise ValueError("must be a list of at least one value, but got []")
    return once(asked)


KnobSpace = Annotated[
    KnobRange | list[Any] | int | float | str | bool,
    PlainValidator(_values),
    PlainSerializer(lambda asked: asked.model_dump() if isinstance(asked, KnobRange) else asked),
]
"""A range, a list of values to choose from, or a fixed value."""


class PromptSpec(StrictModel):
    """A prompt variant: an optimizer with its arguments, or instructions written by hand.

    Args:
        optimizer: A name in ``OPTIMIZERS``; None if only ``instructions`` are given.
        arguments: Arguments for the optimizer.
        instructions: Instructions, keyed by predictor (``technique.write_queries``), set before the optimizer runs.
        part: The predictors to tune: those in the technique, those in the reader, or ``all``.
        metric: The metric that the optimizer uses. Default: the first objective.
        last: Whether to try the variant after all trials, on the program chosen on dev, and keep it if the reader then
            answers more questions correctly. Only for ``part: reader``. Default False.
    """

    optimizer: Annotated[str, one_of("optimizer", OPTIMIZERS)] | None = None
    arguments: dict[str, Json] = Field(default_factory=dict)
    instructions: dict[str, Annotated[str, Field(pattern=r"\S")]] = Field(default_factory=dict)
    part: Literal["technique", "reader", "all"] = "technique"
    metric: Annotated[str, checked(metric_named, may_be_code=True)] | None = None
    last: bool = False

    @property
    def parts(self) -> set[str]:
        """The parts of the program to tune: ``technique``, ``reader``, or both."""
        return {"technique", "reader"} if self.part == "all" else {self.part}

    @model_validator(mode="after")
    def _fits_together(self) -> PromptSpec:
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        if self.optimizer is None:
            if not self.instructions:
                yield "must have an optimizer or instructions; add one of them"
            if self.arguments:
                yield "has arguments but no optimizer; add the optimizer"
        else:
            try:
                OPTIMIZERS[self.optimizer].check(self.arguments)
            except InputError as error:
                yield f"arguments: {error}"
        if not self.last:
            return
        # The variant must suit the reader in every program.
        if self.part != "reader":
            yield "last: only reader prompts can be tried last; set part: reader"
        if self.optimizer in {"knn_few_shot", "ensemble"}:
            yield f"last: {self.optimizer} changes the structure of the program; use a different optimizer"
        for name in self.instructions:
            if not name.startswith("reader."):
                yield f"instructions.{name} is not a predictor of the reader, but last tunes only the reader"


_Engines = Annotated[list[str], Field(min_length=1), AfterValidator(once)]


class TechniqueSpec(StrictModel):
    """The search space of a technique.

    Args:
        engines: The collection's engines, or names in the study's ``retrievers``. Default: the engine that the
            technique requires, otherwise all ``retrievers``, otherwise ``dense``.
        knobs: Values, keyed by knob. A knob that is not listed is searched over its full range, unless ``search`` is
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
        arguments: Arguments for the sampler, without the seed, which is derived from the study and the trial.
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
    """Limits on a study, counted over all workers and resumed runs; None means no limit.

    Args:
        calls: Number of LM calls, counting each attempt.
        tokens: Number of input and output tokens in the calls.
        dollars: Estimated cost of the calls in US dollars.
    """

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0)


_TechniqueName = Annotated[str, checked(_technique, may_be_code=True)]
_Objective = Annotated[str, checked(objective_named, may_be_code=True)]


def _prompt_name(name: str) -> None:
    if name == UNTUNED:
        raise InputError(f"{UNTUNED!r} is the name of the default prompts; use a different name")


_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
_Searched = Annotated[str, checked(lambda name: check_engine(split_engine(name)[1]))]
_PromptName = Annotated[_Name, checked(_prompt_name)]


class SearchSpec(StrictModel):
    """A search over techniques, prompts, and knobs.

    Args:
        name: The name of the search, for its storage and report.
        reader: The name of a reader, ``auto`` or ``none``. Default ``auto``.
        objectives: Metrics and costs (see ``objective_named``). The first one decides between programs on the front.
            Default ``decision_useful``.
        techniques: Search spaces by technique, a name or ``FILE.py:NAME``; the baseline ``plain`` is always one of
            them.
        retrievers: Collections to choose from, by name, for example with different passage lengths or embedders. For an
            engine other than ``dense``, write ``COLLECTION@ENGINE``. The baseline searches the first one. Default:
            only the study's collection.
        prompts: Prompt variants by name (letters, digits, ``-``, and ``_``). An optimizer listed under two names runs
            twice, with different seeds.
        fixed: Values of knobs, for every technique that has the knob. ``max_passages``, the maximum number of passages
            that each program may show, is 5 if it is not listed. A technique may set its own number, list, or range.
        trials: Number of trials. Default 50.
        each_prompt: Whether to try each prompt variant once with default knobs before the sampler proposes trials.
            Default False.
        seed: Seed for the split, the prompts, and the search. Default 0.
        sampler: The sampler that proposes trials.
        pruner: ``paired`` stops a trial when a paired test shows that it is worse than the best trial (only with one
            objective); ``none`` runs all trials to the end. Default ``paired``.
        budget: Limits on the study.
        threads: Number of questions, and of calls to a remote LM, that each worker runs at a time.
            Default None: 4, or up to the limit of the LM's server.
        max_failures: Share of a trial's questions that may fail, 0 to 1. Default 0.05.
        allow_copies: Whether prompts that copy training text may be tried and recommended. Default False.
        slices: Question columns (and ``options`` and ``known``) by which to group the results on test. Default none.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    reader: Annotated[str, one_of("reader", (*READERS, "none"))] = "auto"
    objectives: Annotated[list[_Objective], Field(min_length=1), AfterValidator(once)] = ["decision_useful"]
    techniques: dict[_TechniqueName, TechniqueSpec] = Field(min_length=1)
    retrievers: dict[_Name, _Searched] = Field(default_factory=dict)
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

    @field_validator("techniques", mode="before")
    @classmethod
    def _by_name(cls, named: Any) -> Any:
        """Show how to write a list of techniques as a mapping."""
        if isinstance(named, list):
            names = [one for one in named if isinstance(one, str)] or ["hcqr"]
            raise ValueError(f"must be a mapping, such as {{{', '.join(f'{one}: {{}}' for one in names)}}}")
        return named

    @field_validator("retrievers", mode="before")
    @classmethod
    def _by_collection(cls, named: Any) -> Any:
        """Show how to name retrievers, and where engines are listed."""
        if not isinstance(named, Mapping):
            raise ValueError(
                "must be a mapping from names to collections, such as {small: cards-128, large: cards-512@hybrid}; to "
                "search with several engines, write engines under a technique, such as hcqr: {engines: [dense, hybrid]}"
            )
        return named

    @field_validator("techniques")
    @classmethod
    def _baseline_first(cls, named: dict[str, TechniqueSpec]) -> dict[str, TechniqueSpec]:
        """Add the baseline with default knobs if the search does not name it."""
        return {PLAIN: named.get(PLAIN, TechniqueSpec(search="named")), **named}

    @field_validator("fixed")
    @classmethod
    def _with_a_budget(cls, fixed: dict[str, Any]) -> dict[str, Any]:
        return {"max_passages": BUDGET, **fixed} if fixed else fixed

    @property
    def aims(self) -> tuple[Objective, ...]:
        """The objectives; the first one decides."""
        return tuple(map(Objective.of, self.objectives))

    @property
    def reads(self) -> bool:
        """Whether an objective needs a reader."""
        return any(one.reads for one in self.aims)

    @property
    def last_prompts(self) -> list[str]:
        """The prompt variants that are tried after all trials."""
        return [key for key, prompt in self.prompts.items() if prompt.last]

    def engine_of(self, name: str) -> str:
        """Return the engine of a name in ``retrievers``, or an engine's name unchanged."""
        return split_engine(self.retrievers.get(name, ""), name if name in ENGINES else "dense")[1]

    def prompt_of(self, variant: str) -> PromptSpec | None:
        """Return the prompt variant with the given name; None for untuned prompts."""
        return None if variant == UNTUNED else self.prompts[variant]

    def to_json(self) -> dict[str, Any]:
        """Return the specification as plain data, with defaults."""
        return self.model_dump(mode="json")
