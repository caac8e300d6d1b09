"""How many calls are under way at a model elsewhere: as many as its server takes, which is found while it is asked.

Additive increase, multiplicative decrease (Chiu and Jain, 1989), as TCP does it. The number doubles with each round of
answers until the server refuses or slows down, and then grows by one a round, and slowly to where it was refused; a
refusal takes a third of it away, and answers that take twice as long as they did with fewer calls a fifth. Seconds are
compared with the length of an answer, because long ones take long.

Of the calls that wait, that of the question which began first is next. Otherwise the later calls of a question would
stand behind the first calls of all others, and those that are left at the end would wait for each other.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from dspy.lm15 import Request, Response

from querywright.models.usage import Layer, age, waiting

FEW, MOST = 4, 64
"""Calls under way at first, below which no slowness leads, and at most."""

_REFUSED, _SLOWED = 2 / 3, 0.8
_SLOW = 2.0
"""Times as long as at best, from which a server counts as slow."""
_DRIFT = 1.01
"""What the best becomes with each round, so that it is of these hours."""
_CREEP = 0.1
"""Of one a round, near the number that was refused."""
_HEAD = 16
"""Tokens of output that take as long as what comes before the first, about."""


class Flow:
    """Gives calls their turns; safe for many threads.

    Args:
        fixed: Calls under way at most, 1 or more; None to find the number.

    Attributes:
        limit: Calls under way at most, now.
        cuts: Decreases of it so far.
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
        """Wait for a turn, which ends with the ``with`` block; the call of the oldest question is next."""
        granted = threading.Event()
        with self._lock:
            heapq.heappush(self._waiting, (age(), next(self._count), granted))
            self._grant()
        try:
            if not granted.is_set():
                with waiting():
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
        """Give turns to those who wait, as long as there are any."""
        while self._waiting and self._under_way < int(self.limit):
            heapq.heappop(self._waiting)[2].set()
            self._under_way += 1
            self._peak = max(self._peak, self._under_way)

    def refused(self, cuts: int) -> None:
        """Take note of a refusal of a call that began after so many decreases; of those of one round, one counts."""
        with self._lock:
            if not self._fixed and cuts == self.cuts:
                self._cut(_REFUSED, 1)

    def answered(self, seconds: float, tokens: int) -> None:
        """Take note of an answer: the seconds it took, and its tokens."""
        with self._lock:
            if self._fixed:
                return
            self._left -= 1
            self._seconds, self._tokens = self._seconds + seconds, self._tokens + tokens + _HEAD
            if 2 * self._peak > self.limit:  # else it is not the limit that holds back
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
        """Begin a round: as many answers as there may be calls."""
        self._left, self._seconds, self._tokens, self._peak = int(self.limit), 0.0, 0, self._under_way


class FlowLayer:
    """Asks when it is the call's turn, which it keeps while it waits to ask again: an outage costs few calls.

    Args:
        inner: Asks the model, with its retries.
        flow: Gives the turns.
    """

    def __init__(self, inner: Layer, flow: Flow) -> None:
        self._inner, self._flow = inner, flow

    def complete(self, request: Request) -> Response:
        """Wait for a turn, then ask."""
        with self._flow.turn():
            return self._inner.complete(request)
