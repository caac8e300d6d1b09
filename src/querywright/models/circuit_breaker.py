"""What may be asked: the limit of calls, and a circuit breaker that stops a run when the model is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dspy.utils.exceptions import LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError

from querywright.errors import InputError
from querywright.models.engine_errors import LMBudgetError, LMOutageError
from querywright.models.usage import Cost

INCURABLE = (LMAuthError, LMBillingError, LMUnsupportedModelError, LMConfigurationError)
"""Failures that no waiting mends."""
_SHOWN = 300  # characters of the last failure in an outage's message


class Purse(Protocol):
    """What attempts at LM calls are paid from, where several processes share a budget."""

    def reserve(self) -> None:
        """Count one attempt before it is sent.

        Raises:
            LMBudgetError: The budget is spent.
        """

    def settle(self, cost: Cost) -> None:
        """Enter what an attempt cost, once it ended."""


class JointCalls:
    """A limit of calls that several LMs of one process have together: the purse of all of them.

    Args:
        most: Attempts that may be sent in all, 0 or more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent = 0
        self._lock = threading.Lock()

    def reserve(self) -> None:
        """Count one attempt before it is sent.

        Raises:
            LMBudgetError: The limit is reached.
        """
        with self._lock:
            if self._sent >= self._most:
                raise _limit_reached(self._most)
            self._sent += 1

    def settle(self, cost: Cost) -> None:
        """Do nothing: calls are counted as they are sent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient the wrapper is.

    Args:
        max_attempts: Attempts at one request, 1 or more. Default 4.
        backoff: Seconds before the second attempt; doubled each time, with full jitter. Default 1.
        max_wait: Longest wait between attempts in seconds, a server's Retry-After included. Default 60.
        outage_after: Requests in a row that failed all their attempts before the breaker opens. Default 5.
        cooldown: Seconds after which an open breaker lets one request through, to see whether the model is
            back. Default 30.
        max_calls: Attempts that may be sent in all, each retry counted; None for no limit. Default None.
        purse: Asked before each attempt, and told its cost; a budget that several processes share. Default none.

    Raises:
        InputError: A value is out of range.
    """

    max_attempts: int = 4
    backoff: float = 1.0
    max_wait: float = 60.0
    outage_after: int = 5
    cooldown: float = 30.0
    max_calls: int | None = None
    purse: Purse | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("max_attempts", 1), ("outage_after", 1), ("backoff", 0), ("max_wait", 0), ("cooldown", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} must be {least} or more, but got {getattr(self, name)}")
        if self.max_calls is not None and self.max_calls < 0:
            raise InputError(f"max_calls must be 0 or more, or None for no limit, but got {self.max_calls}")


class Gate:
    """Counts the attempts sent and the requests that failed in a row; safe for many threads.

    Args:
        identity: Names the model in messages.
        limits: When to stop.
        clock: Seconds that only grow; replaced in tests.
    """

    def __init__(self, identity: str, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._sent = 0
        self._failed_in_a_row = 0
        self._incurable = False
        self._last_failure = ""
        self._closed_until = 0.0

    def admit(self) -> None:
        """Let one attempt through, and count it.

        Raises:
            LMOutageError: The model is down.
            LMBudgetError: The limit of calls is reached, or the purse is empty.
        """
        with self._lock:
            limit = self._limits.max_calls
            if limit is not None and self._sent >= limit:
                raise _limit_reached(limit)
            if self._open:
                if self._clock() < self._closed_until:
                    raise LMOutageError(self._outage())
                self._closed_until = self._clock() + self._limits.cooldown  # this one finds out; others wait
            self._sent += 1
        if self._limits.purse is not None:
            try:
                self._limits.purse.reserve()
            except BaseException:
                with self._lock:
                    self._sent -= 1
                raise

    def settle(self, cost: Cost) -> None:
        """Tell the purse, if there is one, what an attempt cost."""
        if self._limits.purse is not None:
            self._limits.purse.settle(cost)

    def check(self) -> None:
        """Note whether the model is down, without asking it.

        Raises:
            LMOutageError: It is.
        """
        with self._lock:
            if self._open and self._clock() < self._closed_until:
                raise LMOutageError(self._outage())

    def succeeded(self) -> None:
        """Note that a request was answered."""
        with self._lock:
            self._failed_in_a_row, self._incurable = 0, False

    def failed(self, error: Exception, *, transient: bool) -> None:
        """Note that a request failed for good.

        Args:
            error: The last failure, free of keys.
            transient: Whether the service failed; a request that is at fault itself says nothing about it.
        """
        incurable = isinstance(error, INCURABLE)
        if not (incurable or transient):
            return
        with self._lock:
            self._failed_in_a_row += 1
            self._incurable = self._incurable or incurable
            self._last_failure = str(error)[:_SHOWN]
            self._closed_until = self._clock() + self._limits.cooldown

    @property
    def _open(self) -> bool:
        return self._incurable or self._failed_in_a_row >= self._limits.outage_after

    def _outage(self) -> str:
        count = self._failed_in_a_row
        return (
            f"{count} request{'s' if count > 1 else ''} in a row to {self._identity} failed and nothing more is asked. "
            f"The last failure: {self._last_failure}. Check the model's service and run again: answers received so "
            "far are kept"
        )


def _limit_reached(limit: int) -> LMBudgetError:
    return LMBudgetError(
        f"the limit of {limit} LM calls is reached; answers received so far are kept. Raise --max-calls to go on"
    )
