"""Requests that failed in passing are sent again, and answers that are none count as failures."""

from __future__ import annotations

import math
import random
from textwrap import shorten
from time import sleep

from dspy import lm15
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import (
    LMError,
    LMProviderError,
    LMServerError,
    LMStreamAssemblyError,
    LMTimeoutError,
    is_retryable_lm_error,
)

from querywright.models.calls import Layer
from querywright.models.circuit_breaker import CircuitBreaker, Limits
from querywright.models.engine_errors import LMBudgetError, LMRefusedError, LMStoreError, redacted
from querywright.models.response_parsing import broken_off, is_empty, is_only_thinking, separate_thinking
from querywright.models.usage import Cost, Ledger, waiting

_QUOTED = 300  # characters of a refusal, where it is reported


class Retrying:
    """Tries again what failed in passing, and asks nothing of a model that is down.

    An empty answer is a failure of its service, except for a local model. An attempt that runs out of time counts at
    once for the breaker, so that a silent service costs few attempts. A refusal is not retried, and neither is a
    deterministic model, which would fail again in the same way.

    Args:
        inner: Sends one attempt.
        identity: Names the model in errors.
        limits: Attempts, waits, and when the model counts as down.
        ledger: Counts retries and failures.
        secrets: Strings that must not appear in an error.
        deterministic: The same request always gets the same answer.
    """

    def __init__(
        self, inner: Layer, identity: str, limits: Limits, ledger: Ledger, secrets: tuple[str, ...], *,
        deterministic: bool,
    ) -> None:  # fmt: skip
        self._inner, self._limits, self._ledger, self._secrets = inner, limits, ledger, secrets
        self._deterministic = deterministic
        self._breaker = CircuitBreaker(identity, limits)

    def complete(self, request: Request) -> Response:
        """Return the first answer, of up to ``max_attempts`` attempts."""
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
            except (LMBudgetError, LMStoreError):  # nothing was asked
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
            with waiting():
                sleep(seconds)

    def _is_transient(self, error: LMError) -> bool:
        """Whether another attempt may succeed: the service failed, or sent what cannot be an answer."""
        broken = isinstance(error, LMStreamAssemblyError) or type(error) is LMProviderError
        return not self._deterministic and (broken or is_retryable_lm_error(error))

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        """Seconds until the next attempt."""
        limits = self._limits
        if retry_after is None:
            return random.uniform(0, min(limits.backoff * 2 ** (attempt - 1), limits.max_wait))
        asked = max(retry_after, 0.0) if math.isfinite(retry_after) else limits.max_wait
        return min(asked + random.uniform(0, limits.backoff), limits.max_wait)


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
    if response.finish_reason == "length":
        return LMError(
            "the answer is empty: all its tokens went into thinking; allow more with --max-tokens N "
            "(max_tokens= of resolve_lm)"
        )
    if is_only_thinking(response):
        return None  # unreadable, for which the adapter asks once more
    return LMProviderError("the answer is empty: the service sent no choices, or a choice without text")
