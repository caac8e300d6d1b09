"""Optuna without its own account of trials and its notes that a part of it is new."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

_lock = threading.Lock()
_inside: list[int] = []
"""Optuna's verbosity as each that is inside found it."""


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's account of trials, of the error that ended one, and of what is experimental off the terminal.

    Safe for threads: the last to leave gives Optuna its voice back. Notes on what is experimental stay off, because
    Python's filters of warnings cannot be set back while other threads run.
    """
    import optuna

    with _lock:
        _inside.append(optuna.logging.get_verbosity())
        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    try:
        yield
    finally:
        with _lock:
            first = _inside[0]
            _inside.pop()
            if not _inside:
                optuna.logging.set_verbosity(first)
