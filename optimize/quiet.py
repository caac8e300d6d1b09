"""Optuna without its own account of trials and its notes that a part of it is new."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's account of trials, of the error that ended one, and of what is experimental off the terminal.

    Notes on what is experimental stay off: Python's filters of warnings cannot be set back while other threads run.
    """
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
