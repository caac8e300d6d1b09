"""A rewriter in use: an LM of its own for what a technique writes, while the reader asks the LM of the settings.

It is held where DSPy does not look: an optimizer that resets predictors leaves it alone, copies share it, and what is
saved of a program never holds it.
"""

from __future__ import annotations

from typing import TypeVar

import dspy

from querywright.errors import TechniqueError
from querywright.programs.base import Technique

P = TypeVar("P", bound=dspy.Module)


def takes_rewriter(technique: type[Technique] | Technique) -> bool:
    """Whether a technique, or the class of one, asks an LM to write what is searched for."""
    return bool(technique.LM_STAGES) and technique.WRITES


def check_takes_rewriter(technique: type[Technique] | Technique) -> None:
    """Refuse a technique, or the class of one, that has no use for a rewriter.

    Raises:
        TechniqueError: It asks no LM to write anything.
    """
    if not takes_rewriter(technique):
        raise TechniqueError(
            f"{technique.NAME} asks no LM to write what is searched for, so a rewriter has nothing to do in it; leave "
            "the rewriter out, or take a technique that writes, such as rrr"
        )


def use_rewriter(program: P, lm: dspy.BaseLM | None) -> P:
    """Have every predictor of a technique ask this LM, and no reader.

    Args:
        program: A technique, or a program around one or several; changed in place.
        lm: Any LM. None: the one of the DSPy settings, as without a rewriter.

    Returns:
        The program.

    Raises:
        TechniqueError: The technique asks no LM to write anything.
    """
    techniques = [part for _, part in program.named_sub_modules() if isinstance(part, Technique)]
    for technique in techniques:
        if lm is not None:
            check_takes_rewriter(technique)
        technique.own_lm = lm
    return program
