"""What LM calls cost, and the context that they are made in."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from operator import add, attrgetter, sub
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from dspy.lm15 import Request, Response

    from querywright.models.pieces import Ear
    from querywright.models.transcript import Entry


class Layer(Protocol):
    """One layer of an LM's stack, which passes requests on to the next layer. See ``engine.LMEngine``."""

    def complete(self, request: Request, /) -> Response:
        """Return the answer to a request."""
        ...


@dataclass(frozen=True, slots=True)
class CallContext:
    """State that the LM calls of a thread share, also in copies of its context.

    Args:
        deadline: Time at which the current attempt ends, in seconds of a monotonic clock.
        meters: Ledgers that count the calls, outermost first.
        ear: Receives answers while they are written; None if nobody listens.
        place: Position among steps that run in parallel.
        transcript: Collects prompts and answers; None if nobody reads them.
    """

    deadline: float = math.inf
    meters: tuple[Ledger, ...] = ()
    ear: Ear | None = None
    place: tuple[int, ...] = ()
    transcript: list[Entry] | None = None


_context = ContextVar("querywright_call", default=CallContext())  # noqa: B039 - frozen


def call_context() -> CallContext:
    """Return the current call context."""
    return _context.get()


@contextmanager
def surrounded(**changes: Any) -> Iterator[None]:
    """Change fields of the call context inside the ``with`` block."""
    token = _context.set(replace(_context.get(), **changes))
    try:
        yield
    finally:
        _context.reset(token)


@dataclass(frozen=True, slots=True)
class Cost:
    """Totals of LM calls, which can be added and subtracted.

    Args:
        calls: LM calls made: requests that the model answered.
        saved: LM calls saved: answers from the cache, or from an equal call that was already running.
        retries: Attempts after the first.
        failures: Requests that failed after all attempts.
        repairs: Answers that could not be read and were requested again.
        unreadable: Answers that could not be read after the second request either.
        input_tokens: Tokens that the model read in calls made.
        output_tokens: Tokens that the model wrote in calls made.
        saved_tokens: Input and output tokens of calls saved.
        seconds: Seconds that calls made took, summed over threads.
        dollars: Estimated US dollars of calls made whose price is known.
        unpriced: Calls made whose price is not known.
        saved_seconds: Seconds that calls saved took when they were made, if known.
        saved_dollars: Estimated US dollars of the calls saved, if the price is known.
    """

    calls: int = 0
    saved: int = 0
    retries: int = 0
    failures: int = 0
    repairs: int = 0
    unreadable: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    saved_tokens: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    unpriced: int = 0
    saved_seconds: float = 0.0
    saved_dollars: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, _values(self), _values(other)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*map(sub, _values(self), _values(other)))

    @property
    def asked(self) -> int:
        """LM calls that the work needs without a cache: made and saved."""
        return self.calls + self.saved

    @property
    def tokens(self) -> int:
        """Input and output tokens of calls made."""
        return self.input_tokens + self.output_tokens

    @property
    def asked_tokens(self) -> int:
        """Tokens that the work needs without a cache: of calls made and saved."""
        return self.tokens + self.saved_tokens

    @property
    def answers(self) -> int:
        """Number of answers that the work needs: calls made and saved, without repeated requests."""
        return self.asked - self.repairs

    def to_json(self) -> dict[str, Any]:
        """Return the totals as a JSON object, with rounded seconds and dollars."""
        digits = {"seconds": 3, "saved_seconds": 3, "dollars": 6, "saved_dollars": 6}
        values = zip(_NAMES, _values(self), strict=True)
        return {name: round(one, digits.get(name)) for name, one in values if one or name != "saved_dollars"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cost:
        """Return the totals that ``to_json`` wrote."""
        return cls(**{name: data[name] for name in _NAMES if name in data})


_NAMES = tuple(f.name for f in fields(Cost))
_values = attrgetter(*_NAMES)


class UnreadableAnswer(NamedTuple):
    """An answer that could not be read, although it was requested twice.

    Args:
        said: Beginning of the answer, and the form that was requested.
        allowed: Share of the LM's answers that may be unreadable in a run, from 0 to less than 1.
    """

    said: str
    allowed: float


@dataclass(slots=True)
class Ledger:
    """Adds up costs from many threads; each request is entered exactly once.

    Attributes:
        unread: Last answer that could not be read; None if there is none in this process.
        loading: Name of the model that is being loaded; empty if no model is.
        loaded: Seconds in which models were loaded, summed over the threads that waited.
        began: When the ledger was made, in seconds of a monotonic clock.
    """

    unread: UnreadableAnswer | None = None
    loading: str = ""
    loaded: float = 0.0
    began: float = field(default_factory=time.monotonic)
    _total: Cost = field(default_factory=Cost)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, cost: Cost, unread: UnreadableAnswer | None = None) -> None:
        """Enter a cost here and in every open meter of this context, and remember an unreadable answer."""
        for ledger in {id(one): one for one in (self, *call_context().meters)}.values():
            with ledger._lock:
                ledger._total = ledger._total + cost
                ledger.unread = unread or ledger.unread

    @property
    def total(self) -> Cost:
        """Sum of all costs so far."""
        return self._total


def age() -> tuple[float, ...]:
    """Return when each meter of this context was made, outermost first.

    Smaller values belong to work that began earlier.
    """
    return tuple(meter.began for meter in call_context().meters)


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Count the ``with`` block as the loading of a model, which does not count toward a question's latency."""
    began, meters = time.monotonic(), call_context().meters
    for meter in meters:
        meter.loading = what
    try:
        yield
    finally:
        for meter in meters:
            with meter._lock:
                meter.loading, meter.loaded = "", meter.loaded + time.monotonic() - began


@contextmanager
def metered(ledger: Ledger | None = None) -> Iterator[Ledger]:
    """Yield a ledger of the LM calls inside the ``with`` block, in this thread and in copies of its context."""
    meter = ledger or Ledger()
    with surrounded(meters=(*call_context().meters, meter)):
        yield meter
