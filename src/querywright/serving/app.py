"""The web application for a loaded program: an API, and a page for asking questions."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from querywright import __version__
from querywright.models.usage import metered
from querywright.retrieval.checks import rebuilt
from querywright.serving.middleware import PAGES, STATUSES, Front, Note, RequestError, ServerMetrics, as_event, as_json
from querywright.serving.settings import ServeSettings
from querywright.serving.shapes import AnswerOut, AskRequest, Health, Problem, has_declined

if TYPE_CHECKING:
    from querywright.optimize.artifacts.loaded import LoadedProgram

EVENT_STREAM = "text/event-stream"
_STATIC = Path(__file__).parent / "static"
STEP = ("kind", "name", "stage", "given", "made", "scores")
_EXTRA_THREADS = 8
_SHOWN_PROBLEMS = 5


class Service:
    """The program, limits, and counters that the routes share."""

    def __init__(self, program: "LoadedProgram", name: str, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.program, self.name, self.settings, self.metrics = program, name, settings, metrics
        self._turns = asyncio.Semaphore(settings.concurrency)
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def turn(self, note: Note) -> AsyncIterator[None]:
        """Wait for a turn, keep it until the ``async with`` block ends, and count the LM calls made in the block."""
        if self._turns.locked() and self.waiting >= self.settings.waiting:
            raise RequestError(
                503, "busy", "the server is answering too many questions; try again later", retry_after=1
            )
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        with metered() as meter:
            try:
                yield
            finally:
                self._turns.release()
                cost = meter.total
                note.fields |= {"lm_calls": cost.calls, "lm_saved": cost.saved}
                self.metrics.lm_calls.labels("made").inc(cost.calls)
                self.metrics.lm_calls.labels("saved").inc(cost.saved)

    async def events(self, asked: AskRequest, note: Note) -> AsyncGenerator[tuple[str, Any], None]:
        """Answer a question, and yield each event's name and data."""
        async with self.turn(note):
            stream: Any = self.program.astream(asked.question, asked.options, history=asked.history)
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    if event.kind == "prediction":
                        yield "done", self.answer(asked, event.data, note)
                    elif event.kind == "passages":
                        yield "passages", {"passages": list(event.data)}
                    else:
                        name = "queries" if event.kind == "queries" else "text"
                        yield event.kind, {} if event.data is None else {name: event.data}

    def answer(self, asked: AskRequest, prediction: Any, note: Note) -> dict[str, Any]:
        """Return the answer as JSON, and count its outcome. LM names are omitted because they may contain addresses."""
        answer = prediction.answer
        outcome: dict[str, Any] = {
            "fallbacks": list(prediction.fallbacks), "declined": has_declined(answer, asked.options or ()),
        }  # fmt: skip
        for step in prediction.fallbacks:
            self.metrics.fallbacks.labels(step).inc()
        self.metrics.declined.inc(outcome["declined"])
        note.fields |= outcome
        return {
            "answer": answer,
            "support": prediction.get("support"),
            "passages": list(prediction.passages),
            "queries": [{"role": one.role, "text": one.text} for one in prediction.queries],
            "trace": [{name: getattr(one, name) for name in STEP} for one in prediction.steps] if asked.trace else None,
            "artifact": self.name,
            "version": self.program.id,
            "seconds": round(time.perf_counter() - note.began, 4),
            "id": note.id,
            **outcome,
        }


class EventStream(StreamingResponse):
    """Sends events from the task that produces them, so that a failure before the first event gets its own status."""

    def __init__(self, events: AsyncGenerator[tuple[str, Any], None]) -> None:
        super().__init__((), media_type=EVENT_STREAM, headers={"X-Accel-Buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the status code with the first event."""
        begun = False
        async with contextlib.aclosing(self._events) as events:
            async for name, data in events:
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    begun = True
                await send({"type": "http.response.body", "body": as_event(name, data), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def make_app(program: "LoadedProgram", settings: ServeSettings | None = None, *, name: str = "program") -> FastAPI:
    """Return the ASGI application that serves a program.

    Any ASGI server can run it. Each process would have separate limits and counters, so run it in only one.

    Args:
        program: The program.
        settings: Limits, token, and other settings. Default ``ServeSettings()``.
        name: Name of the artifact in answers and logs. Default "program".
    """
    settings = settings or ServeSettings()
    metrics = ServerMetrics()
    service = Service(program, name, settings, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # An event loop has few threads by default, but the searches for all running questions must run in them.
        loop, many = asyncio.get_running_loop(), settings.concurrency + _EXTRA_THREADS
        loop.set_default_executor(ThreadPoolExecutor(many, thread_name_prefix="querywright-serve"))
        try:
            yield
        finally:  # so that the loop does not wait for a thread stuck in an abandoned search
            loop.set_default_executor(ThreadPoolExecutor(1))

    problems: dict[int | str, Any] = {one: {"model": Problem} for one in STATUSES}
    app = FastAPI(
        title="querywright", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=lifespan, responses=problems,
    )  # fmt: skip
    app.state.service = service
    for path, file in PAGES.items():
        app.add_route(path, partial(_page, _STATIC / file))
    _add_routes(app, service)
    app.add_exception_handler(HTTPException, _raise)  # ``Front`` answers all failures
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Front, settings=settings, metrics=metrics)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    program, settings = service.program, service.settings
    bearer = HTTPBearer(scheme_name="token", auto_error=False)  # only for the API docs: ``Front`` checks the token
    closed = [] if settings.token is None else [Depends(bearer)]
    streamed: dict[int | str, Any] = {200: {"content": {EVENT_STREAM: {}}}}

    @app.post("/ask", summary="Ask a question", response_model=AnswerOut, responses=streamed, dependencies=closed)
    async def ask(request: Request, asked: AskRequest) -> Response:
        """The answer as JSON, or as server-sent events if stream is true.

        The events and their data are: queries {queries}, passages {passages}, text {text}, restart {}, done (the whole
        answer), and error {error}.
        """
        note: Note = request.state.note
        note.fields |= {"artifact": service.name, "version": program.id}
        if not asked.options and program.manifest.reader == "multiple_choice":
            raise RequestError(
                422, "invalid", "options: the reader in this artifact chooses between options; send at least two"
            )
        if asked.stream:
            return EventStream(service.events(asked, note))
        async with service.turn(note):
            prediction = await program.acall(asked.question, asked.options, history=asked.history)
        return _json(service.answer(asked, prediction, note))

    @app.get("/health", summary="Show the server's state", response_model=Health)
    async def health() -> Response:
        """A server that is stopping, or is not ready yet, does not respond at all."""
        facts = {"technique": program.manifest.technique, "reader": program.manifest.reader}
        token = settings.token is not None
        is_rebuilt = bool(rebuilt([program.program.technique.retriever]))
        return _json({"artifact": service.name, "version": program.id, **facts, "token": token, "rebuilt": is_rebuilt})

    @app.get("/metrics", summary="Show metrics for Prometheus", response_class=PlainTextResponse, dependencies=closed)
    async def metrics() -> Response:
        return PlainTextResponse(generate_latest(service.metrics.registry))


def _json(data: Any) -> Response:
    return Response(as_json(data), media_type="application/json")


async def _page(file: Path, request: Request) -> Response:
    return FileResponse(file)


async def _raise(request: Request, error: Exception) -> Response:
    raise error


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "not_json", "the request must have Content-Type: application/json")
    problems = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()]
    raise RequestError(422, "invalid", "; ".join(problems[:_SHOWN_PROBLEMS]))
