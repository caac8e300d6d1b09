"""An LM of its own for what a technique asks, while the reader asks the LM of the settings.

It is held where DSPy does not look: an optimizer that resets predictors leaves it alone, copies share it, and what is
saved of a program never holds it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import dspy

from querywright.errors import TechniqueError
from querywright.programs.base import Technique

P = TypeVar("P", bound=dspy.Module)


def check_takes_writer(technique: type[Technique] | Technique, writer: Any) -> None:
    """Refuse a writer, where one is given, for a technique, or the class of one, that asks no LM.

    Raises:
        TechniqueError: It asks none, so a writer has nothing to do in it.
    """
    if writer is not None and not technique.LM_STAGES:
        raise TechniqueError(
            f"{technique.NAME} asks no LM before it reads, so a writer has nothing to do in it; leave the writer out "
            "(writer_lm=), or take a technique that writes, such as rrr"
        )


def use_writer(program: P, lm: dspy.BaseLM | None) -> P:
    """Have every predictor of a technique ask this LM, and no reader.

    Args:
        program: A technique, or a program around one or several; changed in place.
        lm: Any LM. None: the one of the DSPy settings.

    Returns:
        The program.

    Raises:
        TechniqueError: The technique asks no LM.
    """
    techniques = [part for _, part in program.named_sub_modules() if isinstance(part, Technique)]
    for technique in techniques:
        check_takes_writer(technique, lm)
        technique.writer_lm = lm
    return program
