"""The engine of every LM of ours: answers stored, failures tried again, calls paid and counted, errors without keys."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dspy import lm15
from dspy.clients.engines.base import validate_request
from dspy.lm15 import Request, Response

from querywright.models.budget import Budget
from querywright.models.cached import cached
from querywright.models.circuit_breaker import CircuitBreaker, Limits
from querywright.models.engines import Price, budgeted, counted, direct, retrying
from querywright.models.store import Store
from querywright.models.usage import Ledger

MOST_REQUESTS = 64
"""Requests of an event loop that are under way at the same time at most."""


class LMEngine:
    """A DSPy engine around another engine: ``cached(retrying(budgeted(counted(direct(inner)))))``.

    Args:
        inner: The engine that asks the model, once a call.
        identity: Names the model and where it is asked; part of the key of a stored answer.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered.
        limits: Attempts, waits, and when the model counts as down.
        budget: Pays each attempt; None for no limit.
        price: Estimates US dollars of a response, or returns None when the price is not known.
        secrets: Strings that must not appear in an error or a log.
        sleep: Waits that many seconds; replaced in tests.
        clock: Seconds that only grow; replaced in tests.
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
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.identity = identity
        self.store = store
        self.ledger = ledger or Ledger()
        self.limits = limits or Limits()
        self.supports_response_schema = bool(getattr(inner, "supports_response_schema", False))
        # A seed makes one draw another one than the next, by its place in the store where the model takes none.
        self.supported_params = frozenset(getattr(inner, "supported_params", ())) | {"seed"}
        self.decides_by_likelihood = bool(getattr(inner, "decides_by_likelihood", False))
        self._deterministic = bool(getattr(inner, "deterministic", False))
        ask = counted(direct(inner, identity, secrets), self.ledger, price, clock)
        self._ask = retrying(
            ask if budget is None else budgeted(ask, budget),
            CircuitBreaker(identity, self.limits, clock),
            self.limits,
            self.ledger,
            deterministic=self._deterministic,
            sleep=sleep,
        )
        self._complete = cached(self._ask, identity, store, self.ledger, deterministic=self._deterministic)

    def __deepcopy__(self, memo: dict[int, Any]) -> LMEngine:
        return self

    def with_store(self, store: Store) -> LMEngine:
        """The same engine, its answers kept in a store."""
        other = copy.copy(self)
        other.store = store
        other._complete = cached(self._ask, self.identity, store, self.ledger, deterministic=self._deterministic)
        return other

    def complete(self, request: Request) -> Response:
        """The answer to a request: stored, shared with an equal request under way, or asked for.

        Raises:
            LMOutageError: The model is down.
            LMBudgetError: The budget is spent.
            LMStoreError: The store, or the count of the budget, cannot be used.
            NotStoredError: The answer is not stored, and nothing may be asked (``stored_only``).
            LMError: The request failed after all its attempts.
        """
        validate_request(request)
        return self._complete(request)

    def stream(self, request: Request) -> Iterator[Any]:
        """The answer as events, once it is complete."""
        return iter(lm15.response_to_events(self.complete(request)))

    def close(self) -> None:
        """Close the engine inside."""
        close = getattr(self.inner, "close", None)
        if callable(close):
            close()

    def dump_state(self) -> dict[str, Any]:
        """Enough to name the model again; no key, no address."""
        dump = getattr(self.inner, "dump_state", None)
        return {"identity": self.identity, "inner": dump() if callable(dump) else None}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> LMEngine:
        """The engine of the embedded LM that ``dump_state`` named.

        Raises:
            ValueError: The LM is another; its file, key and address are the application's to give.
        """
        from querywright.models.embedded import EmbeddedEngine

        if not isinstance(state.get("inner"), dict):
            raise ValueError(f"the LM {state.get('identity')!r} must be given by the application: resolve_lm(...)")
        inner = EmbeddedEngine.load_state(state["inner"])
        return cls(inner, identity=inner.answers_identity)


class AsyncLMEngine:
    """The asynchronous face of an ``LMEngine``: each request runs in a thread of its own."""

    def __init__(self, engine: LMEngine) -> None:
        self.engine = engine
        # The event loop's own threads are few (six on two cores) and would make requests wait for each other.
        self._threads = ThreadPoolExecutor(MOST_REQUESTS, thread_name_prefix="querywright-lm")

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncLMEngine:
        return self

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
        """The engine that ``dump_state`` named."""
        return cls(LMEngine.load_state(state))
