"""A bounded pool of threads that never waits for ever and stops at once."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class DeadlineError(Exception):
    """A piece of work took longer than it was given."""


@dataclass(slots=True)
class _Job(Generic[T]):
    position: int
    item: T
    began: float | None = None
    over: bool = False


@dataclass(slots=True)
class _Board(Generic[T, R]):
    """What the threads share."""

    work: Callable[[T], R]
    jobs: queue.SimpleQueue[_Job[T]]
    done: queue.SimpleQueue[tuple[_Job[T], R | BaseException]]
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                return
            job.began = time.monotonic()
            try:
                result: R | BaseException = self.work(job.item)
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who decides
                result = error
            self.done.put((job, result))
            if job.over:
                return  # a thread that took this one's place is at work already


def bounded_map(
    work: Callable[[T], R],
    items: Sequence[T],
    *,
    threads: int,
    deadline: float | None = None,
    on_done: Callable[[int, R | BaseException], None] | None = None,
) -> list[R | BaseException]:
    """Apply ``work`` to every item in at most ``threads`` threads at a time.

    An exception is a result like any other. ``on_done`` runs in the calling thread and may raise: then nothing
    further is started and the exception goes up. Threads are daemons, so work that hangs cannot hold up the end of
    the process, and each runs in a copy of the caller's context.

    Args:
        work: Called once an item.
        items: In order.
        threads: 1 or more.
        deadline: Seconds one item may take; then its result is a ``DeadlineError`` and another thread takes over.
        on_done: Called with position and result as each item ends.

    Returns:
        One result or exception an item, in their order.
    """
    board: _Board[T, R] = _Board(work, queue.SimpleQueue(), queue.SimpleQueue())
    jobs = [_Job(position, item) for position, item in enumerate(items)]
    for job in jobs:
        board.jobs.put(job)
    results: dict[int, R | BaseException] = {}

    def start() -> None:
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(board.run,), daemon=True, name="querywright-pool").start()

    def finish(job: _Job[T], result: R | BaseException) -> None:
        job.over = True
        results[job.position] = result
        if on_done is not None:
            on_done(job.position, result)

    try:
        for _ in range(min(threads, len(jobs))):
            start()
        while len(results) < len(jobs):
            try:
                job, result = board.done.get(timeout=0.2)
            except queue.Empty:
                pass
            else:
                if not job.over:
                    finish(job, result)
            for job in _late(jobs, deadline):
                start()
                finish(job, DeadlineError(f"took longer than {deadline:g} seconds"))
    finally:
        board.stop.set()
    return [results[position] for position in range(len(jobs))]


def _late(jobs: Sequence[_Job[T]], deadline: float | None) -> list[_Job[T]]:
    if deadline is None:
        return []
    now = time.monotonic()
    return [job for job in jobs if not job.over and job.began is not None and now - job.began > deadline]
