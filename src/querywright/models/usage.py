"""The cost of LM calls, and the context in which they are made."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
    """One layer in an LM's stack, which passes requests on to the next layer. See ``engine.LMEngine``."""

    def complete(self, request: Request, /) -> Response:
        """Return the answer to a request."""
        ...


@dataclass(frozen=True, slots=True)
class CallContext:
    """State shared by a thread's LM calls, including calls in copies of its context.

    Args:
        deadline: Time at which the current attempt times out, in seconds on a monotonic clock.
        meters: Ledgers that record the calls, outermost first.
        ear: Receives answers as they are generated; None if there is no listener.
        place: Position among parallel steps.
        transcript: Collects prompts and answers; None to collect nothing.
        parse: Parses an answer as the adapter that requests it does; None if no ``PromptAdapter`` requests it.
    """

    deadline: float = math.inf
    meters: tuple[Ledger, ...] = ()
    ear: Ear | None = None
    place: tuple[int, ...] = ()
    transcript: list[Entry] | None = None
    parse: Callable[..., object] | None = None


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
        calls: Calls made: requests that the model answered.
        saved: Calls saved: requests answered from the cache, or by an identical call that was already running.
        retries: Number of attempts after a request's first one.
        failures: Number of requests that failed all their attempts.
        repairs: Answers that could not be parsed and were requested again.
        unreadable: Answers that could not be parsed even after the second request.
        input_tokens: Tokens that the model read in the calls made.
        output_tokens: Tokens that the model wrote in the calls made.
        saved_tokens: Input and output tokens of the calls saved.
        seconds: Time that the calls made took, in seconds, summed over threads.
        dollars: Estimated cost, in US dollars, of the calls made whose price is known.
        unpriced: Number of calls made whose price is not known.
        saved_seconds: Time, in seconds, that the calls saved took when they were originally made, if known.
        saved_dollars: Estimated cost, in US dollars, of the calls saved, if the price is known.
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
        """LM calls that the work would need without a cache: calls made plus calls saved."""
        return self.calls + self.saved

    @property
    def tokens(self) -> int:
        """Input and output tokens of the calls made."""
        return self.input_tokens + self.output_tokens

    @property
    def asked_tokens(self) -> int:
        """Tokens that the work would need without a cache: those of calls made and calls saved."""
        return self.tokens + self.saved_tokens

    @property
    def answers(self) -> int:
        """Number of answers that the work needs: calls made and calls saved, without repeated requests."""
        return self.asked - self.repairs

    def to_json(self) -> dict[str, Any]:
        """Return the totals as a JSON object, with rounded seconds and dollars."""
        digits = {"seconds": 3, "saved_seconds": 3, "dollars": 6, "saved_dollars": 6}
        values = zip(_NAMES, _values(self), strict=True)
        return {name: round(one, digits.get(name)) for name, one in values if one or name != "saved_dollars"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cost:
        """Return the totals from a JSON object that ``to_json`` returned."""
        return cls(**{name: data[name] for name in _NAMES if name in data})


_NAMES = tuple(f.name for f in fields(Cost))
_values = attrgetter(*_NAMES)


class UnreadableAnswer(NamedTuple):
    """An answer that could not be parsed, although it was requested twice.

    Args:
        said: Beginning of the answer, and a description of the requested format.
        allowed: Share of the LM's answers in a run that may be unreadable, from 0 to less than 1.
    """

    said: str
    allowed: float


@dataclass(slots=True)
class Ledger:
    """Adds up costs from many threads; each request is recorded exactly once.

    Attributes:
        unread: Last answer that could not be parsed; None if there has been none in this process.
        loading: Name of the model being loaded; empty if none is.
        loaded: Time spent loading models, in seconds, summed over the threads that waited.
        began: Time at which the ledger was created, in seconds on a monotonic clock.
        searched: The open collections that were searched.
    """

    unread: UnreadableAnswer | None = None
    loading: str = ""
    loaded: float = 0.0
    began: float = field(default_factory=time.monotonic)
    searched: set[Any] = field(default_factory=set)
    _total: Cost = field(default_factory=Cost)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, cost: Cost, unread: UnreadableAnswer | None = None) -> None:
        """Record a cost here and in every open meter in this context, and remember an unreadable answer."""
        for ledger in {id(one): one for one in (self, *call_context().meters)}.values():
            with ledger._lock:
                ledger._total = ledger._total + cost
                ledger.unread = unread or ledger.unread

    @property
    def total(self) -> Cost:
        """Sum of all costs so far."""
        return self._total


def age() -> tuple[float, ...]:
    """Return the time at which each meter in this context was created, outermost first.

    Smaller values belong to work that started earlier.
    """
    return tuple(meter.began for meter in call_context().meters)


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Count time in the ``with`` block as model loading, which does not count toward a question's latency."""
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
    """Yield a ledger for the LM calls inside the ``with`` block, in this thread and in copies of its context."""
    meter = ledger or Ledger()
    with surrounded(meters=(*call_context().meters, meter)):
        yield meter
