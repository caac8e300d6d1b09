"""The engine of every LM of ours: answers stored, failures tried again, calls paid and counted, errors without keys."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from textwrap import shorten
from time import monotonic, sleep
from typing import Any

from dspy import lm15
from dspy.clients.engines.base import validate_request
from dspy.clients.errors import error_boundary
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import (
    LMError,
    LMProviderError,
    LMServerError,
    LMStreamAssemblyError,
    LMTimeoutError,
    is_retryable_lm_error,
)

from querywright.models.attempts import until_given_up, within
from querywright.models.budget import Budget
from querywright.models.cached import Ask, cached
from querywright.models.circuit_breaker import CircuitBreaker, Limits
from querywright.models.engine_errors import LMBudgetError, LMRefusedError, LMStoreError, redacted
from querywright.models.flow import FEW, MOST, Flow, in_turn, watched
from querywright.models.pieces import listening, told
from querywright.models.response_parsing import broken_off, is_empty, separate_thinking
from querywright.models.store import Store
from querywright.models.transcript import transcribed
from querywright.models.unsupported import Unsupported, adapted
from querywright.models.usage import Cost, Ledger, metered, waiting
from querywright.shared import Shared

Price = Callable[[Request, Response], float | None]
"""Estimates US dollars of a response, or returns None when the price is not known."""

_QUOTED = 300  # characters of a refusal, where it is reported
_SILENT = 3
"""Times in a row that a model sent no stream, after which none is asked of it."""


class LMEngine(Shared):
    """A DSPy engine around another: ``cached(in_turn(retrying(adapted(watched(budgeted(counted(direct(inner))))))))``.

    Args:
        inner: The engine that asks the model, once a call.
        identity: Names the model and where it is asked; part of the key of a stored answer.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered.
        limits: Attempts, waits, and when the model counts as down.
        budget: Pays each attempt; None for no limit.
        price: Estimates US dollars of a response, or returns None when the price is not known.
        secrets: Strings that must not appear in an error or a log.
        flow: Gives calls of a model elsewhere their turns. Default: one of its own, as the limits say.
    """

    def __init__(
        self,
        inner: Any,
        *,
        identity: str,
        store: Store | None = None,
        ledger: Ledger | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        price: Price | None = None,
        secrets: tuple[str, ...] = (),
        flow: Flow | None = None,
    ) -> None:
        self.inner = inner
        self.identity = identity
        self.store = store
        self.budget = budget
        self.ledger = ledger or Ledger()
        self.limits = limits or Limits()
        self.supports_response_schema = bool(getattr(inner, "supports_response_schema", False))
        # A seed makes one draw another one than the next, by its place in the store where the model takes none.
        self.supported_params = frozenset(getattr(inner, "supported_params", ())) | {"seed"}
        self.decides_by_likelihood = bool(getattr(inner, "decides_by_likelihood", False))
        self._deterministic = bool(getattr(inner, "deterministic", False))
        self.flow = flow or Flow(self.limits.at_once)
        self._price, self._secrets = price, secrets
        # Nobody is waited for in this process: a model here has no deadline, and takes its own turns.
        is_here = self._deterministic
        ask = _counted(_direct(inner, identity, secrets, None if is_here else self.limits.timeout), self.ledger, price)
        ask = ask if budget is None else _budgeted(ask, budget)
        ask = ask if is_here else watched(ask, self.flow)
        # A seed that the model does not take is left out, and still distinguishes one stored draw from another.
        takes_seed = "seed" in (getattr(inner, "supported_params", ()) or {"seed"})
        ask = adapted(ask, identity, () if takes_seed else (Unsupported("seed"),))
        breaker = CircuitBreaker(identity, self.limits)
        ask = _retrying(ask, breaker, self.limits, self.ledger, secrets=secrets, deterministic=is_here)
        ask = ask if is_here else in_turn(ask, self.flow)
        self._complete = cached(ask, identity, store, self.ledger, deterministic=is_here)

    @property
    def threads(self) -> int:
        """Threads that keep the model busy: those that it was given, a few for one here, and many for one elsewhere."""
        return self.limits.at_once or (FEW if self._deterministic else MOST)

    def with_shared(
        self, store: Store | None, ledger: Ledger, budget: Budget | None, at_once: int | None = None
    ) -> LMEngine:
        """Return the same model with the store, ledger and budget of another; itself if they are so already.

        Args:
            store: Where answers are kept.
            ledger: Where cost is entered.
            budget: Pays each attempt.
            at_once: Calls under way at a time, if this engine has no limit. Default None: no limit either.
        """
        limits = self.limits if self.limits.at_once or at_once is None else replace(self.limits, at_once=at_once)
        if (self.store, self.ledger, self.budget, self.limits) == (store, ledger, budget, limits):
            return self
        return LMEngine(
            self.inner, identity=self.identity, store=store, ledger=ledger, limits=limits, budget=budget,
            price=self._price, secrets=self._secrets, flow=self.flow if limits is self.limits else None,
        )  # fmt: skip

    def complete(self, request: Request) -> Response:
        """The answer to a request: stored, shared with an equal request under way, or asked for.

        Raises:
            LMOutageError: The model is down.
            LMBudgetError: The budget is spent.
            LMStoreError: The store, or the count of the budget, cannot be used.
            LMError: The request failed after all its attempts.
        """
        validate_request(request)
        return transcribed(self._complete, request)

    def stream(self, request: Request) -> Iterator[Any]:
        """The answer as events, once it is complete."""
        return iter(lm15.response_to_events(self.complete(request)))

    def close(self) -> None:
        """Close the engine inside."""
        close = getattr(self.inner, "close", None)
        if callable(close):
            close()

    def dump_state(self) -> dict[str, Any]:
        """What names the model; no key, no address."""
        return {"identity": self.identity}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> LMEngine:
        """Nothing: an LM's file, key and address are the application's to give.

        Raises:
            ValueError: Always; it names the LM.
        """
        raise ValueError(f"the LM {state.get('identity')!r} must be given by the application: resolve_lm(...)")


class AsyncLMEngine(Shared):
    """The asynchronous face of an ``LMEngine``: each request runs in a thread of its own."""

    def __init__(self, engine: LMEngine) -> None:
        self.engine = engine
        # The event loop's own threads are few (six on two cores) and would make requests wait for each other.
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="querywright-lm")

    async def complete(self, request: Request) -> Response:
        """The answer to a request."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: context.run(self.engine.complete, request))

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The answer as events, once it is complete."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Close the engine inside."""
        await asyncio.to_thread(self.engine.close)
        self._threads.shutdown(wait=False)

    def dump_state(self) -> dict[str, Any]:
        """What the synchronous engine dumps."""
        return self.engine.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncLMEngine:
        """Nothing, as of the synchronous engine."""
        return cls(LMEngine.load_state(state))


def _direct(inner: Any, identity: str, secrets: tuple[str, ...], timeout: float | None) -> Ask:
    """Asks the model once, in pieces where somebody listens; its errors are DSPy's, without keys."""
    streams, keeps = callable(getattr(inner, "stream", None)), getattr(inner, "keeps_time", False)
    silent = 0

    def once(request: Request) -> Response:
        nonlocal silent
        ear = listening()
        if ear is not None and streams and silent < _SILENT:
            ear.begin()
            heard = told(until_given_up(inner.stream(request)), request, ear)
            silent = 0 if heard is not None else silent + 1
            if heard is not None:
                return heard
        response: Response = inner.complete(request)
        return response

    def complete(request: Request) -> Response:
        try:
            with error_boundary(identity, unexpected=True):
                return once(request) if timeout is None else within(timeout, lambda: once(request), keeps_time=keeps)
        except LMError as error:
            failure = redacted(error, secrets)
        raise failure  # outside of the handler: what it came from would show keys

    return complete


def _counted(ask: Ask, ledger: Ledger, price: Price | None) -> Ask:
    """Enters what each attempt costs in a ledger."""

    def complete(request: Request) -> Response:
        began, cost = monotonic(), Cost()
        try:
            response = ask(request)
            used, dollars = response.usage, None if price is None else price(request, response)
            cost = Cost(1, input_tokens=used.input_tokens or 0, output_tokens=used.output_tokens or 0)
            cost = replace(cost, dollars=dollars or 0.0, unpriced=int(dollars is None))
            return response
        finally:
            ledger.add(replace(cost, seconds=monotonic() - began))

    return complete


def _budgeted(ask: Ask, budget: Budget) -> Ask:
    """Asks while the budget lasts, from which each attempt is paid."""

    def complete(request: Request) -> Response:
        budget.reserve()
        with metered() as meter:
            try:
                return ask(request)
            finally:
                budget.settle(meter.total)

    return complete


def _retrying(
    ask: Ask,
    breaker: CircuitBreaker,
    limits: Limits,
    ledger: Ledger,
    *,
    secrets: tuple[str, ...] = (),
    deterministic: bool,
) -> Ask:
    """Tries again what failed in passing, and asks nothing of a model that is down.

    An empty answer is a failure of its service, but for a model in this process; time that runs out is one of the
    attempt, which the breaker counts at once: a service that is silent costs few of them. Where the model is
    deterministic the same request fails again in the same way. A refusal is not retried.
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
                response = separate_thinking(ask(request))
                failure = None if deterministic else _failure(response)
                if failure is not None:
                    raise redacted(failure, secrets)
            except (LMBudgetError, LMStoreError):  # nothing was asked
                raise
            except LMError as error:
                transient = is_transient(error)
                last = not transient or attempt >= limits.max_attempts
                if last or isinstance(error, LMTimeoutError):
                    breaker.failed(error, transient=transient)
                if last:
                    ledger.add(Cost(failures=1))
                    raise
                seconds = wait(attempt, error.retry_after)
            else:
                breaker.succeeded()
                return response
            with waiting():
                sleep(seconds)
        raise AssertionError  # itertools.count never ends

    return complete


def _failure(response: Response) -> LMError | None:
    """Return what went wrong if a response is no answer: a refusal, half an answer, or nothing."""
    refusal = "".join(part.text for part in response.message.parts if isinstance(part, lm15.RefusalPart))
    if refusal:
        return LMRefusedError(f"the LM refused to answer: {shorten(refusal, _QUOTED, placeholder=' ...')}")
    if response.finish_reason == "content_filter":
        said = shorten(f": {response.text or ''}", _QUOTED, placeholder=" ...").rstrip(": ")
        return LMRefusedError(f"the answer was filtered by the service (finish_reason content_filter){said}")
    broken = broken_off(response)
    if broken:
        return LMServerError(f"the service failed while it answered ({broken})")
    if not is_empty(response):
        return None
    thought = any(isinstance(part, lm15.ThinkingPart) for part in response.message.parts)
    if response.finish_reason == "length":
        return LMError(
            "the answer is empty: all its tokens went into thinking; allow more with --max-tokens N "
            "(max_tokens= of resolve_lm)"
        )
    if thought:
        return LMProviderError("the answer is empty: the LM wrote only thinking")
    return LMProviderError("the answer is empty: the service sent no choices, or a choice without text")
