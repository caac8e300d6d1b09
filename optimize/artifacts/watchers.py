"""Whoever watches a program is told of its questions: at once, or by one thread that holds up no event loop."""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

from querywright.optimize.artifacts.interaction import Exchange

Watcher = Callable[[Exchange], object]
"""Told of every question."""

MOST_WAITING = 1_000
"""Questions that watchers may be behind; of further ones they are not told."""
FLUSH_SECONDS = 5.0

logger = logging.getLogger("querywright.watching")


def tell(watchers: Sequence[Watcher], exchange: Exchange) -> None:
    """Tell every watcher. An error of one is logged by its name, for its text may hold a question, and goes no further.

    Args:
        watchers: Who is told.
        exchange: Of what.
    """
    for watcher in watchers:
        try:
            watcher(exchange)
        except Exception as error:  # noqa: BLE001 - whoever watches must not spoil an answer
            logger.warning("a watcher failed: %s", type(error).__name__)


def tell_later(watchers: Sequence[Watcher], exchange: Exchange) -> None:
    """Have them told by a thread of their own, in the caller's context, and never wait for it.

    Args:
        watchers: Who is told.
        exchange: Of what.
    """
    context = contextvars.copy_context()
    _teller.put(lambda: context.run(tell, watchers, exchange))


def flush(seconds: float = FLUSH_SECONDS) -> bool:
    """Wait until watchers were told of everything that was asked in event loops until now.

    This is done when the interpreter ends; who ends a process otherwise calls it before.

    Args:
        seconds: How long at most. Default 5.

    Returns:
        Whether they were told of all of it in that time.
    """
    return _teller.flush(seconds)


class Teller:
    """One thread that does what it is handed, in order.

    Args:
        most: How much may wait; what is handed over beyond that is counted in ``lost`` and not done.
    """

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.lost = 0
        self._most = most
        # Its put may be interrupted by another of the same thread, as where a coroutine is thrown away.
        self._waiting: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._losing = False

    def put(self, work: Callable[[], object]) -> None:
        """Hand over, and go on.

        Args:
            work: Done when all before it is.
        """
        waiting = self._waiting.qsize()
        if waiting >= self._most:
            self._lose()
            return
        self._losing = self._losing and waiting > 0
        self._waiting.put(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="querywright-watchers")
                self._thread.start()
                atexit.register(self.flush)  # so late, because whoever watches may have registered an end of its own

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until what was handed over until now is done.

        Args:
            seconds: How long at most. Default 5.

        Returns:
            Whether it is.
        """
        if self._thread is None:
            return True
        done = threading.Event()
        self._waiting.put(done.set)
        if done.wait(seconds):
            return True
        logger.warning("watchers are still behind after %g s; they were not told of all questions", seconds)
        return False

    def _run(self) -> None:
        while True:
            work = self._waiting.get()
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the next one is told all the same
                logger.warning("a watcher failed: %s", type(error).__name__)

    def _lose(self) -> None:
        with self._lock:
            self.lost += 1
            first, self._losing = not self._losing, True
            lost = self.lost
        if first:  # once, until they have caught up
            logger.warning(
                "watchers are %d questions behind and are not told of further ones until they catch up; %d lost so far",
                self._most, lost,
            )  # fmt: skip


def _begin() -> None:
    """A process has a thread of its own; one that was forked has none of its parent's."""
    global _teller
    _teller = Teller()


_teller = Teller()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
