"""The work for one request: in its turn, within its deadline, for as long as somebody waits, until the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from querywright.serving.failures import ClientGoneError, RequestError, as_json

QUIET_SECONDS = 15.0
"""After so long without an event a comment is sent, so that nobody in between takes the connection for dead."""

SLOWEST_SECONDS = 60.0
"""A client that takes nothing for so long is given up."""

T = TypeVar("T")


class Work:
    """Lets so many questions be under way, so many wait, and gives up what nobody waits for.

    Args:
        concurrency: Questions under way at a time.
        waiting: Questions that may wait.
        deadline: Seconds that one may take, waiting included.
    """

    def __init__(self, concurrency: int, waiting: int, deadline: float) -> None:
        self._semaphore = asyncio.Semaphore(concurrency)
        self._most_waiting = waiting
        self._deadline = deadline
        self._given_up = asyncio.Event()
        self.stopping = False
        self.waiting = 0
        self.running = 0

    def give_up(self) -> None:
        """End all work under way; each is answered that the server stops."""
        self._given_up.set()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it inside the ``async with`` block."""
        if self._semaphore.locked() and self.waiting >= self._most_waiting:
            raise RequestError(503, "busy", "the server has too many questions under way; try again", retry_after=1)
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._semaphore.release()

    async def attended(self, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work, which is cancelled when there is no use for it any more."""
        working = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(_disconnected(receive))
        stopped = asyncio.ensure_future(self._given_up.wait())
        ends = {working, gone, stopped}
        try:
            done, _ = await asyncio.wait(ends, timeout=self._deadline, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ends:
                one.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        if working in done:
            return working.result()
        if gone in done:
            raise ClientGoneError
        if stopped in done:
            raise RequestError(503, "stopping", "the server stopped before the answer was there", retry_after=1)
        raise RequestError(504, "deadline", f"no answer within {self._deadline:g} seconds")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come. A failure before the first one is answered with its status, a later one is an event.

    Args:
        events: Names and data of what is sent; closed at the end, whatever happens.
        work: Attends to it.
        failed: Makes the error that is sent of a failure, and remembers it for the log.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[tuple[str, Any], None], work: Work, failed: Callable[[Exception], RequestError]
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._events, self._work, self._failed = events, work, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        ready: asyncio.Queue[bytes | None] = asyncio.Queue()
        started = False

        async def make() -> None:
            async with contextlib.aclosing(self._events) as events:
                async for name, data in events:
                    ready.put_nowait(_event(name, data))

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

        making = asyncio.ensure_future(self._work.attended(receive, make()))
        making.add_done_callback(lambda _: ready.put_nowait(None))
        try:
            data: bytes | None = b""
            while data is not None:
                if data:
                    await put(data)
                try:
                    data = await asyncio.wait_for(ready.get(), QUIET_SECONDS)
                except TimeoutError:
                    data = b": still at it\n\n"
            await making
        except ClientGoneError:
            raise
        except Exception as error:
            if not started:
                raise
            await put(_event("error", self._failed(error).body()))
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        await put(b"", False)


def _event(name: str, data: Any) -> bytes:
    """One event: its name, and its data as JSON on one line."""
    return b"event: " + name.encode() + b"\ndata: " + as_json(data) + b"\n\n"
