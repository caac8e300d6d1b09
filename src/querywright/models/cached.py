"""The cache of LM answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMError

from querywright.errors import QuerywrightError
from querywright.models.attempt import Price
from querywright.models.engine_errors import LMStoreError
from querywright.models.recording import KIND, digests_of
from querywright.models.response_parsing import text_response, worth_keeping
from querywright.models.store import SingleFlight, Store
from querywright.models.usage import Cost, Layer, Ledger, call_context, metered

MOST_ANSWERS = 4096
"""Maximum number of answers that a process keeps in memory.

The process keeps the earliest answers, because a run repeats its requests in the same order.
"""
_RESPONSE = ("text", "finish_reason", "model", "input_tokens", "output_tokens")


class CacheLayer:
    """Stores answers, and returns them for identical requests to the same model.

    Identical requests at the same time result in a single call.

    An answer sampled without a seed differs each time, so it is neither stored nor shared.

    Args:
        inner: Next layer.
        identity: Name of the model and its URL; part of a stored answer's key.
        store: Store for answers, or None to store none.
        ledger: Records the calls saved.
        deterministic: Whether the model always gives the same answer to a request; if so, every answer is stored.
        price: Estimates the price of a response in US dollars. Default None: prices are not known.
        keyed: Returns the request whose fields are part of a stored answer's key. Default None: the request itself.
    """

    def __init__(
        self,
        inner: Layer,
        identity: str,
        store: Store | None,
        ledger: Ledger,
        *,
        deterministic: bool = False,
        price: Price | None = None,
        keyed: Callable[[Request], Request] | None = None,
    ) -> None:
        self._inner, self._identity, self._store, self._ledger = inner, identity, store, ledger
        self._deterministic, self._price, self._keyed = deterministic, price, keyed
        self._flights = SingleFlight[bytes]()
        self._again: dict[str, tuple[Response, Cost]] = {}

    def complete(self, request: Request) -> Response:
        """Return the cached answer to a request, or get a new one."""
        config = request.config
        is_draw = bool(config.temperature) and config.seed is None and not self._deterministic
        if is_draw or config.logprobs is not None or request.tools:
            return self._inner.complete(request)
        shown = request if self._keyed is None else self._keyed(request)
        body = json.dumps(shown, sort_keys=True, ensure_ascii=False, default=_plain)
        key = hashlib.sha256(f"{self._identity}\n{body}".encode()).hexdigest()
        found = self._again.get(key)
        if found is None:
            return self._stored(request, key)
        self._ledger.add(found[1])
        return found[0]

    def _stored(self, request: Request, key: str) -> Response:
        """Return the stored answer for a key; if there is none, request the answer and store it."""
        made: list[Response] = []

        def make() -> bytes:
            with metered() as meter:
                made.append(self._inner.complete(request))
            return json.dumps(_record(request, made[0], meter.total.seconds)).encode()

        try:
            if self._store is None:
                record = self._flights.run(key, make)
            else:
                record = self._store.get_or_compute(KIND, key, make, keep=lambda _: self._is_kept(request, made[0]))
        except LMError:
            raise
        except QuerywrightError as error:
            raise LMStoreError(str(error)) from error
        if made:
            return made[0]
        fields = json.loads(record)
        seconds = float(fields.pop("seconds", 0.0))
        response = text_response(**{name: fields[name] for name in _RESPONSE})
        tokens = (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0)
        dollars = None if self._price is None else self._price(request, response)
        cost = Cost(saved=1, saved_tokens=tokens, saved_seconds=seconds, saved_dollars=dollars or 0.0)
        if self._store is not None and len(self._again) < MOST_ANSWERS and self._is_kept(request, response):
            self._again[key] = response, cost
        self._ledger.add(cost)
        return response

    def _is_kept(self, request: Request, response: Response) -> bool:
        return self._deterministic or worth_keeping(request, response, call_context().parse)


def _record(request: Request, response: Response, seconds: float) -> dict[str, Any]:
    return {
        **digests_of(request),
        "text": response.text or "",
        "finish_reason": response.finish_reason,
        "model": response.model,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
        "seconds": round(seconds, 4),
    }


def _plain(value: Any) -> Any:
    """Return a dataclass's fields, or the string form of any other value that JSON cannot encode."""
    names = getattr(type(value), "__dataclass_fields__", None)
    return str(value) if names is None else {name: getattr(value, name) for name in names}
