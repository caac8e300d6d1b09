"""Middleware that admits requests, enforces deadlines, answers failures, and writes the request log."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from dspy.utils.exceptions import AdapterParseError, LMError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from querywright import errors
from querywright.files import jsonable
from querywright.serving.settings import ServeSettings, is_loopback

STATUSES = (400, 401, 403, 404, 405, 413, 415, 422, 500, 502, 503, 504)
CLIENT_GONE = 499
OUTAGE_SECONDS = 30
_RULES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int, str, str], ...] = (
    (errors.PromptTooLongError, 422, "prompt_too_long", "the question and its passages do not fit in the LM's context"),
    (errors.OutageError, 503, "lm_outage", "the LM is unavailable; try again later"),
    (errors.BudgetError, 503, "budget", "the server has reached its limit on LM calls"),
    (errors.CollectionError, 503, "collection", "the collection cannot be searched"),
    ((errors.ModelError, errors.ArtifactError), 503, "model", "a model that the program needs cannot be used"),
    (errors.InputError, 422, "input", ""),
    ((LMError, AdapterParseError), 502, "lm", "the LM failed ({name})"),
    (errors.QuerywrightError, 503, "unavailable", "the program cannot answer; try again later"),
)
"""How to answer each error: the first rule that matches applies. If its text is empty, the error's message is sent."""

LOGGER = "querywright.serving"
LARGEST_BODY = 65_536
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
PAGES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
OPEN = frozenset({*PAGES, "/health"})
ROUTES = OPEN | {"/ask", "/metrics", "/openapi.json"}
_DRAINED = 16
"""Maximum size of a body, in multiples of the size limit, that is read and dropped.

A client that is cut off while it is still sending does not see the answer.
"""

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE: list[tuple[bytes, bytes]] = [
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"cache-control", b"no-store"),
    (b"content-security-policy", _POLICY),
]  # fmt: skip


class RequestError(Exception):
    """An error response to a request: an error code for programs and a sentence for people."""

    def __init__(
        self, status: int, kind: str, message: str, *, retry_after: float = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        retry = {"Retry-After": str(math.ceil(retry_after))} if retry_after else {}
        self.status, self.kind, self.headers = status, kind, {**(headers or {}), **retry}

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON body."""
        return {"error": {"kind": self.kind, "message": str(self)}}


def failure_of(error: BaseException) -> RequestError | None:
    """Return the answer to send for an error; None if the error is unexpected.

    Messages from LM errors and broken collections name services and folders, so they are not sent to clients.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, asyncio.CancelledError):
        return RequestError(503, "stopping", "the server stopped before it could answer", retry_after=1)
    if isinstance(error, HTTPException):  # raised by the framework
        kind = {404: "address", 405: "method"}.get(error.status_code, "not_json")
        return RequestError(error.status_code, kind, error.detail, headers=error.headers)
    for kinds, status, name, text in _RULES:
        if isinstance(error, kinds):
            message = text.format(name=type(error).__name__) or str(error)
            return RequestError(status, name, message, retry_after=OUTAGE_SECONDS if status == 503 else 0)
    return None


def as_json(data: Any) -> bytes:
    """Return data as JSON. NaN becomes null, and lone surrogates stay escaped."""
    return json.dumps(jsonable(data), allow_nan=False, separators=(",", ":")).encode()


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line to the log."""
    logging.getLogger(LOGGER).log(level, event, extra={"fields": fields})


@dataclass(slots=True)
class Note:
    """A request's id, arrival time, and additional fields for its log line."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.perf_counter)
    fields: dict[str, Any] = field(default_factory=dict)


class ServerMetrics:
    """One server's counters, in a registry that is not shared with other servers in the process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace="querywright", registry=registry)
        self.requests = counter("requests", "Requests answered, by route and status.", ["route", "status"])
        self.lm_calls = counter("lm_calls", "LM calls, made or saved (cached).", ["how"])
        self.fallbacks = counter("fallbacks", "Steps that fell back to a simpler method.", ["step"])
        self.declined = counter("declined", "Questions that the passages did not answer.")
        self.in_flight = Gauge("querywright_in_flight", "Requests in progress.", registry=registry)
        self.seconds = Histogram(
            "querywright_request_seconds",
            "Time from request to response, in seconds.",
            ["route"],
            buckets=BUCKETS,
            registry=registry,
        )
        for how in ("made", "saved"):
            self.lm_calls.labels(how)  # start at 0, so that the first call shows up as an increase


class Front:
    """ASGI middleware around all routes. The page and /health do not require a token."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        note = Note()
        scope.setdefault("state", {})["note"] = note
        status, streams = 0, False

        async def marked(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status, sent = message["status"], list(message["headers"])
                streams = dict(sent).get(b"content-type", b"").startswith(b"text/event-stream")
                message = {**message, "headers": [*sent, *_SAFE, (b"x-request-id", note.id.encode())]}
            await send(message)

        self._metrics.in_flight.inc()
        try:
            self._admit(scope, headers)
            await self._within_deadline(scope, receive, marked)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure is answered
            failure = failure_of(error)
            if failure is None:  # its message may contain the question
                at = [f"{one.filename}:{one.lineno} {one.name}" for one in traceback.extract_tb(error.__traceback__)]
                log_event("unexpected", logging.ERROR, id=note.id, error=type(error).__name__, at=at)
                failure = RequestError(
                    500, "internal", "unexpected server error; see the server's log for this request ID"
                )
            note.fields |= {"kind": failure.kind, "error": type(error).__name__}
            if not status:
                answer = Response(as_json(failure.body()), failure.status, failure.headers, "application/json")
                await answer(scope, receive, marked)
            elif streams:
                await send({"type": "http.response.body", "body": as_event("error", failure.body())})
            status = failure.status
        finally:
            seconds = time.perf_counter() - note.began
            route = scope["path"] if scope["path"] in ROUTES else "other"  # so that callers cannot add labels
            self._metrics.in_flight.dec()
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            log_event(
                "request", id=note.id, route=route, method=scope["method"], status=status, seconds=round(seconds, 4),
                **note.fields,
            )  # fmt: skip

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        """Raise ``RequestError`` if a request must not be admitted."""
        # A page on a different site must not send requests through the browser, whatever name it uses for this server.
        token, host, origin = self._settings.token, headers.get(b"host", b""), headers.get(b"origin")
        if token is None and is_loopback(self._settings.host) and not is_loopback(_parts(b"//" + host)[1]):
            raise RequestError(400, "host", "a server without a token accepts only requests to localhost or 127.0.0.1")
        if origin is not None and _parts(origin)[0] != host.decode("latin-1").lower():
            raise RequestError(403, "site", "the request comes from a page on a different site")
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        right = token is None or (hmac.compare_digest(given.strip(), token.encode()) and scheme.lower() == b"bearer")
        if not right and scope["path"] not in OPEN:
            text = "send the server's token in the header Authorization: Bearer TOKEN"
            raise RequestError(401, "token", text, headers={"WWW-Authenticate": "Bearer"})

    async def _within_deadline(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application until it has answered, the client has disconnected, or the deadline has passed."""
        seconds = self._settings.deadline
        limit = asyncio.timeout(seconds)
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            async with limit:
                body = await _read_body(receive)
                working = asyncio.ensure_future(self._app(scope, _again(body), sent))
                gone = asyncio.ensure_future(receive())  # after the body, a disconnect or the answer's end follows
                try:
                    await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if answered:
                        await working
                    if not working.done():
                        raise RequestError(CLIENT_GONE, "gone", "the client disconnected")
                finally:
                    working.cancel()
                    gone.cancel()
                    await asyncio.gather(working, gone, return_exceptions=True)
                working.result()
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestError(504, "deadline", f"no answer within {seconds:g} seconds") from None


async def _read_body(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more and size <= LARGEST_BODY * _DRAINED:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(CLIENT_GONE, "gone", "the client disconnected")
        more, size = message.get("more_body", False), size + len(message.get("body", b""))
        if size <= LARGEST_BODY:
            parts.append(message.get("body", b""))
    if size > LARGEST_BODY:
        text = f"the request body must have at most {LARGEST_BODY} bytes"
        raise RequestError(413, "too_large", text, headers={"Connection": "close"})
    return b"".join(parts)


def _again(body: bytes) -> Receive:
    """Return a ``receive`` function that returns a body and then waits; ``Front`` watches for a disconnect."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return given.pop() if given else await asyncio.Future()

    return receive


def _parts(address: bytes) -> tuple[str, str]:
    """Return a URL's site and host; empty strings if the URL is not valid."""
    try:
        found = urlsplit(address.decode("latin-1"))
        return found.netloc.lower(), found.hostname or ""
    except ValueError:
        return "", ""


def as_event(name: str, data: Any) -> bytes:
    """Return one server-sent event: its name, and its data as JSON on one line."""
    return b"event: " + name.encode() + b"\ndata: " + as_json(data) + b"\n\n"
