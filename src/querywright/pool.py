"""A bounded pool of daemon threads that stops immediately when the caller does."""

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
"""Seconds without a result after which another thread starts. This delay makes questions start in order."""

_NAME = "querywright-pool"


def bounded_map(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    threads: int,
    on_done: Callable[[int, R | Exception], None] | None = None,
) -> list[R | Exception]:
    """Apply ``work`` to every item with ``bounded_each``, and return one result or exception per item, in order.

    ``on_done`` is called with an item's position and result when the item finishes. If it raises an error, no further
    items start.
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
    """Apply ``work`` to every item in up to ``threads`` threads, and yield each position and result when it is done.

    An exception counts as a result; an interrupt is raised. Close the generator (``contextlib.closing``), so that no
    further items start after an error in the caller. The threads are daemons, so hanging work delays the end of the
    process by a few seconds at most. Each thread runs in a copy of the caller's context.

    Args:
        work: A function that is called once per item.
        items: The items, in the order in which they start.
        threads: Maximum number of threads, 1 or more. One thread starts first, and another starts whenever no item has
            finished for a moment. If all answers are cached, a few threads can do all the work, without contending for
            the GIL.

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
    """Wait up to this many seconds for running work in all pools, because its LM answers are paid for and cached."""
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join(max(0.0, deadline - time.monotonic()))


# A thread that is still in a library's native code when Python exits would crash the process.
atexit.register(let_work_end, 5)
