"""The web application over a loaded program: the API, and a page where a person asks."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.errors import InputError

try:
    from fastapi import Depends, FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.security import HTTPBearer
    from starlette.exceptions import HTTPException
    from starlette.responses import FileResponse, Response
except ImportError as error:
    raise InputError("serving needs the extra serve: pip install 'querywright[serve]'") from error

from querywright import __version__
from querywright.models.usage import metered
from querywright.serving.failures import STATUSES, RequestError, as_json
from querywright.serving.metrics import ServerMetrics
from querywright.serving.middleware import Front, Note, note_of
from querywright.serving.settings import ServeSettings
from querywright.serving.shapes import (
    AnswerOut,
    Examples,
    Health,
    Problem,
    answer_out,
    passages_out,
    request_shapes,
)
from querywright.serving.work import Work

if TYPE_CHECKING:
    from querywright.optimize.artifacts.loaded import LoadedProgram

ROUTES = ("/ask", "/retrieve", "/examples", "/health", "/metrics", "/openapi.json")
PAGES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css", "/docs": "docs.html", "/docs.js": "docs.js"}
OPEN = frozenset(PAGES) | {"/health"}
"""Addresses that need no token."""

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
_STATIC = Path(__file__).parent / "static"
_THREADS_BESIDES = 8
_SHOWN_PROBLEMS = 5
_MOST_EXAMPLES = 20


class Service:
    """What the addresses share: the program, its name, and the work under way."""

    def __init__(self, program: "LoadedProgram", name: str, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.program, self.name, self.settings, self.metrics = program, name, settings, metrics
        self.work = Work(settings.concurrency, settings.waiting, settings.deadline)

    def check(self, asked: Any, request: Request, *, reads: bool = True) -> None:
        """Note what is asked, and raise ``RequestError`` if the program needs options and none are given."""
        fields = note_of(request.scope).fields
        fields["artifact"], fields["version"] = self.name, self.program.id
        if self.settings.log_questions:
            fields["question"] = asked.question
        if reads and not asked.options and self.program.manifest.reader == "multiple_choice":
            raise RequestError(422, "invalid", "options: this artifact chooses between options; give two or more")

    async def predicted(self, request: Request, asked: Any, call: Callable[..., Awaitable[Any]]) -> Any:
        """What a program makes of a question in its turn, and what that cost, however it ends."""

        async def work() -> Any:
            async with self.work.turn(), self._counted(note_of(request.scope)):
                return await call(asked.question, asked.options, history=asked.history)

        return await self.work.attended(request.receive, work())

    async def events(self, asked: Any, note: Note) -> AsyncGenerator[tuple[str, Any], None]:
        """What becomes of a question, as names and data."""
        async with self.work.turn(), self._counted(note):
            stream: Any = self.program.astream(asked.question, asked.options, history=asked.history)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    if event.kind == "prediction":
                        yield "done", self.told(asked, event.data, note)
                    elif event.kind == "passages":
                        yield "passages", {"passages": passages_out(event.data)}
                    else:
                        name = "queries" if event.kind == "queries" else "text"
                        yield event.kind, {} if event.data is None else {name: event.data}

    def told(self, asked: Any, prediction: Any, note: Note) -> dict[str, Any]:
        """The answer as it is sent, counted."""
        seconds = round(time.perf_counter() - note.began, 4)
        told = answer_out(
            prediction, asked.options or (), trace=asked.trace, artifact=self.name, version=self.program.id,
            seconds=seconds, id=note.id,
        )  # fmt: skip
        self.metrics.outcome(told["fallbacks"], told["declined"])
        note.fields |= {"fallbacks": told["fallbacks"], "declined": told["declined"]}
        return told

    @contextlib.asynccontextmanager
    async def _counted(self, note: Note) -> AsyncIterator[None]:
        """Count the LM calls of a request."""
        with metered() as meter:
            try:
                yield
            finally:
                cost = meter.total
                note.fields |= {"lm_calls": cost.calls, "lm_saved": cost.saved}
                self.metrics.asked(cost.calls, cost.saved)


def make_app(program: "LoadedProgram", settings: ServeSettings | None = None, *, name: str = "program") -> FastAPI:
    """Return the application that serves a program; any ASGI server can run it.

    Each application has its own limits and counters, so run it in one process.

    Args:
        program: What is served.
        settings: Limits, token and the rest. Default ``ServeSettings()``.
        name: What answers and logs call it. Default "program".
    """
    settings = settings or ServeSettings()
    metrics = ServerMetrics((*ROUTES, *PAGES))
    service = Service(program, name, settings, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A loop's own threads are few, and searches of all questions under way are made in them.
        loop, many = asyncio.get_running_loop(), settings.concurrency + _THREADS_BESIDES
        loop.set_default_executor(ThreadPoolExecutor(many, thread_name_prefix="querywright-serve"))
        try:
            yield
        finally:  # the loop does not wait for a thread that hangs in a search which nobody waits for
            loop.set_default_executor(ThreadPoolExecutor(1))

    problems: dict[int | str, Any] = {one: {"model": Problem, "description": said} for one, said in STATUSES.items()}
    app = FastAPI(
        title="querywright", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=lifespan, responses=problems,
    )  # fmt: skip
    app.state.service = service
    for path, file in PAGES.items():
        app.add_route(path, _sender(_STATIC / file))
    _add_routes(app, service)
    app.add_exception_handler(HTTPException, _raised)  # the front answers whatever goes wrong
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Front, settings=settings, metrics=metrics, open_paths=OPEN)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    Asked, AskedToStream = request_shapes(service.settings)  # noqa: N806
    bearer = HTTPBearer(scheme_name="token", auto_error=False)  # for the document: the front looks at it
    closed = [] if service.settings.token is None else [Depends(bearer)]
    streamed: dict[int | str, Any] = {200: {"content": {EVENT_STREAM: {"schema": _EVENT}}, "description": "Done."}}

    @app.post("/ask", summary="Ask a question", response_model=AnswerOut, responses=streamed, dependencies=closed)
    async def ask(request: Request, asked: AskedToStream) -> Response:  # type: ignore[valid-type]
        """The answer as JSON, or as server-sent events (queries, passages, text, restart, done, error).

        Events are sent where the header Accept names text/event-stream or stream is true.
        """
        service.check(asked, request)
        note = note_of(request.scope)
        if asked.stream or EVENT_STREAM in request.headers.get("accept", ""):  # type: ignore[attr-defined]
            failed = partial(note.failed, questions=service.settings.log_questions)
            return await service.work.streamed(request.receive, service.events(asked, note), failed)
        prediction = await service.predicted(request, asked, service.program.acall)
        return _json(service.told(asked, prediction, note))

    @app.post("/retrieve", summary="Find passages, without a reader", response_model=AnswerOut, dependencies=closed)
    async def retrieve(request: Request, asked: Asked) -> Response:  # type: ignore[valid-type]
        service.check(asked, request, reads=False)
        prediction = await service.predicted(request, asked, service.program.aretrieve)
        return _json(service.told(asked, prediction, note_of(request.scope)))

    @app.get("/examples", summary="Questions to begin with", response_model=Examples, dependencies=closed)
    async def examples(request: Request) -> Response:
        """Golden questions of the artifact, up to 20."""
        return _json({"examples": [one.model_dump() for one in service.program.golden[:_MOST_EXAMPLES]]})

    @app.get("/health", summary="How the server is", response_model=Health)
    async def health() -> Response:
        """A server that stops, or is not ready yet, does not answer at all."""
        program = service.program
        facts = {"technique": program.manifest.technique, "reader": program.manifest.reader}
        artifact = {"name": service.name, "version": program.id, **facts}
        return _json({"live": True, "ready": True, "token": service.settings.token is not None, "artifact": artifact})

    text: dict[int | str, Any] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Counters."}
    }

    @app.get("/metrics", summary="For Prometheus", response_class=Response, responses=text, dependencies=closed)
    async def counted() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _json(data: Any) -> Response:
    return Response(as_json(data), media_type="application/json")


def _sender(file: Path) -> Callable[[Request], Response]:
    return lambda request: FileResponse(file)


async def _raised(request: Request, error: Exception) -> Response:
    raise error


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "not_json", "send application/json")
    found = error.errors()
    if any(one["type"] == "json_invalid" for one in found):
        raise RequestError(400, "not_json", "the body is not JSON")
    told = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in found[:_SHOWN_PROBLEMS]]
    raise RequestError(422, "invalid", "; ".join(told))
