"""The page where a person asks, and the page of the API: files of this package, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
PATHS = frozenset(_FILES)
"""Addresses of the pages' own files."""


def page_router() -> APIRouter:
    """The pages."""
    router = APIRouter(include_in_schema=False)
    for path, (name, kind) in _FILES.items():
        router.add_api_route(path, _sender(name, kind), methods=["GET"], name=name)
    return router


def _sender(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    data = (files("querywright.serving") / "static" / name).read_bytes()

    async def send() -> Response:
        return Response(data, headers={"Content-Type": kind})

    return send
