"""One attempt at a model elsewhere: it ends in time, and what goes on after its end is heard by nobody."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from dspy.utils.exceptions import LMTimeoutError

T = TypeVar("T")

_given_up: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("querywright_given_up", default=None)


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` gives, in a thread of its own that nobody waits for any longer than so many seconds.

    A client's own time-out is one between bytes, so a server that sends a byte now and then is never late for it.

    Raises:
        LMTimeoutError: It took longer.
    """
    done: Future[T] = Future()
    late = threading.Event()
    context = contextvars.copy_context()

    def run() -> None:
        _given_up.set(late)
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            done.set_exception(error)

    threading.Thread(target=context.run, args=(run,), daemon=True, name="querywright-attempt").start()
    wait([done], timeout=seconds)
    if not done.done():
        late.set()
        raise LMTimeoutError(
            f"there was no whole answer within {seconds:g} seconds; give a slower one more with --timeout SECONDS "
            "(timeout= of resolve_lm)"
        )
    return done.result()


def until_given_up(pieces: Iterator[T]) -> Iterator[T]:
    """The pieces of an answer, until the attempt that they belong to has run out of time."""
    late = _given_up.get()
    try:
        for piece in pieces:
            if late is not None and late.is_set():
                raise LMTimeoutError("the attempt has run out of time")
            yield piece
    finally:
        close = getattr(pieces, "close", None)
        if callable(close):
            close()
