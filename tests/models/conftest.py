from __future__ import annotations

import pytest

from querywright.models.circuit_breaker import Limits
from querywright.models.lm import engine_of, resolve_lm


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request, tmp_path):
    """Where a store is: a file, or a database of a PostgreSQL server."""
    if request.param == "file":
        return str(tmp_path / "store.sqlite")
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def remote(chat_server):
    """An LM whose server answers from a script, and that server; nothing is waited between attempts."""
    opened = []

    def make(*steps, **options):
        server = chat_server(*steps)
        limits = Limits(**{"backoff": 0, "max_wait": 0, **options.pop("limits", {})})
        given = {"api_base": server.url, "api_key": "sk-canary-0123456789abcdef", "timeout": 5.0, "limits": limits}
        lm = resolve_lm("openai/x", **{**given, **options})
        opened.append(engine_of(lm))
        return lm, server

    yield make
    for engine in opened:
        engine.close()
