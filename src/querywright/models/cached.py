"""Answers of LMs that are kept and used again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dspy.lm15 import Request, Response
from dspy.utils.exceptions import LMError

from querywright.errors import QuerywrightError
from querywright.models.engine_errors import LMStoreError, NotStoredError
from querywright.models.engines import Engine
from querywright.models.response_parsing import record_of, response_of, worth_keeping
from querywright.models.single_flight import SingleFlight
from querywright.models.store import Store
from querywright.models.usage import Cost, Ledger, metered

KIND = "lm"
"""Kind of the answers in the store."""

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


class CachedEngine:
    """Stores answers and uses them again for the same request to the same model; equal requests make one call.

    What was sampled without a seed is another answer each time, and neither stored nor shared.

    Args:
        inner: Is asked.
        identity: Names the model and where it is asked; part of the key of a stored answer.
        store: Where answers are kept, or None to keep none.
        ledger: Takes calls saved.
        deterministic: The engine has a seed of its own, so that no answer is a draw and none is better than another.
    """

    def __init__(
        self, inner: Engine, identity: str, store: Store | None, ledger: Ledger, *, deterministic: bool = False
    ) -> None:
        self._inner = inner
        self._identity = identity
        self._store = store
        self._ledger = ledger
        self._deterministic = deterministic
        self._flights = SingleFlight[str, bytes]()

    def with_store(self, store: Store) -> CachedEngine:
        """The same, with another store."""
        return CachedEngine(self._inner, self._identity, store, self._ledger, deterministic=self._deterministic)

    def complete(self, request: Request) -> Response:
        """The answer to a request: stored, shared with an equal request under way, or asked for.

        Raises:
            NotStoredError: The answer is not stored, and nothing may be asked (``stored_only``).
            LMStoreError: The store cannot be used.
        """
        if not self._repeatable(request):
            if _only_stored.get():
                raise self._not_stored()
            return self._inner.complete(request)
        made: list[Response] = []

        def make() -> bytes:
            with metered() as meter:
                made.append(self._inner.complete(request))
            return json.dumps(record_of(made[0], meter.total.seconds)).encode()

        def keep(record: bytes) -> bool:
            return self._deterministic or worth_keeping(request, made[0])

        try:
            record = self._record(self.key(request), make, keep)
        except LMError:
            raise
        except QuerywrightError as error:
            raise LMStoreError(str(error)) from error
        if made:
            return made[0]
        response, seconds = response_of(json.loads(record))
        tokens = (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0)
        self._ledger.add(Cost(saved=1, saved_tokens=tokens, saved_seconds=seconds))
        return response

    def key(self, request: Request) -> str:
        """The key under which the answer to a request is stored."""
        body = json.dumps(request, sort_keys=True, ensure_ascii=False, default=_plain)
        return hashlib.sha256(f"{self._identity}\n{body}".encode()).hexdigest()

    def is_draw(self, temperature: float | None, seed: int | None) -> bool:
        """Whether a request sampled like this has another answer each time.

        That is a sample without a seed, unless the engine gives it a seed of its own.
        """
        return bool(temperature) and seed is None and not self._deterministic

    def _record(self, key: str, make: Callable[[], bytes], keep: Callable[[bytes], bool]) -> bytes:
        if _only_stored.get():
            record = None if self._store is None else self._store.get(KIND, key)
            if record is None:
                raise self._not_stored()
            return record
        if self._store is None:
            return self._flights.run(key, make)
        return self._store.get_or_compute(KIND, key, make, keep=keep)

    def _repeatable(self, request: Request) -> bool:
        """Whether the same request has the same answer, and the answer is all text."""
        config = request.config
        return not self.is_draw(config.temperature, config.seed) and config.logprobs is None and not request.tools

    def _not_stored(self) -> NotStoredError:
        return NotStoredError(
            f"an answer of {self._identity} is needed that is not stored, and nothing may be asked here; run "
            "without stored_only to ask for it"
        )


def _plain(value: Any) -> Any:
    """What JSON has in the place of a dataclass, its fields, or of anything else that it does not know."""
    names = getattr(type(value), "__dataclass_fields__", None)
    return str(value) if names is None else {name: getattr(value, name) for name in names}
