"""Retry failed requests, and stop a run with a circuit breaker if the model is down."""

from __future__ import annotations

import math
import random
import textwrap
import threading
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Literal, get_args

from dspy import lm15
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMError,
    LMProviderError,
    LMServerError,
    LMStreamAssemblyError,
    LMTimeoutError,
    LMUnsupportedModelError,
    is_retryable_lm_error,
)

from querywright.errors import InputError
from querywright.models.engine_errors import LMBudgetError, LMOutageError, LMRefusedError, LMStoreError, redacted
from querywright.models.response_parsing import broken_off, is_empty, is_only_thinking, separate_thinking
from querywright.models.usage import Cost, Layer, Ledger

INCURABLE = (LMAuthError, LMBillingError, LMUnsupportedModelError, LMConfigurationError)
"""Errors that a retry cannot fix."""
_SHOWN = 300  # maximum number of characters of an error or a refusal that a message shows
Structured = Literal["on", "off", "auto"]
"""Whether requests to a remote model contain a JSON schema; ``auto``: if the model's server supports one."""
LONGEST = 7 * 24 * 3600.0
"""Longest allowed timeout for an attempt, in seconds: one week."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on an LM's attempts, waits, failures, and answers.

    Args:
        max_attempts: Maximum number of attempts per request, 1 or more. Default 4.
        backoff: Longest wait before the second attempt, in seconds, doubled for each further attempt. The actual wait
            is random, from 0 up to that value (full jitter). Default 1.
        max_wait: Longest wait between attempts, in seconds, even if a server's Retry-After is longer. Default 60.
        outage_after: Number of failures in a row after which the breaker opens. A failure is a request that failed all
            its attempts, or an attempt that timed out. Default 5.
        cooldown: Seconds after which an open breaker lets one request through to test whether the model is available
            again. Default 30.
        timeout: Timeout for one attempt to call a remote model, in seconds: more than 0 and at most 604800 (one week).
            Default 60.
        max_unreadable: Share of the LM's answers that may still be unreadable after a second request before the run
            stops, from 0 to less than 1. Default 0.3.
        at_once: Maximum number of parallel calls to a remote model, 1 or more. Default None: the number adapts to the
            server.
        max_tokens: Maximum number of tokens in a remote model's answer, including thinking, 1 or more. Default None:
            1000, or 16000 for models known to reason first.
        structured: ``on`` to send a JSON schema with every request to a remote model, ``off`` to send none, or ``auto``
            to send a schema unless the model is listed as not supporting schemas or its server has refused one. Default
            ``auto``.

    Raises:
        InputError: A value is out of range.
    """

    max_attempts: int = 4
    backoff: float = 1.0
    max_wait: float = 60.0
    outage_after: int = 5
    cooldown: float = 30.0
    timeout: float = 60.0
    max_unreadable: float = 0.3
    at_once: int | None = None
    max_tokens: int | None = None
    structured: Structured = "auto"

    @classmethod
    def where(cls, **given: float | str | None) -> Limits:
        """Return the default limits, replaced by the given values that are not None."""
        return cls(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= LONGEST:
            raise InputError(f"timeout must be more than 0 seconds and at most one week, but got {self.timeout}")
        if not 0 <= self.max_unreadable < 1:
            raise InputError(f"max_unreadable must be at least 0 and less than 1, but got {self.max_unreadable}")
        for name in ("at_once", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} must be 1 or more, or None, but got {value}")
        if self.structured not in get_args(Structured):
            raise InputError(f"structured must be on, off, or auto, but got {self.structured!r}")
        for name, least in (("max_attempts", 1), ("outage_after", 1), ("backoff", 0), ("max_wait", 0), ("cooldown", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} must be {least} or more, but got {getattr(self, name)}")


class CircuitBreaker:
    """Counts failures in a row, and opens if the model is down; thread-safe."""

    def __init__(self, identity: str, limits: Limits) -> None:
        self._identity = identity
        self._limits = limits
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self._is_open = False
        self._last_failure = ""
        self._open_until = 0.0

    def admit(self) -> None:
        """Let one attempt through, or raise ``LMOutageError`` if the breaker is open."""
        with self._lock:
            if self._is_open and monotonic() < self._open_until:
                count = self._failed_in_a_row
                raise LMOutageError(
                    f"stopped sending requests to {self._identity} after "
                    f"{f'{count} consecutive failures' if count > 1 else 'a failure'}. Last error: "
                    f"{self._last_failure.rstrip('.')}. Check the service and run the command again; answers received "
                    "so far are cached"
                )
            self._open_until = monotonic() + self._limits.cooldown  # this attempt tests the model; others are rejected

    def succeeded(self) -> None:
        """Record a successful request."""
        with self._lock:
            self._failed_in_a_row, self._is_open = 0, False

    def failed(self, error: Exception, *, transient: bool) -> None:
        """Record a request that failed for good, or an attempt that timed out.

        Errors caused by the request itself are not counted, because they say nothing about the service.
        """
        incurable = isinstance(error, INCURABLE)
        if incurable or transient:
            with self._lock:
                self._failed_in_a_row += 1
                self._is_open |= incurable or self._failed_in_a_row >= self._limits.outage_after
                self._last_failure = textwrap.shorten(str(error), _SHOWN, placeholder=" ...")
                self._open_until = monotonic() + self._limits.cooldown


class RetryLayer:
    """Retries temporary failures, and sends nothing to a model that is down.

    An empty answer counts as a service failure, except for a local model. An attempt that times out is reported to the
    breaker immediately, so that few attempts are wasted on a service that does not respond. Refusals are not retried.
    Neither are failures of a deterministic model, because it would fail the same way again.

    Args:
        inner: Next layer; sends one attempt.
        identity: Name of the model in error messages.
        limits: Limits on attempts, waits, and failures.
        ledger: Counts retries and failures.
        secrets: Strings that must not appear in error messages.
        deterministic: Whether the model always gives the same answer to the same request.
    """

    def __init__(
        self, inner: Layer, identity: str, limits: Limits, ledger: Ledger, secrets: tuple[str, ...], *,
        deterministic: bool,
    ) -> None:  # fmt: skip
        self._inner, self._limits, self._ledger, self._secrets = inner, limits, ledger, secrets
        self._deterministic = deterministic
        self._breaker = CircuitBreaker(identity, limits)

    def complete(self, request: Request) -> Response:
        """Return the first answer from up to ``max_attempts`` attempts."""
        attempt = 0
        while True:
            attempt += 1
            self._breaker.admit()
            if attempt > 1:
                self._ledger.add(Cost(retries=1))
            try:
                response = separate_thinking(self._inner.complete(request))
                failure = None if self._deterministic else _failure(response)
                if failure is not None:
                    raise redacted(failure, self._secrets)
            except (LMBudgetError, LMStoreError):  # no request was sent
                raise
            except LMError as error:
                transient = self._is_transient(error)
                last = not transient or attempt >= self._limits.max_attempts
                if last or isinstance(error, LMTimeoutError):
                    self._breaker.failed(error, transient=transient)
                if last:
                    self._ledger.add(Cost(failures=1))
                    raise
                seconds = self._wait(attempt, error.retry_after)
            else:
                self._breaker.succeeded()
                return response
            sleep(seconds)

    def _is_transient(self, error: LMError) -> bool:
        """Return whether a retry may succeed because the service failed or its response is broken."""
        broken = isinstance(error, LMStreamAssemblyError) or type(error) is LMProviderError
        return not self._deterministic and (broken or is_retryable_lm_error(error))

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        """Return the number of seconds to wait before the next attempt."""
        limits = self._limits
        if retry_after is None:
            return random.uniform(0, min(limits.backoff * 2 ** (attempt - 1), limits.max_wait))
        asked = max(retry_after, 0.0) if math.isfinite(retry_after) else limits.max_wait
        return min(asked + random.uniform(0, limits.backoff), limits.max_wait)


def _failure(response: Response) -> LMError | None:
    """Return an error if the response is a refusal, incomplete, or empty; otherwise None."""
    refusal = "".join(part.text for part in response.message.parts if isinstance(part, lm15.RefusalPart))
    if refusal:
        return LMRefusedError(f"the LM refused to answer: {textwrap.shorten(refusal, _SHOWN, placeholder=' ...')}")
    if response.finish_reason == "content_filter":
        said = textwrap.shorten(f": {response.text or ''}", _SHOWN, placeholder=" ...").rstrip(": ")
        return LMRefusedError(f"the service filtered the answer (finish_reason content_filter){said}")
    broken = broken_off(response)
    if broken:
        return LMServerError(f"the service failed before the answer was complete ({broken})")
    if not is_empty(response):
        return None
    if response.finish_reason == "length":
        return LMError("the answer is empty because the model used all its tokens for thinking; increase max_tokens=")
    if is_only_thinking(response):
        return None  # the adapter repeats the request
    return LMProviderError("the answer is empty: the service sent no choices, or sent a choice without text")
