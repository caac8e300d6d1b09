"""DSPy and Optuna settings for running programs and searches."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import dspy

from querywright.models.adapter import PromptAdapter


def asking(lm: dspy.BaseLM) -> AbstractContextManager[Any]:
    """Return the DSPy settings for running programs: this LM, the project's adapter, and no history or trace."""
    settings: AbstractContextManager[Any] = dspy.context(
        lm=lm, adapter=PromptAdapter(), disable_history=True, trace=None
    )
    return settings


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's trial log and its warnings about experimental features off the terminal.

    The warnings stay off afterward: Python's warning filters cannot be restored while other threads run.
    """
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
