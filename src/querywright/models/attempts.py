"""One attempt at a model elsewhere: it ends in time, and what goes on after its end is heard by nobody."""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from time import monotonic
from typing import TypeVar

from dspy.utils.exceptions import LMTimeoutError

T = TypeVar("T")

_until: contextvars.ContextVar[float] = contextvars.ContextVar("querywright_until", default=math.inf)


def left() -> float:
    """Seconds that the attempt in this context still has; infinite outside of one.

    Raises:
        TimeoutError: None are left.
    """
    seconds = _until.get() - monotonic()
    if seconds <= 0:
        raise TimeoutError("the attempt has run out of time")
    return seconds


def within(seconds: float, work: Callable[[], T], *, keeps_time: bool = False) -> T:
    """What ``work`` gives, for which nobody waits any longer than so many seconds.

    A client's own time-out is one between bytes, so a server that sends a byte now and then is never late for it. Work
    that waits for nothing longer than ``left`` is done in this thread, other in one of its own.

    Raises:
        LMTimeoutError: It took longer.
    """
    end = monotonic() + seconds
    token = _until.set(end)
    try:
        return work() if keeps_time else waited_for(work, seconds)
    except Exception:
        if monotonic() < end:
            raise
    finally:
        _until.reset(token)
    raise LMTimeoutError(
        f"there was no whole answer within {seconds:g} seconds; give a slower one more with --timeout SECONDS "
        "(timeout= of resolve_lm)"
    )


def waited_for(work: Callable[[], T], seconds: float) -> T:
    """What work gives in a thread of its own; ``TimeoutError`` where that takes longer than so many seconds."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            done.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), daemon=True, name="querywright-attempt").start()
    wait([done], timeout=None if math.isinf(seconds) else seconds)
    return done.result(0)


def until_given_up(pieces: Iterator[T]) -> Iterator[T]:
    """The pieces of an answer, until the attempt that they belong to has run out of time."""
    try:
        for piece in pieces:
            left()
            yield piece
    finally:
        close = getattr(pieces, "close", None)
        if callable(close):
            close()
