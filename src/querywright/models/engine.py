"""The engine of every LM of ours: answers stored, failures tried again, calls paid and counted, errors without keys."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dspy import lm15
from dspy.clients.engines.base import validate_request
from dspy.lm15 import Request, Response

from querywright.models.attempt import BudgetLayer, LedgerLayer, ModelLayer, Price
from querywright.models.budget import Budget
from querywright.models.cached import CacheLayer
from querywright.models.circuit_breaker import Limits, RetryLayer
from querywright.models.flow import FEW, MOST, Flow, FlowLayer
from querywright.models.store import Store
from querywright.models.transcript import TranscriptLayer
from querywright.models.unsupported import ParameterLayer, UnsupportedParameter, unsupported_notes
from querywright.models.usage import Layer, Ledger
from querywright.shared import Shared


class LMEngine(Shared):
    """Wraps a DSPy engine in layers with one duty each.

    A request passes these layers in order: ``TranscriptLayer``, ``CacheLayer``, ``FlowLayer``, ``RetryLayer``,
    ``ParameterLayer``, ``BudgetLayer``, ``LedgerLayer``, and ``ModelLayer``, which calls the wrapped engine.

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
        self._stack = self._layers(self._deterministic)

    def _layers(self, is_local: bool) -> Layer:
        """The layers that a request passes, the last one first. A local model has no deadline and takes its turns."""
        layer: Layer = ModelLayer(self.inner, self.identity, self._secrets, None if is_local else self.limits.timeout)
        layer = LedgerLayer(layer, self.ledger, self._price, None if is_local else self.flow)
        if self.budget is not None:
            layer = BudgetLayer(layer, self.budget)
        # A seed that the model does not take is left out, and still distinguishes one stored draw from another.
        takes_seed = "seed" in (getattr(self.inner, "supported_params", ()) or {"seed"})
        layer = ParameterLayer(layer, self.identity, () if takes_seed else (UnsupportedParameter("seed"),))
        layer = RetryLayer(layer, self.identity, self.limits, self.ledger, self._secrets, deterministic=is_local)
        if not is_local:
            layer = FlowLayer(layer, self.flow)
        layer = CacheLayer(layer, self.identity, self.store, self.ledger, deterministic=is_local)
        return TranscriptLayer(layer)

    @property
    def notes(self) -> list[str]:
        """What a reader of results should know of the model's server, without its address."""
        return unsupported_notes(self.identity)

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
        return self._stack.complete(request)

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
