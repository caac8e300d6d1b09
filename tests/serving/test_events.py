"""Streams without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from querywright.serving import events
from querywright.serving.cancellation import Attention
from querywright.serving.failures import ClientGoneError


def test_the_work_for_a_client_that_takes_nothing_ends_before_its_answer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLOWEST_SECONDS", 0.05)
    ended = []

    async def endless() -> AsyncGenerator[tuple[str, Any], None]:
        try:
            while True:
                yield "text", {"text": "x"}
                await asyncio.sleep(0)
        finally:
            ended.append(True)

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never()

    async def work() -> list[bool]:
        stream = events.EventStream(endless(), Attention(30))
        try:
            await stream({"type": "http"}, never, send)
        except ClientGoneError:
            return list(ended)
        return []

    assert asyncio.run(work()) == [True]
