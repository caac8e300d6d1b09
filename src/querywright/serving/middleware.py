"""What every request passes first: its id, who asks, how often, how much, and its line in the log."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from querywright.serving.failures import CLIENT_GONE, STATUSES, ClientGoneError, RequestError, as_json, failure_of
from querywright.serving.logging import log_event, log_failure
from querywright.serving.metrics import ServerMetrics
from querywright.serving.settings import ServeSettings, is_loopback

STATE = "querywright"
MOST_CLIENTS = 10_000
_DRAINED = 16
"""So many times the largest body is read and thrown away: who is cut off while sending does not see the answer."""

_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SAFE: list[tuple[bytes, bytes]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]


@dataclass(slots=True)
class Note:
    """What is remembered of a request for its line in the log: its id, when it came, and what the log says besides."""

    id: str
    began: float
    fields: dict[str, Any] = field(default_factory=dict)

    def failed(self, error: BaseException, *, questions: bool) -> RequestError:
        """Remember what went wrong, and tell what is answered."""
        failure = failure_of(error)
        if failure is None:
            log_failure(error, questions=questions, id=self.id)
            failure = RequestError(500, "internal", STATUSES[500])
        self.fields["kind"], self.fields["status"] = failure.kind, failure.status_code
        if failure is not error:
            self.fields["error"] = type(error).__name__
        return failure


def note_of(scope: Scope) -> Note:
    """The note of a request that passed the front."""
    note: Note = scope["state"][STATE]
    return note


class Front:
    """ASGI middleware around all routes; open paths need no token and do not count against a client's rate."""

    def __init__(
        self, app: ASGIApp, *, settings: ServeSettings, metrics: ServerMetrics, open_paths: frozenset[str]
    ) -> None:
        self._app, self._settings, self._metrics, self._open = app, settings, metrics, open_paths
        self._rates = Rates(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        note = Note(given.decode() if _ID.fullmatch(given) else uuid.uuid4().hex, time.perf_counter())
        scope.setdefault("state", {})[STATE] = note
        sent = 0

        async def marked(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = message["status"]
                own = [*_SAFE, (b"x-request-id", note.id.encode())]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        self._metrics.in_flight.inc()
        try:
            try:
                self._check(scope, headers)
                body = await _read_body(receive, self._settings.max_body, self._settings.body_seconds)
                await self._app(scope, _again(body, receive), marked)
            except ClientGoneError:
                note.fields["status"] = CLIENT_GONE  # whatever was begun
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, it is answered
                failure = note.failed(error, questions=self._settings.log_questions)
                if not sent:
                    answer = Response(as_json(failure.body()), failure.status_code, failure.headers, "application/json")
                    await answer(scope, receive, marked)
        finally:
            status = note.fields.pop("status", sent or CLIENT_GONE)
            seconds = time.perf_counter() - note.began
            self._metrics.in_flight.dec()
            self._metrics.answered(scope["path"], status, seconds)
            log_event(
                "request", id=note.id, route=self._metrics.route(scope["path"]), method=scope["method"],
                status=status, seconds=round(seconds, 4), **note.fields,
            )  # fmt: skip

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Raise ``RequestError`` where a request is not let in."""
        # No page of another site may ask with what the browser can reach, under whatever name it calls this one.
        token, host, origin = self._settings.token, headers.get(b"host", b""), headers.get(b"origin")
        if token is None and is_loopback(self._settings.host) and not is_loopback(_parts(b"//" + host)[1]):
            raise RequestError(400, "host", "without a token the server is asked as localhost or 127.0.0.1 only")
        if origin is not None and _parts(origin)[0] != host.decode("latin-1").lower():
            raise RequestError(403, "site", "the request comes from a page of another site")
        if scope["path"] in self._open:
            return
        self._rates.take((scope.get("client") or ("",))[0])
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if token is not None and not (
            scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode())
        ):
            text = "send the server's token: Authorization: Bearer ..."
            raise RequestError(401, "token", text, headers={"WWW-Authenticate": "Bearer"})


class Rates:
    """A token bucket for each client: requests a second in the long run, 0 for no limit, and at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count a request of the client with that address.

        Raises:
            RequestError: The client has made too many.
        """
        if not self._rate:
            return
        now = time.monotonic()
        left, then = self._buckets.pop(client, (float(self._burst), now))
        left = min(self._burst, left + (now - then) * self._rate)
        self._buckets[client] = (left - 1 if left >= 1 else left, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1:
            text = f"more than {self._burst} requests at once, or {self._rate:g} a second; try again later"
            raise RequestError(429, "rate", text, retry_after=(1 - left) / self._rate)


async def _read_body(receive: Receive, most: int, seconds: float) -> bytes:
    """The body of a request, of so many bytes at most and within so many seconds."""
    body, size, more = b"", 0, True
    try:
        async with asyncio.timeout(seconds):
            while more and size <= most * _DRAINED:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part, more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                body = body + part if size <= most else b""
    except TimeoutError:
        text = f"the body did not arrive within {seconds:g} seconds"
        raise RequestError(408, "slow", text, headers={"Connection": "close"}) from None
    if size > most:
        text = f"a body may have {most} bytes at most"
        raise RequestError(413, "too_large", text, headers={"Connection": "close"})
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read, and then whatever comes."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return given.pop() if given else await receive()

    return receive_again


def _parts(address: bytes) -> tuple[str, str]:
    """Site and host of an address; nothing of one that is none."""
    try:
        found = urlsplit(address.decode("latin-1"))
        return found.netloc.lower(), found.hostname or ""
    except ValueError:
        return "", ""
