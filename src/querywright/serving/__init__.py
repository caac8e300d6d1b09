"""Serving an artifact over HTTP: an API and a page.

``serve(settings)`` runs a server; ``make_app(program, settings)`` gives its application to one that runs already.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from querywright.serving.app import make_app
    from querywright.serving.server import serve

__all__ = ["ServeSettings", "make_app", "serve"]

_HOMES = {"make_app": "querywright.serving.app", "serve": "querywright.serving.server"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
