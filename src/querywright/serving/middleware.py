"""What every request passes first: its id, who asks, how often, how much, and its line in the log."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from querywright.serving.failures import CLIENT_GONE, ClientGoneError, RequestError, failure_of, unexpected
from querywright.serving.limits import Rates, read_body
from querywright.serving.logging import log_event, log_failure
from querywright.serving.metrics import ServerMetrics
from querywright.serving.settings import ServeSettings, is_loopback

STATE = "querywright"
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
    """What is remembered of a request for its line in the log.

    Args:
        id: The request's id.
        began: When it came, in seconds that only grow.
        fields: What the log says besides.
    """

    id: str
    began: float
    fields: dict[str, Any] = field(default_factory=dict)

    def failed(self, error: Exception, *, questions: bool) -> RequestError:
        """Remember what went wrong, and tell what is answered.

        Args:
            error: The failure.
            questions: Whether messages of unexpected ones, which may hold a question, are logged.
        """
        failure = failure_of(error)
        if failure is None:
            log_failure(error, questions=questions, id=self.id)
            failure = unexpected()
        self.fields["kind"] = failure.kind
        if failure is not error:
            self.fields["error"] = type(error).__name__
        return failure


def note_of(scope: Scope) -> Note:
    """The note of a request that passed the front."""
    note: Note = scope["state"][STATE]
    return note


class Front:
    """ASGI middleware around all routes.

    Args:
        app: What is inside.
        settings: Of the server.
        metrics: Counts every request.
        open_paths: Addresses that need no token and do not count against a client's rate.
    """

    def __init__(
        self, app: ASGIApp, *, settings: ServeSettings, metrics: ServerMetrics, open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._open = open_paths
        self._token = None if settings.token is None else settings.token.encode()
        self._rates = Rates(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        note = Note(_id(headers.get(b"x-request-id")), time.perf_counter())
        scope.setdefault("state", {})[STATE] = note
        sent = _Sent(send, note)
        self._metrics.in_flight.inc()
        status = CLIENT_GONE
        try:
            try:
                receive = await self._admit(scope, headers, receive)
                await self._app(scope, receive, sent)
            except ClientGoneError:
                note.fields["status"] = CLIENT_GONE  # whatever was begun
            except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and logged
                await self._failed(error, note, sent)
            status = note.fields.pop("status", sent.status or CLIENT_GONE)
        finally:
            seconds = time.perf_counter() - note.began
            self._metrics.in_flight.dec()
            self._metrics.answered(scope["path"], status, seconds)
            log_event(
                "request",
                id=note.id,
                route=self._metrics.route(scope["path"]),
                method=scope["method"],
                status=status,
                seconds=round(seconds, 4),
                **note.fields,
            )

    async def _admit(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive) -> Receive:
        """Let a request in, with its whole body; raise ``RequestError`` otherwise."""
        self._check_site(headers)
        path = scope["path"]
        if path not in self._open:
            client = scope.get("client")
            self._rates.take(client[0] if client else "")
            self._check_token(headers)
        most, seconds = self._settings.max_body, self._settings.body_seconds
        body = await read_body(receive, headers.get(b"content-length"), most, seconds)
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return again

    def _check_token(self, headers: Mapping[bytes, bytes]) -> None:
        if self._token is None:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            text = "send the server's token: Authorization: Bearer ..."
            raise RequestError(401, "token", text, headers={"WWW-Authenticate": "Bearer"})

    def _check_site(self, headers: Mapping[bytes, bytes]) -> None:
        """No page of another site may ask with what the browser can reach, under whatever name it calls this one."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self._token is None and is_loopback(self._settings.host) and not is_loopback(_name(host)):
            raise RequestError(400, "host", "without a token the server is asked as localhost or 127.0.0.1 only")
        origin = headers.get(b"origin")
        if origin is not None and _site(origin.decode("latin-1")) != host.lower():
            raise RequestError(403, "site", "the request comes from a page of another site")

    async def _failed(self, error: Exception, note: Note, sent: _Sent) -> None:
        failure = note.failed(error, questions=self._settings.log_questions)
        if not sent.status:
            await sent.failure(failure)


class _Sent:
    """ASGI's ``send`` with the headers that every answer has; remembers the status."""

    def __init__(self, send: Send, note: Note) -> None:
        self._send = send
        self._own = [*_SAFE, (b"x-request-id", note.id.encode())]
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._own]}
        await self._send(message)

    async def failure(self, failure: RequestError) -> None:
        body = failure.encoded()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **failure.headers}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": failure.status, "headers": encoded})
        await self({"type": "http.response.body", "body": body})


def _id(given: bytes | None) -> str:
    """The id that the caller gave, where it is a plain word, or one made here."""
    return given.decode() if given is not None and _ID.fullmatch(given) else uuid.uuid4().hex


def _site(origin: str) -> str | None:
    """Host and port of an Origin header; None for one that is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
