"""The web application over loaded programs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from querywright.errors import InputError

try:
    from fastapi import FastAPI
    from fastapi.openapi.utils import get_openapi
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
except ImportError as error:
    raise InputError("serving needs the extra serve: pip install 'querywright[serve]'") from error

from querywright import __version__
from querywright.serving.failures import RequestError
from querywright.serving.metrics import ServerMetrics
from querywright.serving.middleware import Front
from querywright.serving.page import PATHS, page_router
from querywright.serving.programs import Load, Programs, loader
from querywright.serving.routes import ROUTES, Service
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from querywright.optimize.artifacts.loaded import LoadedProgram

OPEN = PATHS | {"/health"}
"""Addresses that need no token."""

_KINDS = {404: ("address", "there is no such address"), 405: ("method", "the address has no such method")}
_THREADS_BESIDES = 8


def make_app(
    programs: Mapping[str, LoadedProgram], settings: ServeSettings | None = None, *, load: Load | None = None
) -> FastAPI:
    """The application that serves programs; any ASGI server can run it.

    Each application has its own limits and counters, so it is run in one process. Nothing is loaded here.

    Args:
        programs: By the names under which they are asked; the first one answers where none is named.
        settings: Limits, token and the rest. Default ``ServeSettings()``.
        load: Loads a program again for a reload: called in a thread with its name and the program before. Default:
            the artifacts of the settings.

    Raises:
        InputError: There is no program.
    """
    settings = settings or ServeSettings()
    if not programs:
        raise InputError("there is nothing to serve; give at least one program")
    metrics = ServerMetrics((*ROUTES, *PATHS))
    if load is None and set(programs) <= set(settings.names()):
        load = loader(settings)
    service = Service(
        Programs(programs, load, metrics, log_questions=settings.log_questions), settings, metrics
    )  # fmt: skip

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # A loop's own threads are few, and searches of all questions under way are made in them.
        threads = ThreadPoolExecutor(settings.concurrency + _THREADS_BESIDES, thread_name_prefix="querywright-serve")
        asyncio.get_running_loop().set_default_executor(threads)
        yield
        service.attention.stopping = True

    app = FastAPI(
        title="querywright", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        lifespan=lifespan,
    )  # fmt: skip
    app.state.service = service
    app.include_router(service.router())
    app.include_router(page_router())
    app.add_exception_handler(HTTPException, _no_route)
    app.add_middleware(Front, settings=settings, metrics=metrics, open_paths=OPEN)
    app.openapi = lambda: _described(app, settings)  # type: ignore[method-assign]
    return app


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind, text = _KINDS.get(error.status_code, ("request", "the request cannot be answered"))
    raise RequestError(error.status_code, kind, text, headers=error.headers)


def _described(app: FastAPI, settings: ServeSettings) -> dict[str, Any]:
    """The OpenAPI document: only what the server really answers, and the token where one is needed."""
    if app.openapi_schema:
        return app.openapi_schema
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    if settings.token is not None:
        found.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in found["paths"].items():
            for one in methods.values():
                one["security"] = [] if path in OPEN else [{"token": []}]
    app.openapi_schema = found
    return found
