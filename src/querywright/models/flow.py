"""Adapt the number of parallel calls to a remote LM to its server.

As in TCP, the number follows additive increase, multiplicative decrease (Chiu and Jain, 1989). It doubles with each
round of answers until the server refuses a call or slows down. Then it grows by one per round, and more slowly near the
number at which the server refused a call. A refusal reduces the number by a third. If answers take twice as long as
with fewer calls, the number falls by a fifth. Times are compared per token, because longer answers take longer.

When several calls are waiting, the one for the oldest question goes next. Otherwise, a question's later calls would
wait behind the first calls for all other questions.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from dspy.lm15 import Request, Response

from querywright.models.usage import Layer, age

FEW, MOST = 4, 64
"""Initial and maximum number of parallel calls. Slow answers do not reduce the number below the initial one."""

_REFUSED, _SLOWED = 2 / 3, 0.8
_SLOW = 2.0
"""A server is slow if a round's answers take this many times as long as in the best round."""
_DRIFT = 1.01
"""Factor by which the best time grows per round, so that it reflects recent conditions."""
_CREEP = 0.1
"""Share of the normal growth rate that applies near the number at which the server refused a call."""
_HEAD = 16
"""Number of output tokens that take about as long to write as the wait for the first token."""


class Flow:
    """Decides when each call may start; thread-safe.

    Args:
        fixed: Maximum number of parallel calls, 1 or more. None (default) adapts the number to the server.

    Attributes:
        limit: Current maximum number of parallel calls.
        cuts: Number of times that the maximum was reduced.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.limit = float(fixed or FEW)
        self._fixed = fixed is not None
        self._lock = threading.Lock()
        self._waiting: list[tuple[tuple[float, ...], int, threading.Event]] = []
        self._count = count()
        self._under_way = self.cuts = 0
        self._wall = self._best = float("inf")
        self._left, self._seconds, self._tokens, self._peak = int(self.limit), 0.0, 0, 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and keep it until the ``with`` block ends; the oldest question's call goes next."""
        granted = threading.Event()
        with self._lock:
            heapq.heappush(self._waiting, (age(), next(self._count), granted))
            self._grant()
        try:
            if not granted.is_set():
                granted.wait()
            yield
        finally:
            with self._lock:
                if granted.is_set():
                    self._under_way -= 1
                else:
                    self._waiting = [one for one in self._waiting if one[2] is not granted]
                    heapq.heapify(self._waiting)
                self._grant()

    def _grant(self) -> None:
        """Let waiting calls start while the limit allows it."""
        while self._waiting and self._under_way < int(self.limit):
            heapq.heappop(self._waiting)[2].set()
            self._under_way += 1
            self._peak = max(self._peak, self._under_way)

    def refused(self, cuts: int) -> None:
        """Reduce the limit after a refused call.

        Args:
            cuts: Value of ``cuts`` when the call started. Only one refusal per round counts.
        """
        with self._lock:
            if not self._fixed and cuts == self.cuts:
                self._cut(_REFUSED, 1)

    def answered(self, seconds: float, tokens: int) -> None:
        """Adjust the limit after an answer.

        Args:
            seconds: Time that the answer took, in seconds.
            tokens: Number of output tokens in the answer.
        """
        with self._lock:
            if self._fixed:
                return
            self._left -= 1
            self._seconds, self._tokens = self._seconds + seconds, self._tokens + tokens + _HEAD
            if 2 * self._peak > self.limit:  # if not, the limit is not the bottleneck
                slowly = _CREEP if self._wall - 1 <= self.limit <= self._wall else 1.0
                self.limit = min(MOST, self.limit + (slowly / self.limit if self.cuts else 1))
            if self._left <= 0:
                pace = self._seconds / self._tokens
                self._begin()
                if pace > _SLOW * self._best and self.limit > FEW:
                    self._cut(_SLOWED, FEW)
                self._best = min(self._best * _DRIFT, pace)
            self._grant()

    def _cut(self, share: float, least: int) -> None:
        self._wall = int(self.limit)
        self.limit = max(float(least), self.limit * share)
        self.cuts += 1
        self._begin()

    def _begin(self) -> None:
        """Start a round, which ends when the number of answers equals the limit on parallel calls."""
        self._left, self._seconds, self._tokens, self._peak = int(self.limit), 0.0, 0, self._under_way


class FlowLayer:
    """Waits for the call's turn, and keeps it during retries, so that few calls are wasted in an outage.

    Args:
        inner: Next layer.
        flow: Decides when each call may start.
    """

    def __init__(self, inner: Layer, flow: Flow) -> None:
        self._inner, self._flow = inner, flow

    def complete(self, request: Request) -> Response:
        """Wait for a turn, then pass the request on."""
        with self._flow.turn():
            return self._inner.complete(request)
