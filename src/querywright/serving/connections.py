"""Connections: so many at a time, and none that never says what it wants."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from querywright.serving.logging import log_event

_TOLD_AGAIN = 10.0
_Base: Any = AutoHTTPProtocol


@dataclass(slots=True)
class _Bounds:
    most: int
    seconds: float
    told: float = field(default=-math.inf)


class _Bounded(_Base):
    """uvicorn's protocol, which by itself waits for the first request and for the end of its header for ever."""

    def __init__(self, bounds: _Bounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take it, or close it where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.most:
            self._tell()
            transport.close()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        """A request's header is complete once uvicorn has made a cycle for it."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._wait_no_more()
        elif self._idle() and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self._bounds.seconds, self._end)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if self._idle():
            self.transport.close()

    def _tell(self) -> None:
        now = self.loop.time()
        if now - self._bounds.told >= _TOLD_AGAIN:
            self._bounds.told = now
            log_event("connections", logging.WARNING, result="refused", most=self._bounds.most)


def bounded(most: int, seconds: float) -> Any:
    """What uvicorn is given as its HTTP protocol.

    Args:
        most: Connections at a time; a further one is closed at once.
        seconds: Time in which a request's header must arrive; then the connection is closed. Between two requests
            uvicorn itself closes a connection that says nothing.
    """
    return partial(_Bounded, _Bounds(most, seconds))
