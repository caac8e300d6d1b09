"""Optuna without its own account of trials and its notes that a part of it is new."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0
_before = 0


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's account of trials, of the error that ended one, and of what is experimental off the terminal.

    Safe for threads: the first to come in makes Optuna quiet, the last to leave gives it its voice back. Notes on what
    is experimental stay off, because Python's filters of warnings cannot be set back while other threads run.
    """
    import optuna

    global _inside, _before
    with _lock:
        if not _inside:
            _before = optuna.logging.get_verbosity()
            optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        _inside += 1
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                optuna.logging.set_verbosity(_before)
