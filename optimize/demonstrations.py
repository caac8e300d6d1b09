"""Demonstrations by a DSPy teleprompter: sets to choose from, never applied unseen."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dspy

from querywright.data.types import Question
from querywright.models.adapter import PromptAdapter
from querywright.programs.rag import RAG

Demos = Mapping[str, Sequence[Mapping[str, Any]]]
"""Demonstrations of each predictor, by the predictor's name in the program."""


def bootstrap_sets(
    program: RAG,
    train: Sequence[Question],
    accept: Callable[..., float],
    *,
    lm: dspy.LM,
    sizes: Sequence[int],
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Demos]:
    """Sets of demonstrations that the program wrote itself on training questions where it succeeded.

    DSPy's ``BootstrapFewShot`` runs the program over the training questions in an order of their own for each set
    and keeps the traces that ``accept`` is content with. A set that found none, or equals an earlier one, is left
    out.

    Args:
        program: The program as it stands; it is not changed.
        train: Training questions.
        accept: A DSPy metric; a trace with 1.0 is kept.
        lm: An LM made by ``resolve_lm``.
        sizes: Demonstrations wanted in each set.
        seed: Orders the training questions.
        progress: Called with how many sets are done and how many there are.

    Returns:
        The sets, in the order of ``sizes``.
    """
    found: list[Demos] = []
    for position, size in enumerate(sizes):
        order = list(train)
        random.Random(f"{seed}:{position}").shuffle(order)
        teleprompter = dspy.BootstrapFewShot(
            metric=accept,
            metric_threshold=1.0,
            max_bootstrapped_demos=size,
            max_labeled_demos=0,
            max_errors=max(1, len(order) // 10),
        )
        with dspy.context(lm=lm, adapter=PromptAdapter()), _quiet():
            compiled = teleprompter.compile(
                student=copy.deepcopy(program), trainset=[question.to_example() for question in order]
            )
        demos = demos_of(compiled)
        if any(demos.values()) and demos not in found:
            found.append(demos)
        if progress is not None:
            progress(position + 1, len(sizes))
    return found


def demos_of(program: dspy.Module) -> dict[str, list[dict[str, Any]]]:
    """The demonstrations of each predictor as plain data."""
    return {
        name: [
            {key: value for key, value in dict(demo).items() if key != "augmented"}
            for demo in predictor.demos
        ]
        for name, predictor in program.named_predictors()
    }


def with_demos(program: RAG, demos: Demos) -> RAG:
    """A copy of the program with these demonstrations; predictors that are not named keep theirs."""
    other = copy.deepcopy(program)
    for name, predictor in other.named_predictors():
        if name in demos:
            predictor.demos = [dspy.Example(**demo) for demo in demos[name]]
    return other


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the teleprompter's own progress bar and its logging of examples off the terminal."""
    logger = logging.getLogger("dspy.teleprompt")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
