"""The work for one request: in its turn, within its deadline, for as long as somebody waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from querywright.serving.failures import ClientGoneError, RequestError, as_json

QUIET_SECONDS = 15.0
"""After so long without an event a comment is sent, so that nobody in between takes the connection for dead."""

T = TypeVar("T")


class Work:
    """Lets so many questions be under way, so many wait, and gives up what nobody waits for, or takes too long."""

    def __init__(self, concurrency: int, waiting: int, deadline: float) -> None:
        self._semaphore = asyncio.Semaphore(concurrency)
        self._most_waiting = waiting
        self._deadline = deadline
        self.waiting = 0
        self.running = 0

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
        ends = {working, gone}
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
        raise RequestError(504, "deadline", f"no answer within {self._deadline:g} seconds")

    async def streamed(
        self,
        receive: Receive,
        events: AsyncGenerator[tuple[str, Any], None],
        failed: Callable[[BaseException], RequestError],
    ) -> Response:
        """Server-sent events as they come. A failure before anything was sent is raised, a later one is an event."""
        ready: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def make() -> None:
            async with contextlib.aclosing(events):
                async for name, data in events:
                    ready.put_nowait(_event(name, data))

        making = asyncio.ensure_future(self.attended(receive, make()))
        making.add_done_callback(lambda _: ready.put_nowait(None))

        async def following() -> bytes | None:
            try:
                return await asyncio.wait_for(ready.get(), QUIET_SECONDS)
            except TimeoutError:
                return b": still at it\n\n"

        async def sent(data: bytes | None) -> AsyncIterator[bytes]:
            try:
                while data is not None:
                    yield data
                    data = await following()
                await making
            except ClientGoneError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - told where the status was sent already
                yield _event("error", failed(error).body())

        try:
            first = await following()
        except BaseException:
            making.cancel()
            raise
        if first is None:
            await making
        return _Streamed(sent(first), making)


class _Streamed(StreamingResponse):
    """Sends what is made of a task, which is ended when nothing is sent any more."""

    def __init__(self, content: AsyncIterator[bytes], making: asyncio.Future[None]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._making = making

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the task hears when the client is gone."""
        try:
            await self.stream_response(send)
        finally:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: Any) -> bytes:
    """One event: its name, and its data as JSON on one line."""
    return b"event: " + name.encode() + b"\ndata: " + as_json(data) + b"\n\n"
