"""An answer as server-sent events, while it is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from querywright.serving.cancellation import Attention
from querywright.serving.failures import ClientGoneError
from querywright.serving.middleware import note_of
from querywright.serving.wire import as_json

QUIET_SECONDS = 15.0
"""After so long without an event a comment is sent, so that nobody in between takes the connection for dead."""

SLOWEST_SECONDS = 60.0
"""A client that takes nothing for so long is given up."""

Events = AsyncGenerator[tuple[str, Any], None]
"""Names and data."""


class EventStream(Response):
    """Sends events as they come. A failure before the first one is answered with its status, a later one is an event.

    Args:
        events: What is sent; closed at the end, whatever happens.
        attention: Watches over the work.
        log_questions: Whether messages of unexpected failures are logged.
    """

    media_type = "text/event-stream"

    def __init__(self, events: Events, attention: Attention, *, log_questions: bool = False) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        self._attention = attention
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._events = events
        self._log_questions = log_questions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        started = False

        async def put(data: bytes, more: bool = True) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async with asyncio.timeout(SLOWEST_SECONDS):
                    await send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                raise ClientGoneError from None

        try:
            async with contextlib.aclosing(self._with_pauses(receive)) as events:
                async for name, data in events:
                    await put(b": still at it\n\n" if name is None else event(name, data))
            await put(b"", False)
        except ClientGoneError:
            raise
        except Exception as error:
            if not started:
                raise
            failure = note_of(scope).failed(error, questions=self._log_questions)
            note_of(scope).fields["status"] = failure.status
            await put(event("error", failure.body()))
            await put(b"", False)

    async def _with_pauses(self, receive: Receive) -> AsyncGenerator[tuple[str | None, Any], None]:
        """The events, and a ``None`` whenever none came for a while. All of them are made in one task of their own."""
        queue: asyncio.Queue[tuple[str, Any] | Exception | None] = asyncio.Queue(maxsize=64)

        async def fill() -> None:
            try:
                async with self._attention.paid(receive), contextlib.aclosing(self._events) as events:
                    async for one in events:
                        await queue.put(one)
                await queue.put(None)
            except Exception as error:  # noqa: BLE001 - it is raised where the events are read
                await queue.put(error)

        task = asyncio.create_task(fill())
        try:
            while True:
                try:
                    one = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
                except TimeoutError:
                    yield None, None
                    continue
                if one is None:
                    return
                if isinstance(one, Exception):
                    raise one
                yield one
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def event(name: str, data: Any) -> bytes:
    """One event: its name, and its data as JSON on one line."""
    return b"event: " + name.encode() + b"\ndata: " + as_json(data) + b"\n\n"
