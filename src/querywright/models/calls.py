"""What an LM call passes through (layers), and what surrounds it (the context)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dspy.lm15 import Request, Response

    from querywright.models.pieces import Ear
    from querywright.models.transcript import Entry
    from querywright.models.usage import Ledger


class Layer(Protocol):
    """A part of an LM's stack; it passes requests on to the layer inside it. See ``engine.LMEngine``."""

    def complete(self, request: Request, /) -> Response:
        """Return the answer to a request."""
        ...


@dataclass(frozen=True, slots=True)
class CallContext:
    """What surrounds the LM calls of a thread, and of contexts copied from it.

    Args:
        deadline: When the attempt under way ends, in seconds of a monotonic clock.
        meters: Ledgers that count the calls, the outermost first.
        ear: Hears answers while they are written; None if nobody listens.
        place: Position among steps that run side by side.
        transcript: Keeps prompts and answers; None if nobody reads them.
    """

    deadline: float = math.inf
    meters: tuple[Ledger, ...] = ()
    ear: Ear | None = None
    place: tuple[int, ...] = ()
    transcript: list[Entry] | None = None


_context = ContextVar("querywright_call", default=CallContext())  # noqa: B039 - frozen


def call_context() -> CallContext:
    """Return what surrounds an LM call that is made here."""
    return _context.get()


@contextmanager
def surrounded(**changes: Any) -> Iterator[None]:
    """Change fields of the context inside the ``with`` block."""
    token = _context.set(replace(_context.get(), **changes))
    try:
        yield
    finally:
        _context.reset(token)
