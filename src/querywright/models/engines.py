"""What stands between a program and a model, one duty each: asked, counted, paid, tried again."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dspy.clients.errors import error_boundary
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMError, LMProviderError, LMStreamAssemblyError, is_retryable_lm_error

from querywright.models.budget import Budget
from querywright.models.circuit_breaker import CircuitBreaker, Limits
from querywright.models.engine_errors import LMBudgetError, LMStoreError, redacted
from querywright.models.pieces import listening, told
from querywright.models.usage import Cost, Ledger, metered

Ask = Callable[[Request], Response]
"""Answers a request."""
Price = Callable[[Request, Response], float | None]
"""Estimates US dollars of a response, or returns None when the price is not known."""

_SILENT = 3
"""Times in a row that a model sent no stream, after which none is asked of it."""


def direct(inner: Any, identity: str, secrets: tuple[str, ...] = ()) -> Ask:
    """Asks the model once, in pieces where somebody listens; its errors are DSPy's, without keys.

    A seed is left out where the model takes none: it is what tells one stored draw from another.

    Args:
        inner: The engine that asks the model; streams where it has a ``stream``.
        identity: Names the model in errors.
        secrets: Strings that must not appear in an error.
    """
    takes_seed = "seed" in (getattr(inner, "supported_params", ()) or {"seed"})
    streams = callable(getattr(inner, "stream", None))
    silent = 0

    def complete(request: Request) -> Response:
        nonlocal silent
        if not takes_seed and request.config.seed is not None:
            request = replace(request, config=replace(request.config, seed=None))
        ear = listening()
        try:
            with error_boundary(identity, unexpected=True):
                if ear is not None and streams and silent < _SILENT:
                    ear.begin()
                    heard = told(inner.stream(request), request, ear)
                    silent = 0 if heard is not None else silent + 1
                    if heard is not None:
                        return heard
                response: Response = inner.complete(request)
                return response
        except LMError as error:
            failure = redacted(error, secrets)
        raise failure  # outside of the handler: what it came from would show keys

    return complete


def counted(ask: Ask, ledger: Ledger, price: Price | None = None, clock: Callable[[], float] = time.monotonic) -> Ask:
    """Enters what each attempt costs in a ledger.

    Args:
        ask: Asks the model.
        ledger: Takes the cost.
        price: Default: no price is known.
        clock: Seconds that only grow; replaced in tests.
    """

    def complete(request: Request) -> Response:
        began, response, dollars = clock(), None, None
        try:
            response = ask(request)
            dollars = None if price is None else price(request, response)
            return response
        finally:
            seconds = clock() - began
            if response is None:
                ledger.add(Cost(seconds=seconds))
            else:
                tokens = {
                    "input_tokens": response.usage.input_tokens or 0, "output_tokens": response.usage.output_tokens or 0
                }  # fmt: skip
                unpriced = int(dollars is None)
                ledger.add(Cost(calls=1, seconds=seconds, dollars=dollars or 0.0, unpriced=unpriced, **tokens))

    return complete


def budgeted(ask: Ask, budget: Budget) -> Ask:
    """Asks while the budget lasts.

    Args:
        ask: Asks the model, and enters its cost in a ledger.
        budget: Pays each attempt.
    """

    def complete(request: Request) -> Response:
        budget.reserve()
        with metered() as meter:
            try:
                return ask(request)
            finally:
                budget.settle(meter.total)

    return complete


def retrying(
    ask: Ask,
    breaker: CircuitBreaker,
    limits: Limits,
    ledger: Ledger,
    *,
    deterministic: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Ask:
    """Tries again what failed in passing, and asks nothing of a model that is down.

    Args:
        ask: Asks the model.
        breaker: Says whether the model is down.
        limits: Attempts and waits.
        ledger: Takes attempts beyond the first, and failures.
        deterministic: The same request fails again in the same way. Default False.
        sleep: Waits that many seconds; replaced in tests.
    """

    def is_transient(error: LMError) -> bool:
        """Whether another attempt may succeed: the service failed, or gave what cannot be an answer."""
        broken = isinstance(error, LMStreamAssemblyError) or type(error) is LMProviderError
        return not deterministic and (broken or is_retryable_lm_error(error))

    def wait(attempt: int, retry_after: float | None) -> float:
        if retry_after is None:
            return random.uniform(0, min(limits.backoff * 2 ** (attempt - 1), limits.max_wait))
        asked = max(retry_after, 0.0) if math.isfinite(retry_after) else limits.max_wait
        return min(asked + random.uniform(0, limits.backoff), limits.max_wait)

    def complete(request: Request) -> Response:
        for attempt in itertools.count(1):
            breaker.admit()
            if attempt > 1:
                ledger.add(Cost(retries=1))
            try:
                response = ask(request)
            except (LMBudgetError, LMStoreError):  # nothing was asked
                raise
            except LMError as error:
                transient = is_transient(error)
                if not transient or attempt >= limits.max_attempts:
                    ledger.add(Cost(failures=1))
                    breaker.failed(error, transient=transient)
                    raise
                seconds = wait(attempt, error.retry_after)
            else:
                breaker.succeeded()
                return response
            sleep(seconds)
        raise AssertionError  # itertools.count never ends

    return complete
