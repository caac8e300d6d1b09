"""Prompt variants: made once, stored as plain data, and used in programs with different knobs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.optimize.optimizer_run import OptimizerRun
from querywright.optimize.optimizers import run_optimizer
from querywright.optimize.program_state import ProgramState, apply_states, predictor_states, shaped, state_of
from querywright.optimize.search.sampling import seed_of
from querywright.optimize.search.spec import PromptSpec
from querywright.programs import RAG

Variant = ProgramState
"""The tuned parts of a program state."""


def make_variant(
    spec: PromptSpec,
    variant_name: str,
    program: RAG,
    train: Sequence[Question],
    *,
    seed: int = 0,
    **settings: Any,
) -> Variant:
    """Return a prompt variant for a program: apply instructions written by hand, then tune with an optimizer.

    Args:
        spec: The specification of the variant.
        variant_name: The name of the variant, which determines its seed.
        program: The program, which does not change.
        train: The training questions.
        seed: The seed of the study. Default 0.
        settings: Additional arguments for ``OptimizerRun``.

    Raises:
        InputError: A name or value is wrong, or the program has nothing to tune.
        ArtifactError: A demonstration cannot be written as JSON.
    """
    changed = _with_instructions(program, spec.instructions)
    if spec.optimizer is not None:
        asked: dict[str, Any] = {"arguments": spec.arguments, "part": spec.part, **settings}
        own = seed_of(f"{seed}:{variant_name}") >> 1
        changed = run_optimizer(OptimizerRun(spec.optimizer, changed, train, seed=own, **asked))
    tuned = set() if spec.optimizer is None else spec.parts
    state = state_of(changed)
    said = {
        name: one
        for name, one in state.predictors.items()
        if _plain(name) in spec.instructions or _plain(name).partition(".")[0] in tuned
    }
    reader = state.reader if any(_plain(name).startswith("reader.") for name in said) else None
    return state.model_copy(update={"predictors": said, "knobs": {}, "reader": reader})


def with_variant(program: RAG, variant: Variant) -> RAG:
    """Return a copy of a program with a variant's prompts; knobs and other predictors do not change.

    The reader's prompts are ignored if the program has no reader. The program must not be an ensemble.
    """
    other = shaped(program, nearest=variant.nearest, members=variant.members)
    states = {n: one for n, one in variant.predictors.items() if program.reader or not _plain(n).startswith("reader.")}
    apply_states(other, {**predictor_states(other), **states}, whose=variant.technique, file="a prompt variant")
    return other


def with_reader_prompts(program: RAG, variant: Variant) -> RAG:
    """Return a copy of a program with a variant's reader prompts; the variant may come from a different technique."""
    other = copy.deepcopy(program)
    before = predictor_states(other)
    reading = {name: variant.predictors[_plain(name)] for name in before if _plain(name) in variant.predictors}
    apply_states(other, {**before, **reading}, whose=program.technique.NAME, file="a prompt variant")
    return other


def _with_instructions(program: RAG, instructions: Mapping[str, str]) -> RAG:
    """Return a copy of a program with these instructions, by predictor name."""
    other = copy.deepcopy(program)
    for name, predictor in other.named_predictors():
        if name in instructions:
            changed: Any = predictor
            changed.signature = changed.signature.with_instructions(instructions[name])
    return other


def _plain(name: str) -> str:
    """Return a predictor's name without the prefix for the ensemble member."""
    return name.rpartition("].")[2]
