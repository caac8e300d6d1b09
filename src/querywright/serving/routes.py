"""The addresses of the API."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from querywright.models.usage import metered
from querywright.serving.cancellation import Attention
from querywright.serving.events import Events, EventStream
from querywright.serving.failures import NOT_RELOADED, STATUSES, RequestError
from querywright.serving.limits import Turns
from querywright.serving.metrics import ServerMetrics
from querywright.serving.middleware import Note, note_of
from querywright.serving.programs import Programs, Served
from querywright.serving.settings import ServeSettings, is_loopback
from querywright.serving.shapes import (
    Answered,
    Asked,
    Health,
    Problem,
    Reloaded,
    answer_out,
    passages_out,
    queries_out,
    read_asked,
    request_shapes,
)
from querywright.serving.wire import as_json

ROUTES = ("/ask", "/retrieve", "/reload", "/health", "/metrics", "/openapi.json")
EVENT_STREAM = "text/event-stream"
_EVENT = {
    "type": "object",
    "description": "One event; its data is JSON: {queries}, {passages}, {text}, {}, the whole answer, or {error}.",
    "properties": {
        "event": {"enum": ["queries", "passages", "text", "restart", "done", "error"]},
        "data": {"type": "string"},
    },
    "required": ["event", "data"],
}
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Service:
    """What the addresses share.

    Args:
        programs: Are asked.
        settings: Of the server.
        metrics: Count what is asked.
    """

    def __init__(self, programs: Programs, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.programs = programs
        self.settings = settings
        self.metrics = metrics
        self.turns = Turns(settings.concurrency, settings.waiting)
        self.attention = Attention(settings.deadline)
        self._retrieve_shape, self._ask_shape = request_shapes(settings)

    def router(self) -> APIRouter:
        """The addresses."""
        router, names = APIRouter(), [one.name for one in self.programs]
        asking = (400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 502, 503, 504)
        router.add_api_route(
            "/ask",
            self.ask,
            methods=["POST"],
            summary="Ask a question",
            description="The answer as JSON, or as server-sent events (queries, passages, text, restart, done, error) "
            "where the header Accept names text/event-stream or stream is true.",
            responses=_responses(Answered, asking, EVENT_STREAM),
            openapi_extra=_takes(self._ask_shape, names),
        )
        router.add_api_route(
            "/retrieve",
            self.retrieve,
            methods=["POST"],
            summary="Find passages, without a reader",
            responses=_responses(Answered, asking),
            openapi_extra=_takes(self._retrieve_shape, names),
        )
        router.add_api_route(
            "/reload",
            self.reload,
            methods=["POST"],
            summary="Load the artifacts again",
            description="Requests under way end with the programs they began with.",
            responses=_responses(Reloaded, (400, 401, 403, 408, 409, 413, 429, 500)),
        )
        router.add_api_route(
            "/health",
            self.health,
            methods=["GET"],
            summary="How the server is",
            responses={**_responses(Health, (400, 403, 408, 413)), 503: {"model": Health, "description": "Stopping."}},
        )
        router.add_api_route(
            "/metrics",
            self.counted,
            methods=["GET"],
            summary="What was counted, for Prometheus",
            response_class=Response,
            responses={
                **_responses(None, (400, 401, 403, 408, 413, 429, 500)),
                200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Counters."},
            },
        )
        return router

    async def ask(self, request: Request) -> Response:
        """Answer a question."""
        asked = await self._asked(request, self._ask_shape)
        served, note = self._served(asked, request), note_of(request.scope)
        if asked.stream or EVENT_STREAM in request.headers.get("accept", ""):
            events = self._stream(served, asked, note)
            return EventStream(events, self.attention, log_questions=self.settings.log_questions)
        prediction = await self._predicted(request, asked, note, served.program.acall)
        return _json(self._told(served, asked, prediction, note))

    async def retrieve(self, request: Request) -> Response:
        """Find passages."""
        asked = await self._asked(request, self._retrieve_shape)
        served, note = self._served(asked, request, reads=False), note_of(request.scope)
        prediction = await self._predicted(request, asked, note, served.program.aretrieve)
        return _json(self._told(served, asked, prediction, note))

    async def _predicted(self, request: Request, asked: Any, note: Note, call: Callable[..., Awaitable[Any]]) -> Any:
        """What a program makes of a question in its turn, and what that cost, however it ends."""
        async with self.attention.paid(request.receive), self.turns.turn():
            with metered() as meter:
                try:
                    return await call(asked.question, asked.options, metadata={"request_id": note.id})
                finally:
                    self._count(note, meter.total)

    async def reload(self, request: Request) -> Response:
        """Load the artifacts again. Why that failed names folders and services, so only who runs the server is told."""
        try:
            return _json({"artifacts": await self.programs.reload()})
        except RequestError as error:
            if self.settings.token is not None or (request.client is not None and is_loopback(request.client.host)):
                raise
            raise RequestError(error.status, error.kind, NOT_RELOADED) from None

    async def health(self) -> Response:
        """How the server is."""
        ready = not self.attention.stopping
        artifacts = [
            {
                "name": one.name,
                "version": one.version,
                "technique": one.program.manifest.technique,
                "reader": one.program.manifest.reader,
                "loaded": one.loaded,
            }
            for one in self.programs
        ]
        told = {"live": True, "ready": ready, "token": self.settings.token is not None, "artifacts": artifacts}
        return _json(told, 200 if ready else 503)

    async def counted(self) -> Response:
        """What was counted."""
        return Response(self.metrics.text(), media_type=_METRICS_TYPE)

    async def _asked(self, request: Request, shape: type[Asked]) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "not_json", "send application/json")
        return read_asked(shape, await request.body())

    def _served(self, asked: Any, request: Request, *, reads: bool = True) -> Served:
        served = self.programs.named(asked.artifact)
        fields = note_of(request.scope).fields
        fields["artifact"], fields["version"] = served.name, served.version
        if self.settings.log_questions:
            fields["question"] = asked.question
        if not asked.options and served.needs_options and reads:
            raise RequestError(422, "invalid", "options: this artifact chooses between options; give two or more")
        return served

    async def _stream(self, served: Served, asked: Any, note: Note) -> Events:
        async with self.turns.turn():
            with metered() as meter:
                try:
                    stream: Any = served.program.astream(
                        asked.question, asked.options, metadata={"request_id": note.id}
                    )
                    async with contextlib.aclosing(stream) as events:
                        async for event in events:
                            yield self._event(served, asked, event, note)
                finally:
                    self._count(note, meter.total)

    def _event(self, served: Served, asked: Any, event: Any, note: Note) -> tuple[str, Any]:
        if event.kind == "prediction":
            return "done", self._told(served, asked, event.data, note)
        if event.kind == "queries":
            return "queries", {"queries": queries_out(event.data)}
        if event.kind == "passages":
            return "passages", {"passages": passages_out(event.data)}
        return event.kind, {} if event.data is None else {"text": event.data}

    def _told(self, served: Served, asked: Any, prediction: Any, note: Note) -> dict[str, Any]:
        seconds = time.perf_counter() - note.began
        told = answer_out(
            prediction, asked.options or (), artifact=served.name, version=served.version, seconds=seconds, id=note.id
        )
        self.metrics.outcome(told["fallbacks"], told["declined"])
        note.fields["fallbacks"] = told["fallbacks"]
        note.fields["declined"] = told["declined"]
        return told

    def _count(self, note: Note, cost: Any) -> None:
        note.fields["lm_calls"], note.fields["lm_saved"] = cost.calls, cost.saved
        self.metrics.asked(cost.calls, cost.saved)


def _json(data: Any, status: int = 200) -> Response:
    return Response(as_json(data), status, media_type="application/json")


def _responses(model: Any, statuses: tuple[int, ...], *others: str) -> dict[int | str, dict[str, Any]]:
    """Every status that an address may answer, for OpenAPI."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "description": STATUSES[status]} for status in statuses
    }
    if model is not None:
        found[200] = {"model": model, "description": "Done."}
        if others:
            found[200]["content"] = {kind: {"schema": _EVENT} for kind in others}
    return found


def _takes(shape: type[Asked], names: list[str]) -> dict[str, Any]:
    """The body of a request, for OpenAPI."""
    schema = shape.model_json_schema()
    described = schema["properties"]["artifact"]["description"]
    schema["properties"]["artifact"] = {"enum": [*names, None], "description": described}
    schema["properties"]["options"]["uniqueItems"] = True
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
