"""One wrapper around every LM: stored answers, single flight, retries, ledger, budget and circuit breaker."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import itertools
import json
import logging
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from dspy import lm15
from dspy.clients.engines.base import validate_request
from dspy.clients.errors import error_boundary
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import (
    LMError,
    LMProviderError,
    LMStreamAssemblyError,
    LMUnexpectedError,
    is_retryable_lm_error,
)

from querywright.errors import QuerywrightError
from querywright.models.circuit_breaker import Gate, Limits
from querywright.models.engine_errors import LMStoreError, NotStoredError, redacted
from querywright.models.pieces import NothingStreamedError, listening, told
from querywright.models.response_parsing import JSON_REQUEST, record_of, response_of, text_response, worth_keeping
from querywright.models.single_flight import FOLDER_NAME, Leases
from querywright.models.store import Store
from querywright.models.usage import Cost, Ledger

__all__ = [
    "JSON_REQUEST",
    "AsyncGuardedEngine",
    "GuardedEngine",
    "Limits",
    "is_stored_only",
    "stored_only",
    "text_response",
]

logger = logging.getLogger(__name__)

MOST_REQUESTS = 64
"""Requests of an event loop that are under way at the same time at most."""

_SILENT = 3
"""Times in a row that a model sent no stream, after which none is asked of it."""

Timed = tuple[Response, float]
"""A response, and how many seconds its call took."""

_only_stored: ContextVar[bool] = ContextVar("querywright_only_stored", default=False)


@contextmanager
def stored_only() -> Iterator[None]:
    """Inside the ``with`` block, in this thread and contexts copied from it, no LM is asked.

    A request whose answer is not stored raises ``NotStoredError``.
    """
    token = _only_stored.set(True)
    try:
        yield
    finally:
        _only_stored.reset(token)


def is_stored_only() -> bool:
    """Whether only stored answers may be used here."""
    return _only_stored.get()


class GuardedEngine:
    """A DSPy engine around another engine.

    An answer is stored and used again for the same request to the same model, unless it was sampled without a
    seed. One that the store cannot take, as on a full disk, is held in memory until it can. Equal requests under way at
    the same time make one call, in several processes too where they share a store. Transient failures are tried again;
    failures that trying again cannot cure (a wrong key, an empty account) open the breaker at once. Where somebody
    listens (``heard_by``) the engine inside is asked to stream, and a stream that breaks is a transient failure.

    Args:
        inner: The engine that asks the model, once a call.
        identity: Names the model and where it is asked; part of the key of a stored answer.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered.
        limits: Attempts, waits and budget.
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
        price: Callable[[Request, Response], float | None] | None = None,
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
        self.supported_params = frozenset(getattr(inner, "supported_params", ()))
        self.decides_by_likelihood = bool(getattr(inner, "decides_by_likelihood", False))
        self._deterministic = bool(getattr(inner, "deterministic", False))
        self._silent = 0 if callable(getattr(inner, "stream", None)) else _SILENT
        self._price = price or (lambda _request, _response: None)
        self._secrets = secrets
        self._sleep = sleep
        self._clock = clock
        self._gate = Gate(identity, self.limits, clock)
        self._leases = Leases(store.path.parent / FOLDER_NAME) if store is not None else None
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Timed]] = {}
        self._held: dict[str, bytes] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> GuardedEngine:
        return self

    def complete(self, request: Request) -> Response:
        """The answer to a request: stored, shared with an equal request under way, or asked for.

        Raises:
            LMOutageError: The model is down.
            LMBudgetError: The limit of calls is reached.
            NotStoredError: The answer is not stored, and nothing may be asked (``stored_only``).
            LMError: The request failed after all its attempts.
        """
        validate_request(request)
        if not self._repeatable(request):
            self._check_allowed()
            return self._ask(request)[0]
        key = self.key(request)
        stored = self._stored(key)
        if stored is not None:
            return self._saved(stored)
        self._check_allowed()
        mine: Future[Timed] = Future()
        with self._lock:
            under_way = self._under_way.setdefault(key, mine)
        if under_way is not mine:
            return self._saved(under_way.result())
        return self._lead(request, key, mine)

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
    def load_state(cls, state: dict[str, Any]) -> GuardedEngine:
        """The wrapper around the embedded engine that ``dump_state`` named.

        Raises:
            ValueError: The LM is another; its key and address are the application's to give.
        """
        from querywright.models.embedded import EmbeddedEngine

        if not isinstance(state.get("inner"), dict):
            raise ValueError(f"the LM {state.get('identity')!r} must be given by the application: resolve_lm(...)")
        return cls(EmbeddedEngine.load_state(state["inner"]), identity=str(state["identity"]))

    def key(self, request: Request) -> str:
        """The key under which the answer to a request is stored."""
        body = json.dumps(request, sort_keys=True, ensure_ascii=False, default=_plain)
        return hashlib.sha256(f"{self.identity}\n{body}".encode()).hexdigest()

    def is_draw(self, temperature: float | None, seed: int | None) -> bool:
        """Whether a request sampled like this has another answer each time.

        That is a sample without a seed, unless the engine gives it a seed of its own.
        """
        return bool(temperature) and seed is None and not self._deterministic

    def _repeatable(self, request: Request) -> bool:
        """Whether the same request has the same answer, and the answer is all text."""
        config = request.config
        return not self.is_draw(config.temperature, config.seed) and config.logprobs is None and not request.tools

    def _check_allowed(self) -> None:
        if is_stored_only():
            raise NotStoredError(
                f"an answer of {self.identity} is needed that is not stored, and nothing may be asked here; run "
                "without stored_only to ask for it"
            )

    def _lead(self, request: Request, key: str, mine: Future[Timed]) -> Response:
        """Ask for all who wait for this answer."""
        try:
            with self._lease(key):
                timed = self._stored(key)  # whoever led before may have finished since this one looked
                if timed is None:
                    timed = self._ask(request)
                    self._keep(key, request, timed)
                else:
                    self._saved(timed)
        except BaseException as error:
            mine.set_exception(error if isinstance(error, Exception) else LMUnexpectedError("the call was interrupted"))
            raise
        else:
            mine.set_result(timed)
            return timed[0]
        finally:
            with self._lock:
                self._under_way.pop(key, None)

    def _lease(self, key: str) -> AbstractContextManager[None]:
        """Holds off equal requests of other processes that have the same store."""
        return nullcontext() if self._leases is None else self._leases.lease(key, self._gate.check)

    def _saved(self, timed: Timed) -> Response:
        response, seconds = timed
        tokens = (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0)
        self.ledger.add(Cost(saved=1, saved_tokens=tokens, saved_seconds=seconds))
        return response

    def _stored(self, key: str) -> Timed | None:
        if self.store is None:
            return None
        with self._lock:
            record = self._held.get(key)
        if record is None:
            with _store_errors():
                record = self.store.get("lm", key)
        if record is None:
            return None
        try:
            return response_of(json.loads(record))
        except (ValueError, TypeError):
            logger.warning("a stored LM answer could not be read and is asked for again")
            return None

    def _keep(self, key: str, request: Request, timed: Timed) -> None:
        """Store an answer, and those before it that could not be; it was paid for, so it is not lost for that."""
        if self.store is None or not (self._deterministic or worth_keeping(request, timed[0])):
            return
        record = json.dumps(record_of(*timed)).encode()
        try:
            self.store.put("lm", key, record)
            with self._lock:
                held = dict(self._held)
            self.store.put_many("lm", held)
        except QuerywrightError as error:
            with self._lock:
                is_first = not self._held
                self._held[key] = record
            if is_first:
                logger.warning("%s. Until then answers are in memory, and are lost where this run ends before", error)
        else:
            with self._lock:
                for one in held:
                    self._held.pop(one, None)

    def _ask(self, request: Request) -> Timed:
        whole = False
        for attempt in itertools.count(1):
            self._gate.admit()
            if attempt > 1:
                self.ledger.add(Cost(retries=1))
            began = self._clock()
            try:
                with error_boundary(self.identity, unexpected=True):
                    response = self._answered(request, whole=whole)
            except LMError as error:
                redacted(error, self._secrets)
                silent = isinstance(error, NothingStreamedError)
                transient = silent or self._is_transient(error)
                last = not transient or (attempt >= self.limits.max_attempts and not silent)
                cost = Cost(seconds=self._clock() - began, failures=int(last))
                self.ledger.add(cost)
                self._gate.settle(cost)
                if silent:
                    whole = True
                    continue
                if last:
                    self._gate.failed(error, transient=transient)
                    raise error from None
                wait = self._wait(attempt, error.retry_after)
            else:
                seconds = self._clock() - began
                self._gate.succeeded()
                cost = self._cost(request, response, seconds)
                self.ledger.add(cost)
                self._gate.settle(cost)
                return response, seconds
            self._sleep(wait)
        raise AssertionError  # itertools.count never ends

    def _answered(self, request: Request, *, whole: bool) -> Response:
        """Ask once; where somebody listens the answer is told while it is written, unless it is asked for whole."""
        ear = listening()
        if ear is None or whole or self._silent >= _SILENT:
            response: Response = self.inner.complete(request)
            return response
        ear.begin()
        try:
            response = told(self.inner.stream(request), request, ear)
        except NothingStreamedError:
            self._silent += 1
            raise
        self._silent = 0
        return response

    def _is_transient(self, error: LMError) -> bool:
        """Whether another attempt may succeed: the service failed, or gave what cannot be an answer."""
        if self._deterministic:
            return False
        broken = isinstance(error, LMStreamAssemblyError)
        return is_retryable_lm_error(error) or type(error) is LMProviderError or broken

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        longest = self.limits.max_wait
        if retry_after is None:
            return random.uniform(0, min(self.limits.backoff * 2 ** (attempt - 1), longest))
        asked = max(retry_after, 0.0) if math.isfinite(retry_after) else longest
        return min(asked + random.uniform(0, self.limits.backoff), longest)

    def _cost(self, request: Request, response: Response, seconds: float) -> Cost:
        dollars = self._price(request, response)
        return Cost(
            calls=1,
            input_tokens=response.usage.input_tokens or 0,
            output_tokens=response.usage.output_tokens or 0,
            seconds=seconds,
            dollars=dollars or 0.0,
            unpriced=int(dollars is None),
        )


class AsyncGuardedEngine:
    """The asynchronous face of a ``GuardedEngine``: each request runs in a thread of its own."""

    def __init__(self, engine: GuardedEngine) -> None:
        self.engine = engine
        # The event loop's own threads are few (six on two cores) and would make requests wait for each other.
        self._threads = ThreadPoolExecutor(MOST_REQUESTS, thread_name_prefix="querywright-lm")

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncGuardedEngine:
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
    def load_state(cls, state: dict[str, Any]) -> AsyncGuardedEngine:
        """The engine that ``dump_state`` named."""
        return cls(GuardedEngine.load_state(state))


def _plain(value: Any) -> Any:
    """What JSON has in the place of a dataclass, its fields, or of anything else that it does not know."""
    names = getattr(type(value), "__dataclass_fields__", None)
    return str(value) if names is None else {name: getattr(value, name) for name in names}


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except QuerywrightError as error:
        raise LMStoreError(str(error)) from error
