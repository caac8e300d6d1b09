"""A bounded pool of daemon threads, which stops at once when the caller does."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TypeVar

from querywright.errors import InputError

T = TypeVar("T")
R = TypeVar("R")

_SOON = 0.002
"""Seconds without a result after which another thread is started: one by one, so that questions begin in turn."""

_NAME = "querywright-pool"


def bounded_map(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    threads: int,
    on_done: Callable[[int, R | Exception], None] | None = None,
) -> list[R | Exception]:
    """Apply ``work`` to every item as ``bounded_each`` does; one result or exception an item, in their order.

    ``on_done`` is called with position and result as each item ends; when it raises, nothing further is started.
    """
    results: dict[int, R | Exception] = {}
    with closing(bounded_each(work, items, threads=threads)) as done:
        for position, result in done:
            results[position] = result
            if on_done is not None:
                on_done(position, result)
    return [results[position] for position in range(len(items))]


def bounded_each(
    work: Callable[[T], R], items: Sequence[T], *, threads: int
) -> Generator[tuple[int, R | Exception], None, None]:
    """Apply ``work`` to every item in at most ``threads`` threads at a time; position and result of each as it ends.

    An exception is a result like any other; an interrupt goes up. Close the generator (``contextlib.closing``), so
    that nothing further is started when what is done with a result fails. Threads are daemons, so work that hangs
    holds up the end of the process for some seconds at most, and each runs in a copy of the caller's context.

    Args:
        work: Called once an item.
        items: In order.
        threads: 1 or more. One is started, and another whenever nothing has ended for a moment, so that work whose
            answers are known, where threads would only wait for Python's lock, is done by few.

    Raises:
        InputError: ``threads`` is less than 1.
    """
    if threads < 1:
        raise InputError(f"threads must be 1 or more, but got {threads}")
    waiting = iter(range(len(items)))
    done: queue.SimpleQueue[tuple[int, R | BaseException]] = queue.SimpleQueue()
    lock, stop = threading.Lock(), threading.Event()

    def run() -> None:
        while not stop.is_set():
            with lock:
                position = next(waiting, -1)
            if position < 0:
                return
            try:
                result: R | BaseException = work(items[position])
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who decides
                result = error
                if not isinstance(error, Exception):
                    stop.set()
            done.put((position, result))

    def start() -> None:
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), daemon=True, name=_NAME).start()

    left, most = len(items), min(threads, len(items))
    started = min(1, most)
    try:
        if started:
            start()
        while left:
            try:
                position, result = done.get(timeout=_SOON if started < most else None)
            except queue.Empty:
                start()
                started += 1
                continue
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
            left -= 1
            yield position, result
    finally:
        stop.set()


def let_work_end(seconds: float) -> None:
    """Wait at most so long for work of any pool that is under way: what an LM answers there is paid for, and kept."""
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join(max(0.0, deadline - time.monotonic()))


# A thread that is inside a library's own code when Python ends takes the process down with it.
atexit.register(let_work_end, 5)
