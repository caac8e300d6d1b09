"""The engine behind every LM: caches answers, retries, limits, and counts calls, and removes API keys from errors."""

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
    """Wraps a DSPy engine in layers that do one thing each.

    A request passes through these layers in order: ``TranscriptLayer``, ``CacheLayer``, ``FlowLayer``, ``RetryLayer``,
    ``ParameterLayer``, ``BudgetLayer``, ``LedgerLayer``, and ``ModelLayer``, which calls the wrapped engine.

    Args:
        inner: The wrapped engine, which calls the model.
        identity: Name of the model and its URL; part of a stored answer's key.
        store: Store for answers, or None to store none.
        ledger: Records the cost of calls. Default: a new ledger.
        limits: Limits on attempts, waits, and failures.
        budget: Budget for the attempts; None for no limit.
        price: Estimates the price of a response in US dollars, or returns None if it is not known.
        secrets: Strings that must not appear in error messages or logs.
        flow: Limits parallel calls to a remote model. Default: a new flow with the maximum in ``limits``.
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
        # A seed distinguishes stored samples, even if the model does not support seeds.
        self.supported_params = frozenset(getattr(inner, "supported_params", ())) | {"seed"}
        self.decides_by_likelihood = bool(getattr(inner, "decides_by_likelihood", False))
        self._deterministic = bool(getattr(inner, "deterministic", False))
        self.flow = flow or Flow(self.limits.at_once)
        self._price, self._secrets = price, secrets
        self._stack = self._layers(self._deterministic)

    def _layers(self, is_local: bool) -> Layer:
        """Return the outermost layer. Calls to a local model have no deadline and skip ``FlowLayer``."""
        layer: Layer = ModelLayer(self.inner, self.identity, self._secrets, None if is_local else self.limits.timeout)
        layer = LedgerLayer(layer, self.ledger, self._price, None if is_local else self.flow)
        if self.budget is not None:
            layer = BudgetLayer(layer, self.budget)
        # If the model does not support seeds, requests omit the seed, but a stored sample's key still contains it.
        takes_seed = "seed" in (getattr(self.inner, "supported_params", ()) or {"seed"})
        always = () if takes_seed else (UnsupportedParameter("seed"),)
        kept = ("response_format",) if self.limits.structured == "on" else ()
        layer = ParameterLayer(layer, self.identity, always, kept)
        layer = RetryLayer(layer, self.identity, self.limits, self.ledger, self._secrets, deterministic=is_local)
        if not is_local:
            layer = FlowLayer(layer, self.flow)
        layer = CacheLayer(
            layer, self.identity, self.store, self.ledger, deterministic=is_local, price=self._price,
            keyed=getattr(self.inner, "keyed", None),
        )  # fmt: skip
        return TranscriptLayer(layer)

    @property
    def notes(self) -> list[str]:
        """Notes on the model's server for people who read the results, without its URL."""
        return unsupported_notes(self.identity)

    @property
    def threads(self) -> int:
        """Number of threads needed to keep the model busy.

        The configured number; if none is configured, 4 for a local model and 64 for a remote model.
        """
        return self.limits.at_once or (FEW if self._deterministic else MOST)

    def with_shared(
        self, store: Store | None, ledger: Ledger, budget: Budget | None, at_once: int | None = None
    ) -> LMEngine:
        """Return an engine for the same model that shares a store, a ledger, and a budget.

        Args:
            store: Store for answers.
            ledger: Records the cost of calls.
            budget: Budget for the attempts.
            at_once: Limit on parallel calls to use when the engine does not set its own. Default None.

        Returns:
            This engine if nothing changes; otherwise, a new engine.
        """
        limits = self.limits if self.limits.at_once or at_once is None else replace(self.limits, at_once=at_once)
        if (self.store, self.ledger, self.budget, self.limits) == (store, ledger, budget, limits):
            return self
        return LMEngine(
            self.inner, identity=self.identity, store=store, ledger=ledger, limits=limits, budget=budget,
            price=self._price, secrets=self._secrets, flow=self.flow if limits is self.limits else None,
        )  # fmt: skip

    def complete(self, request: Request) -> Response:
        """Return the answer to a request: from the cache, from an identical request already running, or from the model.

        Raises:
            LMOutageError: The model is down.
            LMBudgetError: The budget is used up.
            LMStoreError: The store cannot be used, or spending cannot be recorded in the budget.
            LMError: The request failed all its attempts.
        """
        validate_request(request)
        return self._stack.complete(request)

    def stream(self, request: Request) -> Iterator[Any]:
        """Yield the answer as events once it is complete."""
        return iter(lm15.response_to_events(self.complete(request)))

    def close(self) -> None:
        """Close the wrapped engine."""
        close = getattr(self.inner, "close", None)
        if callable(close):
            close()

    def dump_state(self) -> dict[str, Any]:
        """Return the model's name, without its API key or URL."""
        return {"identity": self.identity}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> LMEngine:
        """Raise an error, because the application must provide the LM's file, API key, and URL.

        Raises:
            ValueError: Always raised; the message names the LM.
        """
        raise ValueError(
            f"an LM cannot be loaded from a saved state; create {state.get('identity')!r} with resolve_lm(...)"
        )


class AsyncLMEngine(Shared):
    """Runs an ``LMEngine``'s requests in threads, for use in event loops."""

    def __init__(self, engine: LMEngine) -> None:
        self.engine = engine
        # An event loop's default executor has few threads (six on two cores), so requests would wait for each other.
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="querywright-lm")

    async def complete(self, request: Request) -> Response:
        """Return the answer to a request."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: context.run(self.engine.complete, request))

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """Yield the answer as events once it is complete."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Close the engine and stop its threads."""
        await asyncio.to_thread(self.engine.close)
        self._threads.shutdown(wait=False)

    def dump_state(self) -> dict[str, Any]:
        """Return the state of the synchronous engine."""
        return self.engine.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncLMEngine:
        """Raise an error, as ``LMEngine.load_state`` does."""
        return cls(LMEngine.load_state(state))
