"""What a study is asked for: one YAML file, or the same as a dict, checked whole before anything is spent."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Number = int | float

AS_WRITTEN = "as written"
"""The prompt variant of a program whose prompts nobody tuned; every technique and reader has it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KnobRange(_Strict):
    """Values of a number that are searched, both ends included.

    Args:
        low: Smallest value.
        high: Largest value.
        step: Distance between values; None for the knob's own.
        log: Whether small values are looked at more closely. Default False.
    """

    low: Number
    high: Number
    step: Number | None = None
    log: bool = False


KnobSpace = KnobRange | list[JsonValue] | int | float | str | bool
"""A range, a list of values to choose from, or one value that is fixed."""


class PromptSpec(_Strict):
    """A way to prompts: an optimizer with its arguments, or instructions written by hand.

    Args:
        optimizer: A name in ``OPTIMIZERS``, or None where only ``instructions`` are given.
        arguments: Passed to the optimizer.
        instructions: Instructions by the predictor's name (``technique.write_queries``), set before the optimizer.
        sets: How many times it is run, each with a seed of its own; each gives a variant. Default 1.
        part: Predictors that are tuned: the technique's, the reader's, or both.
        late: Whether only arms that survive the first phase are given it. None: as the optimizer says, the
            expensive ones being late.
        metric: What runs are scored by while it is made. Default the first objective.
        last: Whether it is left out of the trials, and tried at their end on the program that dev chose: it is kept
            where the reader is right more often with it. Only for the reader's own demonstrations or instructions.
    """

    optimizer: str | None = None
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    instructions: dict[str, str] = Field(default_factory=dict)
    sets: int = Field(default=1, ge=1, le=20)
    part: Literal["technique", "reader", "all"] = "technique"
    late: bool | None = None
    metric: str | None = None
    last: bool = False


class TechniqueSpec(_Strict):
    """What of a technique is searched.

    Args:
        engines: Engines of the collection to choose from. Default the technique's own, else dense.
        knobs: By name. A knob that is not named is searched over its own range, as ``compile`` does, unless
            ``search`` is ``named``.
        search: ``all``: every knob that its declaration lets a study search; ``named``: only those in ``knobs``.
        prompts: Names out of the study's ``prompts`` to choose from besides "as written". None: all of them.
    """

    engines: list[str] | None = None
    knobs: dict[str, KnobSpace] = Field(default_factory=dict)
    search: Literal["all", "named"] = "all"
    prompts: list[str] | None = None


class SamplerSpec(_Strict):
    """What proposes trials.

    Args:
        name: ``tpe``, ``random``, ``nsga2``, ``qmc``, ``gp``, ``cmaes`` or ``grid``-like names of Optuna's samplers.
        arguments: Passed to it; its seed is the study's, mixed with the number of the trial.
    """

    name: str = "tpe"
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class BudgetSpec(_Strict):
    """Where a study stops, counted over all workers and resumed runs. None: no limit.

    Args:
        calls: Attempts at LM calls that are sent.
        tokens: Input and output tokens of calls made.
        dollars: Estimated US dollars of calls made.
        minutes: Minutes in which at least one worker ran.
    """

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0)
    minutes: float | None = Field(default=None, gt=0)


def _usual_budget() -> dict[str, JsonValue]:
    return {"max_passages": 5}


class StudySpec(_Strict):
    """A study. Paths are relative to the working directory; no key is ever part of it.

    Args:
        name: Letters, digits, ``-``, ``_`` and ``.``; also the name in the storage.
        questions: ``sample``, a file or folder, or ``hf:NAME``, as everywhere.
        collection: The collection that is searched.
        columns: Other names of columns of the questions.
        limit: Only so many questions. None: all.
        split: Which part of a public set. None: its usual one.
        sizes: Questions in train, dev and test. None: 30, 30 and 40 per cent.
        reader_check: Further questions, out of those that ``sizes`` leaves over, which closed book and oracle evidence
            alone meet: whether the reader reads takes more questions to show than whether a technique finds.
        lm: Name of the LM.
        api_base: Address of its server.
        api_key_env: Environment variable that holds its key.
        rewriter: Folder of a trained rewriter, which techniques that write ask in place of the LM. None: the LM.
        embedder: Name of the embedder.
        reader: A reader's name, ``auto``, ``none``, or a list of names to choose from.
        objectives: One or several names out of ``OBJECTIVES``; the first decides between programs of the front.
        techniques: By name; ``plain``, which is no rewriting, is always among them.
        prompts: Ways to prompts, by a name of one's own.
        fixed: Knobs of every technique that has them, not searched. ``max_passages`` is the budget of all arms.
        trials: Trials in all, the late ones included.
        each_prompt: Whether each prompt that is not late is tried once with the technique's numbers as written, before
            the sampler proposes. Default False.
        late_trials: How many of them are late: techniques that survived, with the expensive prompts as well.
            Default a quarter, where there are late prompts.
        survivors: Techniques that go on to the late trials. Default 2.
        seed: Of the split, the prompts and the search.
        sampler: What proposes trials.
        pruner: ``paired`` stops a trial that paired tests show to be worse; ``none`` runs all to the end.
        budget: Where it stops.
        storage: ``journal`` (a file in the study's folder), ``sqlite`` (the same, one process), or a URL of
            PostgreSQL, which may be left out here and given with ``--storage``.
        threads: Questions under way at a time in each worker.
        max_failures: Share of a trial's questions that may fail.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    questions: str
    collection: str
    columns: dict[str, str] = Field(default_factory=dict)
    limit: int | None = Field(default=None, ge=1)
    split: str | None = None
    sizes: tuple[int, int, int] | None = None
    reader_check: int = Field(default=0, ge=0)
    lm: str = "embedded"
    api_base: str | None = None
    api_key_env: str | None = None
    rewriter: str | None = None
    embedder: str = "embedded"
    reader: str | list[str] = "auto"
    objectives: list[str] = Field(default_factory=lambda: ["decision_useful"], min_length=1)
    techniques: dict[str, TechniqueSpec] = Field(min_length=1)
    prompts: dict[str, PromptSpec] = Field(default_factory=dict)
    fixed: dict[str, JsonValue] = Field(default_factory=_usual_budget)
    trials: int = Field(default=50, ge=1)
    each_prompt: bool = False
    late_trials: int | None = Field(default=None, ge=0)
    survivors: int = Field(default=2, ge=1)
    seed: int = 0
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    pruner: Literal["paired", "none"] = "paired"
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    storage: str = "journal"
    threads: int = Field(default=4, ge=1)
    max_failures: float = Field(default=0.05, ge=0, le=1)

    def to_json(self) -> dict[str, Any]:
        """The specification as plain data, defaults filled in."""
        return self.model_dump(mode="json")
