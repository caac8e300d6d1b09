"""Prompt variants of a study: made once, kept as plain data, put into programs with other knobs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from querywright.checksummed import first_problem
from querywright.data.types import Question
from querywright.errors import ArtifactError, InputError, TechniqueError
from querywright.metrics.dspy_metrics import Metric
from querywright.optimize.optimizers import optimizer_named, run_optimizer
from querywright.optimize.program_state import PredictorState, apply_states, predictor_states, shaped
from querywright.optimize.study.spec import PromptSpec
from querywright.programs import RAG, Ensemble
from querywright.programs.ensemble import MOST_MEMBERS

MOST_CHARS = 100_000
"""Characters of instructions that are given by hand."""


class VariantState(BaseModel):
    """A prompt variant as it is kept.

    Args:
        technique: Of the program it was made with.
        reader: Likewise; None where the variant says nothing of a reader.
        predictors: Those that it says something of.
        nearest: Demonstrations that a call is shown; 0 for all.
        members: Programs of an ensemble; 0 for none.
        made: How it was made, for people: the optimizer, its arguments, and how many training questions it learnt
            from and chose on.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    technique: str
    reader: str | None
    predictors: dict[str, PredictorState]
    nearest: int = Field(default=0, ge=0)
    members: int = Field(default=0, ge=0, le=MOST_MEMBERS)
    made: dict[str, Any] = Field(default_factory=dict)


def make_variant(
    spec: PromptSpec,
    variant_name: str,
    program: RAG,
    train: Sequence[Question],
    *,
    metric: Metric,
    lm: dspy.LM,
    seed: int = 0,
    **settings: Any,
) -> dict[str, Any]:
    """Make a prompt variant.

    Args:
        spec: Instructions by hand, an optimizer, or both, the optimizer after the instructions.
        variant_name: ``NAME`` or ``NAME.2``; each has a seed of its own.
        program: The program as written; it is not changed.
        train: Training questions, never those of dev or test.
        metric: A measure from 0 to 1.
        lm: An LM made by ``resolve_lm``.
        seed: The study's.
        settings: ``feedback``, ``threads``, ``max_failures`` and ``progress`` of ``run_optimizer``.

    Returns:
        A JSON object for ``with_variant``.

    Raises:
        InputError: A name or value is wrong, or there is nothing to tune.
        ArtifactError: A demonstration holds something that JSON cannot.

    It raises what ``run_optimizer`` raises as well.
    """
    changed = with_instructions(program, spec.instructions)
    made: dict[str, Any] = {"variant": variant_name, "instructions": sorted(spec.instructions)}
    if spec.optimizer is not None:
        own = int.from_bytes(hashlib.sha256(f"{seed}:{variant_name}".encode()).digest()[:4], "big") >> 1
        optimizer = optimizer_named(spec.optimizer)
        asked: dict[str, Any] = {"arguments": spec.arguments, "part": spec.part, "seed": own, **settings}
        changed = run_optimizer(spec.optimizer, changed, train, metric=metric, lm=lm, **asked)
        learn, choose = optimizer.parts(len(train), spec.arguments)
        made |= {"optimizer": spec.optimizer, "arguments": optimizer.check(spec.arguments), "part": spec.part}
        made |= {"learnt_from": learn, "chosen_on": choose}
    states = {name: one for name, one in predictor_states(changed).items() if _covers(spec, _plain(name))}
    reads = any(_plain(name).startswith("reader.") for name in states)
    state = VariantState(
        technique=program.technique.NAME,
        reader=program.reader.NAME if reads and program.reader is not None else None,
        predictors=states,
        nearest=changed.nearest,
        members=len(changed.members) if isinstance(changed, Ensemble) else 0,
        made=made,
    )
    return state.model_dump(mode="json")


def with_variant(program: RAG, state: Mapping[str, Any]) -> RAG:
    """A copy of a program with the prompts of a variant; its knobs, and predictors that are not named, stay.

    Args:
        program: A program that is no ensemble.
        state: What ``make_variant`` gave. Where the program has no reader, what it says of one is left out.

    Raises:
        ArtifactError: It is damaged, or belongs to another technique or reader.
    """
    variant = _read(state)
    states = variant.predictors
    if program.reader is None:
        states = {name: one for name, one in states.items() if not _plain(name).startswith("reader.")}
    elif variant.reader is not None:
        _same_reader(variant, program)
    if variant.technique != program.technique.NAME:
        raise ArtifactError(
            f"the prompt variant was made for {variant.technique}, and cannot be put into {program.technique.NAME}; "
            "make it for that one"
        )
    try:
        other = shaped(program, nearest=variant.nearest, members=variant.members)
    except TechniqueError as error:
        raise ArtifactError(f"a prompt variant: {error}; make it again") from error
    apply_states(other, {**predictor_states(other), **states}, whose=variant.technique, file="a prompt variant")
    return other


def with_reader_prompts(program: RAG, state: Mapping[str, Any]) -> RAG:
    """A copy of any program with the reader's prompts of a variant, whatever technique it was made with.

    Args:
        program: It has the reader that the variant was made for; all members of an ensemble are given it.
        state: What ``make_variant`` gave for the part ``reader``.

    Raises:
        ArtifactError: It is of another reader.
    """
    variant = _read(state)
    _same_reader(variant, program)
    other = copy.deepcopy(program)
    before = predictor_states(other)
    reading = {name: variant.predictors[_plain(name)] for name in before if _plain(name) in variant.predictors}
    apply_states(other, {**before, **reading}, whose=program.technique.NAME, file="a prompt variant")
    return other


def _read(state: Mapping[str, Any]) -> VariantState:
    try:
        return VariantState.model_validate(dict(state))
    except ValidationError as error:
        raise ArtifactError(f"a prompt variant: {first_problem(error)}; make it again") from error


def _same_reader(variant: VariantState, program: RAG) -> None:
    reader = None if program.reader is None else program.reader.NAME
    if reader != variant.reader:
        raise ArtifactError(
            f"the prompt variant was made for the reader {variant.reader}, and cannot be put into a program with "
            f"{reader}; make it for that one"
        )


def with_instructions(program: RAG, instructions: Mapping[str, str]) -> RAG:
    """A copy of a program with instructions written by hand.

    Args:
        program: It is not changed.
        instructions: By the predictor's name, such as ``technique.write_queries``.

    Raises:
        InputError: There is no such predictor, or the instructions are empty or too long.
    """
    other = copy.deepcopy(program)
    predictors: dict[str, Any] = dict(other.named_predictors())
    for name, text in instructions.items():
        if name not in predictors:
            known = ", ".join(predictors) or "none"
            raise InputError(
                f"{program.technique.NAME} has no predictor {name!r} to give instructions; the predictors are: {known}"
            )
        if not text.strip() or len(text) > MOST_CHARS:
            raise InputError(f"the instructions of {name} must have 1 to {MOST_CHARS} characters, but have {len(text)}")
        predictors[name].signature = predictors[name].signature.with_instructions(text)
    return other


def _covers(spec: PromptSpec, name: str) -> bool:
    """Whether a variant says something of a predictor."""
    if name in spec.instructions:
        return True
    return spec.optimizer is not None and (spec.part == "all" or name.startswith(f"{spec.part}."))


def _plain(name: str) -> str:
    """The name of a predictor without the member of an ensemble that it is of."""
    return name.rpartition("].")[2]
