"""What stands between a program and a model, one duty an engine: counted, paid, heard, tried again."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from dspy.clients.errors import error_boundary
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMError, LMProviderError, LMStreamAssemblyError, is_retryable_lm_error

from querywright.models.budget import Budget
from querywright.models.circuit_breaker import CircuitBreaker, Limits
from querywright.models.engine_errors import LMBudgetError, LMStoreError, redacted
from querywright.models.pieces import NothingStreamedError, heard_by, listening, told
from querywright.models.usage import Cost, Ledger, metered

Price = Callable[[Request, Response], float | None]
"""Estimates US dollars of a response, or returns None when the price is not known."""

_SILENT = 3
"""Times in a row that a model sent no stream, after which none is asked of it."""


class Engine(Protocol):
    """Answers requests."""

    def complete(self, request: Request) -> Response:
        """The answer to a request."""
        ...


class DirectEngine:
    """Asks the model once, in pieces where somebody listens; its errors are DSPy's, without keys.

    A seed is left out where the model takes none: it is what tells one stored draw from another.

    Args:
        inner: The engine that asks the model; streams where it has a ``stream``.
        identity: Names the model in errors.
        secrets: Strings that must not appear in an error.
    """

    def __init__(self, inner: Any, identity: str, secrets: tuple[str, ...] = ()) -> None:
        self._inner = inner
        self._identity = identity
        self._secrets = secrets
        known = getattr(inner, "supported_params", ())
        self._takes_seed = not known or "seed" in known

    def complete(self, request: Request) -> Response:
        """The answer to a request.

        Raises:
            LMError: Whatever went wrong.
        """
        if not self._takes_seed and request.config.seed is not None:
            request = replace(request, config=replace(request.config, seed=None))
        ear = listening()
        try:
            with error_boundary(self._identity, unexpected=True):
                if ear is None or not callable(getattr(self._inner, "stream", None)):
                    response: Response = self._inner.complete(request)
                    return response
                ear.begin()
                return told(self._inner.stream(request), request, ear)
        except LMError as error:
            failure = redacted(error, self._secrets)
        raise failure  # outside of the handler: what it came from would show keys


class CountedEngine:
    """Enters what each attempt costs in a ledger.

    Args:
        inner: Is asked.
        ledger: Takes the cost.
        price: Default: no price is known.
        clock: Seconds that only grow; replaced in tests.
    """

    def __init__(
        self, inner: Engine, ledger: Ledger, price: Price | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._ledger = ledger
        self._price = price or (lambda _request, _response: None)
        self._clock = clock

    def complete(self, request: Request) -> Response:
        """The answer to a request."""
        began = self._clock()
        try:
            response = self._inner.complete(request)
        except BaseException:
            self._ledger.add(Cost(seconds=self._clock() - began))
            raise
        seconds = self._clock() - began
        dollars = self._price(request, response)
        self._ledger.add(
            Cost(
                calls=1,
                input_tokens=response.usage.input_tokens or 0,
                output_tokens=response.usage.output_tokens or 0,
                seconds=seconds,
                dollars=dollars or 0.0,
                unpriced=int(dollars is None),
            )
        )
        return response


class BudgetedEngine:
    """Asks while the budget lasts.

    Args:
        inner: Is asked; enters its cost in a ledger.
        budget: Pays each attempt.
    """

    def __init__(self, inner: Engine, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget

    def complete(self, request: Request) -> Response:
        """The answer to a request.

        Raises:
            LMBudgetError: The budget is spent.
            LMStoreError: The count cannot be kept.
        """
        self._budget.reserve()
        with metered() as meter:
            try:
                return self._inner.complete(request)
            finally:
                self._budget.settle(meter.total)


class HeardEngine:
    """Asks for the whole where a model that was to stream sent no stream, and in the end for nothing else.

    Args:
        inner: Is asked.
    """

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self._silent = 0

    def complete(self, request: Request) -> Response:
        """The answer to a request."""
        if listening() is not None and self._silent < _SILENT:
            try:
                response = self._inner.complete(request)
            except NothingStreamedError:
                self._silent += 1
            else:
                self._silent = 0
                return response
        with heard_by(None):
            return self._inner.complete(request)


class RetryingEngine:
    """Tries again what failed in passing, and asks nothing of a model that is down.

    Args:
        inner: Is asked.
        breaker: Says whether the model is down.
        limits: Attempts and waits.
        ledger: Takes attempts beyond the first, and failures.
        deterministic: The same request fails again in the same way. Default False.
        sleep: Waits that many seconds; replaced in tests.
    """

    def __init__(
        self,
        inner: Engine,
        breaker: CircuitBreaker,
        limits: Limits,
        ledger: Ledger,
        *,
        deterministic: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner = inner
        self._breaker = breaker
        self._limits = limits
        self._ledger = ledger
        self._deterministic = deterministic
        self.sleep = sleep

    def complete(self, request: Request) -> Response:
        """The answer to a request.

        Raises:
            LMOutageError: The model is down.
            LMError: The request failed after all its attempts.
        """
        for attempt in itertools.count(1):
            self._breaker.admit()
            if attempt > 1:
                self._ledger.add(Cost(retries=1))
            try:
                response = self._inner.complete(request)
            except (LMBudgetError, LMStoreError):  # nothing was asked
                raise
            except LMError as error:
                transient = self._is_transient(error)
                if not transient or attempt >= self._limits.max_attempts:
                    self._ledger.add(Cost(failures=1))
                    self._breaker.failed(error, transient=transient)
                    raise
                wait = self._wait(attempt, error.retry_after)
            else:
                self._breaker.succeeded()
                return response
            self.sleep(wait)
        raise AssertionError  # itertools.count never ends

    def _is_transient(self, error: LMError) -> bool:
        """Whether another attempt may succeed: the service failed, or gave what cannot be an answer."""
        if self._deterministic:
            return False
        broken = isinstance(error, LMStreamAssemblyError)
        return is_retryable_lm_error(error) or type(error) is LMProviderError or broken

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        longest = self._limits.max_wait
        if retry_after is None:
            return random.uniform(0, min(self._limits.backoff * 2 ** (attempt - 1), longest))
        asked = max(retry_after, 0.0) if math.isfinite(retry_after) else longest
        return min(asked + random.uniform(0, self._limits.backoff), longest)
