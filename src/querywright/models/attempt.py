"""One attempt at an LM call: charge the budget, send the request, enforce the timeout, and record the cost."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from time import monotonic
from typing import Any, TypeVar

from dspy.clients.errors import error_boundary
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMError, LMRateLimitError, LMServerError, LMTimeoutError

from querywright.models.budget import Budget
from querywright.models.engine_errors import redacted
from querywright.models.flow import Flow
from querywright.models.pieces import read_stream
from querywright.models.response_parsing import is_empty, with_text
from querywright.models.usage import Cost, Layer, Ledger, call_context, metered, surrounded

T = TypeVar("T")

Price = Callable[[Request, Response], float | None]
"""Estimates the price of a response in US dollars; returns None if the price is not known."""

_SILENT = 3
"""Stop requesting streams after this many streaming requests in a row were answered without a stream."""


class BudgetLayer:
    """Charges each attempt to a budget.

    Args:
        inner: Next layer.
        budget: Budget to charge.
    """

    def __init__(self, inner: Layer, budget: Budget) -> None:
        self._inner, self._budget = inner, budget

    def complete(self, request: Request) -> Response:
        """Send a request if the budget allows it."""
        self._budget.reserve()
        with metered() as meter:
            try:
                return self._inner.complete(request)
            finally:
                self._budget.settle(meter.total)


class LedgerLayer:
    """Records the cost of each attempt in a ledger, and reports the outcome to a flow.

    Args:
        inner: Next layer.
        ledger: Records the cost.
        price: Estimates the price of a response in US dollars. Default None: prices are not known.
        flow: Flow to notify of refusals and answers. Default None.
    """

    def __init__(self, inner: Layer, ledger: Ledger, price: Price | None = None, flow: Flow | None = None) -> None:
        self._inner, self._ledger, self._price, self._flow = inner, ledger, price, flow

    def complete(self, request: Request) -> Response:
        """Send a request and record its cost."""
        began, cost = monotonic(), Cost()
        cuts = 0 if self._flow is None else self._flow.cuts
        try:
            response = self._inner.complete(request)
            used, dollars = response.usage, None if self._price is None else self._price(request, response)
            cost = Cost(1, input_tokens=used.input_tokens or 0, output_tokens=used.output_tokens or 0)
            cost = replace(cost, dollars=dollars or 0.0, unpriced=int(dollars is None))
        except (LMRateLimitError, LMServerError, LMTimeoutError):
            if self._flow is not None:
                self._flow.refused(cuts)
            raise
        finally:
            self._ledger.add(replace(cost, seconds=monotonic() - began))
        if self._flow is not None and not is_empty(response):
            self._flow.answered(monotonic() - began, cost.output_tokens)
        return response


class ModelLayer:
    """Calls the model once, and streams the answer if there is a listener. Raises DSPy's errors, with API keys removed.

    Args:
        engine: Calls the model.
        identity: Name of the model in error messages.
        secrets: Strings that must not appear in error messages.
        timeout: Time limit for the complete answer, in seconds. Default None: no limit.
    """

    def __init__(self, engine: Any, identity: str, secrets: tuple[str, ...] = (), timeout: float | None = None) -> None:
        self._engine, self._identity, self._secrets, self._timeout = engine, identity, secrets, timeout
        self._streams = callable(getattr(engine, "stream", None))
        self._silent = 0

    def complete(self, request: Request) -> Response:
        """Call the model."""
        try:
            with error_boundary(self._identity, unexpected=True):
                if self._timeout is None:
                    return with_text(self._ask(request))
                return with_text(within(self._timeout, lambda: self._ask(request)))
        except LMError as error:
            failure = redacted(error, self._secrets)
        raise failure  # outside the handler, because the original error may show API keys

    def _ask(self, request: Request) -> Response:
        ear = call_context().ear
        if ear is not None and self._streams and self._silent < _SILENT:
            ear.begin()
            heard = read_stream(_until_deadline(self._engine.stream(request)), request, ear)
            self._silent = 0 if heard is not None else self._silent + 1
            if heard is not None:
                return heard
        response: Response = self._engine.complete(request)
        return response


def left() -> float:
    """Return the seconds left in the current attempt; infinity if there is no current attempt.

    Raises:
        TimeoutError: No time is left.
    """
    seconds = call_context().deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError("the attempt timed out")
    return seconds


def within(seconds: float, work: Callable[[], T]) -> T:
    """Run ``work`` in a thread, and return its result within a time limit.

    An HTTP client's timeout limits only the time between bytes, so a server that sends a byte now and then would never
    exceed it.

    Args:
        seconds: Time limit in seconds.
        work: Function to run. Its thread keeps running after the time limit, but nothing waits for it.

    Raises:
        LMTimeoutError: The time limit was exceeded.
    """
    end, done = monotonic() + seconds, Future[T]()

    def run() -> None:
        try:
            with surrounded(deadline=end):
                done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller's thread
            done.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), daemon=True, name="querywright-attempt").start()
    wait([done], timeout=seconds)
    try:
        return done.result(0)
    except Exception:
        if monotonic() < end:
            raise
    raise LMTimeoutError(
        f"the LM sent no complete answer within {seconds:g} seconds; if the server is slow, increase timeout="
    )


def _until_deadline(pieces: Iterator[T]) -> Iterator[T]:
    """Yield the pieces of an answer until the attempt times out."""
    try:
        for piece in pieces:
            left()
            yield piece
    finally:
        close = getattr(pieces, "close", None)
        if callable(close):
            close()
