"""How much is taken on: questions at a time, requests of a client, bytes of a body."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from querywright.serving.failures import ClientGoneError, RequestError

MOST_CLIENTS = 10_000
_IPV6_HOME = 64
_DRAINED = 16
"""So many times the largest body is read and thrown away: who is cut off while sending does not see the answer."""

_LONGEST_LENGTH = 18
"""Digits of a Content-Length that any server could mean; Python refuses to read very many."""


class Turns:
    """Lets so many questions be under way, so many wait, and no more in.

    Args:
        concurrency: Questions under way at a time.
        waiting: Questions that may wait.
    """

    def __init__(self, concurrency: int, waiting: int) -> None:
        self._semaphore = asyncio.Semaphore(concurrency)
        self._most_waiting = waiting
        self.waiting = 0
        self.running = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn and hold it inside the ``async with`` block.

        Raises:
            RequestError: Too many wait already.
        """
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


class Rates:
    """A token bucket for each client.

    Args:
        rate: Requests a second in the long run; 0 for no limit.
        burst: Requests at once.
        clock: Seconds that only grow; replaced in tests.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count a request.

        Args:
            client: The address that it came from.

        Raises:
            RequestError: The client has made too many.
        """
        if not self._rate:
            return
        key, now = _home(client), self._clock()
        left, then = self._buckets.pop(key, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._rate)
        allowed = left >= 1
        self._buckets[key] = (left - 1 if allowed else left, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            text = f"more than {self._burst} requests at once, or {self._rate:g} a second; try again later"
            raise RequestError(429, "rate", text, retry_after=(1 - left) / self._rate)


def _home(client: str) -> str:
    """The address, or the network of an IPv6 one: a single host has as many of those as it likes."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:  # as an IPv4 client is called by a socket that takes both
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_HOME), strict=False))
    return client


async def read_body(receive: Callable[[], Any], announced: bytes | None, most: int, seconds: float) -> bytes:
    """The body of a request, whether its length was announced or not.

    Args:
        receive: Gives ASGI's messages.
        announced: The header ``Content-Length``.
        most: Bytes at most.
        seconds: Time in which it must arrive.

    Raises:
        RequestError: It is too large, or too slow, or its length is no number.
        ClientGoneError: The client went away.
    """
    if announced is not None and not (announced.isdigit() and len(announced) <= _LONGEST_LENGTH):
        raise RequestError(
            400, "length", "Content-Length must be a number of bytes; send that", headers={"Connection": "close"}
        )
    too_large = RequestError(413, "too_large", f"a body may have {most} bytes at most", headers={"Connection": "close"})
    if announced is not None and int(announced) > most * _DRAINED:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size += len(part)
                if size <= most:
                    parts.append(part)
                if size > most * _DRAINED or (size > most and not message.get("more_body", False)):
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise RequestError(
            408, "slow", f"the body did not arrive within {seconds:g} seconds", headers={"Connection": "close"}
        ) from None
