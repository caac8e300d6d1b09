"""One wrapper around every LM: stored answers, retries, deadline, ledger, budget and circuit breaker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

from dspy import lm15
from dspy.clients.engines.base import validate_request
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMError,
    LMUnsupportedModelError,
    is_retryable_lm_error,
)

from querywright.errors import BudgetError, OutageError
from querywright.models.ledger import Cost, Ledger
from querywright.models.store import Store

logger = logging.getLogger(__name__)

_FATAL = (LMAuthError, LMBillingError, LMUnsupportedModelError, LMConfigurationError)
_SECRET = re.compile(
    r"(?i)\b(?:sk|pk|rk|gsk|xai|hf|key|token)[-_][A-Za-z0-9_\-]{8,}"  # keys by their usual prefixes
    r"|(?<=bearer )\S+"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"  # user:password in a URL
)


def redact(text: str, secrets: tuple[str, ...] = ()) -> str:
    """The text with keys and passwords replaced by ``***``."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return _SECRET.sub("***", text)


class LMOutageError(OutageError, LMError):
    """The outage in a form that DSPy passes on unchanged."""


class LMBudgetError(BudgetError, LMError):
    """The budget stop in a form that DSPy passes on unchanged."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How patient the wrapper is.

    Args:
        max_attempts: Attempts at one request, 1 or more. Default 4.
        backoff: Seconds before the second attempt; doubled each time, with full jitter. Default 1.
        max_wait: Longest wait between attempts in seconds, a server's Retry-After included. Default 60.
        outage_after: Requests in a row that failed all their attempts before the breaker opens. Default 5.
        max_calls: LM calls allowed in all; None for no limit. Default None.
    """

    max_attempts: int = 4
    backoff: float = 1.0
    max_wait: float = 60.0
    outage_after: int = 5
    max_calls: int | None = None


class GuardedEngine:
    """A DSPy engine around another engine.

    An answer is stored and used again for the same request to the same model, unless it was sampled without a
    seed. Equal requests under way at the same time make one call. Transient failures are tried again; failures
    that trying again cannot cure (a wrong key, an empty account) open the breaker at once.

    Args:
        inner: The engine that asks the model.
        identity: Names the model and where it is asked; part of the key of a stored answer.
        store: Where answers are kept, or None to keep none.
        ledger: Where cost is entered.
        limits: Attempts, waits and budget.
        price: Estimates US dollars of a response, or returns None when the price is not known.
        secrets: Strings that must not appear in an error or a log.
        sleep: Replaced in tests.
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
    ) -> None:
        self.inner = inner
        self.identity = identity
        self.store = store
        self.ledger = ledger or Ledger()
        self.limits = limits or Limits()
        self.supports_response_schema = bool(getattr(inner, "supports_response_schema", False))
        self.supported_params = frozenset(getattr(inner, "supported_params", ()))
        self.decides_by_likelihood = bool(getattr(inner, "decides_by_likelihood", False))
        self._price = price or (lambda _request, _response: None)
        self._secrets = secrets
        self._sleep = sleep
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Response]] = {}
        self._failed_in_a_row = 0
        self._reserved = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> GuardedEngine:
        return self

    def complete(self, request: Request) -> Response:
        """The answer to a request: stored, shared with an equal request under way, or asked for."""
        validate_request(request)
        if _is_draw(request):
            return self._ask(request)
        key = self.key(request)
        stored = self._stored(key, request)
        if stored is not None:
            self.ledger.add(Cost(saved=1, saved_tokens=_tokens(stored)))
            return stored
        with self._lock:
            future = self._under_way.get(key)
            leader = future is None
            if future is None:
                future = self._under_way[key] = Future()
        if not leader:
            response = future.result()
            self.ledger.add(Cost(saved=1, saved_tokens=_tokens(response)))
            return response
        try:
            response = self._ask(request)
            if self.store is not None and self._worth_keeping(request, response):
                self.store.put_many("lm", {key: json.dumps(_record(response), ensure_ascii=False).encode()})
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(response)
            return response
        finally:
            with self._lock:
                self._under_way.pop(key, None)

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
        """The wrapper around the embedded engine that ``dump_state`` named."""
        from querywright.models.embedded import EmbeddedEngine

        if not isinstance(state.get("inner"), dict):
            raise ValueError(f"the LM {state.get('identity')!r} must be given by the application: resolve_lm(...)")
        return cls(EmbeddedEngine.load_state(state["inner"]), identity=str(state["identity"]))

    def key(self, request: Request) -> str:
        """The key under which the answer to a request is stored."""
        body = json.dumps(asdict(request), sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(f"{self.identity}\n{body}".encode()).hexdigest()

    def _stored(self, key: str, request: Request) -> Response | None:
        if self.store is None:
            return None
        record = self.store.get_many("lm", [key]).get(key)
        if record is None:
            return None
        try:
            return text_response(**json.loads(record))
        except (ValueError, TypeError):
            logger.warning("a stored LM answer could not be read and is asked for again")
            return None

    def _worth_keeping(self, request: Request, response: Response) -> bool:
        """Answers that another attempt might better are not kept; a deterministic engine has no other answer."""
        if getattr(self.inner, "deterministic", False):
            return True
        text = response.text
        if not text or not text.strip() or response.finish_reason != "stop":
            return False
        if request.config.response_format is None:
            return True
        try:
            json.loads(text)
        except ValueError:
            return False
        return True

    def _ask(self, request: Request) -> Response:
        attempt = 0
        while True:
            self._admit()
            began = time.monotonic()
            try:
                response = self.inner.complete(request)
            except LMError as error:
                attempt += 1
                cost = Cost(seconds=time.monotonic() - began)
                if not is_retryable_lm_error(error) or attempt >= self.limits.max_attempts:
                    self.ledger.add(replace(cost, failures=1))
                    self._failed(error)
                    raise self._redacted(error) from None
                self.ledger.add(replace(cost, retries=1))
                self._sleep(self._wait(attempt, getattr(error, "retry_after", None)))
            else:
                dollars = self._price(request, response)
                usage = response.usage
                self.ledger.add(
                    Cost(
                        calls=1,
                        input_tokens=usage.input_tokens or 0,
                        output_tokens=usage.output_tokens or 0,
                        seconds=time.monotonic() - began,
                        dollars=dollars or 0.0,
                        unpriced=int(dollars is None),
                    )
                )
                with self._lock:
                    self._failed_in_a_row = 0
                return response

    def _admit(self) -> None:
        with self._lock:
            if self._failed_in_a_row >= self.limits.outage_after:
                raise LMOutageError(
                    f"{self._failed_in_a_row} requests in a row to {self.identity} failed; nothing more is asked. "
                    "Check the model's service and run again: answers received so far are kept"
                )
            if self.limits.max_calls is not None and self._reserved >= self.limits.max_calls:
                raise LMBudgetError(
                    f"the limit of {self.limits.max_calls} LM calls is reached; answers received so far are kept. "
                    "Raise --max-calls to go on"
                )
            self._reserved += 1

    def _failed(self, error: LMError) -> None:
        with self._lock:
            if isinstance(error, _FATAL):
                self._failed_in_a_row = max(self._failed_in_a_row + 1, self.limits.outage_after)
            elif is_retryable_lm_error(error):
                self._failed_in_a_row += 1

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        if retry_after is not None:
            return min(max(retry_after, 0.0), self.limits.max_wait)
        return random.uniform(0, min(self.limits.backoff * 2 ** (attempt - 1), self.limits.max_wait))

    def _redacted(self, error: LMError) -> LMError:
        error.message = redact(error.message, self._secrets)
        error.args = tuple(redact(a, self._secrets) if isinstance(a, str) else a for a in error.args)
        return error


class AsyncGuardedEngine:
    """The asynchronous face of a ``GuardedEngine``: each request runs in a thread of its own."""

    def __init__(self, engine: GuardedEngine) -> None:
        self.engine = engine

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncGuardedEngine:
        return self

    async def complete(self, request: Request) -> Response:
        """The answer to a request."""
        return await asyncio.to_thread(self.engine.complete, request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The answer as events, once it is complete."""
        for event in lm15.response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Close the engine inside."""
        await asyncio.to_thread(self.engine.close)

    def dump_state(self) -> dict[str, Any]:
        """What the synchronous engine dumps."""
        return self.engine.dump_state()

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> AsyncGuardedEngine:
        """The engine that ``dump_state`` named."""
        return cls(GuardedEngine.load_state(state))


def _is_draw(request: Request) -> bool:
    """A sample without a seed is a new draw each time and is never stored."""
    return bool(request.config.temperature) and request.config.seed is None


def text_response(
    text: str, finish_reason: str, model: str, input_tokens: int | None, output_tokens: int | None
) -> Response:
    """A response that consists of text."""
    return Response(
        id=None,
        model=model,
        message=lm15.Message.assistant([lm15.TextPart(text)]),
        finish_reason=finish_reason,
        usage=lm15.Usage(input_tokens=input_tokens, output_tokens=output_tokens),
    )


def _record(response: Response) -> dict[str, Any]:
    return {
        "text": response.text or "",
        "finish_reason": response.finish_reason,
        "model": response.model,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
    }


def _tokens(response: Response) -> int:
    return (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0)
