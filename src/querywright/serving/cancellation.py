"""Work for one request: within its deadline, for as long as somebody waits, until the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from enum import StrEnum

from starlette.types import Receive

from querywright.serving.failures import ClientGoneError, RequestError


class _Why(StrEnum):
    GONE = "gone"
    STOPPING = "stopping"


class Attention:
    """Keeps the work of all requests under way, so that it can be given up.

    Args:
        deadline: Seconds that one may take.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._under_way: dict[asyncio.Task[object], _Why | None] = {}
        self.stopping = False

    @contextlib.asynccontextmanager
    async def paid(self, receive: Receive) -> AsyncIterator[None]:
        """Inside the ``async with`` block the work of this task is watched over.

        Args:
            receive: Gives ASGI's messages; the request's body was read.

        Raises:
            RequestError: The deadline passed, or the server stopped.
            ClientGoneError: The client went away.
        """
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = None
        watcher = asyncio.create_task(self._watch(receive, task))
        clock = asyncio.timeout(self._deadline)
        try:
            async with clock:
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise RequestError(504, "deadline", f"no answer within {self._deadline:g} seconds") from None
        except asyncio.CancelledError:
            why = self._under_way[task]
            if why is None:
                raise
            task.uncancel()
            if why is _Why.GONE:
                raise ClientGoneError from None
            raise RequestError(
                503, "stopping", "the server stopped before the answer was there", retry_after=1
            ) from None
        finally:
            watcher.cancel()
            del self._under_way[task]

    def give_up(self) -> None:
        """End all work under way; each is answered that the server stops."""
        for task in list(self._under_way):
            self._cancel(task, _Why.STOPPING)

    async def _watch(self, receive: Receive, task: asyncio.Task[object]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._cancel(task, _Why.GONE)

    def _cancel(self, task: asyncio.Task[object], why: _Why) -> None:
        if task in self._under_way and self._under_way[task] is None:
            self._under_way[task] = why
            task.cancel()
