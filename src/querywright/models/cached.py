"""Answers of LMs that are kept and used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMError

from querywright.errors import QuerywrightError
from querywright.models.engine_errors import LMStoreError
from querywright.models.recording import KIND, digests_of
from querywright.models.response_parsing import text_response, worth_keeping
from querywright.models.store import SingleFlight, Store
from querywright.models.usage import Cost, Ledger, metered

Ask = Callable[[Request], Response]
"""Answers a request."""
MOST_ANSWERS = 4096
"""Answers that are used again and not read again; the first ones, since a run goes through the same again and again."""
_RESPONSE = ("text", "finish_reason", "model", "input_tokens", "output_tokens")


def cached(ask: Ask, identity: str, store: Store | None, ledger: Ledger, *, deterministic: bool = False) -> Ask:
    """Stores answers and uses them again for the same request to the same model; equal requests make one call.

    What was sampled without a seed is another answer each time, and neither stored nor shared.

    Args:
        ask: Asks the model.
        identity: Names the model and where it is asked; part of the key of a stored answer.
        store: Where answers are kept, or None to keep none.
        ledger: Takes calls saved.
        deterministic: The model has a seed of its own, so that no answer is a draw and none is better than another.
    """
    flights, again = SingleFlight[bytes](), dict[str, tuple[Response, Cost]]()

    def kept(request: Request, key: str) -> Response:
        made: list[Response] = []

        def make() -> bytes:
            with metered() as meter:
                made.append(ask(request))
            return json.dumps(_record(request, made[0], meter.total.seconds)).encode()

        try:
            if store is None:
                record = flights.run(key, make)
            else:
                record = store.get_or_compute(KIND, key, make, keep=lambda _: is_kept(request, made[0]))
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
        cost = Cost(saved=1, saved_tokens=tokens, saved_seconds=seconds)
        if store is not None and len(again) < MOST_ANSWERS and is_kept(request, response):
            again[key] = response, cost
        ledger.add(cost)
        return response

    def is_kept(request: Request, response: Response) -> bool:
        return deterministic or worth_keeping(request, response)

    def complete(request: Request) -> Response:
        config = request.config
        is_draw = bool(config.temperature) and config.seed is None and not deterministic
        if not (is_draw or config.logprobs is not None or request.tools):
            body = json.dumps(request, sort_keys=True, ensure_ascii=False, default=_plain)
            key = hashlib.sha256(f"{identity}\n{body}".encode()).hexdigest()
            found = again.get(key)
            if found is None:
                return kept(request, key)
            ledger.add(found[1])
            return found[0]
        return ask(request)

    return complete


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
    """What JSON has in the place of a dataclass, its fields, or of anything else that it does not know."""
    names = getattr(type(value), "__dataclass_fields__", None)
    return str(value) if names is None else {name: getattr(value, name) for name in names}
