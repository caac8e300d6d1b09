"""A program's tuned parts as plain data: knobs, and each predictor's instructions, fields, and demonstrations."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from querywright.errors import ArtifactError, TechniqueError
from querywright.programs import RAG, TECHNIQUES, Ensemble, Technique, make_reader
from querywright.programs.ensemble import MOST_MEMBERS
from querywright.retrieval.rerank import Reranker


class PredictorState(BaseModel):
    """The prompt and the demonstrations of one predictor."""

    model_config = ConfigDict(extra="forbid", strict=True)

    instructions: str = Field(max_length=100_000)
    fields: dict[str, str]
    demos: list[dict[str, JsonValue]]


class ProgramState(BaseModel):
    """A program: technique name, reader name, knobs, and predictors by name.

    Args:
        technique: Name of the technique.
        reader: Name of the reader, or None.
        knobs: Values of the knobs.
        predictors: Predictors, keyed by name. In an ensemble, names for the second member begin with ``members[1].``.
        nearest: Number of demonstrations that a call shows; 0 for all.
        members: Number of programs in an ensemble; 0 for a program that is not an ensemble.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    technique: str
    reader: str | None
    knobs: dict[str, int | float | str | bool]
    predictors: dict[str, PredictorState]
    nearest: int = Field(default=0, ge=0)
    members: int = Field(default=0, ge=0, le=MOST_MEMBERS)


def state_of(program: RAG) -> ProgramState:
    """Return the tuned parts of a program.

    Raises:
        ArtifactError: A demonstration cannot be saved as JSON.
    """
    return ProgramState(
        technique=program.technique.NAME,
        reader=None if program.reader is None else program.reader.NAME,
        knobs=dict(program.technique.knobs),
        predictors=predictor_states(program),
        nearest=program.nearest,
        members=len(program.members) if isinstance(program, Ensemble) else 0,
    )


def predictor_states(program: dspy.Module) -> dict[str, PredictorState]:
    """Return the prompt and the demonstrations of each predictor by name.

    Raises:
        ArtifactError: A demonstration cannot be saved as JSON.
    """
    predictors = {}
    for name, predictor in program.named_predictors():
        shown = map(dict, standalone(predictor, predictor.demos))
        demos = [{key: value for key, value in demo.items() if key != "augmented"} for demo in shown]
        try:
            text = json.dumps(demos, ensure_ascii=False, allow_nan=False)
            text.encode()
        except (TypeError, ValueError) as error:
            raise ArtifactError(f"a demonstration of {name} cannot be saved as JSON: {error}") from error
        signature: Any = predictor.signature
        predictors[name] = PredictorState(
            instructions=signature.instructions, fields=_descriptions(signature), demos=json.loads(text)
        )
    return predictors


def program_from(state: ProgramState, retriever: Any = None, reranker: Reranker | None = None) -> RAG:
    """Return the program that a state describes.

    Args:
        state: The tuned parts.
        retriever: The retriever of the technique.
        reranker: The model that scores passages, for a technique that reranks.

    Raises:
        ArtifactError: The state names an unknown technique, reader, knob, predictor, or field.
    """
    try:
        technique = technique_of(state.technique)(retriever, reranker=reranker)
        technique.take_knobs(state.knobs)
        reader = None if state.reader is None else make_reader(state.reader)
        program = shaped(RAG(technique, reader), nearest=state.nearest, members=state.members)
    except TechniqueError as error:
        raise ArtifactError(f"program.json: {error}") from error
    apply_states(program, state.predictors, whose=state.technique, file="program.json")
    return program


def technique_of(name: str) -> type[Technique]:
    """Return the technique that an artifact names.

    Raises:
        ArtifactError: The technique is neither built in nor registered; the message says how to register it.
    """
    if name not in TECHNIQUES:
        raise ArtifactError(
            f"program.json: unknown technique {name!r}. An artifact does not import code, so load the custom technique "
            "first: pass --technique FILE.py:NAME; in a comparison, list the arm FILE.py:NAME before the artifact; in "
            f"Python, call register_technique(technique_from(NAME, {name!r})) from querywright.programs"
        )
    return TECHNIQUES[name]


def shaped(program: RAG, *, nearest: int, members: int) -> RAG:
    """Return a copy of a program that shows the nearest demonstrations, or an ensemble of copies."""
    other = copy.deepcopy(program)
    one = RAG(other.technique, other.reader, nearest=nearest)
    return Ensemble([one, *(copy.deepcopy(one) for _ in range(members - 1))]) if members else one


def apply_states(program: dspy.Module, states: Mapping[str, PredictorState], *, whose: str, file: str) -> None:
    """Set each predictor's saved prompt and demonstrations in a new program.

    Raises:
        ArtifactError: The program's predictors or fields differ from those in the file.
    """
    predictors = dict(program.named_predictors())
    if set(predictors) != set(states):
        raise ArtifactError(
            f"{file}: {whose} has the predictors {sorted(predictors)}, but the file has {sorted(states)}"
        )
    for name, predictor in predictors.items():
        state = states[name]
        signature: Any = predictor.signature
        if set(signature.fields) != set(state.fields):
            raise ArtifactError(
                f"{file}: {name} has the fields {list(signature.fields)}, but the file has {list(state.fields)}"
            )
        demos = standalone(predictor, state.demos)
        if unknown := sorted({key for demo in demos for key in demo} - demo_fields(predictor)):
            raise ArtifactError(f"{file}: a demonstration of {name} has the unknown field {unknown[0]!r}")
        described = _descriptions(signature)
        for field, description in state.fields.items():
            if description != described[field]:
                signature = signature.with_updated_fields(field, desc=description)
        predictor.signature = signature.with_instructions(state.instructions)
        predictor.demos = [dspy.Example(**demo) for demo in demos]


def demo_fields(predictor: Any) -> set[str]:
    """Return the fields of a demonstration: the predictor's fields, plus ``call_fields``, which some calls add."""
    return {*predictor.signature.fields, *getattr(predictor, "call_fields", ())}


def standalone(predictor: Any, demos: Sequence[Any]) -> list[Any]:
    """Return the demonstrations whose question needs no history. Without the history, the other demonstrations would
    teach the LM to make things up.
    """
    if "history" in predictor.signature.fields:
        return list(demos)
    return [demo for demo in demos if not demo.get("history")]


def _descriptions(signature: Any) -> dict[str, str]:
    return {name: str((field.json_schema_extra or {}).get("desc", "")) for name, field in signature.fields.items()}
